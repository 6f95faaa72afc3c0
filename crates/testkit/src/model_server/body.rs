//! The body of an answer: piece by piece, held by a gate, broken off by a cut.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use hyper::body::{Body, Bytes, Frame, SizeHint};

use super::format::{Piece, Pieces};
use super::gate::Gate;
use super::record::Records;
use super::wire::Control;

/// The pieces of one answer, each written by itself.
pub struct AnswerBody {
    pieces: Pieces,
    /// Fetched ahead, so that HTTP learns with the last piece that it is the last.
    next: Option<Piece>,
    /// Bytes that are still to come, where that is known.
    left: Option<u64>,
    gate: Option<Gate>,
    /// Held pieces that are still sent before the cut.
    until_cut: Option<u64>,
    /// Whether a piece was handed to HTTP that it may not have written yet.
    unwritten: bool,
    control: Control,
    records: Arc<Records>,
}

/// How the pieces of an answer are sent.
#[derive(Default)]
pub struct Delivery {
    pub gate: Option<Gate>,
    pub cut_after_pieces: Option<u64>,
}

impl AnswerBody {
    pub fn new(
        mut pieces: Pieces,
        left: Option<u64>,
        delivery: Delivery,
        control: Control,
        records: Arc<Records>,
    ) -> Self {
        Self {
            next: pieces.next(),
            pieces,
            left,
            gate: delivery.gate,
            until_cut: delivery.cut_after_pieces,
            unwritten: false,
            control,
            records,
        }
    }

    /// Whether the script says to break off here.
    fn is_cut(&self) -> bool {
        self.until_cut == Some(0) && self.next.as_ref().is_some_and(|piece| piece.held)
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        // HTTP writes several pieces at once unless it has to wait between them.
        if std::mem::take(&mut this.unwritten) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if this.is_cut() {
            this.control.cut();
            return Poll::Pending;
        }
        let held = this.next.as_ref().is_some_and(|piece| piece.held);
        if held && let Some(gate) = &this.gate {
            ready!(gate.poll_pass(context));
        }
        let Some(piece) = this.next.take() else {
            return Poll::Ready(None);
        };
        if held && let Some(until_cut) = &mut this.until_cut {
            *until_cut -= 1;
        }
        if let Some(left) = &mut this.left {
            *left = left.saturating_sub(piece.bytes.len() as u64);
        }
        this.next = this.pieces.next();
        this.unwritten = true;
        Poll::Ready(Some(Ok(Frame::data(piece.bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.next.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Drop for AnswerBody {
    fn drop(&mut self) {
        if self.next.is_some() && !self.is_cut() {
            self.records.add_abandoned();
        }
    }
}
