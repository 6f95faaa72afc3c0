//! What the pod of a run reaches, and what is said where nothing holds it in.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use parking_lot::Mutex;
use serde_json::{Value, json};
use sympozium_api::installation::{CANARY_PORT, GATEWAY, GATEWAY_PORT};
use sympozium_api::labels::SYSTEM_NAMESPACE;
use sympozium_testkit::cluster::{Exclusivity, Printed, Security, eventually};

use super::harness::{
    Harness, PATIENCE, STRICT, condition, condition_of, container_id, hold, running_containers, scripted, shell_pack,
};
use super::rights::let_go;
use crate::pods;

const AGENT: &str = "  policyRef: strict\n  skills: [{skillPackRef: tools}]";
/// What decides about NetworkPolicies in the test cluster.
const POLICY_AGENT: &str = "kube-network-policies";
/// The addresses of its pods.
const PODS: &str = "198.51.100.0/24";
/// Seconds that a question waits for an answer.
const PROBE_SECONDS: u8 = 2;

fn address_of_service(harness: &Harness, namespace: &str, name: &str) -> Result<String> {
    let kubectl = harness.cluster.kubectl().in_namespace(namespace);
    let service = kubectl.json(&["get", "service", name])?;
    let ip = service["spec"]["clusterIP"].as_str();
    Ok(ip.context("an address")?.to_owned())
}

/// Whether a container of a pod gets a connection.
fn reaches(harness: &Harness, pod: &Value, container: &str, address: &str, port: u16) -> Result<bool> {
    let port = port.to_string();
    let connect = ["/bin/busybox", "nc", "-w", "2", address, &port, "-e", "/bin/true"];
    let tried = harness.exec(pod, container, &connect)?;
    ensure!(!tried.stderr.contains("not found"), "{container}: {}", tried.stderr);
    Ok(tried.success)
}

/// What the gateway says to a part that asks for a way out and does not say who it is. On a busy machine it may be late: nothing then.
fn without_credential(harness: &Harness, pod: &Value, container: &str, gateway: &str) -> Result<String> {
    let ask = format!(
        "printf 'CONNECT example.org:443 HTTP/1.1\\r\\nHost: example.org:443\\r\\n\\r\\n' | /bin/busybox nc -w 2 {gateway} {GATEWAY_PORT}"
    );
    let asked = harness.exec(pod, container, &["/bin/busybox", "sh", "-c", &ask])?;
    Ok(asked.stdout)
}

#[test]
fn a_run_reaches_the_gateway_and_nothing_else() -> Result<()> {
    let Some(harness) = Harness::new("reach", Exclusivity::shared())? else {
        return Ok(());
    };
    let Some(image) = pods::image(harness.cluster)? else {
        return Ok(());
    };
    let elsewhere = harness.cluster.namespace("elsewhere", Security::Restricted)?;
    let other_pod = pods::start_server(&elsewhere, "server", &image, 8080)?;
    pods::start_idle(&elsewhere, "client", &image)?;
    harness.create(&(scripted("held", &hold(), AGENT, "") + &shell_pack("tools") + STRICT))?;
    let pod = harness.pod_with("held", "agent")?;
    let gateway = address_of_service(&harness, SYSTEM_NAMESPACE, GATEWAY)?;
    let api = address_of_service(&harness, "default", "kubernetes")?;
    let mut containers = running_containers(&pod);
    containers.sort();
    assert_eq!(containers, ["agent", "ipc-bridge", "skill-tools"]);
    // A process without confinement reaches it, so the server exists.
    eventually("a connection to the other pod", PATIENCE, || {
        Ok(pods::connect(&elsewhere, "client", &format!("{other_pod}:8080"))?.ok())
    })?;
    for container in &containers {
        // One attempt may be too slow for a busy machine; one that succeeds where it must not is one too many.
        eventually(&format!("a connection of {container} to the gateway"), PATIENCE, || {
            Ok(reaches(&harness, &pod, container, &gateway, GATEWAY_PORT)?.then_some(()))
        })?;
        for (address, port) in [(&gateway, CANARY_PORT), (&api, 443), (&other_pod, 8080)] {
            let found = reaches(&harness, &pod, container, address, port)?;
            assert!(!found, "{container} to {address}:{port}");
        }
        let answer = eventually(&format!("an answer of the gateway to {container}"), PATIENCE, || {
            let answer = without_credential(&harness, &pod, container, &gateway)?;
            Ok((!answer.is_empty()).then_some(answer))
        })?;
        assert!(answer.starts_with("HTTP/1.1 407 "), "{container}: {answer}");
    }
    let client = elsewhere.kubectl().json(&["get", "pod", "client"])?;
    no_names(&harness, &pod, &client)?;
    // The controller says so when it has seen that every container has begun.
    let run =
        harness.wait("held", "what is said of its network", |run| !condition(run, "NetworkEnforced").is_empty())?;
    assert_eq!(condition(&run, "NetworkEnforced"), "True", "{run}");
    let_go(&harness, &pod, "skill-tools")?;
    let run = harness.ended("held")?;
    assert_eq!(run["status"]["phase"], "Succeeded", "{run}");
    Ok(())
}

