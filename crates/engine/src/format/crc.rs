//! CRC32C of what a put and a read sum: headers, places, and values, which are often of few bytes. What is written
//! seldom is summed by the library.
//!
//! A put takes six sums of 12 to a hundred bytes. The library, made for long buffers, spends over a hundred
//! instructions on each before it comes to the bytes: a quarter of the put. Short ones take the same instruction of the
//! processor here.
//!
//! Invariant: the sum is the library's, whatever the length.

/// Above this the library, which sums three parts at once, is quicker.
#[cfg(target_arch = "x86_64")]
const SHORT_BYTES: usize = 512;

/// The CRC32C of `bytes`.
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32c_append(0, bytes)
}

/// The CRC32C of something whose CRC32C is `crc` and `bytes` after it.
#[inline]
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() <= SHORT_BYTES && std::arch::is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has the instructions.
        return unsafe { append_short(crc, bytes) };
    }
    crc32c::crc32c_append(crc, bytes)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
fn append_short(crc: u32, bytes: &[u8]) -> u32 {
    use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u32, _mm_crc32_u64};
    let (words, rest) = bytes.as_chunks::<8>();
    let sum = words.iter().fold(u64::from(!crc), |sum, word| _mm_crc32_u64(sum, u64::from_le_bytes(*word)));
    let (halves, rest) = rest.as_chunks::<4>();
    let sum = halves.iter().fold(sum as u32, |sum, half| _mm_crc32_u32(sum, u32::from_le_bytes(*half)));
    !rest.iter().fold(sum, |sum, byte| _mm_crc32_u8(sum, *byte))
}

#[cfg(test)]
mod tests {
    #[test]
    fn sums_are_those_of_the_library_at_every_length_and_place() {
        let mut rng = fastrand::Rng::with_seed(3);
        let bytes: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(1_100).collect();
        for len in 0..1_050 {
            let (start, crc) = (len % 17, rng.u32(..));
            let part = &bytes[start..start + len];
            assert_eq!(super::crc32c_append(crc, part), crc32c::crc32c_append(crc, part), "{len} bytes from {start}");
            assert_eq!(super::crc32c(part), crc32c::crc32c(part), "{len} bytes from {start}");
        }
        // The one that RFC 3720 gives (appendix B.4): 32 bytes of zeros.
        assert_eq!(super::crc32c(&[0; 32]), 0x8A91_36AA);
    }
}
