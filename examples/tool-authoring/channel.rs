//! A channel: what agents send to it becomes a line of a file, which something else delivers.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::json;
use sympozium_gateway::plans::RunFacts;
use sympozium_gateway::run_api::local::NoScheduler;
use sympozium_gateway::run_api::{HandlerError, Scheduler};
use sympozium_ipc::run_api::{MessageRequest, ScheduleRequest, SubrunsAnswer, SubrunsRequest, TextAnswer};
use tokio::task::spawn_blocking;

/// The one channel that is connected.
const CHANNEL: &str = "slack";

/// Messages to [`CHANNEL`], a line of JSON each. Other things that a scheduler can do are done by nobody.
pub struct Outbox {
    pub path: PathBuf,
}

impl Scheduler for Outbox {
    async fn message(&self, run: &Arc<RunFacts>, request: MessageRequest) -> Result<TextAnswer, HandlerError> {
        if request.channel != CHANNEL {
            let why = format!("{} is not connected; {CHANNEL} is", request.channel);
            return Err(HandlerError::Unavailable(why));
        }
        // Whose message it is comes from the plan: a run cannot speak for another agent.
        let line = json!({
            "run": run.uid(),
            "agent": run.run.agent,
            "chat": request.chat_id,
            "text": request.text,
        });
        let path = self.path.clone();
        let writing = spawn_blocking(move || {
            let mut file = OpenOptions::new().create(true).append(true).open(path)?;
            file.write_all(format!("{line}\n").as_bytes())
        });
        match writing.await {
            Ok(Ok(())) => Ok(TextAnswer { text: format!("the message is on its way to {CHANNEL}") }),
            // Perhaps half of it was written: the model is told that nobody knows, and it is not tried again.
            Ok(Err(error)) => Err(failed(error)),
            Err(error) => Err(failed(error)),
        }
    }

    async fn schedule(&self, run: &Arc<RunFacts>, request: ScheduleRequest) -> Result<TextAnswer, HandlerError> {
        NoScheduler.schedule(run, request).await
    }

    async fn subruns(&self, run: &Arc<RunFacts>, request: SubrunsRequest) -> Result<SubrunsAnswer, HandlerError> {
        NoScheduler.subruns(run, request).await
    }
}

fn failed(cause: impl std::error::Error + Send + Sync + 'static) -> HandlerError {
    HandlerError::Failed {
        message: format!("the message may not have gone out to {CHANNEL}"),
        cause: Some(Box::new(cause)),
    }
}
