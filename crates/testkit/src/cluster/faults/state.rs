//! What a test has set, and what has come so far.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::writes::{Class, MOST_KEPT_WRITES, Write, class, is_write};

/// Which side of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Moment {
    /// The API server never hears of it.
    Before,
    /// The API server has answered, and the program never hears of that.
    After,
}

/// How a request is spoilt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing is done, and the program is told so.
    Refuse(Refusal),
    /// It is done, and the program is told that it took too long (504).
    LoseAnswer,
    /// Nothing is done, and for so long nothing is said; then the connection is cut.
    Hang(Duration),
    /// Nothing is done, and the connection is cut.
    Cut,
}

/// What the program is told instead of the truth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// 409: another client was first.
    Conflict,
    /// 429, with so many seconds to wait.
    TooManyRequests {
        /// What `Retry-After` says.
        retry_after_seconds: u32,
    },
    /// 500.
    InternalError,
    /// 504.
    Timeout,
}

/// Faults by chance. The same seed spoils the same requests, as far as they come in the same order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sprinkle {
    /// Decides which.
    pub seed: u64,
    /// Of a hundred writes to objects, reviews and Events, how many are spoilt.
    pub writes_percent: u8,
    /// Of a hundred reads, watches apart, how many are spoilt.
    pub reads_percent: u8,
    /// What they get. Reads that would lose an answer get a timeout.
    pub faults: Vec<Fault>,
}

type Counts = Box<dyn Fn(&str, &str) -> bool + Send>;

/// What a test has set, and what has come so far.
pub struct State {
    inner: Mutex<Inner>,
    signal: watch::Sender<Signal>,
    listening: AtomicBool,
}

struct Inner {
    counts: Counts,
    counted: usize,
    writes: Vec<Write>,
    stop: Option<(usize, Moment)>,
    stopped: bool,
    faults: HashMap<usize, Fault>,
    sprinkle: Option<Sprinkle>,
    asked: u64,
    spoilt: usize,
    cuts: usize,
    cut_after: Option<Duration>,
}

/// What connections wait for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Signal {
    /// Connections that began at a smaller one are cut.
    pub epoch: u64,
    /// Watches that began at a smaller one are cut.
    pub cut: u64,
    /// No request goes on.
    pub held: bool,
    /// The port is closed.
    pub refusing: bool,
}

/// What is to be done with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// Where it is among the writes.
    pub place: Option<usize>,
    pub action: Action,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Forward,
    Spoil(Fault),
    Stop(Moment),
}

impl State {
    pub fn new() -> Self {
        Self {
            inner: Mutex::new(Inner {
                counts: Box::new(|_, _| true),
                counted: 0,
                writes: Vec::new(),
                stop: None,
                stopped: false,
                faults: HashMap::new(),
                sprinkle: None,
                asked: 0,
                spoilt: 0,
                cuts: 0,
                cut_after: None,
            }),
            signal: watch::Sender::new(Signal::default()),
            listening: AtomicBool::new(true),
        }
    }

    pub fn begin(&self, counts: Counts) {
        let mut inner = self.inner.lock();
        let may_stop = inner.stop.is_some();
        inner.counts = counts;
        inner.counted = 0;
        inner.writes.clear();
        inner.stop = None;
        inner.stopped = false;
        inner.faults.clear();
        inner.sprinkle = None;
        inner.asked = 0;
        inner.spoilt = 0;
        inner.cuts = 0;
        inner.cut_after = None;
        drop(inner);
        // A stop of before may come to nothing or, after the last write of a run, take effect when the run is seen to be
        // complete. It ends here either way, and with it the connections that could still cause it.
        self.signal.send_modify(|signal| {
            signal.epoch += u64::from(may_stop);
            signal.held = false;
        });
    }

    pub fn writes(&self) -> Vec<Write> {
        self.inner.lock().writes.clone()
    }

    pub fn stop_at(&self, number: usize, moment: Moment) {
        self.inner.lock().stop = Some((number, moment));
    }

    pub fn has_stopped(&self) -> bool {
        self.inner.lock().stopped
    }

