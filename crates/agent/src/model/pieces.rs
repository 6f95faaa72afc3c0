//! The body of a request, put together from pieces that are encoded already. Large ones are not copied.

use bytes::{Bytes, BytesMut};

/// Pieces of fewer bytes are copied together: each piece is a frame on its way.
const SMALL: usize = 8 << 10;

/// A body in the making.
#[derive(Debug, Default)]
pub struct Pieces {
    whole: Vec<Bytes>,
    open: BytesMut,
}

impl Pieces {
    /// Adds a piece.
    pub fn push(&mut self, piece: &Bytes) {
        if piece.len() < SMALL {
            self.open.extend_from_slice(piece);
        } else {
            self.close();
            self.whole.push(piece.clone());
        }
    }

    /// Adds a few bytes.
    pub fn text(&mut self, text: &str) {
        self.open.extend_from_slice(text.as_bytes());
    }

    /// The body.
    pub fn finish(mut self) -> Vec<Bytes> {
        self.close();
        self.whole
    }

    fn close(&mut self) {
        if !self.open.is_empty() {
            self.whole.push(self.open.split().freeze());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_pieces_are_put_together_and_large_ones_are_not_copied() {
        let small = Bytes::from_static(b"small");
        let large = Bytes::from(vec![b'x'; SMALL]);
        let mut pieces = Pieces::default();
        pieces.push(&small);
        pieces.text(",");
        pieces.push(&small);
        pieces.push(&large);
        pieces.push(&large);
        pieces.text("]");
        let body = pieces.finish();
        let expected = [&b"small,small"[..], &large, &large, b"]"];
        assert_eq!(body, expected);
        assert_eq!(body[1].as_ptr(), large.as_ptr());
    }

    #[test]
    fn nothing_is_no_piece() {
        let mut pieces = Pieces::default();
        pieces.push(&Bytes::new());
        pieces.text("");
        assert_eq!(pieces.finish(), Vec::<Bytes>::new());
    }
}
