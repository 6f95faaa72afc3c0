//! One call of a tool, from what the agent says to the receipt of what was done.
//!
//! The order is the point of this file. Looked up, checked and counted before anything happens; a turn, alone where a person
//! is asked; a receipt of the decision before the deed, and one of the deed. What was begun is seen to its end and recorded,
//! whether the agent still listens or not.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use sympozium_api::digest::{digest, of_canonical};
use sympozium_api::names::Digest;
use sympozium_api::run_plan::{Acts, Gate, ToolPlan};
use sympozium_ipc::action::{Action, Deed};
use sympozium_ipc::door::{MAX_CALL_ID, Refusal, RefusalCode, ToolAnswer, ToolCall};
use sympozium_ipc::receipt::{Decided, Event, shortened};
use tokio::time::timeout;

use crate::ask::Question;
use crate::session::{Acting, Session, Slot, Turn};
use crate::work::Work;

/// What a hash of arguments is of.
pub const ARGUMENTS_DOMAIN: &str = "sympozium.ai/arguments/v1";
/// What a hash of arguments that could not be read is of.
const UNREADABLE_DOMAIN: &str = "sympozium.ai/unreadable-arguments/v1";
/// How long a call waits for receipts to leave before it is refused.
const REPORT_PATIENCE: Duration = Duration::from_secs(30);

/// Whether the agent acts itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Others act.
    Tool,
    /// The agent does, with a permit.
    Permit,
}

/// A call that may go on.
pub(crate) struct Begun {
    /// Its number.
    pub call: u64,
    /// The tool.
    pub tool: ToolPlan,
    /// Its arguments, which fit.
    pub arguments: Value,
    pub hash: Digest,
    /// Counted as long as this lives.
    pub slot: Slot,
}

/// A call that may happen now.
pub(crate) struct Allowed {
    /// Nobody else asks, or nobody else acts, as long as this lives.
    pub turn: Turn,
    /// The hash of what may happen.
    pub action: Digest,
}

impl Session {
    /// A call of a tool that others act on. `unwanted` comes back when nobody listens any more. The call is under way as long
    /// as the slot lives, which is to be kept until its answer has been read: answers that nobody reads are kept here.
    ///
    /// # Errors
    ///
    /// With what the model is told.
    pub async fn call(
        self: Arc<Self>,
        name: &str,
        body: &[u8],
        unwanted: impl Future<Output = ()> + Send,
    ) -> Result<(ToolAnswer, Slot), Refusal> {
        tokio::pin!(unwanted);
        let begun = self.begin(Way::Tool, name, body, &mut unwanted).await?;
        let work = self.work(&begun)?;
        let allowed = self.allow(&begun, &work, &mut unwanted).await?;
        let acting = Acting { by: work.actor(), action: allowed.action, since: Instant::now() };
        self.begins(begun.call, acting);
        let done = self.act(&begun, work, &mut unwanted).await;
        self.ends(begun.call, done.outcome, done.output, done.isolation);
        // Kept until here: only now is what was asked about over.
        drop(allowed.turn);
        Ok((done.answer?, begun.slot))
    }

