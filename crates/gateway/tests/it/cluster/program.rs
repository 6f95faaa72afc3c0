//! The process: when it is ready, what it reads again, and how it says what is wrong.

use std::fs;
use std::os::unix::fs::symlink;

use sympozium_testkit::{command, wait_until};

use super::{ClusterHarness, HOST, PROGRAM, blocking, probe};
use crate::harness::TIMEOUT;
use crate::tls::certificate;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_the_kubelet_swaps_is_served_and_a_bad_one_is_not() {
    let Some(harness) = ClusterHarness::open("swap") else {
        return;
    };
    let at = |name: &str| harness.directory.path().join(name);
    // As the kubelet mounts a Secret.
    for version in ["..1", "..2", "..3"] {
        fs::create_dir(at(version)).expect("a directory");
    }
    for name in ["tls.crt", "tls.key"] {
        fs::rename(at(name), at("..1").join(name)).expect("moved");
        symlink(format!("..data/{name}"), at(name)).expect("a link");
    }
    let (root, _, chain, key) = certificate(&[HOST]);
    fs::write(at("..2/tls.crt"), chain).expect("written");
    fs::write(at("..2/tls.key"), key).expect("written");
    fs::write(at("..3/tls.crt"), "no certificate").expect("written");
    fs::write(at("..3/tls.key"), "no key").expect("written");
    let swap = |version: &str| {
        symlink(version, at("..data_tmp")).expect("a link");
        fs::rename(at("..data_tmp"), at("..data")).expect("swapped");
    };
    swap("..1");
    let gateway = harness.gateway("gateway");
    let is_ready = || gateway.ask("/readyz").is_some_and(|(status, _)| status == 200);
    assert!(blocking(|| wait_until(TIMEOUT, is_ready)), "{}", gateway.log());
    assert_eq!(probe(&gateway, "/healthz").0, 200);
    assert_eq!(probe(&gateway, "/other").0, 404);
    assert!(harness.connect(&gateway, &harness.root).await.is_ok());
    assert!(harness.connect(&gateway, &root).await.is_err());

    swap("..2");
    let changed = |count| {
        let log = gateway.log();
        log.matches("files were changed").count() == count
    };
    assert!(blocking(|| wait_until(TIMEOUT, || changed(1))));
    assert!(harness.connect(&gateway, &root).await.is_ok());
    assert!(harness.connect(&gateway, &harness.root).await.is_err());

    swap("..3");
    blocking(|| gateway.wait_for_log("the certificate cannot be used"));
    assert!(harness.connect(&gateway, &root).await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_its_rights_it_is_not_ready_and_says_why() {
    let Some(harness) = ClusterHarness::open("rights") else {
        return;
    };
    let name = harness.namespace.name();
    harness.kubectl(&["delete", "clusterrolebinding", name]);
    // The API server hears of that a moment later.
    let account = format!("--as=system:serviceaccount:{name}:gateway");
    let asked = ["auth", "can-i", "list", "agentruns.sympozium.ai", "--all-namespaces", &account];
    let is_refused = || harness.admin.attempt(&asked).is_ok_and(|it| it.stdout.starts_with("no"));
    assert!(blocking(|| wait_until(TIMEOUT, is_refused)));
    let gateway = harness.unready_gateway("gateway");
    blocking(|| gateway.wait_for_log("is forbidden"));
    let (status, body) = probe(&gateway, "/readyz");
    assert_eq!((status, body.as_str()), (503, "not ready: the runs of the cluster were not listed yet\n"));
    assert_eq!(probe(&gateway, "/healthz").0, 200);
}

#[test]
fn it_says_what_is_missing_on_its_command_line() {
    let printed = |arguments: &[&str]| {
        let output = command(PROGRAM).args(["serve", "--key-file=none"]).args(arguments).output().expect("it starts");
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).expect("text")
    };
    assert_eq!(
        printed(&[]),
        "error: no source of runs is given\nhint: choose --plans DIR, or --kubernetes in a cluster\n"
    );
    assert_eq!(
        printed(&["--plans=p", "--kubernetes"]),
        "error: runs come from --plans or from --kubernetes, and not from both\nhint: leave one of them out\n"
    );
}
