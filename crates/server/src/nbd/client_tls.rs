//! TLS of the client: the server is checked by its certificate, and shown one where there is one.
//!
//! `nbds://…?tls-certificates=FOLDER` → [`Tls`] → STARTTLS → [`Tls::encrypt`] → the negotiation goes on
//!
//! The folder's files have the names that libnbd and QEMU give them, so that one URI serves all tools.
//!
//! Invariant: nothing is sent to a server whose certificate does not name the host that was asked for.

use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// Names of files in the folder: authorities, the client's certificate, its key.
const AUTHORITIES: &str = "ca-cert.pem";
const CERTIFICATE: &str = "client-cert.pem";
const KEY: &str = "client-key.pem";
/// Where libnbd looks for them where a URI names no folder.
const HOME_FOLDERS: [&str; 2] = [".pki/libnbd", ".config/pki/libnbd"];
const SYSTEM_FOLDER: &str = "/etc/pki/libnbd";

/// How a connection is encrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The host that the server's certificate has to name.
    pub host: String,
    /// A folder with the authority of the server (`ca-cert.pem`) and, where clients have to show one, a certificate
    /// (`client-cert.pem`, `client-key.pem`); `None`: the folder that libnbd takes then, in the home or the system,
    /// else the authorities of this machine, and no certificate.
    pub certificates: Option<PathBuf>,
}

impl Tls {
    /// Speaks TLS over a stream, the handshake done.
    ///
    /// # Errors
    /// Names a file that cannot be used; what the handshake failed for.
    pub fn encrypt<S: Read + Write>(&self, stream: S) -> io::Result<StreamOwned<ClientConnection, S>> {
        let host = self.host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host).map_err(|error| named(&self.host, error))?;
        let connection = ClientConnection::new(Arc::new(self.config()?), name).map_err(io::Error::other)?;
        let mut encrypted = StreamOwned::new(connection, stream);
        while encrypted.conn.is_handshaking() {
            if encrypted.conn.complete_io(&mut encrypted.sock)? == (0, 0) {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(encrypted)
    }

    fn folder(&self) -> Option<PathBuf> {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let usual = home.iter().flat_map(|home| HOME_FOLDERS.map(|folder| home.join(folder)));
        let usual = usual.chain([PathBuf::from(SYSTEM_FOLDER)]).find(|folder| folder.join(AUTHORITIES).exists());
        self.certificates.clone().or(usual)
    }

    fn config(&self) -> io::Result<ClientConfig> {
        let mut roots = RootCertStore::empty();
        let own = match &self.folder() {
            None => {
                let found = rustls_native_certs::load_native_certs();
                let (added, _) = roots.add_parsable_certificates(found.certs);
                if added == 0 {
                    let why = "this machine has no authorities; name a folder by tls-certificates=";
                    return Err(io::Error::new(ErrorKind::NotFound, why));
                }
                None
            }
            Some(folder) => {
                for authority in certificates(&folder.join(AUTHORITIES))? {
                    roots.add(authority).map_err(|error| named(AUTHORITIES, error))?;
                }
                let (certificate, key) = (folder.join(CERTIFICATE), folder.join(KEY));
                if certificate.exists() {
                    let key = PrivateKeyDer::from_pem_file(&key).map_err(|error| named(key.display(), error))?;
                    Some((certificates(&certificate)?, key))
                } else {
                    None
                }
            }
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(roots);
        match own {
            None => Ok(builder.with_no_client_auth()),
            Some((chain, key)) => builder.with_client_auth_cert(chain, key).map_err(|error| named(CERTIFICATE, error)),
        }
    }
}

fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let bad = |error| named(path.display(), error);
    CertificateDer::pem_file_iter(path).map_err(bad)?.collect::<Result<Vec<_>, _>>().map_err(bad)
}

fn named(what: impl std::fmt::Display, error: impl std::fmt::Display) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, format!("TLS: {what}: {error}"))
}
