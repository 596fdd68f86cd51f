//! The calls of a connection, from its bytes: whole messages, told apart by protocol and frame.
//!
//! bytes so far → [`Decoder::next`] → a [`Message`] and how many bytes it was · more are needed · malformed
//!
//! It reads no socket and keeps no bytes: the caller keeps them until a message is whole, and then takes it away.
//!
//! Invariants:
//! 1. All messages of a connection are in the shape of its first.
//! 2. A call costs its bytes once, in whatever pieces it comes; a long one is left now and then, for others to go on.

use super::arguments::Arguments;
use super::shape::{MessageKind, Shape};
use super::unreadable::{MESSAGE_BYTES_MAX, Unreadable};
use super::walk::{Event, Slice, Walked, Walker};

/// Steps after which others may go on.
const STEPS_AT_ONCE: usize = 16_384;
/// Bytes of the length of a frame.
const FRAME: usize = 4;

/// The head of a message.
#[derive(Clone, Copy, Debug)]
struct Opening {
    kind: MessageKind,
    sequence: i32,
    name: Slice,
}

/// A whole message, as places in the bytes that [`Decoder::next`] was given.
#[derive(Debug)]
pub struct Message {
    /// How it is written, and its answer is.
    pub shape: Shape,
    /// What it is.
    pub kind: MessageKind,
    /// The number that its answer has as well.
    pub sequence: i32,
    /// The bytes that it takes, with its frame's length.
    pub len: usize,
    /// Where it begins in them.
    pub(super) start: usize,
    name: Slice,
    pub(super) arguments: Arguments,
}

impl Message {
    /// The name of the method, of the bytes that it was read from.
    pub fn method<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        bytes.get(self.start..).and_then(|bytes| bytes.get(self.name.range())).unwrap_or_default()
    }
}

/// What bytes came to.
#[derive(Debug)]
pub enum Decoded {
    /// At least so many more are needed.
    More(usize),
    /// It is not done with them: others may go on, then it is to be asked again.
    Busy,
    /// So many bytes that say nothing, to be taken away: frames without a message, which some clients send.
    Nothing(usize),
    /// A message.
    Message(Message),
}

/// Reads the messages of a connection.
#[derive(Debug, Default)]
pub struct Decoder {
    shape: Option<Shape>,
    /// Bytes of the frame that are still to come, while it is not over.
    frame: Option<usize>,
    under_way: Option<UnderWay>,
}

/// A message that is gone through.
#[derive(Debug)]
struct UnderWay {
    walker: Walker,
    start: usize,
    begun: Option<Opening>,
    arguments: Arguments,
}

impl Decoder {
    /// For a connection of which nothing is known yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// How the connection's messages are written, once that is known.
    pub fn shape(&self) -> Option<Shape> {
        self.shape
    }

    /// Whether the head of the message that `next` was last asked for is here.
    pub fn has_begun(&self) -> bool {
        self.under_way.as_ref().is_some_and(|under_way| under_way.begun.is_some())
    }

    /// Method, kind and number of that message, of the same bytes, as far as they are known.
    pub fn begun<'b>(&self, input: &'b [u8]) -> Option<(&'b [u8], MessageKind, i32)> {
        let under_way = self.under_way.as_ref()?;
        let begun = under_way.begun?;
        Some((input.get(under_way.start..)?.get(begun.name.range())?, begun.kind, begun.sequence))
    }

    /// The message that `input` begins with. `input` is what has come since the last message, and only grows until the
    /// next is whole.
    ///
    /// # Errors
    /// [`Unreadable`]: no message of this connection can be read any more.
    pub fn next(&mut self, input: &[u8]) -> Result<Decoded, Unreadable> {
        let shape = match self.shape {
            Some(shape) => shape,
            // A frame without a message, whose length says nothing of what comes.
            None if input.starts_with(&[0; FRAME]) => return Ok(Decoded::Nothing(FRAME)),
            None => match Shape::of(input)? {
                Some(shape) => *self.shape.insert(shape),
                None => return Ok(Decoded::More(1)),
            },
        };
        let mut start = 0;
        if shape.framed && self.frame.is_none() {
            let Some((len, rest)) = input.split_first_chunk::<FRAME>() else {
                return Ok(Decoded::More(FRAME - input.len()));
            };
            let len = u32::from_be_bytes(*len);
            if len == 0 {
                return Ok(Decoded::Nothing(FRAME));
            }
            if len > MESSAGE_BYTES_MAX as u32 {
                return Err(Unreadable::Frame { len });
            }
            if self.under_way.is_none() && rest.len() < len as usize {
                // Its head is looked for, so that it is known who sends it.
                self.begin(shape, FRAME, len as usize);
            }
            start = FRAME;
            if rest.len() < len as usize {
                self.look_for_head(rest)?;
                return Ok(Decoded::More(len as usize - rest.len()));
            }
            self.frame = Some(len as usize);
        }
        let bytes_max = self.frame.unwrap_or(MESSAGE_BYTES_MAX);
        if self.under_way.is_none() {
            self.begin(shape, start, bytes_max);
        }
        let Some(under_way) = &mut self.under_way else { return Ok(Decoded::Busy) };
        let bytes = input.get(under_way.start..).unwrap_or_default();
        let bytes = &bytes[..bytes.len().min(bytes_max)];
        for _ in 0..STEPS_AT_ONCE {
            match under_way.step(bytes)? {
                // What is short in a whole frame is too long for it, and was refused.
                Walked::Short(len) => return Ok(Decoded::More(len.max(1))),
                Walked::On(Event::End) if under_way.walker.depth() == 0 => {
                    return Ok(self.end(shape).map_or(Decoded::Busy, Decoded::Message));
                }
                Walked::On(_) => {}
            }
        }
        Ok(Decoded::Busy)
    }

    fn begin(&mut self, shape: Shape, start: usize, bytes_max: usize) {
        let walker = Walker::new(shape.dialect, bytes_max);
        self.under_way = Some(UnderWay { walker, start, begun: None, arguments: Arguments::default() });
    }

    fn look_for_head(&mut self, bytes: &[u8]) -> Result<(), Unreadable> {
        match &mut self.under_way {
            Some(under_way) if under_way.begun.is_none() => under_way.step(bytes).map(|_| ()),
            _ => Ok(()),
        }
    }

    /// The message that was gone through.
    fn end(&mut self, shape: Shape) -> Option<Message> {
        let UnderWay { walker, start, begun, arguments } = self.under_way.take()?;
        let Opening { kind, sequence, name } = begun?;
        let len = walker.at();
        self.frame = self.frame.map(|left| left - len.min(left)).filter(|left| *left > 0);
        Some(Message { shape, kind, sequence, len: start + len, start, name, arguments })
    }
}

impl UnderWay {
    fn step(&mut self, bytes: &[u8]) -> Result<Walked, Unreadable> {
        let walked = self.walker.step(bytes)?;
        if let Walked::On(event) = walked {
            match event {
                Event::Begin { kind, sequence, name } => self.begun = Some(Opening { kind, sequence, name }),
                event => self.arguments.take(event, self.walker.depth()),
            }
        }
        Ok(walked)
    }
}
