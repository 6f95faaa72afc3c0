//! The process of a run: directories that others can change, signals, names, and the demo.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::{Child, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use sympozium_testkit::model_server::{Reply, Settings};

use super::{Home, Scenario, eventually, for_each_user};

/// A run with a pre-run hook that waits for a file in the workspace, and a claim of which a skill mounts a sub path.
const WAITING: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: script}
data:
  turns.yaml: |
    turns:
      - call: [{tool: execute_command, arguments: {target: shell, command: 'cat /data/*; echo changed > /data/changed'}}]
      - say: Done.
---
apiVersion: sympozium.ai/v1alpha1
kind: SkillPack
metadata: {name: shell}
spec:
  skills: [{name: shell, description: Runs commands., content: Run., requires: {bins: [cat]}}]
  sidecar:
    image: example.com/shell:1
    volumes: [{name: data, persistentVolumeClaim: {claimName: cache}}]
    volumeMounts: [{name: data, mountPath: /data, subPath: x}]
---
apiVersion: sympozium.ai/v1alpha1
kind: Agent
metadata: {name: worker}
spec:
  skills: [{skillPackRef: shell}]
  agents: {default: {model: script}}
---
apiVersion: sympozium.ai/v1alpha1
kind: AgentRun
metadata: {name: waiting}
spec:
  agentRef: worker
  task: Do.
  model: {provider: scripted, model: script}
  lifecycle:
    preRun:
      - name: wait
        image: example.com/shell:1
        command: [/bin/sh, -c, 'while [ ! -e /workspace/go ]; do sleep 0.05; done']
";

/// Starts the waiting run, and waits for its directory.
fn start_waiting(home: &Home) -> Child {
    let file = home.at("waiting.yaml");
    fs::write(&file, WAITING).unwrap();
    let child = home
        .sympozium(&["run", file.to_str().unwrap()])
        .stdout(Stdio::null())
        .stderr(fs::File::create(home.at("stderr")).unwrap())
        .spawn()
        .unwrap();
    eventually("the run is there", || home.directory_of("waiting").join("workspace").is_dir());
    child
}

fn outcome(home: &Home, run: &str) -> Value {
    let record = fs::read(home.directory_of(run).join("run.json")).unwrap();
    serde_json::from_slice::<Value>(&record).unwrap()["outcome"].clone()
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

fn output_text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

#[test]
fn a_sub_path_that_becomes_a_link_is_not_followed() {
    for_each_user(|home| {
        let victim = home.at("victim");
        fs::create_dir(&victim).unwrap();
        fs::write(victim.join("secret"), "of the host").unwrap();
        home.give(&victim);
        let mut child = start_waiting(home);
        let part = home.at("state/volumes/default/cache/x");
        eventually("the claim is there", || part.is_dir());
        // Another run with the same claim could do this.
        fs::remove_dir(&part).unwrap();
        symlink(&victim, &part).unwrap();
        fs::write(home.directory_of("waiting").join("workspace/go"), "").unwrap();
        let status = child.wait().unwrap();
        let told = fs::read_to_string(home.at("stderr")).unwrap();
        assert_eq!(status.code(), Some(1), "{told}");
        assert!(told.contains("cannot bind"), "{told}");
        assert_eq!(outcome(home, "waiting")["is"], "refused");
        let transcript = home.directory_of("waiting").join("transcript.jsonl");
        let transcript = fs::read_to_string(transcript).unwrap_or_default();
        assert!(!transcript.contains("of the host"), "{transcript}");
        assert!(!victim.join("changed").exists());
    });
}

#[test]
fn a_run_can_be_cancelled_before_its_first_sandbox_is_built() {
    for_each_user(|home| {
        let mut child = start_waiting(home);
        signal(&child, Signal::TERM);
        eventually("the run has ended", || child.try_wait().unwrap().is_some());
        let told = fs::read_to_string(home.at("stderr")).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(130), "{told}");
        assert_eq!(outcome(home, "waiting")["is"], "cancelled", "{told}");
        assert!(!home.directory_of("waiting").join("live").exists());
    });
}

