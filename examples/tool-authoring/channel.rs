//! A channel that appends each message to a file, from which another program delivers it.

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

/// Messages to [`CHANNEL`], a line of JSON each. Schedules and subruns are not supported.
pub struct Outbox {
    pub path: PathBuf,
}

impl Scheduler for Outbox {
    async fn message(&self, run: &Arc<RunFacts>, request: MessageRequest) -> Result<TextAnswer, HandlerError> {
        if request.channel != CHANNEL {
            let why = format!("{} is not connected; {CHANNEL} is", request.channel);
            return Err(HandlerError::Unavailable(why));
        }
        // The agent comes from the plan: a run cannot send messages as another agent.
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
            // Perhaps half of it was written: the model gets that as the result, and it is not retried.
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
