//! ACL: users, what they may do, and what was refused. As Redis has it, but for channels, which there are none of.
//!
//! Invariant: a rule that is wrong changes nothing of its user.

use std::fmt::Write as _;
use std::sync::Arc;

use crate::front::logins::hash_password;
use crate::front::users::{DEFAULT_USER, Keys, Role, Secret, User, digest, from_hex, is_name};
use crate::resp::awaited::Awaited;
use crate::resp::commands::{Call, Outcome, Refusal, help, is, shown, subcommand};
use crate::resp::rights::{CATEGORIES, Denied, Rights, add_rule, commands_in, has_subcommand, is_rule};

/// Entries that LOG tells of if nothing is said.
const LOG_DEFAULT: usize = 10;
/// Bits that GENPASS gives at most, and if nothing is said.
const BITS_MAX: i64 = 4_096;
const BITS_DEFAULT: i64 = 256;

pub(crate) fn acl(call: &mut Call<'_>) -> Outcome {
    subcommand(
        call,
        "acl",
        &[
            ("cat", -2, categories),
            ("deluser", -3, remove_users),
            ("dryrun", -4, dry_run),
            ("genpass", -2, generate),
            ("getuser", 3, get_user),
            ("help", 2, show_help),
            ("list", 2, list),
            ("load", 2, load),
            ("log", -2, log),
            ("save", 2, save),
            ("setuser", -3, set_user),
            ("users", 2, users),
            ("whoami", 2, who_am_i),
        ],
    )
}

fn show_help(call: &mut Call<'_>) -> Outcome {
    let lines = [
        "CAT [<category>]",
        "    List all commands that belong to <category>, or all command categories",
        "    when no category is specified.",
        "DELUSER <username> [<username> ...]",
        "    Delete a list of users.",
        "DRYRUN <username> <command> [<arg> ...]",
        "    Returns whether the user can execute the given command without executing the command.",
        "GETUSER <username>",
        "    Get the user's details.",
        "GENPASS [<bits>]",
        "    Generate a secure 256-bit user password. The optional `bits` argument can",
        "    be used to specify a different size.",
        "LIST",
        "    Show users details in config file format.",
        "LOAD",
        "    Reload users from the users file, as a signal SIGHUP does.",
        "LOG [<count> | RESET]",
        "    Show the ACL log entries.",
        "SETUSER <username> <attribute> [<attribute> ...]",
        "    Create or modify a user with the specified attributes.",
        "USERS",
        "    List all the registered usernames.",
        "WHOAMI",
        "    Return the current connection username.",
    ];
    help(call, "ACL", &lines)
}

fn categories(call: &mut Call<'_>) -> Outcome {
    let names: Vec<String> = match call.args.len() {
        2 => CATEGORIES.iter().map(|name| (*name).to_owned()).collect(),
        3 => {
            let wanted = shown(call.arg(2)).to_ascii_lowercase();
            if !CATEGORIES.contains(&wanted.as_str()) {
                return Err(format!("ERR Unknown category '{}'", shown(call.arg(2))).into());
            }
            commands_in(&wanted)
        }
        _ => return Err(odd("CAT")),
    };
    call.reply.array(names.len());
    names.iter().for_each(|name| call.reply.bulk(name.as_bytes()));
    Ok(())
}

fn odd(subcommand: &str) -> Refusal {
    format!("ERR unknown subcommand or wrong number of arguments for '{subcommand}'. Try ACL HELP.").into()
}

fn who_am_i(call: &mut Call<'_>) -> Outcome {
    let name = call.session.rights.as_ref().map_or(DEFAULT_USER, |rights| rights.user.name()).to_owned();
    call.reply.bulk(name.as_bytes());
    Ok(())
}

