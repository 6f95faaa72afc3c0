//! The body of an answer on its way to the agent: counted, bounded, redacted, and passed on without delay.

use std::collections::VecDeque;
use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep};

use super::account::Exchange;
use super::pool::Returning;
use super::redact::Redactor;

/// How long an answer may pause between two bytes.
pub const CHUNK_DEADLINE: Duration = Duration::from_secs(5 * 60);

/// Bytes are buffered up to this size while more are available at once. Providers send events of a hundred bytes; each
/// would be a frame of its own, and an HTTP/2 client counts small frames that it has not read yet: too many end its
/// connection.
const GATHERED: usize = 4 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BrokenAnswer {
    #[error("the model's answer has more than {0} bytes")]
    TooLarge(u64),
    #[error("the model's answer did not go on for {} seconds", CHUNK_DEADLINE.as_secs())]
    Slow,
    #[error("the connection to the model broke")]
    Cut,
}

pub struct AnswerBody {
    source: Source,
    redactors: Vec<Redactor>,
    most: u64,
    exchange: Exchange,
    /// Runs while there is nothing to read.
    waiting: Waiting,
    gathering: Gathering,
    over: bool,
}

/// Small pieces that are joined until nothing more is available.
#[derive(Default)]
struct Gathering {
    bytes: BytesMut,
    /// Whether other tasks have run since the last piece: one of them may produce the next piece.
    looked_again: bool,
    /// The error that ends the answer, after the buffered bytes.
    broken: Option<BrokenAnswer>,
}

pub enum Source {
    /// A provider. The connection returns to the pool when the answer is complete.
    Provider(Incoming, Option<Returning>),
    /// All pieces are in memory.
    Pieces(VecDeque<Bytes>),
}

enum Waiting {
    Not,
    /// The timer is reused for the next wait.
    Rested(Pin<Box<Sleep>>),
    Until(Pin<Box<Sleep>>),
}

impl AnswerBody {
    pub(super) fn new(source: Source, redactors: Vec<Redactor>, most: u64, exchange: Exchange) -> Self {
        Self { source, redactors, most, exchange, waiting: Waiting::Not, gathering: Gathering::default(), over: false }
    }

    fn next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, BrokenAnswer>>> {
        match &mut self.source {
            Source::Pieces(pieces) => Poll::Ready(pieces.pop_front().map(Ok)),
            Source::Provider(body, _) => match Pin::new(body).poll_frame(context) {
                // Trailers are dropped.
                Poll::Ready(Some(Ok(frame))) => Poll::Ready(Some(Ok(frame.into_data().unwrap_or_default()))),
                Poll::Ready(Some(Err(_))) => Poll::Ready(Some(Err(BrokenAnswer::Cut))),
                Poll::Ready(None) => Poll::Ready(None),
                Poll::Pending => self.wait(context),
            },
        }
    }

    /// Polls the timer, which runs only while there is nothing to read.
    fn wait(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, BrokenAnswer>>> {
        let mut timer = match std::mem::replace(&mut self.waiting, Waiting::Not) {
            Waiting::Not => Box::pin(tokio::time::sleep(CHUNK_DEADLINE)),
            Waiting::Rested(mut timer) => {
                timer.as_mut().reset(Instant::now() + CHUNK_DEADLINE);
                timer
            }
            Waiting::Until(timer) => timer,
        };
        if timer.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err(BrokenAnswer::Slow)));
        }
        self.waiting = Waiting::Until(timer);
        Poll::Pending
    }

    fn rest(&mut self) {
        self.waiting = match std::mem::replace(&mut self.waiting, Waiting::Not) {
            Waiting::Until(timer) => Waiting::Rested(timer),
            other => other,
        };
    }

    fn passed(&mut self, bytes: Bytes) -> Result<Bytes, BrokenAnswer> {
        if self.exchange.received() + bytes.len() as u64 > self.most {
            return Err(BrokenAnswer::TooLarge(self.most));
        }
        self.exchange.read(&bytes);
        let redactors = self.redactors.iter_mut();
        Ok(redactors.fold(bytes, |bytes, redactor| redactor.pass(bytes)))
    }

    /// The bytes that the redactors held back, when nothing more follows.
    fn held(&mut self) -> Bytes {
        let mut left = Vec::new();
        for redactor in &mut self.redactors {
            let before = redactor.pass(Bytes::from(std::mem::take(&mut left)));
            left.extend_from_slice(&before);
            left.extend_from_slice(&redactor.end());
        }
        Bytes::from(left)
    }

    /// The buffered bytes; after them the error; then the end.
    fn gathered(&mut self) -> Option<Result<Frame<Bytes>, BrokenAnswer>> {
        if !self.gathering.bytes.is_empty() {
            return Some(Ok(Frame::data(self.gathering.bytes.split().freeze())));
        }
        self.gathering.broken.take().map(Err)
    }

    fn break_off(&mut self, why: BrokenAnswer) -> BrokenAnswer {
        self.over = true;
        // The connection is dropped with the body and never reused.
        self.source = Source::Pieces(VecDeque::new());
        self.exchange.end(Some(why.to_string()));
        why
    }

    fn end(&mut self) -> Bytes {
        self.over = true;
        let source = std::mem::replace(&mut self.source, Source::Pieces(VecDeque::new()));
        if let Source::Provider(_, Some(connection)) = source {
            connection.give_back();
        }
        let held = self.held();
        self.exchange.end(None);
        held
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = BrokenAnswer;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BrokenAnswer>>> {
        let body = self.get_mut();
        loop {
            if body.over || body.gathering.bytes.len() >= GATHERED {
                return Poll::Ready(body.gathered());
            }
            let next = match body.next(context) {
                Poll::Ready(next) => next,
                Poll::Pending if body.gathering.bytes.is_empty() => return Poll::Pending,
                Poll::Pending if body.gathering.looked_again => {
                    return Poll::Ready(body.gathered());
                }
                Poll::Pending => {
                    body.gathering.looked_again = true;
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
            };
            body.gathering.looked_again = false;
            body.rest();
            let bytes = match next {
                Some(Ok(bytes)) => body.passed(bytes),
                Some(Err(why)) => Err(why),
                None => Ok(body.end()),
            };
            match bytes {
                // All of it may be the beginning of a secret.
                Ok(bytes) if bytes.is_empty() => {}
                // A large piece is not copied.
                Ok(bytes) if bytes.len() >= GATHERED && body.gathering.bytes.is_empty() => {
                    return Poll::Ready(Some(Ok(Frame::data(bytes))));
                }
                Ok(bytes) => body.gathering.bytes.extend_from_slice(&bytes),
                Err(why) => body.gathering.broken = Some(body.break_off(why)),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.over && self.gathering.bytes.is_empty() && self.gathering.broken.is_none()
    }
}
