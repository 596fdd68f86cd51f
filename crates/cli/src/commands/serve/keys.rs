//! The Redis protocol of `esker serve`: its configuration from the settings.
//!
//! Invariant: addresses that a supervisor has bound go before those of the settings.

use std::path::PathBuf;

use esker_server::front::Passed;
use esker_server::resp::Config;

use super::passed::Sockets;
use super::shared::{Front, addresses, password};
use crate::config::Settings;
use crate::exit::Failure;

/// Least and most memory for all clients where nothing is said.
const CLIENTS_BYTES: (u64, u64) = (64 << 20, 1 << 30);

/// The server's configuration.
pub fn config(settings: &Settings, front: &Front, sockets: &Sockets) -> Result<Config, Failure> {
    // Clients of a store have an eighth of what is its part of the memory.
    let memory =
        settings.memory_bytes().unwrap_or(esker::memory_bytes().unwrap_or(u64::MAX) / (settings.other_stores + 1));
    let settings = &settings.serve;
    let path = |text: &str| (!text.is_empty()).then(|| PathBuf::from(text));
    let tls = front.tls.clone();
    let (mut listen, mut tls_listen) = (addresses(&settings.listen)?, addresses(&settings.tls_listen)?);
    if tls.is_some() && tls_listen.is_empty() {
        std::mem::swap(&mut listen, &mut tls_listen);
    }
    let (mut plain, mut encrypted) = (sockets.resp.clone(), sockets.resp_tls.clone());
    if tls.is_some() && settings.tls_listen.is_empty() {
        // As the addresses that they stand for. TLS is not spoken over unix sockets.
        let tcp: Vec<Passed>;
        (tcp, plain) = plain.into_iter().partition(|socket| socket.address().is_some());
        encrypted.extend(tcp);
    }
    let passed = !plain.is_empty() || !encrypted.is_empty();
    if !settings.resp && passed {
        return Err(Failure::usage("resp = false, and yet a socket was passed for it"));
    }
    // A supervisor that passes sockets for a protocol says where that is listened on.
    let own = settings.resp && !passed;
    let (listen, tls_listen) = if own { (listen, tls_listen) } else { (Vec::new(), Vec::new()) };
    let number = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
    let compression = match settings.compress.as_str() {
        "" => None,
        name => Some(name.parse().map_err(|error| Failure::usage(format!("compress: {error}")))?),
    };
    let clients_bytes_max = match settings.clients_memory.0.0 {
        0 => (memory / 8).clamp(CLIENTS_BYTES.0, CLIENTS_BYTES.1),
        given => given,
    };
    let clients_bytes_max = number(clients_bytes_max);
    let config = Config {
        clients_bytes_max,
        output_bytes_max: Config::default().output_bytes_max.min((clients_bytes_max / 4).max(1 << 20)),
        listen,
        tls_listen,
        tls,
        passed: plain,
        tls_passed: encrypted,
        off: !settings.resp,
        unix_socket: path(&settings.unix_socket).filter(|_| own),
        unix_access: front.unix.clone(),
        password: password(settings)?,
        users: front.users.clone(),
        linger: front.linger,
        threads: number(settings.threads),
        afar_threads: number(settings.afar_threads),
        clients_max: number(settings.max_clients),
        idle_seconds: settings.idle_timeout.0.0.as_millis().div_ceil(1_000) as u64,
        int_databases: settings.int_databases.iter().map(|index| u8::try_from(*index).unwrap_or(u8::MAX)).collect(),
        compression,
        ..Config::default()
    };
    config.check().map_err(|error| Failure::usage(error.to_string()))?;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ServeSettings;

    #[test]
    fn what_cannot_be_served_is_refused_with_the_reason() {
        let check = |change: fn(&mut ServeSettings), expected: &str| {
            let mut settings = Settings::default();
            change(&mut settings.serve);
            let error = Front::of(&settings.serve)
                .and_then(|front| config(&settings, &front, &Sockets::default()))
                .unwrap_err()
                .to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(|settings| settings.listen = vec!["0.0.0.0:6379".into()], "password");
        check(|settings| settings.listen = vec!["6379".into()], "HOST:PORT");
        check(|settings| settings.tls_cert = "cert.pem".into(), "together");
        check(|settings| settings.int_databases = vec![16], "int_databases");
        check(|settings| settings.max_clients = 0, "clients_max");
        check(|settings| settings.password_file = "/nonexistent".into(), "password file");
    }
}
