//! The way to the API server that fails when a test says so, against a real one.

use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use sympozium_testkit::cluster::faults::{Caller, Class, Fault, FaultProxy, Moment, Refusal, Sprinkle, Write};
use sympozium_testkit::cluster::{Cluster, Namespace, Printed, Security, Tier};
use sympozium_testkit::wait_until;
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(90);

struct Harness {
    namespace: Namespace,
    proxy: FaultProxy,
    folder: TempDir,
}

impl Harness {
    fn new() -> Option<Self> {
        let cluster = Cluster::shared(Tier::ControlPlane).expect("a cluster")?;
        let namespace = cluster.namespace("faults", Security::Restricted).expect("a namespace");
        let proxy = FaultProxy::start(cluster, Caller::Administrator).expect("a proxy");
        let folder = tempfile::tempdir().expect("a folder");
        Some(Self { namespace, proxy, folder })
    }

    fn config_map(&self, name: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": self.namespace.name()},
        })
    }

    /// By way of the proxy. Without validation, which would read schemas first.
    fn create(&self, name: &str) -> Printed {
        let object = self.config_map(name);
        self.proxy.kubectl().feed(&["create", "--validate=false", "-f", "-"], &object).expect("kubectl starts")
    }

    /// The same, while another client watches.
    fn creating(&self, name: &str) -> Child {
        let path = self.folder.path().join(name);
        std::fs::write(&path, self.config_map(name).to_string()).expect("written");
        let path = path.to_str().expect("a path of letters");
        let mut command = self.proxy.kubectl().command(&["create", "--validate=false", "-f", path]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("kubectl starts")
    }

    /// Past the proxy.
    fn is_there(&self, name: &str) -> bool {
        let asked = self.namespace.kubectl().attempt(&["get", "configmap", name]);
        asked.expect("kubectl starts").success
    }

    fn count_here(&self) {
        let here = format!("/namespaces/{}/", self.namespace.name());
        self.proxy.begin(move |_, path| path.contains(&here));
    }

    fn path(&self, rest: &str) -> String {
        format!("/api/v1/namespaces/{}/{rest}", self.namespace.name())
    }
}

fn kill(child: &mut Child) {
    child.kill().expect("killed");
    child.wait().expect("waited for");
}

#[test]
fn writes_are_recorded_in_their_order_and_reads_are_not() {
    let Some(harness) = Harness::new() else { return };
    harness.count_here();
    let kubectl = harness.proxy.kubectl().in_namespace(harness.namespace.name());
    assert!(harness.create("one").success);
    kubectl.run(&["get", "configmaps"]).expect("listed");
    kubectl.run(&["label", "configmap", "one", "a=b"]).expect("labelled");
    kubectl.run(&["auth", "can-i", "get", "pods"]).expect("reviewed");
    kubectl.run(&["delete", "configmap", "one"]).expect("deleted");
    let write = |number, class, method: &str, path: String, status| Write {
        number,
        class,
        method: method.to_owned(),
        path,
        status: Some(status),
    };
    let review = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews".to_owned();
    assert_eq!(
        harness.proxy.writes(),
        [
            write(Some(1), Class::Object, "POST", harness.path("configmaps"), 201),
            write(Some(2), Class::Object, "PATCH", harness.path("configmaps/one"), 200),
            write(None, Class::Review, "POST", review, 201),
            write(Some(3), Class::Object, "DELETE", harness.path("configmaps/one"), 200),
        ]
    );
}

#[test]
fn a_stop_before_a_write_keeps_it_from_the_server_and_one_after_it_keeps_the_answer() {
    let Some(harness) = Harness::new() else { return };
    for (moment, name, expected) in [(Moment::Before, "before", false), (Moment::After, "after", true)] {
        harness.count_here();
        harness.proxy.stop_at(2, moment);
        assert!(harness.create(&format!("{name}-first")).success);
        let mut child = harness.creating(name);
        assert!(wait_until(PATIENCE, || harness.proxy.has_stopped()));
        assert_eq!(harness.is_there(name), expected, "{moment:?}");
        let waits = child.try_wait().expect("asked for");
        assert!(waits.is_none(), "the program heard something: {waits:?}");

        // Nobody else passes either.
        let mut other = harness.creating(&format!("{name}-other"));
        kill(&mut child);
        harness.proxy.resume();
        // It was cut off, or is let in now: never anything in between.
        let success = other.wait().expect("waited for").success();
        assert_eq!(harness.is_there(&format!("{name}-other")), success);
        assert!(harness.create(&format!("{name}-later")).success);
        assert_eq!(harness.is_there(name), expected, "{moment:?}");
    }
}

