//! What a client says about its connection: PING, AUTH, HELLO, SELECT, QUIT.

use std::sync::Arc;

use crate::front::audit;
use crate::front::users::{DEFAULT_USER, Face, USER_NAME_BYTES_MAX};
use crate::resp::awaited::{Awaited, WRONG_PASSWORD};
use crate::resp::commands::clients::set_name;
use crate::resp::commands::{Call, Outcome, Refusal, SYNTAX, is, shown};
use crate::resp::config::DATABASES;
use crate::resp::number::parse_i64;
use crate::resp::queued::Queued;

/// The version of Redis whose commands and replies are followed.
pub(crate) const REDIS_VERSION: &str = "7.0.15";
/// What the server tells a client that finds all places taken.
pub(crate) const TOO_MANY_CLIENTS: &str = "ERR max number of clients reached";

pub(crate) fn ping(call: &mut Call<'_>) -> Outcome {
    match call.args.len() {
        1 => call.reply.simple("PONG"),
        2 => call.reply.bulk(call.arg(1)),
        _ => return Err(call.wrong_args("ping")),
    }
    Ok(())
}

pub(crate) fn echo(call: &mut Call<'_>) -> Outcome {
    call.reply.bulk(call.arg(1));
    Ok(())
}

pub(crate) fn quit(call: &mut Call<'_>) -> Outcome {
    call.session.closing = true;
    call.session.monitor = None;
    call.reply.ok();
    Ok(())
}

pub(crate) fn reset(call: &mut Call<'_>) -> Outcome {
    call.session.queue = None;
    call.session.monitor = None;
    call.session.unwatch(&call.shared.keyspace);
    call.session.database = 0;
    (call.session.resp3, call.session.reads_replicas) = (false, false);
    call.session.become_nobody(call.shared);
    call.session.client.names.lock().name.clear();
    call.reply.set_resp3(false);
    call.reply.simple("RESET");
    Ok(())
}

pub(crate) fn select(call: &mut Call<'_>) -> Outcome {
    let index = call.int_arg(1)?;
    let index = u8::try_from(index).ok().filter(|index| usize::from(*index) < DATABASES);
    let index = index.ok_or("ERR DB index is out of range")?;
    // A follower makes none: nothing is in it that it would serve.
    if !call.shared.is_follower() {
        call.shared.keyspace.database(index)?;
    }
    call.session.database = index;
    call.reply.ok();
    Ok(())
}

/// Longest password, in bytes.
const PASSWORD_BYTES_MAX: usize = 4_096;

fn shown_whole(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// Makes the session the user's, if the password is right. Where that takes its time the session waits, and the command
/// is run again.
fn authenticate(call: &mut Call<'_>, user: &[u8], password: &[u8]) -> Outcome {
    let generation = call.shared.users.generation();
    let too_long = user.len() > USER_NAME_BYTES_MAX || password.len() > PASSWORD_BYTES_MAX;
    // A name or password that is too long is no user's, and is not kept.
    let (name, password) = if too_long { (shown(user), &b""[..]) } else { (shown_whole(user), password) };
    let user = call.shared.users.find(&name).filter(|user| !too_long && user.uses(Face::Kv));
    let client = &call.session.client;
    let address = client.address.rsplit_once(':').map_or(client.address.as_str(), |(host, _)| host);
    let right = call.shared.logins.check(user.as_deref(), password, address);
    if !right.is_here() {
        tracing::debug!(client = %client.address, user = name, "a login takes its time");
        let queued = Arc::new(Queued::new(call.index, call.args));
        call.session.logging_in = Some(name);
        call.session.awaited = Some(Awaited::Login(right, queued));
        return Err(Refusal::OnItsWay);
    }
    match (right.into_parts().0?, user) {
        (true, Some(user)) => {
            audit::login(&client.address, &name);
            call.session.logging_in = None;
            call.session.become_user(user, generation);
        }
        _ => return Err(WRONG_PASSWORD.into()),
    }
    if !call.session.admit(call.shared) {
        return Err(TOO_MANY_CLIENTS.into());
    }
    Ok(())
}

pub(crate) fn auth(call: &mut Call<'_>) -> Outcome {
    match call.args.len() {
        2 if call.shared.users.nobody(Face::Kv).is_some() => {
            return Err("ERR AUTH <password> called without any password configured for the default user. Are you \
                        sure your configuration is correct?"
                .into());
        }
        2 => authenticate(call, DEFAULT_USER.as_bytes(), call.arg(1))?,
        3 => authenticate(call, call.arg(1), call.arg(2))?,
        _ => return Err(SYNTAX.into()),
    }
    call.reply.ok();
    Ok(())
}

pub(crate) fn hello(call: &mut Call<'_>) -> Outcome {
    let mut resp3 = call.session.resp3;
    if call.args.len() > 1 {
        let version = parse_i64(call.arg(1)).ok_or("ERR Protocol version is not an integer or out of range")?;
        resp3 = match version {
            2 => false,
            3 => true,
            _ => return Err("NOPROTO unsupported protocol version".into()),
        };
    }
    let mut at = 2;
    while at < call.args.len() {
        let word = call.arg(at);
        let more = call.args.len() - at - 1;
        if is(word, "auth") && more >= 2 {
            authenticate(call, call.arg(at + 1), call.arg(at + 2))?;
            at += 3;
        } else if is(word, "setname") && more >= 1 {
            set_name(call, call.arg(at + 1))?;
            at += 2;
        } else {
            return Err(Refusal::from(format!("ERR Syntax error in HELLO option '{}'", shown(word))));
        }
    }
    if !call.session.is_authenticated() {
        return Err("NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH \
                    <user> <pass> option can be used to authenticate the client and select the RESP protocol version \
                    at the same time"
            .into());
    }
    call.session.resp3 = resp3;
    call.reply.set_resp3(resp3);
    call.reply.map(7);
    call.reply.bulk(b"server");
    call.reply.bulk(b"redis");
    call.reply.bulk(b"version");
    call.reply.bulk(REDIS_VERSION.as_bytes());
    call.reply.bulk(b"proto");
    call.reply.int(if resp3 { 3 } else { 2 });
    call.reply.bulk(b"id");
    call.reply.int(call.session.client.id as i64);
    call.reply.bulk(b"mode");
    call.reply.bulk(if call.shared.config.cluster.is_some() { b"cluster" } else { b"standalone" });
    call.reply.bulk(b"role");
    call.reply.bulk(if call.shared.is_follower() { b"replica" } else { b"master" });
    call.reply.bulk(b"modules");
    call.reply.array(0);
    Ok(())
}
