//! Electors against a store with injected failures. Time is paused: it advances when all tasks wait.

use std::collections::VecDeque;
use std::future::pending;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::task::yield_now;
use tokio::time::sleep;

use super::*;

/// The result of a write.
#[derive(Clone, Copy)]
enum Fault {
    /// It is rejected.
    Conflict,
    Rejected,
    /// It is performed, and the response is an error.
    ResponseLost,
}

#[derive(Clone, Default)]
struct Server(Arc<Mutex<Stored>>);

#[derive(Default)]
struct Stored {
    lease: Option<Lease>,
    version: u64,
    faults: VecDeque<Fault>,
    always: Option<Fault>,
    /// The holder of each write.
    renewals: Vec<String>,
}

impl LeaseStore for Server {
    async fn get(&self, _: &str) -> Result<Option<Lease>, StoreError> {
        // As with a network between them, others get their turn before and after each request.
        yield_now().await;
        let lease = self.0.lock().lease.clone();
        yield_now().await;
        Ok(lease)
    }

    async fn create(&self, lease: &Lease) -> Result<Lease, StoreError> {
        self.write(lease, |existing| match existing {
            Some(_) => Err(conflict()),
            None => Ok(()),
        })
        .await
    }

    async fn replace(&self, lease: &Lease) -> Result<Lease, StoreError> {
        self.write(lease, |existing| match existing {
            None => Err(StoreError::NotFound("chosen by the test".into())),
            Some(found) if found.metadata.resource_version != lease.metadata.resource_version => Err(conflict()),
            Some(_) => Ok(()),
        })
        .await
    }

    async fn watch(&self, _: &str, _: &Notify) -> Infallible {
        pending().await
    }
}

impl Server {
    async fn write(
        &self,
        lease: &Lease,
        check: impl FnOnce(Option<&Lease>) -> Result<(), StoreError>,
    ) -> Result<Lease, StoreError> {
        yield_now().await;
        let response = self.with(|stored| {
            let fault = stored.faults.pop_front().or(stored.always);
            match fault {
                Some(Fault::Conflict) => return Err(conflict()),
                Some(Fault::Rejected) => return Err(failed()),
                Some(Fault::ResponseLost) | None => {}
            }
            check(stored.lease.as_ref())?;
            let written = stored.write(lease.clone());
            if fault.is_none() { Ok(written) } else { Err(failed()) }
        });
        yield_now().await;
        response
    }

    /// Another process writes.
    fn set_holder(&self, holder: Option<&str>) {
        let spec = LeaseSpec {
            holder_identity: holder.map(str::to_owned),
            lease_duration_seconds: Some(15),
            ..LeaseSpec::default()
        };
        self.with(|stored| stored.write(Lease { metadata: ObjectMeta::default(), spec: Some(spec) }));
    }

    fn with<T>(&self, change: impl FnOnce(&mut Stored) -> T) -> T {
        change(&mut self.0.lock())
    }

    fn elector(&self, identity: &str) -> LeaderElector<Self> {
        LeaderElector::new(self.clone(), "lease", identity.to_owned())
    }
}

impl Stored {
    fn write(&mut self, mut lease: Lease) -> Lease {
        self.version += 1;
        lease.metadata.resource_version = Some(self.version.to_string());
        self.renewals.push(holder(&lease).to_owned());
        self.lease = Some(lease.clone());
        lease
    }
}

fn conflict() -> StoreError {
    StoreError::Conflict("chosen by the test".into())
}

fn failed() -> StoreError {
    StoreError::Failed("chosen by the test".into())
}

async fn renew_for(held: &mut HeldLease<Server>, seconds: u64) -> Option<LeaseLost> {
    timeout(Duration::from_secs(seconds), held.renew_until_lost(|_| {})).await.ok()
}

#[tokio::test(start_paused = true)]
async fn a_free_lease_is_taken_at_once_and_renewed() {
    let server = Server::default();
    let started = Instant::now();
    let mut held = server.elector("one").acquire().await;
    assert_eq!(started.elapsed(), Duration::ZERO);
    assert_eq!(renew_for(&mut held, 21).await, None);
    // Created, and renewed after 5, 10, 15 and 20 seconds.
    assert_eq!(server.with(|stored| stored.renewals.clone()), ["one"; 5]);
}

#[tokio::test(start_paused = true)]
async fn renewals_survive_refusals_conflicts_and_lost_answers() {
    let server = Server::default();
    let mut held = server.elector("one").acquire().await;
    server.with(|stored| {
        stored.faults = [Fault::Rejected, Fault::Rejected, Fault::ResponseLost, Fault::Conflict].into();
    });
    assert_eq!(renew_for(&mut held, 60).await, None);
    assert!(server.with(|stored| stored.faults.is_empty() && stored.renewals.len() > 8));
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_cannot_renew_gives_up_before_others_may_take_over() {
    let server = Server::default();
    let mut held = server.elector("one").acquire().await;
    server.with(|stored| stored.always = Some(Fault::Rejected));
    let started = Instant::now();
    let lost = held.renew_until_lost(|_| {}).await;
    assert!(matches!(lost, LeaseLost::NotRenewed(10, _)), "{lost}");
    assert!(started.elapsed() <= RENEW_TIMEOUT && RENEW_TIMEOUT < LEASE_DURATION);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_another_process_took_or_deleted_is_lost() {
    let server = Server::default();
    let mut held = server.elector("one").acquire().await;
    server.set_holder(Some("two"));
    let lost = renew_for(&mut held, 60).await;
    assert_eq!(lost, Some(LeaseLost::Taken("two".to_owned())));

    server.set_holder(None);
    let mut held = server.elector("three").acquire().await;
    server.with(|stored| stored.lease = None);
    assert_eq!(renew_for(&mut held, 60).await, Some(LeaseLost::Deleted));
}

#[tokio::test(start_paused = true)]
async fn a_lease_whose_holder_is_silent_is_taken_when_it_is_old_by_our_clock() {
    let server = Server::default();
    server.set_holder(Some("dead"));
    let started = Instant::now();
    let held = server.elector("two").acquire().await;
    assert_eq!(started.elapsed().as_secs(), LEASE_DURATION.as_secs());
    let spec = held.lease.spec.expect("a spec");
    assert_eq!(spec.lease_transitions, Some(1));
}

#[tokio::test(start_paused = true)]
async fn only_one_of_two_has_it_and_a_released_one_goes_to_the_other() {
    let server = Server::default();
    let mut first = server.elector("one").acquire().await;
    let second = server.elector("two");
    let second = tokio::spawn(second.acquire());
    assert_eq!(renew_for(&mut first, 100).await, None);
    assert!(!second.is_finished());
    first.release().await;
    let second = second.await.expect("it does not panic");
    assert_eq!(holder(&second.lease), "two");
    assert_eq!(server.with(|stored| stored.renewals.last().cloned()), Some("two".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn of_two_that_take_a_free_lease_together_one_wins() {
    let server = Server::default();
    let (one, two) = (server.elector("one"), server.elector("two"));
    let one = tokio::spawn(one.acquire());
    let two = tokio::spawn(two.acquire());
    // No renewals here, so both would acquire it in the end; at first only one does.
    sleep(Duration::from_secs(5)).await;
    assert_eq!([one.is_finished(), two.is_finished()].iter().filter(|is_finished| **is_finished).count(), 1);
}
