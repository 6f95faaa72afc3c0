//! What the agent is told: the bridge's own answers, whose bytes are counted until they are sent, and the model's, which pass.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use serde::Serialize;
use sympozium_ipc::door::{REFUSED, Refusal, RefusalCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::calls::refusal;
use crate::model::{AnswerBody, BrokenAnswer};
use crate::session::Slot;

/// Bytes of answers that wait for the agent to read them. Further answers wait for those.
const MAX_UNREAD: usize = 16 << 20;
/// Bytes of an answer that are handed over at a time. The connection keeps what it was handed until the agent reads it, and
/// nobody counts that: so it is handed little, and the rest only when there is room.
const PIECE: usize = 16 << 10;

/// The bytes that wait to be read.
#[derive(Clone)]
pub struct Answers(Arc<Semaphore>);

impl Default for Answers {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_UNREAD)))
    }
}

impl Answers {
    /// An answer of the bridge, by value: it is not kept beside its bytes. The call that it is of is under way until the
    /// agent has read it.
    pub async fn json(&self, answer: impl Serialize, slot: Option<Slot>) -> Result<Response<Answer>, Refusal> {
        let body =
            serde_json::to_vec(&answer).map_err(|_| refusal(RefusalCode::Unknown, "the answer cannot be told"))?;
        drop(answer);
        let bytes = u32::try_from(body.len().min(MAX_UNREAD)).unwrap_or(u32::MAX);
        let kept = Arc::clone(&self.0).acquire_many_owned(bytes).await.ok();
        let mut answer = Response::new(Answer::Own { body: body.into(), _kept: kept, _slot: slot });
        let json = HeaderValue::from_static("application/json");
        answer.headers_mut().insert(header::CONTENT_TYPE, json);
        Ok(answer)
    }
}

/// The body of an answer.
pub enum Answer {
    /// Of the bridge.
    Own {
        /// What is not handed over yet.
        body: Bytes,
        /// Given back when the agent has read it.
        _kept: Option<OwnedSemaphorePermit>,
        /// As well.
        _slot: Option<Slot>,
    },
    /// Of the model.
    Model(Box<AnswerBody>),
}

impl Answer {
    /// That something was taken.
    pub fn nothing() -> Response<Self> {
        let mut answer = Response::new(Self::of(Vec::new()));
        *answer.status_mut() = StatusCode::NO_CONTENT;
        answer
    }

    /// That something was not.
    pub fn refusal(refusal: &Refusal) -> Response<Self> {
        let body = serde_json::to_vec(refusal).unwrap_or_default();
        let mut answer = Response::new(Self::of(body));
        *answer.status_mut() = StatusCode::from_u16(refusal.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = answer.headers_mut();
        headers.insert(REFUSED, HeaderValue::from_static("1"));
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, json);
        answer
    }

    /// What the model says.
    pub fn model(body: AnswerBody) -> Self {
        Self::Model(Box::new(body))
    }

    fn of(body: Vec<u8>) -> Self {
        Self::Own { body: body.into(), _kept: None, _slot: None }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = BrokenAnswer;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BrokenAnswer>>> {
        match self.get_mut() {
            Self::Own { body, .. } if body.is_empty() => Poll::Ready(None),
            Self::Own { body, .. } => {
                let piece = body.split_to(body.len().min(PIECE));
                Poll::Ready(Some(Ok(Frame::data(piece))))
            }
            Self::Model(body) => Pin::new(body.as_mut()).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own { body, .. } => body.is_empty(),
            Self::Model(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own { body, .. } => SizeHint::with_exact(body.len() as u64),
            Self::Model(body) => body.size_hint(),
        }
    }
}
