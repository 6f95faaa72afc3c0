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
use super::pool::PooledConnection;
use super::redact::Redactor;

/// How long an answer may pause between two bytes.
pub const CHUNK_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// Bytes are buffered up to this size while more are available at once. Providers send events of a hundred bytes; each
/// would be a frame of its own, and an HTTP/2 client counts small frames that it has not read yet: too many end its
/// connection.
const MIN_FRAME_BYTES: usize = 4 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    #[error("the model's answer has more than {0} bytes")]
    TooLarge(u64),
    #[error("the model's answer did not go on for {} seconds", CHUNK_TIMEOUT.as_secs())]
    Timeout,
    #[error("the connection to the model broke")]
    ConnectionLost,
}

pub struct AnswerBody {
    source: AnswerSource,
    redactors: Vec<Redactor>,
    max_bytes: u64,
    exchange: Exchange,
    /// Runs while there is nothing to read.
    timer: ReadTimer,
    buffer: FrameBuffer,
    finished: bool,
}

/// Small pieces that are joined until nothing more is available.
#[derive(Default)]
struct FrameBuffer {
    bytes: BytesMut,
    /// Whether other tasks have run since the last piece: one of them may produce the next piece.
    has_yielded: bool,
    /// The error that ends the answer, after the buffered bytes.
    error: Option<AnswerError>,
}

pub enum AnswerSource {
    /// A provider. The connection returns to the pool when the answer is complete.
    Provider(Incoming, Option<PooledConnection>),
    /// All pieces are in memory.
    Buffered(VecDeque<Bytes>),
}

enum ReadTimer {
    Unset,
    /// The timer is reused for the next wait.
    Stopped(Pin<Box<Sleep>>),
    Running(Pin<Box<Sleep>>),
}

impl AnswerBody {
    pub(super) fn new(source: AnswerSource, redactors: Vec<Redactor>, most: u64, exchange: Exchange) -> Self {
        Self {
            source,
            redactors,
            max_bytes: most,
            exchange,
            timer: ReadTimer::Unset,
            buffer: FrameBuffer::default(),
            finished: false,
        }
    }

    fn poll_source(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, AnswerError>>> {
        match &mut self.source {
            AnswerSource::Buffered(pieces) => Poll::Ready(pieces.pop_front().map(Ok)),
            AnswerSource::Provider(body, _) => match Pin::new(body).poll_frame(context) {
                // Trailers are dropped.
                Poll::Ready(Some(Ok(frame))) => Poll::Ready(Some(Ok(frame.into_data().unwrap_or_default()))),
                Poll::Ready(Some(Err(_))) => Poll::Ready(Some(Err(AnswerError::ConnectionLost))),
                Poll::Ready(None) => Poll::Ready(None),
                Poll::Pending => self.poll_timeout(context),
            },
        }
    }

    /// Polls the timer, which runs only while there is nothing to read.
    fn poll_timeout(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, AnswerError>>> {
        let mut timer = match std::mem::replace(&mut self.timer, ReadTimer::Unset) {
            ReadTimer::Unset => Box::pin(tokio::time::sleep(CHUNK_TIMEOUT)),
            ReadTimer::Stopped(mut timer) => {
                timer.as_mut().reset(Instant::now() + CHUNK_TIMEOUT);
                timer
            }
            ReadTimer::Running(timer) => timer,
        };
        if timer.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err(AnswerError::Timeout)));
        }
        self.timer = ReadTimer::Running(timer);
        Poll::Pending
    }

    fn stop_timer(&mut self) {
        self.timer = match std::mem::replace(&mut self.timer, ReadTimer::Unset) {
            ReadTimer::Running(timer) => ReadTimer::Stopped(timer),
            other => other,
        };
    }

    fn filter(&mut self, bytes: Bytes) -> Result<Bytes, AnswerError> {
        if self.exchange.received() + bytes.len() as u64 > self.max_bytes {
            return Err(AnswerError::TooLarge(self.max_bytes));
        }
        self.exchange.count_received(&bytes);
        let redactors = self.redactors.iter_mut();
        Ok(redactors.fold(bytes, |bytes, redactor| redactor.pass(bytes)))
    }

    /// The bytes that the redactors held back, when nothing more follows.
    fn flush_redactors(&mut self) -> Bytes {
        let mut left = Vec::new();
        for redactor in &mut self.redactors {
            let before = redactor.pass(Bytes::from(std::mem::take(&mut left)));
            left.extend_from_slice(&before);
            left.extend_from_slice(&redactor.finish());
        }
        Bytes::from(left)
    }

    /// The buffered bytes; after them the error; then the end.
    fn take_buffered(&mut self) -> Option<Result<Frame<Bytes>, AnswerError>> {
        if !self.buffer.bytes.is_empty() {
            return Some(Ok(Frame::data(self.buffer.bytes.split().freeze())));
        }
        self.buffer.error.take().map(Err)
    }

    fn abort(&mut self, why: AnswerError) -> AnswerError {
        self.finished = true;
        // The connection is dropped with the body and never reused.
        self.source = AnswerSource::Buffered(VecDeque::new());
        self.exchange.end(Some(why.to_string()));
        why
    }

    fn finish(&mut self) -> Bytes {
        self.finished = true;
        let source = std::mem::replace(&mut self.source, AnswerSource::Buffered(VecDeque::new()));
        if let AnswerSource::Provider(_, Some(connection)) = source {
            connection.release();
        }
        let held = self.flush_redactors();
        self.exchange.end(None);
        held
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = AnswerError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, AnswerError>>> {
        let body = self.get_mut();
        loop {
            if body.finished || body.buffer.bytes.len() >= MIN_FRAME_BYTES {
                return Poll::Ready(body.take_buffered());
            }
            let next = match body.poll_source(context) {
                Poll::Ready(next) => next,
                Poll::Pending if body.buffer.bytes.is_empty() => return Poll::Pending,
                Poll::Pending if body.buffer.has_yielded => {
                    return Poll::Ready(body.take_buffered());
                }
                Poll::Pending => {
                    body.buffer.has_yielded = true;
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
            };
            body.buffer.has_yielded = false;
            body.stop_timer();
            let bytes = match next {
                Some(Ok(bytes)) => body.filter(bytes),
                Some(Err(why)) => Err(why),
                None => Ok(body.finish()),
            };
            match bytes {
                // All of it may be the beginning of a secret.
                Ok(bytes) if bytes.is_empty() => {}
                // A large piece is not copied.
                Ok(bytes) if bytes.len() >= MIN_FRAME_BYTES && body.buffer.bytes.is_empty() => {
                    return Poll::Ready(Some(Ok(Frame::data(bytes))));
                }
                Ok(bytes) => body.buffer.bytes.extend_from_slice(&bytes),
                Err(why) => body.buffer.error = Some(body.abort(why)),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.finished && self.buffer.bytes.is_empty() && self.buffer.error.is_none()
    }
}
