//! One tool call, from the agent's request to the receipt of the action.
//!
//! The order is the point of this file: look up, check and count before anything happens; take a turn, exclusively if
//! an approver is asked; write a receipt of the decision before the action, and one of the action. A call that was
//! started is always completed and recorded, even if the agent no longer waits for it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use sympozium_api::digest::{digest, digest_canonical};
use sympozium_api::names::Digest;
use sympozium_api::run_plan::{Gate, ToolHandler, ToolPlan};
use sympozium_ipc::action::{Action, Operation};
use sympozium_ipc::door::{MAX_CALL_ID, Refusal, RefusalCode, ToolAnswer, ToolCall};
use sympozium_ipc::receipt::{CallDecision, Event, to_receipt_text};
use tokio::time::timeout;

use crate::ask::Question;
use crate::invocation::Invocation;
use crate::session::{InFlight, Session, Slot, Turn};

/// The domain of the hash of arguments.
pub const ARGUMENTS_DOMAIN: &str = "sympozium.ai/arguments/v1";
/// The domain of the hash of arguments that cannot be parsed.
const UNREADABLE_DOMAIN: &str = "sympozium.ai/unreadable-arguments/v1";
/// How long a call waits for receipts to be reported before it is refused.
const REPORT_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// A sidecar or the bridge acts.
    Tool,
    /// The agent acts, with a permit.
    Permit,
}

/// A call that passed the lookup.
pub(crate) struct AcceptedCall {
    pub call: u64,
    pub tool: ToolPlan,
    /// They match the schema of the tool.
    pub arguments: Value,
    pub hash: Digest,
    /// The call counts against its limits until this is dropped.
    pub slot: Slot,
}

/// A call that may be executed now.
pub(crate) struct AllowedCall {
    /// Held until the action has ended.
    pub turn: Turn,
    /// The hash of the exact action.
    pub action: Digest,
}

impl Session {
    /// A call of a tool on which a sidecar or the bridge acts. `unwanted` resolves when the agent no longer waits. The
    /// call counts as running until the slot is dropped; keep the slot until the agent has read the answer, because
    /// unread answers are buffered here.
    ///
    /// # Errors
    ///
    /// Returns the refusal for the model.
    pub async fn call(
        self: Arc<Self>,
        name: &str,
        body: &[u8],
        unwanted: impl Future<Output = ()> + Send,
    ) -> Result<(ToolAnswer, Slot), Refusal> {
        tokio::pin!(unwanted);
        let begun = self.accept(Route::Tool, name, body, &mut unwanted).await?;
        let work = self.invocation(&begun)?;
        let allowed = self.allow(&begun, &work, &mut unwanted).await?;
        let acting = InFlight { by: work.actor(), action: allowed.action, since: Instant::now() };
        self.start_action(begun.call, acting);
        let done = self.invoke(&begun, work, &mut unwanted).await;
        self.finish_action(begun.call, done.outcome, done.output, done.isolation);
        // Held until here: only now has the approved action ended.
        drop(allowed.turn);
        Ok((done.answer?, begun.slot))
    }

