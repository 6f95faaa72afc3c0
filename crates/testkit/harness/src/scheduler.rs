//! What the gateway passes messages, schedules and subruns to.

use std::sync::Arc;

use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;
use sympozium_gateway::plans::RunFacts;
use sympozium_gateway::run_api::{HandlerError, Scheduler};
use sympozium_ipc::run_api::{
    MessageRequest, ScheduleRequest, SubrunResult, SubrunsAnswer, SubrunsRequest, TextAnswer,
};

/// Records requests. Slack is not connected. Clones share what they recorded.
#[derive(Clone)]
pub struct RecordingScheduler {
    requests: Arc<Mutex<Vec<Value>>>,
    message_answer: String,
}

impl Default for RecordingScheduler {
    fn default() -> Self {
        Self { requests: Arc::default(), message_answer: "sent to people".to_owned() }
    }
}

impl RecordingScheduler {
    /// With another answer to messages.
    #[must_use]
    pub fn with_message_answer(self, message_answer: String) -> Self {
        Self { message_answer, ..self }
    }

    /// The requests so far.
    pub fn requests(&self) -> Vec<Value> {
        self.requests.lock().clone()
    }

    fn record(&self, request: impl Serialize) {
        self.requests.lock().push(serde_json::to_value(request).expect("JSON"));
    }
}

impl Scheduler for RecordingScheduler {
    async fn schedule(&self, _: &Arc<RunFacts>, request: ScheduleRequest) -> Result<TextAnswer, HandlerError> {
        self.record(request);
        Ok(TextAnswer { text: "scheduled for later".to_owned() })
    }

    async fn message(&self, _: &Arc<RunFacts>, request: MessageRequest) -> Result<TextAnswer, HandlerError> {
        if request.channel == "slack" {
            return Err(HandlerError::Unavailable("slack is not connected".to_owned()));
        }
        self.record(request);
        Ok(TextAnswer { text: self.message_answer.clone() })
    }

    async fn subruns(&self, _: &Arc<RunFacts>, request: SubrunsRequest) -> Result<SubrunsAnswer, HandlerError> {
        let result = |id: &str| SubrunResult {
            id: id.to_owned(),
            run: Some("below".to_owned()),
            response: Some("forty-two".to_owned()),
            error: None,
        };
        let results = request.tasks.iter().map(|task| result(&task.id)).collect();
        self.record(request);
        Ok(SubrunsAnswer { results })
    }
}