/// What a question about a name came to that was sent from where a process is.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    /// There was an answer.
    Answered(String),
    /// The datagram was sent, without an answer.
    Unheard,
}

/// Sends a datagram with this word from the network of a container, or of the node itself, and waits for an answer. An
/// error, where nothing was sent: the sender says that it did, and that the kernel counted it.
fn ask(harness: &Harness, container: Option<&str>, to: SocketAddr, word: &str) -> Result<Asked> {
    let inside = match container {
        Some(id) => format!(
            "pid=$(ctr task ls | awk -v id={id} '$1 == id {{print $2}}'); [ -n \"$pid\" ] && \
             nsenter --net=/proc/$pid/ns/net"
        ),
        None => String::new(),
    };
    // The socket stays open for the answer: the kernel accepts none for an unused port.
    let (host, port) = (to.ip(), to.port());
    let send = format!(
        "sent() {{ awk '/^Udp: [0-9]/ {{print $5}}' /proc/self/net/snmp; }}; before=$(sent) && \
         exec 3<>/dev/udp/{host}/{port} && echo {word} >&3 && echo sent $(($(sent) - before)) && \
         answer=$(timeout {PROBE_SECONDS} dd bs=64 count=1 status=none <&3); \
         if [ -n \"$answer\" ]; then echo \"answer $answer\"; else echo unheard; fi"
    );
    let line = format!("{inside} bash -c \"$0\"");
    let printed = harness.cluster.on_node(&["bash", "-c", &line, &send])?.context("a node of ours")?;
    let mut lines = printed.stdout.lines();
    let sent = lines.next().and_then(|it| it.strip_prefix("sent "));
    let sent = sent.and_then(|it| it.parse::<u64>().ok());
    ensure!(printed.success && sent.is_some_and(|it| it > 0), "nothing was sent to {to}: {printed:?}");
    match lines.next() {
        Some("unheard") => Ok(Asked::Unheard),
        Some(answer) => Ok(Asked::Answered(answer.trim_start_matches("answer ").to_owned())),
        None => bail!("neither an answer nor none from {to}: {printed:?}"),
    }
}

/// Answers every datagram, as a name server does, and keeps their words.
struct Names {
    address: SocketAddr,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Names {
    fn serve(host: Ipv4Addr) -> Result<Self> {
        let socket = UdpSocket::bind((host, 0))?;
        let (address, heard) = (socket.local_addr()?, Arc::new(Mutex::new(Vec::new())));
        let words = Arc::clone(&heard);
        // It ends with this process: no other process knows its port.
        std::thread::spawn(move || {
            let mut buffer = [0; 64];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                let word = String::from_utf8_lossy(&buffer[..length]).trim().to_owned();
                words.lock().push(word);
                let _ = socket.send_to(b"here\n", from);
            }
        });
        Ok(Self { address, heard })
    }

    /// Whether a datagram with this word has come.
    fn has_heard(&self, word: &str) -> bool {
        let heard = self.heard.lock();
        heard.iter().any(|it| it == word)
    }
}

/// No datagram leaves the pod, to wherever names are looked up. The same probe is answered at the same address from the node,
/// and from a pod that no policy holds in: so the silence is the policy's.
fn no_names(harness: &Harness, pod: &Value, free: &Value) -> Result<()> {
    let host = harness.cluster.host_address().context("a cluster of ours")?;
    let names = Names::serve(host)?;
    let answered = Asked::Answered("here".to_owned());
    // A datagram may be lost, and its answer may be late.
    let is_answered = |container: Option<&str>, word: &str| {
        eventually(&format!("an answer to {word}"), PATIENCE, || {
            Ok((ask(harness, container, names.address, word)? == answered).then_some(()))
        })
    };
    is_answered(None, "node")?;
    let free = container_id(free, "main")?;
    is_answered(Some(&free), "free")?;
    assert!(names.has_heard("node") && names.has_heard("free"), "{:?}", names.heard);
    let agent = container_id(pod, "agent")?;
    assert_eq!(ask(harness, Some(&agent), names.address, "held")?, Asked::Unheard);
    // By its word: an earlier datagram of the others may come as late as now.
    assert!(!names.has_heard("held"), "a datagram left the pod");
    Ok(())
}