#[test]
fn a_floor_in_a_world_writable_directory_is_an_error() {
    const FLOOR: &str = "\
apiVersion: sympozium.ai/v1alpha1
kind: SympoziumPolicy
metadata: {name: floor, namespace: sympozium-system}
spec: {toolGating: {defaultAction: deny}}
";
    for_each_user(|home| {
        let floor = home.at("config/floor.yaml");
        fs::write(&floor, FLOOR).unwrap();
        home.give(&floor);
        let scenario = Scenario::commands(&[], &["echo it ran > /workspace/ran"]);
        let ran = || {
            let runs = fs::read_dir(home.at("state/runs")).into_iter().flatten();
            let mut runs = runs.flatten().map(|it| it.path());
            runs.any(|it| it.join("workspace/ran").exists())
        };
        for (directory, mode) in [("config", 0o775), ("data", 0o777)] {
            let open = |mode| fs::set_permissions(home.at(directory), fs::Permissions::from_mode(mode));
            open(mode).unwrap();
            let run = home.run(&scenario);
            assert_eq!(run.output.status.code(), Some(1), "{}", output_text(&run.output));
            assert!(output_text(&run.output).contains("other users can write to it"), "{}", output_text(&run.output));
            open(0o700).unwrap();
        }
        assert!(!ran());
        // With the right permissions, the floor is used.
        home.run(&scenario);
        assert!(!ran());
        fs::remove_file(&floor).unwrap();
        home.run(&scenario).assert_succeeded();
        assert!(ran());
    });
}

#[test]
fn a_run_whose_name_is_the_uid_of_another_is_not_confused_with_it() {
    for_each_user(|home| {
        let mut scenario = Scenario::commands(&[], &["true"]);
        home.run(&scenario).assert_succeeded();
        let uid = home.runs()[0]["uid"].as_str().unwrap().to_owned();
        scenario.name = uid.clone();
        home.run(&scenario).assert_succeeded();
        assert_eq!(home.runs().len(), 2);
        let shown = home.sympozium(&["show", &uid, "-o", "json"]).output().unwrap();
        let told: Value = serde_json::from_slice(&shown.stdout).unwrap();
        assert_eq!(told["uid"], uid.as_str(), "{told}");
    });
}

#[test]
fn the_users_certificates_are_trusted_through_a_link() {
    for_each_user(|home| {
        let server = Settings::new().tls("localhost").start().unwrap();
        server.set_default(Reply::text("It is done."));
        fs::write(home.at("ca.pem"), server.ca_pem().unwrap()).unwrap();
        home.give(&home.at("ca.pem"));
        // `cargo run` and `make demo` set variables to such a symbolic link of Debian.
        symlink("ca.pem", home.at("link.pem")).unwrap();
        let port = server.address().port();
        let mut scenario = Scenario::commands(&[], &[]);
        scenario.others = vec![
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "of-model"}, "stringData": {"OPENAI_API_KEY": "sk-test"}}),
            json!({
                "apiVersion": "sympozium.ai/v1alpha1", "kind": "SympoziumPolicy", "metadata": {"name": "policy"},
                "spec": {"networkPolicy": {"allowedEgress": [{"host": "localhost", "port": port}]}},
            }),
        ];
        scenario.run = json!({"model": {"provider": "openai", "model": "gpt-4o-mini", "authSecretRef": "of-model", "baseURL": format!("https://localhost:{port}/v1")}});
        let file = home.manifests(&scenario);
        let output = home.sympozium(&["run", &file]).env("SSL_CERT_FILE", home.at("link.pem")).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
    });
}

#[test]
fn the_demo_succeeds_and_stops_every_attack() {
    for_each_user(|home| {
        let output = home.sympozium(&["demo"]).output().unwrap();
        let told = output_text(&output);
        assert_eq!(output.status.code(), Some(0), "{told}");
        assert_eq!(told.matches("\n  done  ").count(), 5, "{told}");
        assert_eq!(told.matches("\n  stopped  ").count(), 8, "{told}");
        let printed = home.sympozium(&["demo", "--print"]).output().unwrap();
        fs::write(home.at("demo.yaml"), printed.stdout).unwrap();
        let valid = home.sympozium(&["validate", "demo.yaml"]).output().unwrap();
        assert_eq!(valid.status.code(), Some(0), "{}", output_text(&valid));
    });
}

#[test]
fn the_demo_can_be_cancelled() {
    for_each_user(|home| {
        // Its first command does not end by itself: otherwise the demo might end before the signal.
        let held = home.at("held");
        fs::write(&held, "#!/bin/sh\nexec sleep 600\n").unwrap();
        home.install(&held, "grep");
        let mut child = home.sympozium(&["demo"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let parts = || home.directory_of("demo").join("live").exists();
        eventually("it works", parts);
        signal(&child, Signal::INT);
        eventually("it has ended", || child.try_wait().unwrap().is_some());
        assert_eq!(child.wait().unwrap().code(), Some(1));
        assert_eq!(outcome(home, "demo")["is"], "cancelled");
        assert!(!home.directory_of("demo").join("live").exists());
    });
}
