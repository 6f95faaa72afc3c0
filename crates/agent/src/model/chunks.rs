//! A request body made of encoded chunks. Large ones are not copied.

use bytes::{Bytes, BytesMut};

/// Smaller chunks are copied together: each chunk becomes a frame.
const COPY_LIMIT: usize = 8 << 10;

#[derive(Debug, Default)]
pub struct Chunks {
    complete: Vec<Bytes>,
    pending: BytesMut,
}

impl Chunks {
    pub fn push(&mut self, chunk: &Bytes) {
        if chunk.len() < COPY_LIMIT {
            self.pending.extend_from_slice(chunk);
        } else {
            self.flush();
            self.complete.push(chunk.clone());
        }
    }

    pub fn push_str(&mut self, text: &str) {
        self.pending.extend_from_slice(text.as_bytes());
    }

    pub fn finish(mut self) -> Vec<Bytes> {
        self.flush();
        self.complete
    }

    fn flush(&mut self) {
        if !self.pending.is_empty() {
            self.complete.push(self.pending.split().freeze());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_chunks_are_joined_and_large_ones_are_not_copied() {
        let small = Bytes::from_static(b"small");
        let large = Bytes::from(vec![b'x'; COPY_LIMIT]);
        let mut chunks = Chunks::default();
        chunks.push(&small);
        chunks.push_str(",");
        chunks.push(&small);
        chunks.push(&large);
        chunks.push(&large);
        chunks.push_str("]");
        let body = chunks.finish();
        let expected = [&b"small,small"[..], &large, &large, b"]"];
        assert_eq!(body, expected);
        assert_eq!(body[1].as_ptr(), large.as_ptr());
    }

    #[test]
    fn empty_input_makes_no_chunk() {
        let mut chunks = Chunks::default();
        chunks.push(&Bytes::new());
        chunks.push_str("");
        assert_eq!(chunks.finish(), Vec::<Bytes>::new());
    }
}
