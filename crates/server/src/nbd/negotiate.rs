//! The negotiation: greeting, options one by one, until an export is chosen or the client leaves.
//!
//! greeting → client flags → (STARTTLS) → options → [`Chosen`]
//!
//! Invariants:
//! 1. Where TLS is required, nothing but STARTTLS and ABORT is answered before it, and nothing that was sent in the
//!    clear counts after it.
//! 2. The input's deadline ends it, however slowly bytes come; an option's data is bounded before it is buffered.

use std::io::{self, ErrorKind};
use std::sync::Arc;

use rustls::{ServerConfig, ServerConnection};

use crate::front::audit;
use crate::front::users::{Face, User, Users};
use crate::nbd::config::{Config, PAYLOAD_BYTES_MAX, TlsMode};
use crate::nbd::export::{Export, Exports, OpenError};
use crate::nbd::options::Optioned;
use crate::nbd::stream::{Input, Output, Socket};
use crate::nbd::wire::{
    self, ALLOCATION, ALLOCATION_ID, Contexts, Info, OPTION_BYTES_MAX, OPTION_HEADER_BYTES, OPTION_SKIP_BYTES_MAX,
    OptionHeader, export_flag, hello, info, option, option_reply as reply,
};

/// What a client chose.
pub(crate) struct Chosen {
    pub(crate) name: String,
    pub(crate) export: Arc<dyn Export>,
    /// Replies in chunks.
    pub(crate) structured: bool,
    /// `base:allocation` was selected.
    pub(crate) allocation: bool,
}

/// What a negotiation works with.
pub(crate) struct Negotiation<'n> {
    pub(crate) config: &'n Config,
    pub(crate) exports: &'n dyn Exports,
    pub(crate) tls: Option<Arc<ServerConfig>>,
    pub(crate) socket: &'n Socket,
    pub(crate) output: &'n Output,
    pub(crate) peer: &'n str,
    /// Takes a place of an attached client for this one, unless it has one; false if there is none.
    pub(crate) admit: &'n dyn Fn() -> bool,
    /// Gives that place back: it was not attached.
    pub(crate) dismiss: &'n dyn Fn(),
}

/// What was agreed so far.
#[derive(Default)]
struct Agreed {
    /// The client's user, where there are users and the client is one.
    user: Option<Arc<User>>,
    structured: bool,
    /// The export that `base:allocation` was selected for.
    allocation: Option<String>,
}

