//! The Secrets that controller and gateway work with.

use serde_json::{Value, json};
use sympozium_testkit::cluster::Exclusivity;

use crate::harness::Harness;

const ALL: [&str; 3] = ["sympozium-authority", "sympozium-gateway-tls", "sympozium-gateway-keys"];

fn data(harness: &Harness, name: &str) -> Value {
    let found = harness.wait_for(harness.system.kubectl(), &["secret", name], |it| it["data"].is_object());
    found["data"].clone()
}

fn versions(harness: &Harness) -> Vec<Value> {
    ALL.iter()
        .map(|name| {
            let secret = harness.system.kubectl().json(&["get", "secret", name]);
            secret.expect("a Secret")["metadata"]["resourceVersion"].clone()
        })
        .collect()
}

#[test]
fn they_are_made_once_mended_where_that_does_no_harm_and_otherwise_left() {
    let Some(harness) = Harness::new("secrets", Exclusivity::shared()) else {
        return;
    };
    let program = harness.start_leader();
    let keys: Vec<Vec<String>> = ALL
        .iter()
        .map(|name| {
            let data = data(&harness, name);
            data.as_object().expect("data").keys().cloned().collect()
        })
        .collect();
    assert_eq!(keys, [vec!["tls.crt", "tls.key"], vec!["tls.crt", "tls.key"], vec!["keys"]]);
    program.wait_for_metric(r#"certificate_faults{secret="sympozium-gateway-keys"}"#, |it| it == 0.0);
    let before = versions(&harness);
    drop(program);

    // Good ones are not written again.
    let program = harness.start_leader();
    program.wait_for_metric(r#"certificate_faults{secret="sympozium-gateway-keys"}"#, |it| it == 0.0);
    assert_eq!(versions(&harness), before);

    // The certificate of the gateway can be made again at any time.
    let authority = data(&harness, ALL[0]);
    let kubectl = harness.system.kubectl();
    kubectl.run(&["delete", "secret", ALL[1]]).expect("it goes");
    let made = data(&harness, ALL[1]);
    let damage = json!({"data": {"tls.crt": authority["tls.crt"]}}).to_string();
    kubectl.run(&["patch", "secret", ALL[1], "--type=merge", "-p", &damage]).expect("damage");
    harness.wait_for(kubectl, &["secret", ALL[1]], |secret| {
        secret["data"]["tls.crt"] != authority["tls.crt"] && secret["data"]["tls.key"] != made["tls.key"]
    });
    assert_eq!(data(&harness, ALL[0]), authority);

    // Keys cannot: a person has to look.
    let damage = r#"{"data":{"keys":"bm9uc2Vuc2U="}}"#;
    kubectl.run(&["patch", "secret", ALL[2], "--type=merge", "-p", damage]).expect("damage");
    program.wait_for_metric(r#"certificate_faults{secret="sympozium-gateway-keys"}"#, |it| it == 1.0);
    program.wait_for_log("Secret `sympozium-gateway-keys` cannot be used: line 1");
    assert_eq!(data(&harness, ALL[2])["keys"], "bm9uc2Vuc2U=");
    assert!(!program.log().contains("nonsense"));
    kubectl.run(&["delete", "secret", ALL[2]]).expect("it goes");
    program.wait_for_metric(r#"certificate_faults{secret="sympozium-gateway-keys"}"#, |it| it == 0.0);
}

#[test]
fn what_is_around_runs_is_known_when_the_gateway_has_an_address() {
    let Some(harness) = Harness::new("around", Exclusivity::shared()) else {
        return;
    };
    let program = harness.start_leader();
    program.wait_for_log("the Service of the gateway");
    let ports = json!([{"name": "runs", "port": 8443}, {"name": "canary", "port": 8444}]);
    let service = json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "sympozium-gateway"}, "spec": {"ports": ports}});
    harness.system.create(&service).expect("a Service");
    program.wait_for_log("runs can start");
    let kubectl = harness.system.kubectl();
    kubectl.run(&["delete", "service", "sympozium-gateway"]).expect("it goes");
    let times = || program.log().matches("runs wait until").count();
    assert!(
        crate::harness::wait_until_true(|| {
            let log = program.log();
            log.rfind("runs wait until") > log.rfind("runs can start")
        }),
        "{}",
        times()
    );
}
