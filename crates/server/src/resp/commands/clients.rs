//! CLIENT: who is connected, what they are called, and how to be rid of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::resp::clients::ClientEntry;
use crate::resp::commands::{Call, Outcome, Refusal, SYNTAX, help, is, shown, subcommand, wake_loop_of};
use crate::resp::number::parse_i64;

pub(crate) fn client(call: &mut Call<'_>) -> Outcome {
    subcommand(
        call,
        "client",
        &[
            ("getname", 2, get_name),
            ("getredir", 2, no_redirection),
            ("help", 2, show_help),
            ("id", 2, id),
            ("info", 2, info),
            ("kill", -3, kill),
            ("list", -2, list),
            ("no-evict", 3, switch),
            ("no-touch", 3, switch),
            ("setinfo", 4, set_info),
            ("setname", 3, set_own_name),
        ],
    )
}

fn show_help(call: &mut Call<'_>) -> Outcome {
    let lines = [
        "GETNAME",
        "    Return the name of the current connection.",
        "ID",
        "    Return the ID of the current connection.",
        "INFO",
        "    Return information about the current client connection.",
        "KILL <ip:port>|<option> ...",
        "    Kill connections: ID <client-id>, ADDR <ip:port>, LADDR <ip:port>, TYPE normal, USER default, SKIPME yes|no.",
        "LIST [TYPE normal] [ID <client-id> ...]",
        "    Return information about client connections.",
        "SETNAME <name>",
        "    Assign the name <name> to the current connection.",
    ];
    help(call, "CLIENT", &lines)
}

/// Gives the client a name, if it is one word.
pub(crate) fn set_name(call: &mut Call<'_>, name: &[u8]) -> Outcome {
    if !name.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        return Err("ERR Client names cannot contain spaces, newlines or special characters.".into());
    }
    call.session.client.names.lock().name = String::from_utf8_lossy(name).into_owned();
    Ok(())
}

fn set_own_name(call: &mut Call<'_>) -> Outcome {
    set_name(call, call.arg(2))?;
    call.reply.ok();
    Ok(())
}

fn get_name(call: &mut Call<'_>) -> Outcome {
    let name = call.session.client.names.lock().name.clone();
    call.reply.maybe(Some(name.as_bytes()).filter(|name| !name.is_empty()));
    Ok(())
}

fn set_info(call: &mut Call<'_>) -> Outcome {
    let (what, value) = (call.arg(2), call.arg(3));
    if !value.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        let what = String::from_utf8_lossy(what).to_ascii_lowercase();
        return Err(format!("ERR {what} cannot contain spaces, newlines or special characters.").into());
    }
    let value = String::from_utf8_lossy(value).into_owned();
    if is(what, "lib-name") {
        call.session.client.names.lock().library = value;
    } else if is(what, "lib-ver") {
        call.session.client.names.lock().library_version = value;
    } else {
        return Err(format!("ERR Unrecognized option '{}'", shown(what)).into());
    }
    call.reply.ok();
    Ok(())
}

fn id(call: &mut Call<'_>) -> Outcome {
    call.reply.int(call.session.client.id as i64);
    Ok(())
}

fn no_redirection(call: &mut Call<'_>) -> Outcome {
    call.reply.int(-1);
    Ok(())
}

/// Options that change nothing here: no client is evicted, no key ages.
fn switch(call: &mut Call<'_>) -> Outcome {
    if !is(call.arg(2), "on") && !is(call.arg(2), "off") {
        return Err(SYNTAX.into());
    }
    call.reply.ok();
    Ok(())
}

fn line(call: &Call<'_>, client: &ClientEntry) -> String {
    client.line(call.command_name(client.last_command.load(Ordering::Relaxed)))
}

fn info(call: &mut Call<'_>) -> Outcome {
    call.session.publish();
    call.reply.verbatim(&(line(call, &call.session.client) + "\n"));
    Ok(())
}

fn client_id(arg: &[u8]) -> Result<u64, Refusal> {
    let id = parse_i64(arg).and_then(|id| u64::try_from(id).ok()).filter(|id| *id > 0);
    id.ok_or_else(|| "ERR client-id should be greater than 0".into())
}

fn list(call: &mut Call<'_>) -> Outcome {
    let mut clients = call.shared.clients.all();
    match call.args.len() {
        2 => {}
        4 if is(call.arg(2), "type") => clients = of_type(clients, call.arg(3))?,
        4.. if is(call.arg(2), "id") => {
            let ids = call.args.from(3).map(|arg| {
                let id = parse_i64(arg).and_then(|id| u64::try_from(id).ok());
                id.ok_or_else(|| Refusal::from("ERR Invalid client ID"))
            });
            let ids = ids.collect::<Result<Vec<u64>, Refusal>>()?;
            clients.retain(|client| ids.contains(&client.id));
        }
        _ => return Err(SYNTAX.into()),
    }
    call.session.publish();
    let text: String = clients.iter().map(|client| line(call, client) + "\n").collect();
    call.reply.verbatim(&text);
    Ok(())
}

fn of_type(clients: Vec<Arc<ClientEntry>>, kind: &[u8]) -> Result<Vec<Arc<ClientEntry>>, Refusal> {
    if is(kind, "normal") {
        return Ok(clients);
    }
    if ["master", "replica", "slave", "pubsub"].iter().any(|known| is(kind, known)) {
        return Ok(Vec::new());
    }
    Err(format!("ERR Unknown client type '{}'", shown(kind)).into())
}

fn kill(call: &mut Call<'_>) -> Outcome {
    let own = call.session.client.id;
    if call.args.len() == 3 {
        let address = shown(call.arg(2));
        let found = call.shared.clients.all().into_iter().find(|client| client.address == address);
        let found = found.ok_or("ERR No such client")?;
        end(call, &found);
        call.reply.ok();
        return Ok(());
    }
    if !call.args.len().is_multiple_of(2) {
        return Err(SYNTAX.into());
    }
    let mut clients = call.shared.clients.all();
    let mut skip_me = true;
    for at in (2..call.args.len()).step_by(2) {
        let (option, value) = (call.arg(at), call.arg(at + 1));
        if is(option, "id") {
            let id = client_id(value)?;
            clients.retain(|client| client.id == id);
        } else if is(option, "addr") {
            clients.retain(|client| client.address.as_bytes() == value);
        } else if is(option, "laddr") {
            clients.retain(|client| client.local_address.as_bytes() == value);
        } else if is(option, "type") {
            clients = of_type(clients, value)?;
        } else if is(option, "user") {
            let name = String::from_utf8_lossy(value);
            if call.shared.users.find(&name).is_none() {
                return Err(format!("ERR No such user '{}'", shown(value)).into());
            }
            clients.retain(|client| client.names.lock().user == name);
        } else if is(option, "skipme") && (is(value, "yes") || is(value, "no")) {
            skip_me = is(value, "yes");
        } else {
            return Err(SYNTAX.into());
        }
    }
    clients.retain(|client| !skip_me || client.id != own);
    for client in &clients {
        end(call, client);
    }
    call.reply.int(clients.len() as i64);
    Ok(())
}

fn end(call: &mut Call<'_>, client: &Arc<ClientEntry>) {
    if client.id == call.session.client.id {
        call.session.closing = true;
    } else {
        client.killed.store(true, Ordering::SeqCst);
        call.shared.kills.fetch_add(1, Ordering::SeqCst);
        wake_loop_of(call.shared, client);
    }
}