impl Negotiation<'_> {
    /// Negotiates; `None` if the client left or must leave.
    pub(crate) fn run(&self, input: &mut Input) -> io::Result<Option<Chosen>> {
        let mut out = Vec::new();
        wire::greeting(&mut out);
        self.send(&out)?;
        if !input.fill(4)? {
            return Ok(None);
        }
        let flags = u32::from_be_bytes(input.header());
        if flags & !u32::from(hello::FIXED_NEWSTYLE | hello::NO_ZEROES) != 0 {
            return Err(malformed("unknown flags in the answer to the greeting"));
        }
        let zeroes = flags & u32::from(hello::NO_ZEROES) == 0;
        let fixed = flags & u32::from(hello::FIXED_NEWSTYLE) != 0;
        let mut agreed = self.begin(input);
        loop {
            if !input.fill(OPTION_HEADER_BYTES)? {
                return Ok(None);
            }
            let header = OptionHeader::decode(&input.header()).map_err(malformed)?;
            if !fixed && header.option != option::EXPORT_NAME {
                return Err(malformed("an option that needs fixed newstyle negotiation"));
            }
            if header.len > OPTION_BYTES_MAX {
                if header.len > OPTION_SKIP_BYTES_MAX || header.option == option::EXPORT_NAME {
                    return Err(malformed("an option's data above OPTION_SKIP_BYTES_MAX"));
                }
                if !input.skip(header.len.into())? {
                    return Ok(None);
                }
                self.answer(header.option, reply::ERR_TOO_BIG, "option data above OPTION_BYTES_MAX")?;
                continue;
            }
            if !input.fill(header.len as usize)? {
                return Ok(None);
            }
            let data = input.take(header.len as usize);
            if let Some(chosen) = self.option(input, header.option, &data, &mut agreed, zeroes)? {
                return Ok(chosen);
            }
        }
    }

    /// What is agreed before any option: nothing, but who the client is, as far as its certificate tells.
    fn begin(&self, input: &Input) -> Agreed {
        let find =
            |users: &Arc<Users>| users.by_certificate(&input.peer_names()).or_else(|| users.nobody(Face::Volume));
        Agreed { user: self.config.users.as_ref().and_then(find), ..Agreed::default() }
    }

    /// Whether the client may read this export, or an error; and whether it may write it.
    fn rights(&self, name: &str, agreed: &Agreed) -> Result<bool, OpenError> {
        if self.config.users.is_none() {
            return Ok(true);
        }
        let refused = |why: String| {
            let user = agreed.user.as_ref().map_or("", |user| user.name());
            audit::denied(self.peer, user, &format!("disk {name}"));
            Err(OpenError::Refused(why))
        };
        let Some(user) = &agreed.user else {
            return refused("no user: show a client certificate that names one".into());
        };
        // A snapshot is read by those who may read its image.
        let image = name.split_once('@').map_or(name, |(image, _)| image);
        if !user.may(Face::Volume, image, false) {
            return refused(format!("user {} may not use the disk {image}", user.name()));
        }
        Ok(user.may(Face::Volume, image, true))
    }

    /// Answers one option. `Some` ends the negotiation.
    fn option(
        &self,
        input: &mut Input,
        asked: u32,
        data: &[u8],
        agreed: &mut Agreed,
        zeroes: bool,
    ) -> io::Result<Option<Option<Chosen>>> {
        // Who reaches a unix socket is on this machine, and allowed to.
        let required = self.tls.is_some()
            && self.config.tls_mode == TlsMode::Required
            && matches!(self.socket, Socket::Tcp(_))
            && !input.is_encrypted();
        match asked {
            option::ABORT => {
                // The client may be gone already, as it may.
                let _ = self.answer(asked, reply::ACK, "");
                return Ok(Some(None));
            }
            option::STARTTLS => {
                if !data.is_empty() {
                    self.answer(asked, reply::ERR_INVALID, "STARTTLS has no data")?;
                } else if input.is_encrypted() {
                    self.answer(asked, reply::ERR_INVALID, "this connection is encrypted already")?;
                } else if let Some(config) = &self.tls {
                    if !input.buffered().is_empty() {
                        return Err(malformed("bytes in the clear behind STARTTLS"));
                    }
                    self.answer(asked, reply::ACK, "")?;
                    let session = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
                    input.encrypt(session);
                    if !input.handshake()? {
                        return Ok(Some(None));
                    }
                    *agreed = self.begin(input);
                    if let Some(user) = &agreed.user {
                        audit::login(self.peer, user.name());
                    }
                } else {
                    self.answer(asked, reply::ERR_POLICY, "this server has no certificate")?;
                }
            }
            option::EXPORT_NAME if required => return Err(malformed("EXPORT_NAME before STARTTLS")),
            _ if required => self.answer(asked, reply::ERR_TLS_REQD, "encrypt first: STARTTLS")?,
            option::EXPORT_NAME => {
                let name = wire::name(data).map_err(malformed)?;
                let chosen = self.choose(name, agreed, true).map_err(|error| {
                    self.refused(name, &error);
                    io::Error::other(error)
                })?;
                let mut out = Vec::new();
                wire::export_name_reply(&mut out, chosen.export.size(), flags(&chosen), zeroes);
                self.send(&out)?;
                return Ok(Some(Some(chosen)));
            }
            option::INFO | option::GO => return self.info(asked, data, agreed),
            option::LIST if !data.is_empty() => self.answer(asked, reply::ERR_INVALID, "LIST has no data")?,
            option::LIST => self.list(asked, agreed)?,
            option::STRUCTURED_REPLY if !data.is_empty() => {
                self.answer(asked, reply::ERR_INVALID, "STRUCTURED_REPLY has no data")?;
            }
            option::STRUCTURED_REPLY => {
                agreed.structured = true;
                self.answer(asked, reply::ACK, "")?;
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.contexts(asked, data, agreed)?,
            _ => self.answer(asked, reply::ERR_UNSUP, "unknown option")?,
        }
        Ok(None)
    }

    fn list(&self, asked: u32, agreed: &Agreed) -> io::Result<()> {
        let exports = match self.exports.list() {
            Ok(exports) => exports,
            Err(fault) => return self.answer(asked, reply::ERR_POLICY, &fault.to_string()),
        };
        let mut out = Vec::new();
        let users = self.config.users.is_some();
        let shown = |name: &str| !users || agreed.user.as_ref().is_some_and(|user| user.may(Face::Volume, name, false));
        for (name, description) in exports.into_iter().filter(|(name, _)| shown(name)) {
            let description = wire::clip(&description);
            let data = [&(name.len() as u32).to_be_bytes()[..], name.as_bytes(), description.as_bytes()].concat();
            wire::put_option_reply(&mut out, asked, reply::SERVER, &data);
        }
        wire::put_option_reply(&mut out, asked, reply::ACK, &[]);
        self.send(&out)
    }

    fn info(&self, asked: u32, data: &[u8], agreed: &Agreed) -> io::Result<Option<Option<Chosen>>> {
        let wanted = match Info::decode(data) {
            Ok(wanted) => wanted,
            Err(error) => return self.answer(asked, reply::ERR_INVALID, &error.to_string()).map(|()| None),
        };
        let chosen = match self.choose(wanted.name, agreed, asked == option::GO) {
            Ok(chosen) => chosen,
            Err(error) => {
                if asked == option::GO {
                    self.refused(wanted.name, &error);
                }
                let kind = match error {
                    OpenError::Unknown(_) => reply::ERR_UNKNOWN,
                    OpenError::Refused(_) => reply::ERR_POLICY,
                };
                return self.answer(asked, kind, &error.to_string()).map(|()| None);
            }
        };
        let mut out = Vec::new();
        let mut tell = |kind: u16, parts: &[&[u8]]| {
            let data = [&kind.to_be_bytes()[..], &parts.concat()].concat();
            wire::put_option_reply(&mut out, asked, reply::INFO, &data);
        };
        let blocks = chosen.export.block_sizes();
        tell(info::EXPORT, &[&chosen.export.size().to_be_bytes(), &flags(&chosen).to_be_bytes()]);
        let sizes = [blocks.min, blocks.preferred, PAYLOAD_BYTES_MAX].map(u32::to_be_bytes);
        tell(info::BLOCK_SIZE, &[&sizes[0], &sizes[1], &sizes[2]]);
        if wanted.asks_for(info::NAME) {
            tell(info::NAME, &[chosen.name.as_bytes()]);
        }
        if wanted.asks_for(info::DESCRIPTION) {
            tell(info::DESCRIPTION, &[wire::clip(&chosen.export.description()).as_bytes()]);
        }
        wire::put_option_reply(&mut out, asked, reply::ACK, &[]);
        self.send(&out)?;
        Ok((asked == option::GO).then_some(Some(chosen)))
    }

    fn contexts(&self, asked: u32, data: &[u8], agreed: &mut Agreed) -> io::Result<()> {
        let list = asked == option::LIST_META_CONTEXT;
        if !list {
            agreed.allocation = None;
        }
        if !agreed.structured {
            return self.answer(asked, reply::ERR_INVALID, "metadata contexts need STRUCTURED_REPLY first");
        }
        let wanted = match Contexts::decode(data, list) {
            Ok(wanted) => wanted,
            Err(error) => return self.answer(asked, reply::ERR_INVALID, &error.to_string()),
        };
        let open = |name: String| self.rights(&name, agreed).and_then(|_| self.exports.open(&name));
        match self.exports.resolve(wanted.name).and_then(open) {
            Ok(_) => {}
            Err(error @ OpenError::Unknown(_)) => return self.answer(asked, reply::ERR_UNKNOWN, &error.to_string()),
            Err(error) => return self.answer(asked, reply::ERR_POLICY, &error.to_string()),
        }
        let mut out = Vec::new();
        if wanted.allocation {
            let id = if list { 0 } else { ALLOCATION_ID };
            let data = [&id.to_be_bytes()[..], ALLOCATION.as_bytes()].concat();
            wire::put_option_reply(&mut out, asked, reply::META_CONTEXT, &data);
            if !list {
                agreed.allocation = Some(wanted.name.to_string());
            }
        }
        wire::put_option_reply(&mut out, asked, reply::ACK, &[]);
        self.send(&out)
    }

    /// The export that `asked` means, with its options; for good if the client `stays`, and may write then unless that
    /// is refused.
    fn choose(&self, asked: &str, agreed: &Agreed, stays: bool) -> Result<Chosen, OpenError> {
        let name = self.exports.resolve(asked)?;
        let writes = self.rights(&name, agreed)?;
        if stays && !(self.admit)() {
            let max = self.config.connections_max;
            return Err(OpenError::Refused(format!("{max} clients are attached (connections_max): try again later")));
        }
        let shares =
            !writes || Config::names(&self.config.read_only, &name) || Config::names(&self.config.unlocked, &name);
        let export = if stays && !shares { self.exports.attach(&name) } else { self.exports.open(&name) };
        if export.is_err() && stays {
            (self.dismiss)();
        }
        let export = export?;
        let export = Optioned::over(export, self.config, &name, writes);
        let allocation = agreed.structured && agreed.allocation.as_deref() == Some(asked);
        Ok(Chosen { name, export, structured: agreed.structured, allocation })
    }

    fn refused(&self, export: &str, error: &OpenError) {
        tracing::warn!(peer = self.peer, export, %error, "attaching is refused");
    }

    fn answer(&self, asked: u32, kind: u32, message: &str) -> io::Result<()> {
        let mut out = Vec::new();
        wire::put_option_reply(&mut out, asked, kind, message.as_bytes());
        self.send(&out)
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        self.output.send(std::iter::once(bytes))
    }
}

fn malformed(why: impl ToString) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why.to_string())
}

/// What the client is told that the export can do.
fn flags(chosen: &Chosen) -> u16 {
    use export_flag as flag;
    let mut flags = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::CAN_MULTI_CONN | flag::SEND_CACHE;
    if chosen.export.read_only() {
        flags |= flag::READ_ONLY;
    } else {
        flags |= flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;
    }
    if chosen.structured {
        flags |= flag::SEND_DF;
    }
    flags
}
