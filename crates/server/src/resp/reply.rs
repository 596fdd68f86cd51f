//! Replies: written straight into the connection's output, in RESP2 or RESP3.
//!
//! Invariant: one call of a scalar method, or a header and as many elements as it announced, is one whole reply.
//! Errors are one line whatever their text holds.

use crate::resp::number::{push_i64, push_u64};

/// Writes replies at the end of a buffer.
pub(crate) struct ReplyWriter<'a> {
    out: &'a mut Vec<u8>,
    resp3: bool,
}

impl<'a> ReplyWriter<'a> {
    pub(crate) fn new(out: &'a mut Vec<u8>, resp3: bool) -> Self {
        Self { out, resp3 }
    }

    /// Where the next reply begins.
    pub(crate) fn position(&self) -> usize {
        self.out.len()
    }

    /// Takes back everything from `position` on.
    pub(crate) fn rewind(&mut self, position: usize) {
        self.out.truncate(position);
    }

    /// The buffer written to, for replies within this one.
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        self.out
    }

    pub(crate) fn is_resp3(&self) -> bool {
        self.resp3
    }

    pub(crate) fn set_resp3(&mut self, resp3: bool) {
        self.resp3 = resp3;
    }

    fn header(&mut self, kind: u8, len: usize) {
        self.out.push(kind);
        push_u64(self.out, len as u64);
        self.end();
    }

    fn end(&mut self) {
        self.out.extend_from_slice(b"\r\n");
    }

    pub(crate) fn ok(&mut self) {
        self.out.extend_from_slice(b"+OK\r\n");
    }

    pub(crate) fn simple(&mut self, text: &str) {
        self.out.push(b'+');
        self.out.extend_from_slice(text.as_bytes());
        self.end();
    }

    /// An error; `text` begins with its code.
    pub(crate) fn error(&mut self, text: &[u8]) {
        self.out.push(b'-');
        self.out.extend(text.iter().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte }));
        self.end();
    }

    pub(crate) fn int(&mut self, value: i64) {
        self.out.push(b':');
        push_i64(self.out, value);
        self.end();
    }

    pub(crate) fn bulk(&mut self, value: &[u8]) {
        self.out.reserve(value.len() + 16);
        self.header(b'$', value.len());
        self.out.extend_from_slice(value);
        self.end();
    }

    /// A bulk string, or null.
    pub(crate) fn maybe(&mut self, value: Option<&[u8]>) {
        match value {
            Some(value) => self.bulk(value),
            None => self.null(),
        }
    }

    /// The null of a missing string.
    pub(crate) fn null(&mut self) {
        self.out.extend_from_slice(if self.resp3 { b"_\r\n" } else { b"$-1\r\n" });
    }

    /// The null of a missing array.
    pub(crate) fn null_array(&mut self) {
        self.out.extend_from_slice(if self.resp3 { b"_\r\n" } else { b"*-1\r\n" });
    }

    pub(crate) fn array(&mut self, len: usize) {
        self.header(b'*', len);
    }

    /// A map of `pairs`, each written as key and value; in RESP2 a flat array.
    pub(crate) fn map(&mut self, pairs: usize) {
        if self.resp3 { self.header(b'%', pairs) } else { self.header(b'*', 2 * pairs) }
    }

    pub(crate) fn set(&mut self, len: usize) {
        self.header(if self.resp3 { b'~' } else { b'*' }, len);
    }

    /// Text for people.
    pub(crate) fn verbatim(&mut self, text: &str) {
        if !self.resp3 {
            return self.bulk(text.as_bytes());
        }
        self.header(b'=', text.len() + 4);
        self.out.extend_from_slice(b"txt:");
        self.out.extend_from_slice(text.as_bytes());
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_have_the_bytes_of_their_version() {
        let check = |write: fn(&mut ReplyWriter<'_>), resp2: &str, resp3: &str| {
            for (version3, expected) in [(false, resp2), (true, resp3)] {
                let mut out = Vec::new();
                write(&mut ReplyWriter::new(&mut out, version3));
                assert_eq!(String::from_utf8(out).unwrap(), expected);
            }
        };
        check(|reply| reply.null(), "$-1\r\n", "_\r\n");
        check(|reply| reply.null_array(), "*-1\r\n", "_\r\n");
        check(|reply| reply.map(2), "*4\r\n", "%2\r\n");
        check(|reply| reply.set(2), "*2\r\n", "~2\r\n");
        check(|reply| reply.verbatim("hi"), "$2\r\nhi\r\n", "=6\r\ntxt:hi\r\n");
        check(|reply| reply.error(b"ERR a\r\nb"), "-ERR a  b\r\n", "-ERR a  b\r\n");
        check(|reply| reply.int(-12), ":-12\r\n", ":-12\r\n");
    }
}