fn users(call: &mut Call<'_>) -> Outcome {
    let users = call.shared.users.all();
    call.reply.array(users.len());
    users.iter().for_each(|user| call.reply.bulk(user.name().as_bytes()));
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A secret as it may be shown: hashed.
fn secret(secret: &Secret) -> String {
    match secret {
        Secret::Plain(plain) => hex(&digest(plain.as_bytes())),
        Secret::Sha256(hash) => hex(hash),
        Secret::Argon2(hash) => hash.clone(),
    }
}

fn patterns(keys: &[Keys]) -> String {
    let one = |keys: &Keys| {
        let pattern = String::from_utf8_lossy(&keys.pattern);
        match (keys.read, keys.write) {
            (true, false) => format!("%R~{pattern}"),
            (false, true) => format!("%W~{pattern}"),
            _ => format!("~{pattern}"),
        }
    };
    keys.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// Whether a user reaches every channel, as far as there are any: the default user does.
fn channels(user: &User) -> &'static str {
    if user.name() == DEFAULT_USER { "&*" } else { "" }
}

fn list(call: &mut Call<'_>) -> Outcome {
    let lines: Vec<String> = call.shared.users.all().iter().map(|user| line(user)).collect();
    call.reply.array(lines.len());
    lines.iter().for_each(|line| call.reply.bulk(line.as_bytes()));
    Ok(())
}

fn line(user: &User) -> String {
    let mut line = format!("user {} {}", user.name(), if user.enabled { "on" } else { "off" });
    if user.no_password {
        line += " nopass";
    }
    for held in &user.secrets {
        line += &format!(" #{}", secret(held));
    }
    let keys = patterns(&user.keys);
    let channels = Some(channels(user)).filter(|channels| !channels.is_empty()).unwrap_or("resetchannels");
    for part in [&keys, channels, &user.commands.join(" ")] {
        if !part.is_empty() {
            line.push(' ');
            line += part;
        }
    }
    line
}

fn get_user(call: &mut Call<'_>) -> Outcome {
    let Some(user) = call.shared.users.find(&shown(call.arg(2))) else {
        call.reply.null();
        return Ok(());
    };
    let mut flags = vec![if user.enabled { "on" } else { "off" }];
    if user.no_password {
        flags.push("nopass");
    }
    let reply = &mut call.reply;
    reply.map(6);
    reply.bulk(b"flags");
    reply.set(flags.len());
    flags.iter().for_each(|flag| reply.bulk(flag.as_bytes()));
    reply.bulk(b"passwords");
    reply.array(user.secrets.len());
    user.secrets.iter().for_each(|held| reply.bulk(secret(held).as_bytes()));
    for (name, text) in
        [("commands", user.commands.join(" ")), ("keys", patterns(&user.keys)), ("channels", channels(&user).into())]
    {
        reply.bulk(name.as_bytes());
        reply.bulk(text.as_bytes());
    }
    reply.bulk(b"selectors");
    reply.array(0);
    Ok(())
}

fn remove_users(call: &mut Call<'_>) -> Outcome {
    if call.args.from(2).any(|name| name == DEFAULT_USER.as_bytes()) {
        return Err("ERR The 'default' user cannot be removed".into());
    }
    let users = &call.shared.users;
    let gone = |name: &&[u8]| users.change(&String::from_utf8_lossy(name), |_| None).is_ok_and(|was_there| was_there);
    let removed = call.args.from(2).filter(gone).count();
    call.shared.wake_all();
    call.reply.int(removed as i64);
    Ok(())
}

fn generate(call: &mut Call<'_>) -> Outcome {
    let bits = match call.args.len() {
        2 => BITS_DEFAULT,
        3 => call.int_arg(2)?,
        _ => return Err(odd("GENPASS")),
    };
    let bits = Some(bits).filter(|bits| (1..=BITS_MAX).contains(bits)).ok_or(
        "ERR ACL GENPASS argument must be the number of bits for the output password, a positive number up to 4096",
    )?;
    let digits = (bits as usize).div_ceil(4);
    let mut bytes = vec![0; digits.div_ceil(2)];
    crate::front::random::fill(&mut bytes).map_err(|error| format!("ERR {error}"))?;
    let mut text = hex(&bytes);
    text.truncate(digits);
    call.reply.bulk(text.as_bytes());
    Ok(())
}

fn load(call: &mut Call<'_>) -> Outcome {
    if !call.shared.users.has_file() {
        return Err("ERR This server is not configured to use a users file (users_file). You may change users by ACL \
                    SETUSER until it stops."
            .into());
    }
    reload(call)
}

/// Takes anew what was read at the start, on a thread that may wait for files.
pub(crate) fn reload(call: &mut Call<'_>) -> Outcome {
    let engine = Arc::clone(&call.shared.engine);
    let wakers = call.shared.wakers.get().cloned().unwrap_or_default();
    let work = move || {
        let done = engine.reload().map_err(|why| format!("ERR {why}"));
        wakers.iter().for_each(|waker| drop(waker.wake()));
        done
    };
    call.session.awaited = Some(Awaited::Work(call.shared.logins.run(work)));
    Ok(())
}

fn save(call: &mut Call<'_>) -> Outcome {
    Err(if call.shared.users.has_file() {
        "ERR The users file (users_file) is written by hand: what ACL SETUSER changes lasts until it is read again"
            .into()
    } else {
        "ERR This server is not configured to use a users file (users_file). You may change users by ACL SETUSER until \
         it stops."
            .into()
    })
}

fn log(call: &mut Call<'_>) -> Outcome {
    let count = match call.args.len() {
        2 => LOG_DEFAULT,
        3 if is(call.arg(2), "reset") => {
            call.shared.denials.clear();
            call.reply.ok();
            return Ok(());
        }
        3 => usize::try_from(call.int_arg(2)?).unwrap_or(0),
        _ => return Err(odd("LOG")),
    };
    let denials = call.shared.denials.latest(count);
    let reply = &mut call.reply;
    reply.array(denials.len());
    for denial in denials {
        reply.map(7);
        reply.bulk(b"count");
        reply.int(denial.count as i64);
        let age = format!("{:.3}", denial.when.elapsed().as_secs_f64());
        for (name, text) in [
            ("reason", denial.reason),
            ("context", denial.context),
            ("object", &denial.object),
            ("username", &denial.user),
            ("age-seconds", &age),
            ("client-info", &denial.client),
        ] {
            reply.bulk(name.as_bytes());
            reply.bulk(text.as_bytes());
        }
    }
    Ok(())
}

fn dry_run(call: &mut Call<'_>) -> Outcome {
    let name = shown(call.arg(2));
    let Some(user) = call.shared.users.find(&name) else {
        return Err(format!("ERR User '{name}' not found").into());
    };
    let found = call.commands.iter().enumerate().find(|(_, command)| is(call.arg(3), command.name));
    let Some((index, command)) = found else {
        return Err(format!("ERR Command '{}' not found", shown(call.arg(3))).into());
    };
    let args = call.args.after(3);
    if !command.accepts(args.len()) {
        return Err(call.wrong_args(command.name));
    }
    if args.len() > 1 && !has_subcommand(index, args.get(1)) {
        return Err(format!("ERR Command '{}' not found", shown(call.arg(3))).into());
    }
    match Rights::of(user).check(index, args, command.keys_of(args)) {
        Ok(()) => call.reply.ok(),
        Err(Denied::Command(name)) => {
            call.reply.bulk(format!("This user has no permissions to run the '{name}' command").as_bytes());
        }
        Err(Denied::Key(key)) => {
            let key = shown(&key);
            call.reply.bulk(format!("This user has no permissions to access the '{key}' key").as_bytes());
        }
    }
    Ok(())
}

/// A change of a user.
#[derive(Clone)]
enum Change {
    Enabled(bool),
    NoPassword,
    ResetPasswords,
    /// Adds a password.
    Password(String),
    /// Adds a password by its hash.
    Hash(Secret),
    /// Removes a password.
    Forget(String),
    /// Removes a password by its hash.
    ForgetHash(Secret),
    /// Removes these.
    Secrets(Vec<Secret>),
    Keys(Keys),
    ResetKeys,
    Rule(String),
    Reset,
    /// An empty word, or about channels, which there are none of.
    Nothing,
}

const WRONG_HASH: &str =
    "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters";
const BELOW_SUBCOMMAND: &str = "Allowing first-arg of a subcommand is not supported";
const AFTER_ALL: &str = "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not have any \
                         effect. Try 'resetkeys' to start with an empty list of patterns";

/// Whether a rule names a subcommand and an argument of it, such as `config|get|x`.
fn is_below_subcommand(rule: &str) -> bool {
    rule.match_indices('|').nth(1).is_some_and(|(at, _)| is_rule(&format!("+{}", &rule[..at])))
}

impl Change {
    fn parse(word: &str) -> Result<Self, &'static str> {
        let hash = |text: &str| {
            let lower = !text.bytes().any(|byte| byte.is_ascii_uppercase());
            from_hex(text).filter(|_| lower).map(Secret::Sha256).ok_or(WRONG_HASH)
        };
        let lower = word.to_ascii_lowercase();
        Ok(match lower.as_str() {
            "on" => Self::Enabled(true),
            "off" => Self::Enabled(false),
            "nopass" => Self::NoPassword,
            "resetpass" => Self::ResetPasswords,
            "allkeys" => Self::Keys(Keys::everything(b"*")),
            "resetkeys" => Self::ResetKeys,
            "allcommands" => Self::Rule("+@all".into()),
            "nocommands" => Self::Rule("-@all".into()),
            "reset" => Self::Reset,
            "" | "allchannels" | "resetchannels" | "sanitize-payload" | "skip-sanitize-payload" | "clearselectors" => {
                Self::Nothing
            }
            _ => match word.split_at_checked(1) {
                Some((">", password)) => Self::Password(password.into()),
                Some(("<", password)) => Self::Forget(password.into()),
                Some(("#", text)) => Self::Hash(hash(text)?),
                Some(("!", text)) => Self::ForgetHash(hash(text)?),
                Some(("~", pattern)) => Self::Keys(Keys::everything(pattern.as_bytes())),
                Some(("%", rest)) => {
                    let (kinds, pattern) = rest.split_once('~').unwrap_or((rest, ""));
                    let kinds = kinds.to_ascii_uppercase();
                    if !matches!(kinds.as_str(), "R" | "W" | "RW" | "WR") {
                        return Err("Syntax error");
                    }
                    let (read, write) = (kinds.contains('R'), kinds.contains('W'));
                    Self::Keys(Keys { read, write, pattern: pattern.into() })
                }
                Some(("&", _)) => Self::Nothing,
                Some(("+" | "-", _)) if is_rule(word) => Self::Rule(word.into()),
                Some(("+", rest)) if is_below_subcommand(rest) => return Err(BELOW_SUBCOMMAND),
                Some(("+" | "-", _)) => return Err("Unknown command or category name in ACL"),
                _ => return Err("Syntax error"),
            },
        })
    }

    /// Whether it takes its time.
    fn hashes(&self) -> bool {
        matches!(self, Self::Password(_) | Self::Forget(_))
    }

    /// The same with the hash of a password in its place; `user` as he is by then. Takes its time.
    fn hashed(self, user: &User) -> Result<Self, String> {
        Ok(match self {
            Self::Password(password) => {
                let known = user.secrets.iter().find(|secret| secret.is(password.as_bytes()));
                let secret = known.cloned().map_or_else(|| hash_password(password.as_bytes()).map(Secret::Argon2), Ok);
                Self::Hash(secret?)
            }
            Self::Forget(password) => {
                let is = |secret: &&Secret| secret.is(password.as_bytes());
                let gone: Vec<_> = user.secrets.iter().filter(is).cloned().collect();
                if gone.is_empty() {
                    return Err("The password you are trying to remove from the user does not exist".into());
                }
                Self::Secrets(gone)
            }
            other => other,
        })
    }

    fn apply(self, user: &mut User) -> Result<(), String> {
        match self {
            Self::Enabled(enabled) => user.enabled = enabled,
            Self::NoPassword => (user.no_password, user.secrets) = (true, Vec::new()),
            Self::ResetPasswords => (user.no_password, user.secrets) = (false, Vec::new()),
            Self::Hash(hash) => {
                if !user.secrets.contains(&hash) {
                    user.secrets.push(hash);
                }
                user.no_password = false;
            }
            Self::Secrets(gone) => user.secrets.retain(|secret| !gone.contains(secret)),
            Self::ForgetHash(hash) => {
                let before = user.secrets.len();
                user.secrets.retain(|held| secret(held) != secret(&hash));
                if user.secrets.len() == before {
                    return Err("The password you are trying to remove from the user does not exist".into());
                }
            }
            Self::Keys(keys) => {
                let is_all = |keys: &Keys| keys.read && keys.write && keys.pattern == b"*";
                match user.keys.iter().any(is_all) {
                    true if is_all(&keys) => {}
                    true => return Err(AFTER_ALL.into()),
                    false if is_all(&keys) => user.keys = vec![keys],
                    false if user.keys.contains(&keys) => {}
                    false => user.keys.push(keys),
                }
            }
            Self::ResetKeys => user.keys.clear(),
            Self::Rule(rule) => add_rule(&mut user.commands, &rule),
            Self::Reset => *user = User { role: user.role, faces: user.faces.clone(), ..User::new(user.name()) },
            // Passwords are hashes and secrets by now.
            Self::Nothing | Self::Password(_) | Self::Forget(_) => {}
        }
        Ok(())
    }
}