    pub fn resume(&self) {
        let mut inner = self.inner.lock();
        inner.stop = None;
        inner.stopped = false;
        drop(inner);
        self.signal.send_modify(|signal| {
            signal.epoch += 1;
            signal.held = false;
        });
    }

    pub fn spoil(&self, number: usize, fault: Fault) {
        self.inner.lock().faults.insert(number, fault);
    }

    pub fn sprinkle(&self, sprinkle: Option<Sprinkle>) {
        let mut inner = self.inner.lock();
        inner.asked = 0;
        inner.sprinkle = sprinkle.filter(|it| !it.faults.is_empty());
    }

    pub fn spoilt(&self) -> usize {
        self.inner.lock().spoilt
    }

    pub fn cut_watches(&self) {
        self.signal.send_modify(|signal| signal.cut += 1);
    }

    pub fn cut_watches_after(&self, age: Option<Duration>) {
        self.inner.lock().cut_after = age;
        // Those that are open were opened without it.
        self.cut_watches();
    }

    pub fn cut_after(&self) -> Option<Duration> {
        self.inner.lock().cut_after
    }

    pub fn cuts(&self) -> usize {
        self.inner.lock().cuts
    }

    pub fn note_cut(&self) {
        self.inner.lock().cuts += 1;
    }

    pub fn hold(&self, held: bool) {
        self.signal.send_modify(|signal| signal.held = held);
    }

    pub fn refuse(&self, refusing: bool) {
        self.signal.send_modify(|signal| {
            signal.refusing = refusing;
            signal.epoch += 1;
        });
    }

    pub fn is_listening(&self) -> bool {
        self.listening.load(Ordering::Acquire)
    }

    pub fn set_listening(&self, listening: bool) {
        self.listening.store(listening, Ordering::Release);
    }

    pub fn subscribe(&self) -> watch::Receiver<Signal> {
        self.signal.subscribe()
    }

    /// Records a request and says what becomes of it.
    pub fn decide(&self, method: &str, path: &str) -> Decision {
        let mut inner = self.inner.lock();
        if !is_write(method) {
            let action = inner.chance(Kind::Read).map_or(Action::Forward, Action::Spoil);
            return Decision { place: None, action };
        }
        let about = class(path);
        let counts = about == Class::Object && (inner.counts)(method, path);
        if counts {
            inner.counted += 1;
        }
        let number = counts.then_some(inner.counted);
        let place = (inner.writes.len() < MOST_KEPT_WRITES).then(|| {
            inner.writes.push(Write {
                number,
                class: about,
                method: method.to_owned(),
                path: path.to_owned(),
                status: None,
            });
            inner.writes.len() - 1
        });
        let stop = inner.stop.filter(|(at, _)| number == Some(*at));
        let action = if let Some((_, moment)) = stop {
            if moment == Moment::Before {
                self.freeze(&mut inner);
            }
            Action::Stop(moment)
        } else if let Some(fault) = number.and_then(|number| inner.faults.remove(&number)) {
            inner.spoilt += 1;
            Action::Spoil(fault)
        } else if about == Class::Lease {
            // Whoever leads is not what these tests are about, and losing the Lease ends a program.
            Action::Forward
        } else {
            inner.chance(Kind::Write).map_or(Action::Forward, Action::Spoil)
        };
        Decision { place, action }
    }

    /// The stop after a write: the answer is here and goes nowhere.
    pub fn stopped_after(&self) {
        let mut inner = self.inner.lock();
        self.freeze(&mut inner);
    }

    pub fn answered(&self, place: Option<usize>, status: u16) {
        let mut inner = self.inner.lock();
        // A test may have begun anew in between.
        if let Some(write) = place.and_then(|place| inner.writes.get_mut(place)) {
            write.status = Some(status);
        }
    }

    fn freeze(&self, inner: &mut Inner) {
        inner.stopped = true;
        self.signal.send_modify(|signal| signal.held = true);
    }
}

enum Kind {
    Read,
    Write,
}

