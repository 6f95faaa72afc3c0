//! The node tier: pods really run, and a person can look into them.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpStream;
use std::process::{Child, Stdio};

use anyhow::{Context as _, Result};
use serde_json::json;
use sympozium_testkit::cluster::{Cluster, Namespace, Security, Tier, eventually};

use crate::pods::{self, PATIENCE};

fn restricted(label: &str) -> Result<Option<(Namespace, String)>> {
    let Some(cluster) = Cluster::shared(Tier::Node)? else {
        return Ok(None);
    };
    let Some(image) = pods::image(cluster)? else {
        return Ok(None);
    };
    Ok(Some((cluster.namespace(label, Security::Restricted)?, image)))
}

/// The shape of our runs: a skill as native sidecar, agent and bridge as ordinary containers; the sidecar ends when
/// the last ordinary container says so.
#[test]
fn a_restricted_job_with_a_native_sidecar_completes() -> Result<()> {
    let Some((namespace, image)) = restricted("job")? else {
        return Ok(());
    };
    let volume = json!([{"name": "ipc", "mountPath": "/ipc"}]);
    let with_volume = |name: &str, script: &str| {
        let mut container = pods::container(name, &image, script);
        container["volumeMounts"] = volume.clone();
        container
    };
    let mut sidecar = with_volume(
        "skill",
        "touch /ipc/ready; until [ -e /ipc/request ]; do sleep 0.1; done; cat /ipc/request > /ipc/draft; \
         mv /ipc/draft /ipc/result; until [ -e /ipc/done ]; do sleep 0.1; done",
    );
    sidecar["restartPolicy"] = json!("Always");
    // The kubelet starts a container anew whose probe fails too often, and on a busy machine a probe may take seconds.
    sidecar["startupProbe"] = json!({
        "exec": {"command": ["test", "-e", "/ipc/ready"]},
        "periodSeconds": 1, "timeoutSeconds": 60, "failureThreshold": 180,
    });
    let agent = with_volume(
        "agent",
        "echo question > /ipc/new; mv /ipc/new /ipc/request; until [ -e /ipc/result ]; do sleep 0.1; done; \
         cat /ipc/result; touch /ipc/answered",
    );
    let bridge = with_volume("bridge", "until [ -e /ipc/answered ]; do sleep 0.1; done; touch /ipc/done");
    let mut spec = pods::spec(&[agent, bridge]);
    spec["initContainers"] = json!([sidecar]);
    spec["volumes"] = json!([{"name": "ipc", "emptyDir": {"medium": "Memory"}}]);
    namespace.create(&json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "run"},
        "spec": {"backoffLimit": 0, "template": {"spec": spec}},
    }))?;

    let kubectl = namespace.kubectl();
    eventually("the Job to be complete", PATIENCE, || {
        let job = kubectl.json(&["get", "job", "run"])?;
        let failed = job["status"]["failed"].as_u64().unwrap_or(0);
        assert_eq!(failed, 0, "the Job failed: {}", kubectl.run(&["describe", "pods"])?);
        Ok((job["status"]["succeeded"] == 1).then_some(()))
    })?;
    assert_eq!(kubectl.run(&["logs", "job/run", "-c", "agent"])?.trim(), "question");
    let created = kubectl.json(&["get", "pods"])?;
    let skill = &created["items"][0]["status"]["initContainerStatuses"][0];
    assert!(pods::ended_well(skill), "{skill}");
    Ok(())
}

#[test]
fn logs_and_exec_work() -> Result<()> {
    let Some((namespace, image)) = restricted("look")? else {
        return Ok(());
    };
    let script = "echo first line; echo to stderr >&2; sleep 600";
    namespace.create(&pods::pod("talker", pods::spec(&[pods::container("main", &image, script)])))?;
    namespace.wait_for_pod("talker", "Running", PATIENCE)?;
    let kubectl = namespace.kubectl();
    eventually("both lines in the log", PATIENCE, || {
        let log = kubectl.run(&["logs", "talker"])?;
        Ok((log.contains("first line\n") && log.contains("to stderr\n")).then_some(()))
    })?;
    let inside = kubectl.run(&["exec", "talker", "--", "sh", "-c", "id -u; hostname; touch /denied 2>&1 || true"])?;
    let lines: Vec<_> = inside.lines().collect();
    assert_eq!(&lines[..2], ["1000", "talker"]);
    assert!(lines[2].contains("Read-only file system"), "{inside}");
    let failed = kubectl.attempt(&["exec", "talker", "--", "sh", "-c", "exit 3"])?;
    assert!(failed.stderr.contains("exit code 3"), "the exit code is lost: {failed:?}");
    Ok(())
}

#[test]
fn port_forward_works() -> Result<()> {
    let Some((namespace, image)) = restricted("forward")? else {
        return Ok(());
    };
    pods::start_server(&namespace, "server", &image, 8080)?;
    let mut command = namespace.kubectl().command(&["port-forward", "pod/server", ":8080"]);
    let mut forward = Ended(command.stdout(Stdio::piped()).spawn()?);
    // Kept to the end: it writes a line per connection, and dies of a closed pipe.
    let stdout = forward.0.stdout.take();
    let mut stdout = BufReader::new(stdout.context("port-forward has no output")?);
    let mut line = String::new();
    stdout.read_line(&mut line)?;
    // "Forwarding from 127.0.0.1:40001 -> 8080"
    let address = line.split_whitespace().nth(2).with_context(|| format!("no address in {line:?}"))?;
    let mut connection = TcpStream::connect(address)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    let mut greeting = String::new();
    connection.read_to_string(&mut greeting)?;
    assert_eq!(greeting.trim(), "hello from the other side");
    Ok(())
}

/// A program that is ended with its test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_pod_with_users_of_its_own_runs() -> Result<()> {
    let Some((namespace, image)) = restricted("users")? else {
        return Ok(());
    };
    let node = namespace.kubectl().json(&["get", "nodes"])?;
    let handlers = node["items"][0]["status"]["runtimeHandlers"].as_array().cloned().unwrap_or_default();
    if !handlers.iter().any(|handler| handler["features"]["userNamespaces"] == true) {
        sympozium_testkit::skips::record("no user namespaces for pods");
        return Ok(());
    }
    let mut spec = pods::spec(&[pods::container("main", &image, "cat /proc/self/uid_map; id -u; sleep 600")]);
    spec["hostUsers"] = json!(false);
    namespace.create(&pods::pod("mapped", spec))?;
    namespace.wait_for_pod("mapped", "Running", PATIENCE)?;
    // What a container has written is in its log a moment later.
    let log = eventually("the log of the pod", PATIENCE, || {
        let log = namespace.kubectl().run(&["logs", "mapped"])?;
        Ok((log.split_whitespace().count() >= 4).then_some(log))
    })?;
    let words: Vec<_> = log.split_whitespace().collect();
    assert_eq!((words[0], words[3]), ("0", "1000"), "{log}");
    let outside: u32 = words[1].parse()?;
    assert!(outside >= 65_536, "user 0 of the pod is user {outside} of the node");
    Ok(())
}