/// The cluster without what enforces NetworkPolicies: its agent is stopped, and nothing waits for it.
///
/// Stopping the agent alone is not that. New connections of pods are handed to it by rules of the node (`NFQUEUE` without
/// `--queue-bypass`, `xtask/src/kube/namespaces.rs`), and the kernel drops packets without a verdict: the gateway would be as far as its
/// canary, no run would start, and no floor would be asked. And to end the agent ends the cluster, as the end of any
/// component does. So it is stopped by a signal, and what would be handed to it goes on, as in a cluster that never had one.
struct Unenforced<'h> {
    harness: &'h Harness,
    rules: Vec<Vec<String>>,
}

impl<'h> Unenforced<'h> {
    fn new(harness: &'h Harness) -> Result<Self> {
        let mut made = Self { harness, rules: Vec::new() };
        // First: what is with the agent when it stops would stay there.
        for (chain, what) in [("INPUT", "-s PODS"), ("FORWARD", "-s PODS"), ("FORWARD", "-d PODS")] {
            let rule = format!("{chain} {} -j ACCEPT", what.replace("PODS", PODS));
            let rule: Vec<String> = rule.split(' ').map(str::to_owned).collect();
            made.iptables("-I", &rule)?;
            made.rules.push(rule);
        }
        made.signal("STOP")?;
        Ok(made)
    }

    /// Signals the policy agent of this cluster: others have processes of their own, which are not seen from in there.
    fn signal(&self, signal: &str) -> Result<()> {
        let line = format!("pid=$(pidof {POLICY_AGENT}) && kill -{signal} $pid && cat /proc/$pid/status");
        let is_stopped = || -> Result<Option<()>> {
            let done = self.on_node(&["bash", "-c", &line])?;
            ensure!(done.success, "{done:?}");
            let state = done.stdout.lines().find(|it| it.starts_with("State:"));
            let stopped = state.is_some_and(|it| it.contains("T (stopped)"));
            Ok((stopped == (signal == "STOP")).then_some(()))
        };
        // It stops when it next runs.
        eventually(&format!("the policy agent to {signal}"), PATIENCE, is_stopped)?;
        Ok(())
    }

    fn iptables(&self, verb: &str, rule: &[String]) -> Result<()> {
        let mut words = vec!["iptables", "-w", "60", "-t", "mangle", verb];
        words.extend(rule.iter().map(String::as_str));
        let done = self.on_node(&words)?;
        ensure!(done.success, "{}", done.stderr);
        Ok(())
    }

    fn on_node(&self, words: &[&str]) -> Result<Printed> {
        let done = self.harness.cluster.on_node(words)?;
        done.context("a node of ours")
    }
}

impl Drop for Unenforced<'_> {
    fn drop(&mut self) {
        let mut again = self.signal("CONT");
        for rule in &self.rules {
            again = again.and(self.iptables("-D", rule));
        }
        // The tests behind this one would find a cluster that enforces nothing.
        if let Err(error) = again {
            eprintln!("error: the policy agent does not decide again: {error:#}");
            std::process::abort();
        }
    }
}

#[test]
fn where_nothing_enforces_policies_the_floor_decides() -> Result<()> {
    let Some(harness) = Harness::new("unenforced", Exclusivity::exclusive())? else {
        return Ok(());
    };
    let turns = "      - {say: Done., then: end}";
    // It does enforce them, until its agent is stopped.
    harness.create(&(scripted("held", turns, "  policyRef: strict", "") + STRICT))?;
    let run = harness.ended("held")?;
    assert_eq!(condition(&run, "NetworkEnforced"), "True", "{run}");
    let unenforced = Unenforced::new(&harness)?;
    harness.create(&scripted("told", turns, "", ""))?;
    // Beside it: each looks for a minute before it says that nothing is enforced.
    harness.create(&scripted("refused", turns, "  policyRef: strict", ""))?;
    let run = harness.ended("told")?;
    assert_eq!((&run["status"]["phase"], &run["status"]["result"]), (&json!("Succeeded"), &json!("Done.")), "{run}");
    assert_eq!(condition(&run, "NetworkEnforced"), "False", "{run}");
    let run = harness.ended("refused")?;
    assert_eq!(run["status"]["phase"], "Failed", "{run}");
    assert_eq!(condition_of(&run, "NetworkEnforced")["status"], "False", "{run}");
    let error = run["status"]["error"].as_str().unwrap_or_default();
    assert!(error.contains("NetworkPolic") || error.contains("network"), "{error}");
    assert!(run["status"]["result"].is_null(), "{run}");
    drop(unenforced);
    harness.create(&scripted("again", turns, "  policyRef: strict", ""))?;
    let run = harness.ended("again")?;
    assert_eq!(
        (&run["status"]["phase"], condition(&run, "NetworkEnforced").as_str()),
        (&json!("Succeeded"), "True"),
        "{run}"
    );
    Ok(())
}
