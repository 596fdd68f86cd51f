//! TLS: certificate and key from PEM files, by rustls with ring.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

use crate::resp::config::{Error, Result, TlsFiles};

/// What every TLS connection is made from.
pub(crate) fn server_config(files: &TlsFiles) -> Result<Arc<ServerConfig>> {
    let bad = |path: &Path, why: String| Error::Tls { path: path.to_owned(), why };
    let certificates = |path: &Path| -> Result<Vec<CertificateDer<'static>>> {
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
    let config = builder.with_single_cert(chain, key).map_err(|error| bad(&files.certificate, error.to_string()))?;
    Ok(Arc::new(config))
}
