//! One tool call, from the agent's request to the receipt of the action.
//!
//! The order is the point of this file: look up, check and count before anything happens; take a turn, exclusively if
//! an approver is asked; write a receipt of the decision before the action, and one of the action. A call that was
//! started is always completed and recorded, even if the agent no longer waits for it.

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

/// The domain of the hash of arguments.
pub const ARGUMENTS_DOMAIN: &str = "sympozium.ai/arguments/v1";
/// The domain of the hash of arguments that cannot be parsed.
const UNREADABLE_DOMAIN: &str = "sympozium.ai/unreadable-arguments/v1";
/// How long a call waits for receipts to be reported before it is refused.
const REPORT_PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// A sidecar or the bridge acts.
    Tool,
    /// The agent acts, with a permit.
    Permit,
}

/// A call that passed the lookup.
pub(crate) struct Begun {
    pub call: u64,
    pub tool: ToolPlan,
    /// They match the schema of the tool.
    pub arguments: Value,
    pub hash: Digest,
    /// The call counts against its limits until this is dropped.
    pub slot: Slot,
}

/// A call that may be executed now.
pub(crate) struct Allowed {
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
        let begun = self.begin(Way::Tool, name, body, &mut unwanted).await?;
        let work = self.work(&begun)?;
        let allowed = self.allow(&begun, &work, &mut unwanted).await?;
        let acting = Acting { by: work.actor(), action: allowed.action, since: Instant::now() };
        self.begins(begun.call, acting);
        let done = self.act(&begun, work, &mut unwanted).await;
        self.ends(begun.call, done.outcome, done.output, done.isolation);
        // Held until here: only now has the approved action ended.
        drop(allowed.turn);
        Ok((done.answer?, begun.slot))
    }

    /// Waits until there is room for the receipts of what happens next.
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

    /// Looks a call up, checks and counts it. A refused call gets its receipt here.
    pub(crate) async fn begin(
        self: &Arc<Self>,
        way: Way,
        name: &str,
        body: &[u8],
        unwanted: &mut (impl Future<Output = ()> + Unpin),
    ) -> Result<Begun, Refusal> {
        tokio::select! {
            biased;
            // Nothing has happened yet, and the body of a cancelled call is not kept. It counts as a refusal, because
            // it was read in vain.
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

    /// The invocation of a call. A refused call gets its receipt here.
    pub(crate) fn work(&self, begun: &Begun) -> Result<Work, Refusal> {
        Work::of(begun).inspect_err(|refusal| {
            self.decided(begun, Decided::Refused, Some(&refusal.message));
        })
    }

    /// Waits for a turn, and for an approval if the gate is `ask`. A refused call gets its receipt here.
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
                // Different for every question, so that no answer is valid for another one.
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
            // The table has refused it before.
            Gate::Deny => Err(refusal(RefusalCode::Denied, "the tool is denied by policy")),
        }
    }

    /// The exact action: what an approver decides about, and what a receipt names.
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

/// Whole milliseconds since an instant.
pub(crate) fn milliseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
