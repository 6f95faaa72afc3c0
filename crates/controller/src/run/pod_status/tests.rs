//! Statuses and messages of kubelet, scheduler and API server, and how they are explained.

use serde_json::{Value, json};

use super::*;

fn pod(status: Value) -> Pod {
    serde_json::from_value(json!({ "metadata": { "name": "p" }, "status": status })).unwrap()
}

fn container(name: &str, state: Value) -> Value {
    json!({ "name": name, "image": "example.org/i:1", "imageID": "", "ready": false, "restartCount": 0, "state": state })
}

fn waits(reason: &str, restarts: i32) -> Option<StartFault> {
    let mut status = container("skill-a", json!({ "waiting": { "reason": reason, "message": "it says" } }));
    status["restartCount"] = json!(restarts);
    status["lastState"] = json!({ "terminated": { "exitCode": 2, "message": "line one\nline two\n" } });
    find_fault(&pod(json!({ "initContainerStatuses": [status] })))
}

#[test]
fn containers_that_wait() {
    let fault =
        |reason, message: &str, patience| Some(StartFault { reason, message: message.to_owned(), timeout: patience });
    let image = "image `example.org/i:1` of container `skill-a` cannot be pulled: it says";
    assert_eq!(waits("ErrImagePull", 0), fault("ImagePull", image, FaultTimeout::After(IMAGE_PULL_TIMEOUT)));
    assert_eq!(waits("ImagePullBackOff", 0), fault("ImagePull", image, FaultTimeout::After(IMAGE_PULL_TIMEOUT)));
    let name = "image `example.org/i:1` of container `skill-a` cannot be used: it says";
    assert_eq!(waits("InvalidImageName", 0), fault("ImagePull", name, FaultTimeout::Immediate));
    let config = "container `skill-a` waits for a Secret or ConfigMap: it says";
    assert_eq!(waits("CreateContainerConfigError", 0), fault("MissingConfig", config, FaultTimeout::StartDeadline));
    assert_eq!(waits("CrashLoopBackOff", MAX_RESTARTS - 1), None);
    let crash = "container `skill-a` has crashed 3 times: exit code 2: line one\nline two";
    assert_eq!(waits("CrashLoopBackOff", MAX_RESTARTS), fault("CrashLoop", crash, FaultTimeout::Immediate));
    assert_eq!(waits("PodInitializing", 0), None);
    assert_eq!(find_fault(&Pod::default()), None);
}

