//! TLS: certificate and key from PEM files, by rustls with ring, taken anew while the server runs.
//!
//! files → [`Certificates::open`] → [`Certificates::current`] for each connection that comes; [`Certificates::prepare`]
//! → those that come later
//!
//! Invariants:
//! 1. A reload that fails changes nothing: what was there before is still used.
//! 2. Connections keep what they were made from until they end.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

/// PEM files for TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate chain, the server's own first.
    pub certificate: PathBuf,
    /// Private key: PKCS#8, PKCS#1 or SEC1.
    pub key: PathBuf,
    /// Authorities of client certificates; if given, clients must show one.
    pub client_authorities: Option<PathBuf>,
}

/// A TLS file that cannot be used. Fix it.
#[derive(Debug, thiserror::Error)]
#[error("TLS file {path}: {why}")]
pub struct TlsError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub why: String,
}

/// What the TLS connections of a server are made from.
pub(crate) struct Certificates {
    files: TlsFiles,
    protocols: &'static [&'static [u8]],
    config: ArcSwap<ServerConfig>,
}

impl Certificates {
    /// Reads the files. `protocols` are those that ALPN offers; none: ALPN is not used.
    pub(crate) fn open(files: &TlsFiles, protocols: &'static [&'static [u8]]) -> Result<Self, TlsError> {
        let config = ArcSwap::from(server_config(files, protocols)?);
        Ok(Self { files: files.clone(), protocols, config })
    }

    /// What a connection that comes now is made from.
    pub(crate) fn current(&self) -> Arc<ServerConfig> {
        self.config.load_full()
    }

    /// Reads the files again; what is returned puts them into force.
    pub(crate) fn prepare(self: &Arc<Self>) -> Result<Box<dyn FnOnce() + Send>, TlsError> {
        let (own, config) = (Arc::clone(self), server_config(&self.files, self.protocols)?);
        Ok(Box::new(move || own.config.store(config)))
    }
}

/// What every TLS connection is made from.
fn server_config(files: &TlsFiles, protocols: &[&[u8]]) -> Result<Arc<ServerConfig>, TlsError> {
    let bad = |path: &Path, why: String| TlsError { path: path.to_owned(), why };
    let certificates = |path: &Path| -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let found = CertificateDer::pem_file_iter(path).map_err(|error| bad(path, error.to_string()))?;
        let found = found.collect::<std::result::Result<Vec<_>, _>>().map_err(|error| bad(path, error.to_string()))?;
        if found.is_empty() { Err(bad(path, "it holds no certificate".into())) } else { Ok(found) }
    };
    let chain = certificates(&files.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| bad(&files.key, error.to_string()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| bad(&files.certificate, error.to_string()))?;
    let builder = match &files.client_authorities {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for authority in certificates(path)? {
                roots.add(authority).map_err(|error| bad(path, error.to_string()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().map_err(|error| bad(path, error.to_string()))?)
        }
    };
    let mut config =
        builder.with_single_cert(chain, key).map_err(|error| bad(&files.certificate, error.to_string()))?;
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(Arc::new(config))
}