    /// Waits until there is room for the receipts of what happens next.
    pub(crate) async fn wait_for_room(&self) -> Result<(), Refusal> {
        self.check_open()?;
        match timeout(REPORT_TIMEOUT, self.records.wait_for_room()).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(refusal(RefusalCode::Unavailable, "the run is over")),
            Err(_) => {
                let message = "nothing may happen that cannot be reported, and the gateway does not take reports";
                Err(refusal(RefusalCode::Unavailable, message))
            }
        }
    }

    /// Looks a call up, checks and counts it. A refused call gets its receipt here.
    pub(crate) async fn accept(
        self: &Arc<Self>,
        way: Route,
        name: &str,
        body: &[u8],
        unwanted: &mut (impl Future<Output = ()> + Unpin),
    ) -> Result<AcceptedCall, Refusal> {
        tokio::select! {
            biased;
            // Nothing has happened yet, and the body of a cancelled call is not kept. It counts as a refusal, because
            // it was read in vain.
            () = unwanted => {
                self.count_refusal(RefusalCode::Request);
                return Err(cancelled_refusal());
            }
            room = self.wait_for_room() => room?,
        }
        let call = self.next_call();
        let read: Result<ToolCall, _> = serde_json::from_slice(body);
        let hash = match &read {
            Ok(read) => digest(ARGUMENTS_DOMAIN, &read.arguments).ok(),
            Err(_) => None,
        };
        let hash = hash.unwrap_or_else(|| digest_canonical(UNREADABLE_DOMAIN, body));
        let looked_up = self.look_up(way, name, read, body.len());
        match looked_up {
            Ok((index, arguments, slot)) => {
                Ok(AcceptedCall { call, tool: self.plan.tools[index].clone(), arguments, hash, slot })
            }
            Err(refusal) => {
                let decided = match refusal.code {
                    RefusalCode::Denied => CallDecision::Denied,
                    _ => CallDecision::Refused,
                };
                let gate = self.plan.tools.iter().find(|tool| tool.name == name);
                self.records.add(Event::Called {
                    call,
                    tool: to_receipt_text(name),
                    pack: None,
                    arguments: hash,
                    gate: gate.map(|tool| tool.gate),
                    decided,
                    reason: Some(to_receipt_text(&refusal.message)),
                });
                Err(refusal)
            }
        }
    }

    fn look_up(
        self: &Arc<Self>,
        way: Route,
        name: &str,
        read: serde_json::Result<ToolCall>,
        bytes: usize,
    ) -> Result<(usize, Value, Slot), Refusal> {
        let read = read.map_err(|error| {
            let message = format!("the call cannot be read: {error}");
            refusal(RefusalCode::Request, &to_receipt_text(&message))
        })?;
        if read.id.len() > MAX_CALL_ID {
            let message = format!("the call's id has more than {MAX_CALL_ID} bytes");
            return Err(refusal(RefusalCode::Request, &message));
        }
        let found = self.table.look_up(name, read.arguments, self.active_pack())?;
        self.check_active_skill(found.tool)?;
        let most = found.tool.limits.argument_bytes as usize;
        if bytes.saturating_sub(read.id.len()) > most {
            let message = format!("the arguments of `{name}` may have {most} bytes");
            return Err(refusal(RefusalCode::Size, &message));
        }
        match (way, &found.tool.acts) {
            (Route::Permit, ToolHandler::Agent) => {}
            (Route::Tool, acts) if *acts != ToolHandler::Agent => {}
            (Route::Permit, _) => {
                let message = format!("`{name}` is called, and needs no permit");
                return Err(refusal(RefusalCode::Request, &message));
            }
            (Route::Tool, _) => {
                let message = format!("`{name}` needs a permit: the agent itself acts");
                return Err(refusal(RefusalCode::Request, &message));
            }
        }
        let slot = self.acquire_slot(found.index)?;
        Ok((found.index, found.arguments, slot))
    }

    /// The invocation of a call. A refused call gets its receipt here.
    pub(crate) fn invocation(&self, begun: &AcceptedCall) -> Result<Invocation, Refusal> {
        Invocation::new(begun).inspect_err(|refusal| {
            self.record_decision(begun, CallDecision::Refused, Some(&refusal.message));
        })
    }

    /// Waits for a turn, and for an approval if the gate is `ask`. A refused call gets its receipt here.
    pub(crate) async fn allow(
        self: &Arc<Self>,
        begun: &AcceptedCall,
        work: &Invocation,
        unwanted: &mut (impl Future<Output = ()> + Unpin),
    ) -> Result<AllowedCall, Refusal> {
        match begun.tool.gate {
            Gate::Allow => {
                let turn = tokio::select! {
                    biased;
                    () = unwanted => {
                        let refusal = cancelled_refusal();
                        self.record_decision(begun, CallDecision::Refused, Some(&refusal.message));
                        return Err(refusal);
                    }
                    turn = self.take_turn() => turn,
                };
                self.record_decision(begun, CallDecision::Allowed, None);
                let action = self.action(begun, work, &begun.call.to_string()).digest();
                let action = action.map_err(|_| cancelled_refusal())?;
                Ok(AllowedCall { turn, action })
            }
            Gate::Ask => {
                self.record_decision(begun, CallDecision::Waiting, None);
                // Different for every question, so that no answer is valid for another one.
                let approval = uuid::Uuid::new_v4().simple().to_string();
                let question = Question {
                    call: begun.call,
                    action: self.action(begun, work, &approval),
                    identical: self.action(begun, work, ""),
                };
                let turn = tokio::select! {
                    biased;
                    () = &mut *unwanted => return Err(self.refuse_unasked(&question)),
                    turn = self.take_exclusive_turn() => turn,
                };
                let action = self.ask(&question, unwanted).await?;
                Ok(AllowedCall { turn, action })
            }
            // The table has refused it before.
            Gate::Deny => Err(refusal(RefusalCode::Denied, "the tool is denied by policy")),
        }
    }

    /// The exact action: what an approver decides about, and what a receipt names.
    fn action<'a>(&'a self, begun: &'a AcceptedCall, work: &'a Invocation, nonce: &'a str) -> Action<'a> {
        let request = work.request();
        Action {
            run: self.plan.run.uid.as_str(),
            nonce,
            tool: &begun.tool.name,
            pack: begun.tool.pack.as_deref(),
            target: work.target(),
            deed: match work {
                Invocation::Command { request, .. } if request.argv.is_empty() => Operation::Shell(&request.command),
                Invocation::Command { request, .. } => Operation::Program(&request.argv),
                Invocation::Direct { text } => Operation::Call(text),
            },
            work_dir: request.and_then(|request| request.work_dir.as_deref()),
            stdin: request.and_then(|request| request.stdin.as_deref()),
            timeout_seconds: work.timeout_seconds(&begun.tool),
        }
    }

    pub(crate) fn record_decision(&self, begun: &AcceptedCall, decided: CallDecision, reason: Option<&str>) {
        self.records.add(Event::Called {
            call: begun.call,
            tool: begun.tool.name.clone(),
            pack: begun.tool.pack.clone(),
            arguments: begun.hash.clone(),
            gate: Some(begun.tool.gate),
            decided,
            reason: reason.map(to_receipt_text),
        });
    }
}

fn cancelled_refusal() -> Refusal {
    refusal(RefusalCode::Unavailable, "the agent no longer waits for this")
}

pub(crate) fn refusal(code: RefusalCode, message: &str) -> Refusal {
    Refusal { code, message: message.to_owned(), retry_after_ms: None }
}

/// Whole milliseconds since an instant.
pub(crate) fn elapsed_ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