#[test]
fn a_pod_that_no_node_takes() {
    let status = json!({ "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "0/1 nodes are available" }] });
    let expected = StartFault {
        reason: "Unschedulable",
        message: "the run's pod cannot be scheduled: 0/1 nodes are available".to_owned(),
        timeout: FaultTimeout::StartDeadline,
    };
    assert_eq!(find_fault(&pod(status)), Some(expected));
}

#[test]
fn a_pod_that_its_node_does_not_make() {
    let status = json!({ "conditions": [{ "type": "PodReadyToStartContainers", "status": "False" }] });
    assert_eq!(sandbox_fault(&pod(status.clone()), POD_SANDBOX_TIMEOUT / 2), None);
    let fault = sandbox_fault(&pod(status), POD_SANDBOX_TIMEOUT).map(|fault| (fault.reason, fault.timeout));
    assert_eq!(fault, Some(("PodSandbox", FaultTimeout::StartDeadline)));
    assert_eq!(sandbox_fault(&Pod::default(), POD_SANDBOX_TIMEOUT), None);
}

#[test]
fn how_a_pod_ended() {
    let ended = |state: Value| json!({ "phase": "Failed", "containerStatuses": [container("agent", state)] });
    let cases = [
        (
            json!({ "phase": "Failed", "reason": "Evicted", "message": "low on memory" }),
            "the run's pod was evicted from its node: low on memory",
        ),
        (json!({ "phase": "Failed", "reason": "DeadlineExceeded" }), "the run's time is up"),
        (
            json!({ "phase": "Failed", "conditions": [{ "type": "DisruptionTarget", "status": "True", "message": "drained" }] }),
            "the run's pod was disrupted: drained",
        ),
        (
            ended(json!({ "terminated": { "exitCode": 137, "reason": "OOMKilled" } })),
            "container `agent` failed: it ran out of memory",
        ),
        (
            ended(json!({ "terminated": { "exitCode": 1, "message": "error: no\n" } })),
            "container `agent` failed: exit code 1: error: no",
        ),
        (ended(json!({ "terminated": { "exitCode": 0 } })), "the run's pod ended without a report of the bridge"),
        (
            json!({ "phase": "Failed", "initContainerStatuses": [container("check-network",
            json!({ "terminated": { "exitCode": 1, "message": "unenforced: the canary answers\n" } }))] }),
            "the check of the network failed: the canary answers",
        ),
    ];
    for (status, expected) in cases {
        assert_eq!(failure_reason(&pod(status)), expected);
    }
}

#[test]
fn a_bridge_that_was_killed_is_named_before_the_agent_that_went_with_it() {
    let killed = json!({ "terminated": { "exitCode": 137, "reason": "Error" } });
    let followed = json!({ "terminated": { "exitCode": 1 } });
    let status = json!({ "phase": "Failed", "containerStatuses":
        [container("agent", followed), container("ipc-bridge", killed)] });
    assert_eq!(failure_reason(&pod(status)), "container `ipc-bridge` failed: ended by signal 9");
}

#[test]
fn the_bridge_is_the_run() {
    let running = json!({ "running": {} });
    let over = json!({ "terminated": { "exitCode": 0 } });
    let both = |agent: &Value, bridge: &Value| {
        pod(json!({ "phase": "Running", "containerStatuses":
            [container("agent", agent.clone()), container("ipc-bridge", bridge.clone())] }))
    };
    assert!(!has_ended(&both(&running, &running)));
    assert!(!has_ended(&both(&over, &running)));
    // An agent that lingers does not keep the run active.
    assert!(has_ended(&both(&running, &over)));
    assert!(!is_terminated(&both(&running, &over)));
    assert!(is_terminated(&both(&over, &over)));
    assert!(has_started(&both(&running, &over)));
    assert!(!has_started(&both(&json!({ "waiting": {} }), &running)));
    assert!(!has_started(&Pod::default()));
}

#[test]
fn what_the_check_of_the_network_found() {
    let check = |text: &str| {
        let state = json!({ "terminated": { "exitCode": 0, "message": text } });
        network_check(&pod(json!({ "initContainerStatuses": [container("check-network", state)] })))
    };
    assert_eq!(check("enforced\n"), Some(Ok(())));
    assert_eq!(check("unenforced: nothing holds it\n"), Some(Err("nothing holds it".to_owned())));
    assert_eq!(check("something else"), None);
    assert_eq!(network_check(&Pod::default()), None);
}

#[test]
fn what_the_api_server_refuses() {
    let cases = [
        ("pods \"x\" is forbidden: violates PodSecurity \"restricted:latest\"", "PodSecurity", FaultTimeout::Immediate),
        ("pods \"x\" is forbidden: exceeded quota: none, requested: pods=1", "Quota", FaultTimeout::StartDeadline),
        ("maximum memory usage per Container is 1Mi, but limit is 1Gi", "LimitRange", FaultTimeout::Immediate),
        ("something else", "PodRefused", FaultTimeout::StartDeadline),
    ];
    for (rejection, reason, patience) in cases {
        let fault = rejection_fault(rejection);
        assert_eq!((fault.reason, fault.timeout), (reason, patience));
        assert!(fault.message.ends_with(rejection), "{}", fault.message);
    }
}

#[test]
fn what_is_repeated_is_cut_at_a_character() {
    assert_eq!(tail("äöü", 3), "ü");
    assert_eq!(tail("abc", 10), "abc");
}
