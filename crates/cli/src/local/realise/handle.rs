//! What others may do with a run that goes on: see its questions, answer them, end it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use sympozium_api::names::Digest;
use sympozium_gateway::run_api::local::{Counted, Desk, Pending, Person, Says, Undecidable, Verdict};
use sympozium_ipc::run_api::Decision;
use tokio::sync::watch;

use crate::local::event::{Event, Question};
use crate::local::events::EventLog;
use crate::local::prepared::Approve;
use crate::local::state::read_bounded;
use crate::local::time::now_ms;

/// What others may do with a run that goes on.
#[derive(Debug)]
pub struct Handle {
    /// Everything that happens.
    pub events: EventLog,
    uid: String,
    desk: Desk,
    stop: watch::Sender<Stop>,
    person: Person,
    /// Questions that somebody was told of, and whose answer nobody was told of.
    open: Mutex<BTreeMap<String, Question>>,
}

/// Whether a run is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// It goes on.
    No,
    /// The agent is told, and has its time to end.
    Gently,
    /// Everything is killed.
    Now,
}

impl Handle {
    /// Of a run that has just begun.
    pub fn new(uid: String, desk: Desk, events: EventLog) -> Self {
        Self { events, uid, desk, stop: watch::Sender::new(Stop::No), person: this_user(), open: Mutex::default() }
    }

    /// The questions that wait for a person.
    pub fn questions(&self) -> Vec<Question> {
        self.desk.pending().iter().map(question).collect()
    }

    /// A person's word about one exact action: whoever is at this user's terminal, which is the run's author.
    ///
    /// # Errors
    ///
    /// When it does not count; the question waits on then.
    pub fn decide(
        &self,
        approval: &str,
        action: &Digest,
        says: Says,
        reason: Option<&str>,
    ) -> Result<Counted, Undecidable> {
        let counted =
            self.desk.decide(&Verdict { run: &self.uid, approval, action, says, by: &self.person, reason })?;
        if counted == Counted::Decided && self.lock().remove(approval).is_some() {
            let decision = match says {
                Says::No => Decision::Denied,
                Says::Yes | Says::YesForTheRun => Decision::Approved,
            };
            self.events.tell(Event::Answered {
                approval: approval.to_owned(),
                decision: Some(decision),
                by: Some(self.person.name.clone()),
            });
        }
        Ok(counted)
    }

    /// Ends the run. What was asked for before is not taken back.
    pub fn stop(&self, how: Stop) {
        self.stop.send_if_modified(|now| {
            let more = how > *now;
            if more {
                *now = how;
            }
            more
        });
    }

    /// Whether the run is to end, and when that changes.
    pub fn stopping(&self) -> watch::Receiver<Stop> {
        self.stop.subscribe()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Question>> {
        // A panic elsewhere leaves the map whole.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells of questions that are new, and of those that nobody waits for any more.
    fn look(&self, approve: Approve) {
        let pending = self.questions();
        let mut new = Vec::new();
        {
            let mut open = self.lock();
            let gone: Vec<_> =
                (open.keys()).filter(|name| !pending.iter().any(|it| it.approval == **name)).cloned().collect();
            for name in gone {
                let expired = open.remove(&name).is_some_and(|it| now_ms() >= it.deadline_ms);
                self.events.tell(Event::Answered {
                    approval: name,
                    decision: expired.then_some(Decision::Expired),
                    by: None,
                });
            }
            for question in pending {
                if open.insert(question.approval.clone(), question.clone()).is_none() {
                    self.events.tell(Event::Asked { question: question.clone() });
                    new.push(question);
                }
            }
        }
        let says = match approve {
            Approve::Ask => return,
            Approve::All => Says::Yes,
            Approve::None => Says::No,
        };
        for question in new {
            let decided = self.decide(&question.approval, &question.action, says, None);
            let text = match decided {
                Ok(Counted::Decided) | Err(Undecidable::Unknown) => continue,
                Ok(Counted::More(more)) => {
                    format!("{more} more must say yes to {}", question.approval)
                }
                Err(error) => format!("{} waits for a person: {error}", question.approval),
            };
            self.events.tell(Event::Warning { text });
        }
    }
}

/// Tells of questions as they come and go, for as long as it is polled.
pub async fn watch_questions(handle: Arc<Handle>, approve: Approve) {
    let mut changes = handle.desk.changes();
    loop {
        handle.look(approve);
        // The desk is held by the handle: it does not close.
        if changes.changed().await.is_err() {
            return;
        }
    }
}

fn question(pending: &Pending) -> Question {
    let left = pending.deadline.saturating_duration_since(tokio::time::Instant::now());
    let left = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
    let request = &pending.request;
    Question {
        approval: request.approval.clone(),
        tool: request.tool.clone(),
        pack: request.pack.clone(),
        action: request.action.clone(),
        shown: request.shown.clone(),
        deadline_ms: now_ms().saturating_add(left),
        run_scope: pending.run.approval.run_scope,
    }
}

/// Who decides here: this user, who started the run.
fn this_user() -> Person {
    let uid = rustix::process::getuid().as_raw();
    let name = user_name(uid).unwrap_or_else(|| format!("uid {uid}"));
    Person { name, groups: Vec::new(), is_author: true }
}

/// What `/etc/passwd` calls a user. Not what the environment says: that can be anything.
fn user_name(uid: u32) -> Option<String> {
    const MOST_BYTES: u64 = 1 << 20;
    let text = read_bounded(Path::new("/etc/passwd"), MOST_BYTES).ok()?;
    let text = String::from_utf8(text).ok()?;
    let uid = uid.to_string();
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1) == Some(uid.as_str()) && !name.is_empty()).then(|| name.to_owned())
    })
}
