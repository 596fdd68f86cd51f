//! The names in a client's certificate.

use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The alternative names for hosts, addresses of mail and URIs, and the common name, in this order; of one that cannot
/// be read, none.
pub(crate) fn names_in(certificate: &[u8]) -> Vec<String> {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return Vec::new() };
    let mut names = Vec::new();
    if let Ok(Some(alternatives)) = certificate.subject_alternative_name() {
        names.extend(alternatives.value.general_names.iter().filter_map(|name| match name {
            GeneralName::DNSName(name) | GeneralName::RFC822Name(name) | GeneralName::URI(name) => {
                Some((*name).to_owned())
            }
            _ => None,
        }));
    }
    names.extend(certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok()).map(str::to_owned));
    names
}
