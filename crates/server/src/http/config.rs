//! Configuration of the HTTP server, and what cannot be served.

use std::net::SocketAddr;

use crate::front::{Passed, TlsFiles, listen};

/// What the HTTP server listens on.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Config {
    /// Plain TCP addresses, of loopback alone: figures tell much, and a token in the clear is no secret. Port 0 picks a
    /// free one. Default: none.
    pub listen: Vec<SocketAddr>,
    /// TCP addresses that speak TLS; needs `tls`. Other than loopback only with a token or client certificates.
    /// Default: none.
    pub tls_listen: Vec<SocketAddr>,
    /// Sockets that another process has bound, as `listen`. Default: none.
    pub passed: Vec<Passed>,
    /// The same, as `tls_listen`; TCP alone. Default: none.
    pub tls_passed: Vec<Passed>,
    /// Certificate and key for `tls_listen`; with authorities clients must show a certificate. Default: none.
    pub tls: Option<TlsFiles>,
    /// What clients send as `authorization: Bearer TOKEN` to be told the figures, and why the server is not ready.
    /// Default: none is asked for.
    pub token: Option<String>,
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A secret: the token is not shown.
        let (listen, tls_listen) = (&self.listen, &self.tls_listen);
        f.debug_struct("Config").field("listen", listen).field("tls_listen", tls_listen).finish_non_exhaustive()
    }
}

/// Why nothing can be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A configuration that cannot be served. Fix it.
    #[error("invalid HTTP configuration: {0}")]
    Config(String),
    /// Every client that reaches the address would be told the figures, or hear the token. Use TLS with a token or
    /// client certificates, or listen on loopback.
    #[error(
        "refusing to serve HTTP on {0} openly: serve it by TLS (https_listen, tls_cert, tls_key) and require client \
         certificates (tls_client_ca) or a token (http_token_file), or listen on a loopback address"
    )]
    Open(SocketAddr),
    /// The address cannot be listened on. Choose another, or stop the program that has it.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: String,
        /// The operating system's cause.
        #[source]
        source: std::io::Error,
    },
    /// The TLS files cannot be used. Fix them.
    #[error("{0}")]
    Tls(String),
    /// The system gives no thread or poll. Stop.
    #[error("serving HTTP: {0}")]
    Io(#[from] std::io::Error),
}

impl Config {
    /// On how many addresses it listens.
    pub fn doors(&self) -> usize {
        self.listen.len() + self.tls_listen.len() + self.passed.len() + self.tls_passed.len()
    }

    /// Checks what can be checked without opening anything.
    ///
    /// # Errors
    /// [`Error::Config`] names the key; [`Error::Open`].
    pub fn check(&self) -> Result<(), Error> {
        let encrypted = !self.tls_listen.is_empty() || !self.tls_passed.is_empty();
        if encrypted && self.tls.is_none() {
            return Err(Error::Config("https_listen needs a certificate and key (tls_cert, tls_key)".into()));
        }
        if let Some(socket) = self.tls_passed.iter().find(|socket| socket.address().is_none()) {
            return Err(Error::Config(format!("TLS is not served on the unix socket {}", socket.place())));
        }
        if let Some(token) = &self.token
            && (token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()))
        {
            return Err(Error::Config("the token is empty, or holds something else than visible ASCII".into()));
        }
        let others = |address: &SocketAddr| !address.ip().is_loopback();
        if let Some(address) = listen::reached(&self.listen, &self.passed).find(others) {
            return Err(Error::Open(address));
        }
        let asked = self.tls.as_ref().is_some_and(|files| files.client_authorities.is_some());
        match listen::reached(&self.tls_listen, &self.tls_passed).find(others) {
            Some(address) if !asked && self.token.is_none() => Err(Error::Open(address)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_machines_are_served_only_encrypted_and_known() {
        let files = |ca: bool| TlsFiles {
            certificate: "c".into(),
            key: "k".into(),
            client_authorities: ca.then(|| "ca".into()),
        };
        let everywhere = SocketAddr::from(([0, 0, 0, 0], 9_000));
        let plain = Config { listen: vec![everywhere], ..Config::default() };
        assert!(matches!(plain.check(), Err(Error::Open(_))));
        let token = Config { token: Some("secret".into()), ..plain };
        assert!(matches!(token.check(), Err(Error::Open(_))), "a token in the clear is no secret");
        let without = Config { tls_listen: vec![everywhere], ..Config::default() };
        assert!(without.check().unwrap_err().to_string().contains("https_listen"));
        let encrypted = Config { tls: Some(files(false)), ..without };
        assert!(matches!(encrypted.check(), Err(Error::Open(_))));
        assert!(Config { token: Some("secret".into()), ..encrypted.clone() }.check().is_ok());
        assert!(Config { token: Some("a b".into()), ..encrypted.clone() }.check().is_err());
        assert!(Config { tls: Some(files(true)), ..encrypted }.check().is_ok());
    }
}
