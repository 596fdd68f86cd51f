//! Answers in frames: a length of four bytes, big-endian, and as many bytes.
//!
//! length → refused if it is too large → bytes, none of the next frame
//!
//! The crate's own reads no frame above 16,384,000 bytes, and keeps memory for each; answers may have 64 MiB.
//!
//! Invariant: nothing is allocated for a length that was only announced.

use std::io::{self, Read};

/// The largest answer, in bytes.
const FRAME_BYTES_MAX: u32 = 65 << 20;

/// Reads what is in the frames of a stream.
pub(crate) struct Frames<R> {
    stream: R,
    /// Bytes of this frame that were not read yet.
    left: u32,
}

impl<R: Read> Frames<R> {
    pub fn new(stream: R) -> Self {
        Self { stream, left: 0 }
    }
}

impl<R: Read> Read for Frames<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            let mut len = [0; 4];
            self.stream.read_exact(&mut len)?;
            let len = u32::from_be_bytes(len);
            if !(1..=FRAME_BYTES_MAX).contains(&len) {
                let why = format!("a frame of {len} bytes: expected 1 to {FRAME_BYTES_MAX}");
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
            self.left = len;
        }
        let most = into.len().min(self.left as usize);
        let read = self.stream.read(&mut into[..most])?;
        // At most what is left.
        self.left -= read as u32;
        Ok(read)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_one_after_the_other() {
        let mut frames = Frames::new(&[0, 0, 0, 3, b'a', b'b', b'c', 0, 0, 0, 1, b'd'][..]);
        let mut read = [0; 3];
        assert_eq!((frames.read(&mut read[..2]).unwrap(), &read[..2]), (2, &b"ab"[..]));
        assert_eq!((frames.read(&mut read).unwrap(), read[0]), (1, b'c'));
        assert_eq!((frames.read(&mut read).unwrap(), read[0]), (1, b'd'));
        assert_eq!(frames.read(&mut read).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_length_that_cannot_be_is_refused() {
        for begin in [&b"HTTP/1.1"[..], &[0, 0, 0, 0], &[4, 16, 0, 1]] {
            let error = Frames::new(begin).read(&mut [0; 4]).unwrap_err();
            assert!(error.to_string().contains("68157440"), "{error}");
        }
    }
}
