//! The requests that came, for the test to look at.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use hyper::http::request::Parts;
use parking_lot::{Condvar, Mutex};
use serde_json::Value;

/// How long a test waits for requests before it fails: long, for a starved machine is slow and a good test does not wait.
const PATIENCE: Duration = Duration::from_secs(180);
/// Requests that are kept; a bench sends more, and looks at none.
pub const MOST_KEPT: usize = 4096;
/// Bytes of bodies that are kept. The newest request is kept whatever its size.
pub const MOST_KEPT_BYTES: usize = 128 * 1024 * 1024;

/// A request as it came, whatever it was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Which request it is, from 1: the number in the ids of its answer.
    pub number: u64,
    /// Which connection it came by, from 1 in the order in which they were accepted.
    pub connection: u64,
    /// How many requests came by that connection before.
    pub earlier_on_connection: u64,
    /// The method.
    pub method: String,
    /// The path without the query.
    pub path: String,
    /// The query, without its question mark.
    pub query: Option<String>,
    /// The headers: names in lower case, in the order in which they came; the values of a repeated name stand together.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Bytes,
}

impl Recorded {
    pub(super) fn new(parts: &Parts, body: Bytes, connection: u64, earlier: u64) -> Self {
        Self {
            number: 0,
            connection,
            earlier_on_connection: earlier,
            method: parts.method.to_string(),
            path: parts.uri.path().to_owned(),
            query: parts.uri.query().map(str::to_owned),
            headers: parts
                .headers
                .iter()
                .map(|(name, value)| {
                    let value = String::from_utf8_lossy(value.as_bytes());
                    (name.as_str().to_owned(), value.into_owned())
                })
                .collect(),
            body,
        }
    }

    /// The first value of a header, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(it, _)| it == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The body as JSON, `null` if it is none.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// The request as text, as [`Reply::Echo`](super::Reply::Echo) says it.
    pub fn to_text(&self) -> String {
        let query = self.query.as_ref().map(|it| format!("?{it}"));
        let mut text = format!("{} {}{}\n", self.method, self.path, query.unwrap_or_default());
        for (name, value) in &self.headers {
            text.push_str(name);
            text.push_str(": ");
            text.push_str(value);
            text.push('\n');
        }
        text.push('\n');
        text.push_str(&String::from_utf8_lossy(&self.body));
        text
    }
}

/// What was recorded so far.
#[derive(Default)]
pub struct Records {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    kept: VecDeque<Arc<Recorded>>,
    kept_bytes: usize,
    requests: u64,
    abandoned: u64,
}

impl Records {
    /// Numbers a request and keeps it.
    pub fn add(&self, mut request: Recorded) -> Arc<Recorded> {
        let mut state = self.state.lock();
        state.requests += 1;
        request.number = state.requests;
        let request = Arc::new(request);
        state.kept_bytes += request.body.len();
        state.kept.push_back(request.clone());
        while state.kept.len() > MOST_KEPT || (state.kept.len() > 1 && state.kept_bytes > MOST_KEPT_BYTES) {
            if let Some(oldest) = state.kept.pop_front() {
                state.kept_bytes -= oldest.body.len();
            }
        }
        drop(state);
        self.changed.notify_all();
        request
    }

    /// Notes that a client left before its answer was complete.
    pub fn add_abandoned(&self) {
        self.state.lock().abandoned += 1;
        self.changed.notify_all();
    }

    pub fn retained(&self) -> Vec<Arc<Recorded>> {
        self.state.lock().kept.iter().cloned().collect()
    }

    pub fn requests(&self) -> u64 {
        self.state.lock().requests
    }

    pub fn abandoned(&self) -> u64 {
        self.state.lock().abandoned
    }

    #[track_caller]
    pub fn wait_for_requests(&self, count: u64) {
        let came = self.wait(count, |state| state.requests);
        assert!(came >= count, "only {came} of {count} requests came to the model server within {PATIENCE:?}");
    }

    #[track_caller]
    pub fn wait_for_abandoned(&self, count: u64) {
        let came = self.wait(count, |state| state.abandoned);
        assert!(came >= count, "only {came} of {count} answers of the model server were abandoned within {PATIENCE:?}");
    }

    /// Waits until `what` is at least `count`, or patience ends; gives what it is then.
    fn wait(&self, count: u64, what: impl Fn(&State) -> u64) -> u64 {
        let end = Instant::now() + PATIENCE;
        let mut state = self.state.lock();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if what(&state) >= count || left.is_zero() {
                return what(&state);
            }
            self.changed.wait_for(&mut state, left);
        }
    }
}
