//! Certificates for tests of TLS, made anew for each.

use std::path::Path;

use esker_server::front::TlsFiles;

/// An authority, and certificates of a server and a client signed by it, under the names that libnbd and QEMU look for.
pub fn make(folder: &Path) -> TlsFiles {
    use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose};
    let mut authority = CertificateParams::new(Vec::new()).expect("certificates can be made");
    authority.distinguished_name.push(rcgen::DnType::CommonName, "authority of a test");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let authority_key = KeyPair::generate().expect("certificates can be made");
    let authority_certificate = authority.self_signed(&authority_key).expect("certificates can be made");
    let write = |name: &str, text: String| std::fs::write(folder.join(name), text).expect("certificates can be made");
    write("ca-cert.pem", authority_certificate.pem());
    let issuer = rcgen::Issuer::new(authority, authority_key);
    for (name, purpose) in
        [("server", ExtendedKeyUsagePurpose::ServerAuth), ("client", ExtendedKeyUsagePurpose::ClientAuth)]
    {
        let mut params = CertificateParams::new(vec!["localhost".to_string()]).expect("certificates can be made");
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.extended_key_usages = vec![purpose];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().expect("certificates can be made");
        write(&format!("{name}-cert.pem"), params.signed_by(&key, &issuer).expect("certificates can be made").pem());
        write(&format!("{name}-key.pem"), key.serialize_pem());
    }
    TlsFiles {
        certificate: folder.join("server-cert.pem"),
        key: folder.join("server-key.pem"),
        client_authorities: Some(folder.join("ca-cert.pem")),
    }
}