impl Inner {
    /// A fault for this request, if its turn has come.
    fn chance(&mut self, kind: Kind) -> Option<Fault> {
        let sprinkle = self.sprinkle.as_ref()?;
        let percent = match kind {
            Kind::Read => sprinkle.reads_percent,
            Kind::Write => sprinkle.writes_percent,
        };
        self.asked += 1;
        let drawn = mix(sprinkle.seed.wrapping_add(self.asked));
        if drawn % 100 >= u64::from(percent) {
            return None;
        }
        let which = usize::try_from((drawn >> 32) % sprinkle.faults.len() as u64).unwrap_or(0);
        let fault = match (sprinkle.faults[which], kind) {
            (Fault::LoseAnswer | Fault::Refuse(Refusal::Conflict), Kind::Read) => Fault::Refuse(Refusal::Timeout),
            (fault, _) => fault,
        };
        self.spoilt += 1;
        Some(fault)
    }
}

/// SplitMix64: good enough to spoil requests, and needs no dependency.
fn mix(seed: u64) -> u64 {
    let state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRETS: &str = "/api/v1/namespaces/a/secrets";
    const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/a/leases/b";

    fn actions(state: &State, requests: &[(&str, &str)]) -> Vec<Action> {
        requests.iter().map(|(method, path)| state.decide(method, path).action).collect()
    }

    #[test]
    fn only_what_counts_is_numbered_stopped_at_and_spoilt() {
        let state = State::new();
        state.begin(Box::new(|_, path| path.contains("/namespaces/a/")));
        state.spoil(1, Fault::Cut);
        state.stop_at(2, Moment::Before);
        let done = actions(
            &state,
            &[
                ("GET", SECRETS),
                ("PUT", LEASE),
                ("POST", "/api/v1/namespaces/b/secrets"),
                ("POST", SECRETS),
                ("DELETE", SECRETS),
            ],
        );
        let expected = [
            Action::Forward,
            Action::Forward,
            Action::Forward,
            Action::Spoil(Fault::Cut),
            Action::Stop(Moment::Before),
        ];
        assert_eq!(done, expected);
        assert!(state.has_stopped());
        let numbers: Vec<_> = state.writes().iter().map(|write| write.number).collect();
        assert_eq!(numbers, [None, None, Some(1), Some(2)]);
    }

    #[test]
    fn a_stop_that_came_too_late_does_not_hold_what_begins_after_it() {
        let state = State::new();
        let signal = state.subscribe();
        state.stop_at(1, Moment::After);
        assert_eq!(actions(&state, &[("POST", SECRETS)]), [Action::Stop(Moment::After)]);
        let before = signal.borrow().epoch;
        state.stopped_after();
        assert!(signal.borrow().held);
        state.begin(Box::new(|_, _| true));
        assert!(!state.has_stopped());
        assert!(!signal.borrow().held);
        assert!(signal.borrow().epoch > before, "its connection could stop what begins now");

        let without_stop = signal.borrow().epoch;
        state.begin(Box::new(|_, _| true));
        assert_eq!(signal.borrow().epoch, without_stop, "no reason to cut connections");
    }

    #[test]
    fn chance_follows_the_seed_and_leaves_leases_alone() {
        let sprinkle =
            |seed| Sprinkle { seed, writes_percent: 30, reads_percent: 0, faults: vec![Fault::LoseAnswer, Fault::Cut] };
        let draw = |seed| {
            let state = State::new();
            state.sprinkle(Some(sprinkle(seed)));
            let all = actions(&state, &[("POST", SECRETS); 200]);
            (state.spoilt(), all)
        };
        let (spoilt, all) = draw(1);
        assert!((30..90).contains(&spoilt), "{spoilt}");
        assert_eq!(all, draw(1).1);
        assert_ne!(all, draw(2).1);

        let state = State::new();
        let always = Sprinkle { writes_percent: 100, ..sprinkle(1) };
        state.sprinkle(Some(always));
        let requests = [("PUT", LEASE), ("GET", SECRETS)];
        assert_eq!(actions(&state, &requests), [Action::Forward, Action::Forward]);
    }
}
