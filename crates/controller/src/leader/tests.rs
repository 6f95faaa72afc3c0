//! Electors against an API server with injected failures. Time is paused: it advances when all tasks wait.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::{Value, json};
use tower_test::mock;

use super::*;

/// The result of a write.
#[derive(Clone, Copy)]
enum Fault {
    /// It is rejected.
    Refused(u16),
    /// It is performed, and the response is an error.
    AnswerLost,
}

#[derive(Clone, Default)]
struct Server {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    lease: Option<Value>,
    version: u64,
    faults: VecDeque<Fault>,
    always: Option<Fault>,
    renewals: Vec<String>,
}

impl Server {
    fn client(&self) -> Client {
        let (service, mut handle) = mock::pair::<Request<Body>, Response<Body>>();
        let server = self.clone();
        tokio::spawn(async move {
            // A watch never gets a response.
            let mut watches = Vec::new();
            while let Some((request, answer)) = handle.next_request().await {
                let query = request.uri().query().unwrap_or_default().to_owned();
                if query.contains("watch=") {
                    watches.push(answer);
                    continue;
                }
                let method = request.method().clone();
                let is_list = !request.uri().path().ends_with("/lease");
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let (code, value) = server.answer(&method, is_list, &body);
                let body = Body::from(value.to_string().into_bytes());
                answer.send_response(Response::builder().status(code).body(body).unwrap());
            }
        });
        Client::new(service, "system")
    }

    fn answer(&self, method: &Method, is_list: bool, body: &[u8]) -> (u16, Value) {
        let mut inner = self.inner.lock().unwrap();
        if method == Method::GET && is_list {
            let items: Vec<&Value> = inner.lease.iter().collect();
            let metadata = json!({"resourceVersion": inner.version.to_string()});
            return (
                200,
                json!({"kind": "LeaseList", "apiVersion": "coordination.k8s.io/v1", "metadata": metadata, "items": items}),
            );
        }
        if method == Method::GET {
            return match &inner.lease {
                Some(lease) => (200, lease.clone()),
                None => refused(404),
            };
        }
        let fault = inner.faults.pop_front().or(inner.always);
        if let Some(Fault::Refused(code)) = fault {
            return refused(code);
        }
        let written: Value = serde_json::from_slice(body).unwrap();
        let there = inner.lease.as_ref().map(|it| it["metadata"]["resourceVersion"].clone());
        match (method, there) {
            (&Method::POST, Some(_)) => return refused(409),
            (&Method::PUT, None) => return refused(404),
            (&Method::PUT, Some(version)) if version != written["metadata"]["resourceVersion"] => {
                return refused(409);
            }
            _ => {}
        }
        let answer = inner.store(written);
        match fault {
            Some(Fault::AnswerLost) => refused(500),
            _ => (200, answer),
        }
    }

    /// Another process writes.
    fn holder(&self, holder: Option<&str>) {
        let mut inner = self.inner.lock().unwrap();
        let spec = json!({"holderIdentity": holder, "leaseDurationSeconds": 15});
        inner.store(json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "lease"}, "spec": spec}));
    }

    fn with<T>(&self, look: impl FnOnce(&mut Inner) -> T) -> T {
        look(&mut self.inner.lock().unwrap())
    }

    fn contender(&self, identity: &str) -> LeaderElector {
        LeaderElector::new(self.client(), "system", "lease", identity.to_owned())
    }
}

impl Inner {
    fn store(&mut self, mut lease: Value) -> Value {
        self.version += 1;
        lease["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
        self.renewals.push(holder.to_owned());
        self.lease = Some(lease.clone());
        lease
    }
}

fn refused(code: u16) -> (u16, Value) {
    let reason = match code {
        404 => "NotFound",
        409 => "Conflict",
        _ => "InternalError",
    };
    let value = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "chosen by the test",
        "reason": reason, "code": code,
    });
    (code, value)
}

async fn kept_for(held: &mut HeldLease, seconds: u64) -> Option<LeaseLost> {
    timeout(Duration::from_secs(seconds), held.renew_until_lost(|_| {})).await.ok()
}

#[tokio::test(start_paused = true)]
async fn a_free_lease_is_taken_at_once_and_renewed() {
    let server = Server::default();
    let begun = Instant::now();
    let mut held = server.contender("one").acquire().await;
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert_eq!(kept_for(&mut held, 21).await, None);
    // Created, and renewed after 5, 10, 15 and 20 seconds.
    assert_eq!(server.with(|it| it.renewals.clone()), ["one"; 5]);
}

#[tokio::test(start_paused = true)]
async fn renewals_survive_refusals_conflicts_and_lost_answers() {
    let server = Server::default();
    let mut held = server.contender("one").acquire().await;
    server.with(|it| {
        it.faults = [Fault::Refused(500), Fault::Refused(429), Fault::AnswerLost, Fault::Refused(409)].into();
    });
    assert_eq!(kept_for(&mut held, 60).await, None);
    assert!(server.with(|it| it.faults.is_empty() && it.renewals.len() > 8));
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_cannot_renew_gives_up_before_others_may_take_over() {
    let server = Server::default();
    let mut held = server.contender("one").acquire().await;
    server.with(|it| it.always = Some(Fault::Refused(500)));
    let begun = Instant::now();
    let lost = held.renew_until_lost(|_| {}).await;
    assert!(matches!(lost, LeaseLost::NotRenewed(10, _)), "{lost}");
    assert!(begun.elapsed() <= RENEW_TIMEOUT && RENEW_TIMEOUT < LEASE_DURATION);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_somebody_took_or_deleted_is_lost() {
    let server = Server::default();
    let mut held = server.contender("one").acquire().await;
    server.holder(Some("two"));
    let lost = kept_for(&mut held, 60).await;
    assert_eq!(lost, Some(LeaseLost::Taken("two".to_owned())));

    server.holder(None);
    let mut held = server.contender("three").acquire().await;
    server.with(|it| it.lease = None);
    assert_eq!(kept_for(&mut held, 60).await, Some(LeaseLost::Deleted));
}

#[tokio::test(start_paused = true)]
async fn a_lease_whose_holder_is_silent_is_taken_when_it_is_old_by_our_clock() {
    let server = Server::default();
    server.holder(Some("dead"));
    let begun = Instant::now();
    let held = server.contender("two").acquire().await;
    assert_eq!(begun.elapsed().as_secs(), LEASE_DURATION.as_secs());
    let spec = held.lease.spec.expect("a spec");
    assert_eq!(spec.lease_transitions, Some(1));
}

#[tokio::test(start_paused = true)]
async fn only_one_of_two_has_it_and_a_released_one_goes_to_the_other() {
    let server = Server::default();
    let mut first = server.contender("one").acquire().await;
    let second = server.contender("two");
    let second = tokio::spawn(second.acquire());
    assert_eq!(kept_for(&mut first, 100).await, None);
    assert!(!second.is_finished());
    first.release().await;
    let second = second.await.expect("it does not panic");
    assert_eq!(holder(&second.lease), "two");
    assert_eq!(server.with(|it| it.renewals.last().cloned()), Some("two".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn of_two_that_take_a_free_lease_together_one_wins() {
    let server = Server::default();
    let (one, two) = (server.contender("one"), server.contender("two"));
    let one = tokio::spawn(one.acquire());
    let two = tokio::spawn(two.acquire());
    // No renewals here, so both would acquire it in the end; at first only one does.
    sleep(Duration::from_secs(5)).await;
    assert_eq!([one.is_finished(), two.is_finished()].iter().filter(|it| **it).count(), 1);
}
