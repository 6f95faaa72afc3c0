//! Schedules, messages and subruns: only what the plan allows.

use std::sync::Arc;

use sympozium_api::builtin_tool::{SCHEDULE_TASK, SEND_CHANNEL_MESSAGE, SPAWN_SUBAGENTS};
use sympozium_api::run_plan::Gate;
use sympozium_ipc::run_api::{
    ApiRefusal, ApiRefusalCode, MessageRequest, ScheduleRequest, Strategy, SubrunsAnswer, SubrunsRequest, TextAnswer,
};
use tokio::time::timeout;

use super::request::refuse;
use super::state::Subruns;
use super::traits::{HandlerError, Scheduler};
use super::{HANDLER_TIMEOUT, Service, run_ended_refusal};
use crate::plans::{Run, RunFacts};

impl<I, D, R, S: Scheduler> Service<I, D, R, S>
where
    Self: Send + Sync + 'static,
{
    pub(super) async fn handle_schedule(
        &self,
        run: &Arc<Run>,
        request: ScheduleRequest,
    ) -> Result<TextAnswer, ApiRefusal> {
        let facts = check_tool(run, SCHEDULE_TASK)?;
        with_timeout(self.api.scheduler.schedule(facts, request)).await
    }

    pub(super) async fn handle_message(
        &self,
        run: &Arc<Run>,
        request: MessageRequest,
    ) -> Result<TextAnswer, ApiRefusal> {
        let facts = check_tool(run, SEND_CHANNEL_MESSAGE)?;
        with_timeout(self.api.scheduler.message(facts, request)).await
    }

    pub(super) async fn handle_subruns(
        &self,
        run: &Arc<Run>,
        request: SubrunsRequest,
    ) -> Result<SubrunsAnswer, ApiRefusal> {
        let facts = check_tool(run, SPAWN_SUBAGENTS)?;
        let mut places = SubrunSlots::acquire(run, facts, &request)?;
        let names: Vec<String> = request.tasks.iter().map(|task| task.id.clone()).collect();
        match self.api.scheduler.subruns(facts, request).await {
            Ok(answer) => {
                let answered = answer.results.iter().map(|result| &result.id);
                if answered.eq(&names) {
                    return Ok(answer);
                }
                let message = "what came of the runs below is not known";
                Err(refuse(ApiRefusalCode::Failed, message))
            }
            Err(unable) => {
                // If none was started, none is counted; if that is unknown, all are.
                if !matches!(unable, HandlerError::Failed { .. }) {
                    places.release_children();
                }
                Err(unable.into())
            }
        }
    }
}

/// The facts of a run whose plan has this tool, if the run has not reported its end.
fn check_tool<'r>(run: &'r Arc<Run>, tool: &str) -> Result<&'r Arc<RunFacts>, ApiRefusal> {
    let facts = run.facts().ok_or_else(run_ended_refusal)?;
    match facts.gate(tool, None) {
        Some(Gate::Allow | Gate::Ask) if run.state.has_ended() => {
            Err(refuse(ApiRefusalCode::Denied, "the run has reported how it ended"))
        }
        // If the gate is `ask`, the bridge has asked: it is the bridge that acts.
        Some(Gate::Allow | Gate::Ask) => Ok(facts),
        Some(Gate::Deny) | None => {
            Err(refuse(ApiRefusalCode::Denied, format!("the plan of this run does not have {tool}")))
        }
    }
}

async fn with_timeout(work: impl Future<Output = Result<TextAnswer, HandlerError>>) -> Result<TextAnswer, ApiRefusal> {
    match timeout(HANDLER_TIMEOUT, work).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(refuse(ApiRefusalCode::Failed, "it could not be done in time")),
    }
}

/// Counted subruns. The concurrent ones are released on drop.
#[derive(Debug)]
struct SubrunSlots {
    run: Arc<Run>,
    children: u32,
    running: u32,
}

impl SubrunSlots {
    fn acquire(run: &Arc<Run>, facts: &RunFacts, request: &SubrunsRequest) -> Result<Self, ApiRefusal> {
        let plan = &facts.subagents;
        if plan.levels == 0 {
            let message = "the plan of this run has no runs below it";
            return Err(refuse(ApiRefusalCode::Denied, message));
        }
        let children = u32::try_from(request.tasks.len()).unwrap_or(u32::MAX);
        let running = match request.strategy {
            Strategy::Parallel => children,
            Strategy::Sequential => 1,
        };
        let mut subruns = run.state.subruns.lock();
        let after = Subruns {
            children: subruns.children.saturating_add(children),
            running: subruns.running.saturating_add(running),
        };
        if after.children > plan.children {
            let (most, before) = (plan.children, subruns.children);
            let message = format!("this run may start {most} runs, and has started {before}");
            return Err(refuse(ApiRefusalCode::Denied, message));
        }
        if after.running > plan.concurrent {
            let most = plan.concurrent;
            let message = format!(
                "at most {most} runs below this one go on at a time\nhint: give fewer tasks at once, or use the strategy `sequential`"
            );
            return Err(refuse(ApiRefusalCode::Busy, message));
        }
        *subruns = after;
        drop(subruns);
        Ok(Self { run: Arc::clone(run), children, running })
    }

    /// Called if no subrun was started.
    fn release_children(&mut self) {
        let mut subruns = self.run.state.subruns.lock();
        subruns.children = subruns.children.saturating_sub(self.children);
    }
}

impl Drop for SubrunSlots {
    fn drop(&mut self) {
        let mut subruns = self.run.state.subruns.lock();
        subruns.running = subruns.running.saturating_sub(self.running);
    }
}