#[test]
fn a_write_is_refused_or_its_answer_lost_and_only_that_one() {
    let Some(harness) = Harness::new() else { return };
    let table = [
        ("conflict", Fault::Refuse(Refusal::Conflict), "409", false),
        ("internal", Fault::Refuse(Refusal::InternalError), "500", false),
        ("timeout", Fault::Refuse(Refusal::Timeout), "504", false),
        ("lost", Fault::LoseAnswer, "504", true),
        ("cut", Fault::Cut, "EOF", false),
        ("hang", Fault::Hang(Duration::from_millis(300)), "EOF", false),
    ];
    for (name, fault, says, there) in table {
        harness.count_here();
        harness.proxy.spoil(1, fault);
        let printed = harness.create(name);
        assert!(!printed.success, "{name}");
        assert!(printed.stderr.contains(says), "{name}: {}", printed.stderr);
        assert_eq!(harness.is_there(name), there, "{name}");
        assert_eq!(harness.proxy.spoilt(), 1);
        assert!(harness.create(&format!("{name}-again")).success);
    }
}

#[test]
fn a_client_that_must_wait_retries() {
    let Some(harness) = Harness::new() else { return };
    harness.count_here();
    let later = Refusal::TooManyRequests { retry_after_seconds: 1 };
    harness.proxy.spoil(1, Fault::Refuse(later));
    // kubectl does as `Retry-After` says.
    assert!(harness.create("patient").success);
    let seen: Vec<_> = harness.proxy.writes().iter().map(|write| (write.number, write.status)).collect();
    assert_eq!(seen, [(Some(1), None), (Some(2), Some(201))]);
}

#[test]
fn chance_spoils_some_and_spares_the_rest() {
    let Some(harness) = Harness::new() else { return };
    harness.count_here();
    harness.proxy.sprinkle(Some(Sprinkle {
        seed: 1,
        writes_percent: 50,
        reads_percent: 0,
        faults: vec![Fault::Refuse(Refusal::InternalError)],
    }));
    let worked: Vec<bool> = (0..10).map(|number| harness.create(&format!("chance-{number}")).success).collect();
    let failed = worked.iter().filter(|worked| !**worked).count();
    assert_eq!(harness.proxy.spoilt(), failed);
    assert!((1..10).contains(&failed), "{worked:?}");
    for (number, worked) in worked.iter().enumerate() {
        assert_eq!(harness.is_there(&format!("chance-{number}")), *worked);
    }
}

#[test]
fn watches_are_cut_now_or_when_they_are_old() {
    let Some(harness) = Harness::new() else { return };
    let watch = || {
        let mut command = harness.proxy.kubectl().in_namespace(harness.namespace.name()).command(&[
            "get",
            "configmaps",
            "--watch-only",
            "-o",
            "name",
        ]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().expect("kubectl starts")
    };
    harness.count_here();
    let mut child = watch();
    // It may be cut before it is open: so as often as it takes.
    let ended = wait_until(PATIENCE, || {
        harness.proxy.cut_watches();
        child.try_wait().expect("asked for").is_some()
    });
    assert!(ended);
    let cuts = harness.proxy.cuts();
    assert!(cuts >= 1);
    harness.proxy.cut_watches_after(Some(Duration::from_millis(50)));
    watch().wait().expect("waited for");
    assert!(harness.proxy.cuts() > cuts);
}

#[test]
fn everything_is_held_and_goes_on() {
    let Some(harness) = Harness::new() else { return };
    harness.proxy.hold();
    let mut child = harness.creating("held");
    let waits = harness.proxy.kubectl().attempt(&["get", "--raw", "/version", "--request-timeout=500ms"]);
    assert!(!waits.expect("kubectl starts").success);
    assert!(!harness.is_there("held"));
    assert!(child.try_wait().expect("asked for").is_none());
    harness.proxy.release();
    assert!(child.wait().expect("waited for").success());
    assert!(harness.is_there("held"));
}

#[test]
fn it_goes_away_and_comes_back_at_the_same_port() {
    let Some(harness) = Harness::new() else { return };
    assert!(harness.create("early").success);
    assert!(harness.proxy.go_away());
    let printed = harness.create("away");
    assert!(printed.stderr.contains("refused"), "{}", printed.stderr);
    assert!(harness.proxy.come_back());
    assert!(harness.create("late").success);
}

#[test]
fn a_caller_has_only_their_own_rights() {
    let Some(cluster) = Cluster::shared(Tier::ControlPlane).expect("a cluster") else {
        return;
    };
    let nobody = "system:serviceaccount:default:nobody";
    let proxy = FaultProxy::start(cluster, Caller::User(nobody.to_owned())).expect("a proxy");
    let printed = proxy.kubectl().attempt(&["get", "secrets"]).expect("kubectl starts");
    assert!(printed.stderr.contains(nobody), "{}", printed.stderr);
}
