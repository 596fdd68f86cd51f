//! Whether a session's user may run a command; what only operators do is noted.

use crate::front::audit;
use crate::resp::commands::{ADMIN, Call, Command, NO_AUTH, Outcome, Refusal, SWEEPS, shown};
use crate::resp::parse::Args;
use crate::resp::rights::{self, Denied, Rights};

/// Refuses what the session's user may not do, and notes what only operators do.
#[inline]
pub(crate) fn permit(call: &Call<'_>, index: usize, command: &Command, args: Args<'_>, again: bool) -> Outcome {
    match &call.session.rights {
        // What is allowed without a user needs none.
        None => Ok(()),
        Some(rights) if rights.has_all() && command.flags & (ADMIN | SWEEPS) == 0 => Ok(()),
        Some(rights) => look(call, rights, index, command, args, again),
    }
}

fn look(call: &Call<'_>, rights: &Rights, index: usize, command: &Command, args: Args<'_>, again: bool) -> Outcome {
    let (client, user) = (&call.session.client, rights.user.name());
    let denied = match rights.check(index, args, command.keys_of(args)) {
        _ if command.flags & NO_AUTH != 0 => return Ok(()),
        Ok(()) => {
            if command.flags & (ADMIN | SWEEPS) != 0
                && !again
                // It was noted when it was begun for the first time.
                && call.session.again.is_none()
                && let Some(act) = rights::act(command.name, args)
            {
                audit::act(&client.address, user, &act);
            }
            return Ok(());
        }
        Err(denied) => denied,
    };
    let multi = call.session.queue.is_some() || again;
    let (reason, object, line) = match denied {
        Denied::Command(name) => {
            let line = format!("NOPERM this user has no permissions to run the '{name}' command");
            ("command", name, line)
        }
        Denied::Key(key) => {
            let line = "NOPERM this user has no permissions to access one of the keys used as arguments".into();
            ("key", shown(&key), line)
        }
    };
    audit::denied(&client.address, user, &format!("{reason} {object}"));
    call.shared.denials.note(reason, multi, &object, user, client.line(command.name));
    Err(Refusal::Text(line.into()))
}
