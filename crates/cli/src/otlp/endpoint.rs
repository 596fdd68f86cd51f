//! Where a collector is: its address, its certificate's authorities, and the credentials that it is shown.
//!
//! URL, OTEL_EXPORTER_OTLP_HEADERS, OTEL_EXPORTER_OTLP_CERTIFICATE → [`Endpoint`] → a channel, made when it is used
//!
//! Invariant: credentials go by TLS, or to loopback.
//! Source: OpenTelemetry specification, "OpenTelemetry Protocol Exporter".

use std::net::IpAddr;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use tonic::metadata::{Ascii, MetadataKey, MetadataMap, MetadataValue};
use tonic::transport::{Certificate, ClientTlsConfig, Uri};

use crate::exit::Failure;

/// The variable that gives headers: `NAME=VALUE,NAME=VALUE`, values percent-encoded.
pub const HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";
/// The variable that names a file of authorities (PEM) that count instead of the system's.
pub const CERTIFICATE: &str = "OTEL_EXPORTER_OTLP_CERTIFICATE";

/// A connection is given so long to come about.
const CONNECT: Duration = Duration::from_secs(5);
/// A call is given so long.
pub const CALL: Duration = Duration::from_secs(10);

/// A collector.
pub struct Endpoint {
    /// Makes the connection.
    pub transport: tonic::transport::Endpoint,
    /// Goes with each call.
    pub metadata: MetadataMap,
}

impl Endpoint {
    /// The collector at a URL, with what the environment says of it.
    ///
    /// # Errors
    /// [`Failure::usage`] with what is wrong.
    pub fn from_environment(url: &str) -> Result<Self, Failure> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let authorities = match variable(CERTIFICATE) {
            None => None,
            Some(file) => {
                let read = std::fs::read(&file);
                Some(read.map_err(|error| Failure::usage(format!("{CERTIFICATE} {file}: {error}")))?)
            }
        };
        Self::new(url, variable(HEADERS).as_deref(), authorities)
    }

    fn new(url: &str, headers: Option<&str>, authorities: Option<Vec<u8>>) -> Result<Self, Failure> {
        let refused = |why: &str| Failure::usage(format!("otlp endpoint {url:?}: {why}"));
        let shape = "expected http://HOST:PORT or https://HOST:PORT, such as http://127.0.0.1:4317";
        let uri: Uri = url.parse().map_err(|_| refused(shape))?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else { return Err(refused(shape)) };
        if authority.as_str().contains('@') {
            return Err(Failure::usage(format!("otlp endpoint: no user or password in it; {HEADERS} gives those")));
        }
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(refused("no path, since this is OTLP over gRPC"));
        }
        let metadata = headers.map_or_else(|| Ok(MetadataMap::new()), metadata)?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        let loopback = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        let transport = tonic::transport::Endpoint::from(uri.clone()).connect_timeout(CONNECT).timeout(CALL);
        let transport = match scheme {
            "https" => {
                let tls = match authorities {
                    None => ClientTlsConfig::new().with_native_roots(),
                    Some(pem) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)),
                };
                transport.tls_config(tls).map_err(|error| refused(&format!("TLS: {error}")))?
            }
            "http" if loopback || metadata.is_empty() => transport,
            "http" => {
                let why = format!(
                    "{HEADERS} gives credentials, and they are not sent in the clear beyond loopback: use https"
                );
                return Err(refused(&why));
            }
            _ => return Err(refused(shape)),
        };
        Ok(Self { transport, metadata })
    }
}

/// Headers as the variable has them. Values are not told in errors.
fn metadata(headers: &str) -> Result<MetadataMap, Failure> {
    let refused = |why: &str| Failure::usage(format!("{HEADERS}: {why}"));
    let mut metadata = MetadataMap::new();
    for pair in headers.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').ok_or_else(|| refused("expected NAME=VALUE,NAME=VALUE"))?;
        let name = name.trim().to_ascii_lowercase();
        let key: MetadataKey<Ascii> = name.parse().map_err(|_| refused(&format!("{name:?} is no name of a header")))?;
        let value = percent_decode_str(value.trim()).decode_utf8().map_err(|_| refused("a value is no text"))?;
        let mut value: MetadataValue<Ascii> =
            value.parse().map_err(|_| refused(&format!("the value of {name:?} cannot be sent")))?;
        value.set_sensitive(true);
        metadata.insert(key, value);
    }
    Ok(metadata)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(url: &str, headers: Option<&str>, expected: Result<usize, &str>) {
        match (Endpoint::new(url, headers, None), expected) {
            (Ok(endpoint), Ok(headers)) => assert_eq!(endpoint.metadata.len(), headers, "{url}"),
            (Err(failure), Err(expected)) => {
                let text = failure.to_string();
                assert!(text.contains(expected), "{text}");
                assert!(!text.contains("s3cret"), "{text}");
            }
            (found, _) => panic!("{url}: {}", found.err().map_or("taken".into(), |failure| failure.to_string())),
        }
    }

    #[test]
    fn credentials_are_not_sent_in_the_clear_beyond_loopback() {
        let token = Some("authorization=Bearer%20s3cret");
        check("http://192.0.2.1:4317", None, Ok(0));
        check("http://192.0.2.1:4317", token, Err("in the clear"));
        check("http://collector:4317", token, Err("in the clear"));
        check("http://localhost.example.org:4317", token, Err("in the clear"));
        check("http://127.0.0.1.example.org:4317", token, Err("in the clear"));
        check("http://127.0.0.1:4317", token, Ok(1));
        check("http://[::1]:4317", token, Ok(1));
        check("http://localhost:4317", token, Ok(1));
        check("https://collector:4317", token, Ok(1));
        check("http://user:s3cret@collector:4317", None, Err("no user or password"));
    }

    #[test]
    fn what_is_no_endpoint_is_refused_with_what_is_expected() {
        for url in ["collector", "collector:4317", "ftp://collector:4317", "http://", "127.0.0.1:4317"] {
            check(url, None, Err("http://HOST:PORT"));
        }
        check("http://127.0.0.1:4318/v1/traces", None, Err("gRPC"));
    }

    #[test]
    fn headers_are_read_as_the_specification_writes_them() {
        let read = metadata(" Authorization=Bearer%20s3cret , x-team=a%2Cb,").unwrap();
        assert_eq!(read.get("authorization").unwrap(), "Bearer s3cret");
        assert_eq!(read.get("x-team").unwrap(), "a,b");
        check("http://127.0.0.1:4317", Some("s3cret"), Err("NAME=VALUE"));
        check("http://127.0.0.1:4317", Some("a b=s3cret"), Err("no name of a header"));
        check("http://127.0.0.1:4317", Some("a=s3cret%0a"), Err("cannot be sent"));
    }
}
