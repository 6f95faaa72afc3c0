//! Answers to the agent: those of the bridge, whose bytes count until they are sent, and those of the model, which are
//! passed through.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use serde::Serialize;
use sympozium_ipc::door::{REFUSED_HEADER, Refusal, RefusalCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::calls::refusal;
use crate::model::{AnswerBody, AnswerError};
use crate::session::Slot;

/// Maximum number of bytes of answers that wait for the agent to read them. Further answers wait.
const MAX_UNREAD_BYTES: usize = 16 << 20;
/// Maximum number of bytes of an answer in one frame. The connection buffers what it was given until the agent reads
/// it, and those bytes are not counted; so it gets small frames, and the next one only when there is room.
const MAX_FRAME_BYTES: usize = 16 << 10;

/// The budget for bytes of answers that the agent has not read.
#[derive(Clone)]
pub struct AnswerBudget(Arc<Semaphore>);

impl Default for AnswerBudget {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_UNREAD_BYTES)))
    }
}

impl AnswerBudget {
    /// An answer of the bridge, passed by value so that it is not kept in memory beside its bytes. Its call counts as
    /// running until the agent has read the answer.
    pub async fn json(&self, answer: impl Serialize, slot: Option<Slot>) -> Result<Response<DoorAnswer>, Refusal> {
        let body = serde_json::to_vec(&answer)
            .map_err(|_| refusal(RefusalCode::Unknown, "the answer cannot be serialised"))?;
        drop(answer);
        let bytes = u32::try_from(body.len().min(MAX_UNREAD_BYTES)).unwrap_or(u32::MAX);
        let kept = Arc::clone(&self.0).acquire_many_owned(bytes).await.ok();
        let mut answer = Response::new(DoorAnswer::Own { body: body.into(), _unread_bytes: kept, _slot: slot });
        let json = HeaderValue::from_static("application/json");
        answer.headers_mut().insert(header::CONTENT_TYPE, json);
        Ok(answer)
    }
}

pub enum DoorAnswer {
    Own {
        /// What has not been given to the connection yet.
        body: Bytes,
        /// Released when the agent has read the answer.
        _unread_bytes: Option<OwnedSemaphorePermit>,
        /// Released when the agent has read the answer.
        _slot: Option<Slot>,
    },
    Model(Box<AnswerBody>),
}

impl DoorAnswer {
    /// `204 No Content`.
    pub fn no_content() -> Response<Self> {
        let mut answer = Response::new(Self::from_bytes(Vec::new()));
        *answer.status_mut() = StatusCode::NO_CONTENT;
        answer
    }

    pub fn refusal(refusal: &Refusal) -> Response<Self> {
        let body = serde_json::to_vec(refusal).unwrap_or_default();
        let mut answer = Response::new(Self::from_bytes(body));
        *answer.status_mut() = StatusCode::from_u16(refusal.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = answer.headers_mut();
        headers.insert(REFUSED_HEADER, HeaderValue::from_static("1"));
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, json);
        answer
    }

    pub fn model(body: AnswerBody) -> Self {
        Self::Model(Box::new(body))
    }

    fn from_bytes(body: Vec<u8>) -> Self {
        Self::Own { body: body.into(), _unread_bytes: None, _slot: None }
    }
}

impl Body for DoorAnswer {
    type Data = Bytes;
    type Error = AnswerError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, AnswerError>>> {
        match self.get_mut() {
            Self::Own { body, .. } if body.is_empty() => Poll::Ready(None),
            Self::Own { body, .. } => {
                let piece = body.split_to(body.len().min(MAX_FRAME_BYTES));
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