fn set_user(call: &mut Call<'_>) -> Outcome {
    let name = String::from_utf8_lossy(call.arg(2)).into_owned();
    if !is_name(&name) {
        return Err("ERR Usernames can't contain spaces or null characters".into());
    }
    let wrong = |word: &str, why: &str| format!("ERR Error in ACL SETUSER modifier '{}': {why}", hidden(word));
    let mut changes = Vec::new();
    for word in call.args.from(3) {
        let word = String::from_utf8_lossy(word).into_owned();
        let change = Change::parse(&word);
        changes.push((word, change));
    }
    let slow = changes.iter().any(|(_, change)| change.as_ref().is_ok_and(Change::hashes));
    let shared = (Arc::clone(&call.shared.users), call.shared.wakers.get().cloned().unwrap_or_default());
    let work = move || {
        let (users, wakers) = shared;
        let mut outcome = Ok(());
        // What takes its time is done before other clients have to wait for it, on a copy: a word may take back what
        // one before it gave, and the first that is wrong is told.
        let mut copy = users.find(&name).map_or_else(|| User::new(&name), Arc::unwrap_or_clone);
        let mut ready = Vec::new();
        for (word, change) in changes {
            let change = change.map_err(str::to_owned).and_then(|change| change.hashed(&copy));
            let applied = change.and_then(|change| change.clone().apply(&mut copy).map(|()| change));
            ready.push((applied.map_err(|why| wrong(&word, &why))?, word));
        }
        let changed = users.change(&name, |old| {
            let mut user = old.clone().unwrap_or_else(|| User::new(&name));
            for (change, word) in ready {
                if let Err(why) = change.apply(&mut user) {
                    outcome = Err(wrong(&word, &why));
                    return old;
                }
            }
            if user.role != Role::Operator && user.commands == ["+@all"] {
                user.role = Role::Operator;
            }
            Some(user)
        });
        if let (Ok(()), Err(why)) = (&outcome, changed) {
            outcome = Err(format!("ERR {why}"));
        }
        // Loops look what has become of their clients' users.
        wakers.iter().for_each(|waker| drop(waker.wake()));
        outcome
    };
    if slow {
        call.session.awaited = Some(Awaited::Work(call.shared.logins.run(work)));
        return Ok(());
    }
    work()?;
    call.reply.ok();
    Ok(())
}

/// A word as it may be shown: without the password in it.
fn hidden(word: &str) -> String {
    match word.chars().next() {
        Some(sign @ ('>' | '<')) => format!("{sign}(redacted)"),
        _ => shown(word.as_bytes()),
    }
}