    /// Waits until what happens next can be recorded.
    pub(crate) async fn room(&self) -> Result<(), Refusal> {
        self.goes_on()?;
        match timeout(REPORT_PATIENCE, self.records.room()).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(refusal(RefusalCode::Unavailable, "the run is over")),
            Err(_) => {
                let message = "nothing may happen that cannot be reported, and the gateway does not take reports";
                Err(refusal(RefusalCode::Unavailable, message))
            }
        }
    }

    /// Looks a call up, checks and counts it. What is refused has its receipt.
    pub(crate) async fn begin(
        self: &Arc<Self>,
        way: Way,
        name: &str,
        body: &[u8],
        unwanted: &mut (impl Future<Output = ()> + Unpin),
    ) -> Result<Begun, Refusal> {
        tokio::select! {
            biased;
            // Nothing has happened yet, and a body that nobody wants is not kept. It counts: it was read for nothing.
            () = unwanted => {
                self.refused(RefusalCode::Request);
                return Err(nobody_waits());
            }
            room = self.room() => room?,
        }
        let call = self.next_call();
        let read: Result<ToolCall, _> = serde_json::from_slice(body);
        let hash = match &read {
            Ok(read) => digest(ARGUMENTS_DOMAIN, &read.arguments).ok(),
            Err(_) => None,
        };
        let hash = hash.unwrap_or_else(|| of_canonical(UNREADABLE_DOMAIN, body));
        let looked_up = self.look_up(way, name, read, body.len());
        match looked_up {
            Ok((index, arguments, slot)) => {
                Ok(Begun { call, tool: self.plan.tools[index].clone(), arguments, hash, slot })
            }
            Err(refusal) => {
                let decided = match refusal.code {
                    RefusalCode::Denied => Decided::Denied,
                    _ => Decided::Refused,
                };
                let gate = self.plan.tools.iter().find(|it| it.name == name);
                self.records.add(Event::Called {
                    call,
                    tool: shortened(name),
                    pack: None,
                    arguments: hash,
                    gate: gate.map(|it| it.gate),
                    decided,
                    reason: Some(shortened(&refusal.message)),
                });
                Err(refusal)
            }
        }
    }

    fn look_up(
        self: &Arc<Self>,
        way: Way,
        name: &str,
        read: serde_json::Result<ToolCall>,
        bytes: usize,
    ) -> Result<(usize, Value, Slot), Refusal> {
        let read = read.map_err(|error| {
            let message = format!("the call cannot be read: {error}");
            refusal(RefusalCode::Request, &shortened(&message))
        })?;
        if read.id.len() > MAX_CALL_ID {
            let message = format!("the call's id has more than {MAX_CALL_ID} bytes");
            return Err(refusal(RefusalCode::Request, &message));
        }
        let found = self.table.look_up(name, read.arguments, self.active_pack())?;
        self.is_for_active_skill(found.tool)?;
        let most = found.tool.limits.argument_bytes as usize;
        if bytes.saturating_sub(read.id.len()) > most {
            let message = format!("the arguments of `{name}` may have {most} bytes");
            return Err(refusal(RefusalCode::Size, &message));
        }
        match (way, &found.tool.acts) {
            (Way::Permit, Acts::Agent) => {}
            (Way::Tool, acts) if *acts != Acts::Agent => {}
            (Way::Permit, _) => {
                let message = format!("`{name}` is called, and needs no permit");
                return Err(refusal(RefusalCode::Request, &message));
            }
            (Way::Tool, _) => {
                let message = format!("`{name}` needs a permit: the agent itself acts");
                return Err(refusal(RefusalCode::Request, &message));
            }
        }
        let slot = self.slot(found.index)?;
        Ok((found.index, found.arguments, slot))
    }

    /// What a call comes to. What comes to nothing has its receipt.
    pub(crate) fn work(&self, begun: &Begun) -> Result<Work, Refusal> {
        Work::of(begun).inspect_err(|refusal| {
            self.decided(begun, Decided::Refused, Some(&refusal.message));
        })
    }

    /// Waits for a turn, and for a person where the gate says so. What is not allowed has its receipt.
    pub(crate) async fn allow(
        self: &Arc<Self>,
        begun: &Begun,
        work: &Work,
        unwanted: &mut (impl Future<Output = ()> + Unpin),
    ) -> Result<Allowed, Refusal> {
        match begun.tool.gate {
            Gate::Allow => {
                let turn = tokio::select! {
                    biased;
                    () = unwanted => {
                        let refusal = nobody_waits();
                        self.decided(begun, Decided::Refused, Some(&refusal.message));
                        return Err(refusal);
                    }
                    turn = self.turn() => turn,
                };
                self.decided(begun, Decided::Allowed, None);
                let action = self.action(begun, work, &begun.call.to_string()).digest();
                let action = action.map_err(|_| nobody_waits())?;
                Ok(Allowed { turn, action })
            }
            Gate::Ask => {
                self.decided(begun, Decided::Waiting, None);
                // Different for every question, so that no answer is good for another.
                let approval = uuid::Uuid::new_v4().simple().to_string();
                let question = Question {
                    call: begun.call,
                    action: self.action(begun, work, &approval),
                    identical: self.action(begun, work, ""),
                };
                let turn = tokio::select! {
                    biased;
                    () = &mut *unwanted => return Err(self.unasked(&question)),
                    turn = self.turn_alone() => turn,
                };
                let action = self.ask(&question, unwanted).await?;
                Ok(Allowed { turn, action })
            }
            // The table has refused it.
            Gate::Deny => Err(refusal(RefusalCode::Denied, "the tool is denied by policy")),
        }
    }

    /// The exact action: what a person decides about, and what a receipt is of.
    fn action<'a>(&'a self, begun: &'a Begun, work: &'a Work, nonce: &'a str) -> Action<'a> {
        let request = work.request();
        Action {
            run: self.plan.run.uid.as_str(),
            nonce,
            tool: &begun.tool.name,
            pack: begun.tool.pack.as_deref(),
            target: work.target(),
            deed: match work {
                Work::Command { request, .. } if request.argv.is_empty() => Deed::Shell(&request.command),
                Work::Command { request, .. } => Deed::Program(&request.argv),
                Work::Own { text } => Deed::Call(text),
            },
            work_dir: request.and_then(|it| it.work_dir.as_deref()),
            stdin: request.and_then(|it| it.stdin.as_deref()),
            timeout_seconds: work.seconds(&begun.tool),
        }
    }

    pub(crate) fn decided(&self, begun: &Begun, decided: Decided, reason: Option<&str>) {
        self.records.add(Event::Called {
            call: begun.call,
            tool: begun.tool.name.clone(),
            pack: begun.tool.pack.clone(),
            arguments: begun.hash.clone(),
            gate: Some(begun.tool.gate),
            decided,
            reason: reason.map(shortened),
        });
    }
}

fn nobody_waits() -> Refusal {
    refusal(RefusalCode::Unavailable, "nobody waits for this any more")
}

pub(crate) fn refusal(code: RefusalCode, message: &str) -> Refusal {
    Refusal { code, message: message.to_owned(), retry_after_ms: None }
}

/// Whole milliseconds since then.
pub(crate) fn milliseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
