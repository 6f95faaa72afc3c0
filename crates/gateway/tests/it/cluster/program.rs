//! The process: when it is ready, what it reads again, and how it says what is wrong.

use std::fs;
use std::os::unix::fs::symlink;

use sympozium_testkit::{command, wait_until};

use super::{ClusterHarness, HOST, PROGRAM, blocking};
use crate::harness::TIMEOUT;
use crate::tls::certificate;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_the_kubelet_swaps_is_served_and_a_bad_one_is_not() {
    let Some(world) = ClusterHarness::open("swap") else {
        return;
    };
    let at = |name: &str| world.directory.path().join(name);
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
    let gateway = world.gateway("gateway");
    gateway.ready().await;
    assert!(gateway.probe("/healthz").await.starts_with("HTTP/1.1 200 "));
    assert!(gateway.probe("/other").await.starts_with("HTTP/1.1 404 "));
    assert!(world.connect(&gateway, &world.root).await.is_ok());
    assert!(world.connect(&gateway, &root).await.is_err());

    swap("..2");
    let changed = |count| {
        let log = gateway.log();
        log.matches("files were changed").count() == count
    };
    assert!(blocking(|| wait_until(TIMEOUT, || changed(1))));
    assert!(world.connect(&gateway, &root).await.is_ok());
    assert!(world.connect(&gateway, &world.root).await.is_err());

    swap("..3");
    let kept = || gateway.log().contains("the certificate cannot be used");
    assert!(blocking(|| wait_until(TIMEOUT, kept)));
    assert!(world.connect(&gateway, &root).await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_its_rights_it_is_not_ready_and_says_why() {
    let Some(world) = ClusterHarness::open("rights") else {
        return;
    };
    let name = world.namespace.name();
    world.kubectl(&["delete", "clusterrolebinding", name]);
    // The API server hears of that a moment later.
    let account = format!("--as=system:serviceaccount:{name}:gateway");
    let asked = ["auth", "can-i", "list", "agentruns.sympozium.ai", "--all-namespaces", &account];
    let is_refused = || world.admin.attempt(&asked).is_ok_and(|it| it.stdout.starts_with("no"));
    assert!(blocking(|| wait_until(TIMEOUT, is_refused)));
    let gateway = world.unready_gateway("gateway");
    let told = || gateway.log().contains("is forbidden");
    assert!(blocking(|| wait_until(TIMEOUT, told)), "{}", gateway.log());
    let answer = gateway.probe("/readyz").await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.ends_with("not ready: the runs of the cluster were not listed yet\n"));
    assert!(gateway.probe("/healthz").await.starts_with("HTTP/1.1 200 "));
}

#[test]
fn it_says_what_is_missing_on_its_command_line() {
    let said = |arguments: &[&str]| {
        let output = command(PROGRAM).args(["serve", "--key-file=none"]).args(arguments).output().expect("it starts");
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).expect("text")
    };
    assert_eq!(
        said(&[]),
        "error: no source of runs is given\nhint: choose --plans DIR, or --kubernetes in a cluster\n"
    );
    assert_eq!(
        said(&["--plans=p", "--kubernetes"]),
        "error: runs come from --plans or from --kubernetes, and not from both\nhint: leave one of them out\n"
    );
}
