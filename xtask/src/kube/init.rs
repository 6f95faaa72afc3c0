//! The first process of a cluster: pid 1 of its pid namespace.
//!
//! It sets up the namespaces, starts the components in order, says when they are ready, and then waits. When it ends,
//! for whatever reason, the kernel ends everything else in the namespace. It ends when its keeper is gone (standard
//! input closes), when a component dies, or when a leased cluster has had no user for a while.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, WaitOptions, wait};

use super::command::{output, program, succeeds};
use super::components::{self, Component};
use super::config::{CONTAINERD_SOCKET, NODE, STATE};
use super::events::{Clock, Event, send};
use super::namespaces;
use super::network::DNS_SERVICE;
use super::parts::Tier;
use super::state::{Plan, read_json};
use super::{dns, lock};

/// Longest start of a component on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(90);
const POLL: Duration = Duration::from_millis(100);
/// Lines of its log shown when a component dies.
const LOG_LINES: usize = 15;

/// Runs the cluster of the state folder `state` until it ends.
pub fn run(state: &Path) -> Result<()> {
    let plan: Plan = read_json(&state.join("plan.json"))?.context("the cluster has no plan")?;
    let _lock = lock::try_exclusive(&state.join("init.lock"))?.context("the cluster already runs")?;
    std::thread::spawn(end_with_keeper);
    let mut cluster = Starting { tier: plan.tier.parse()?, plan, running: Vec::new(), clock: Clock::start() };
    if let Err(error) = cluster.start() {
        send(&Event::Failed(format!("{error:#}")));
        return Err(error);
    }
    let outcome = supervise(&cluster.plan, cluster.running);
    if let Err(error) = &outcome {
        send(&Event::Failed(format!("{error:#}")));
    }
    outcome
}

/// The keeper holds the other end of our standard input; it closes when the keeper ends, however it does.
fn end_with_keeper() {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    std::process::exit(0);
}

struct Starting {
    plan: Plan,
    tier: Tier,
    running: Vec<(&'static str, Child)>,
    clock: Clock,
}

impl Starting {
    /// One straight sequence; the order is what each step needs of the earlier ones.
    fn start(&mut self) -> Result<()> {
        namespaces::cover_file_system(&self.plan)?;
        namespaces::configure_network(&self.plan)?;
        namespaces::configure_packet_filter(self.tier)?;
        self.clock.step("namespaces and network");

        // Started early: they need nothing from the API server, and it needs a second.
        self.spawn(components::etcd())?;
        self.spawn(components::api_server(&self.plan)?)?;
        if self.tier.node {
            namespaces::cover_kubelet_settings()?;
            self.spawn(components::containerd(&self.plan)?)?;
        }
        self.wait_for("the API server", |kubectl| succeeds(kubectl.args(["get", "--raw", "/readyz"])))?;
        self.clock.step("API server");

        self.spawn(components::controller_manager(&self.plan)?)?;
        if self.tier.node {
            self.start_node()?;
        }
        self.wait_for("the default service account", |kubectl| {
            succeeds(kubectl.args(["get", "serviceaccount", "default", "-n", "default"]))
        })?;
        self.clock.step("controller manager");

        if self.tier.gvisor {
            let class = format!("{STATE}/config/runtime-class.json");
            output(self.kubectl()?.args(["apply", "-f", &class]))?;
        }
        if self.tier.agent_sandbox {
            self.start_agent_sandbox()?;
        }
        Ok(())
    }

    fn start_node(&mut self) -> Result<()> {
        self.spawn(components::scheduler(&self.plan)?)?;
        // It needs the API server only, and is there long before the node.
        self.spawn(components::coredns(&self.plan)?)?;
        let service = format!("{STATE}/config/dns.json");
        // The API server makes its namespace a moment after it says that it is ready.
        self.wait_for("the Service of the name server", |kubectl| succeeds(kubectl.args(["apply", "-f", &service])))?;
        self.wait_until("containerd", |_| Ok(Path::new(CONTAINERD_SOCKET).exists()))?;
        let ctr = format!("{}/ctr", self.plan.part("containerd")?);
        let pause = format!("{STATE}/images/pause.tar");
        self.wait_until("the import of the pause image", |_| {
            let mut import = program(&ctr);
            import.args(["--address", CONTAINERD_SOCKET, "-n", "k8s.io", "images", "import", &pause]);
            Ok(succeeds(&mut import))
        })?;
        self.clock.step("containerd");
        self.spawn(components::kubelet(&self.plan)?)?;
        self.spawn(components::kube_proxy(&self.plan)?)?;
        self.spawn(components::network_policies(&self.plan)?)?;
        self.wait_for("the node", |kubectl| {
            let ready = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
            output(kubectl.args(["get", "node", NODE, "-o", ready])).is_ok_and(|status| status == "True")
        })?;
        self.clock.step("node ready");
        // By the address that pods ask, so that kube-proxy's rules are in force too.
        self.wait_until("the name server", |_| {
            Ok(dns::answers(DNS_SERVICE, &dns::full_name("kubernetes", "default")))
        })?;
        self.clock.step("name server");
        Ok(())
    }

    /// The controller exits when its kinds cannot be discovered, so they come first.
    fn start_agent_sandbox(&mut self) -> Result<()> {
        let kinds = format!("{}/data", self.plan.part("agent-sandbox")?);
        output(self.kubectl()?.args(["apply", "--server-side", "-f", &kinds]))?;
        output(self.kubectl()?.args(["wait", "--for=condition=Established", "--timeout=60s", "-f", &kinds]))?;
        for kind in ["sandboxes.agents.x-k8s.io", "sandboxclaims.extensions.agents.x-k8s.io"] {
            self.wait_for(kind, |kubectl| succeeds(kubectl.args(["get", kind, "-A"])))?;
        }
        self.spawn(components::agent_sandbox(&self.plan)?)?;
        self.wait_for("the agent-sandbox controller", |_| std::net::TcpStream::connect(("127.0.0.1", 18081)).is_ok())?;
        self.clock.step("agent-sandbox");
        Ok(())
    }

    fn spawn(&mut self, component: Component) -> Result<()> {
        let log = format!("{STATE}/logs/{}.log", component.name);
        let log = File::create(&log).with_context(|| format!("cannot create {log}"))?;
        let mut command = program(&component.program);
        self.clean_environment(&mut command)?;
        command.args(component.arguments).stdout(log.try_clone().context("cannot share the log")?).stderr(log);
        let child = command.spawn().with_context(|| format!("cannot start {}", component.name))?;
        self.running.push((component.name, child));
        Ok(())
    }

    fn wait_for(&mut self, what: &str, ready: impl Fn(&mut Command) -> bool) -> Result<()> {
        self.wait_until(what, |starting| Ok(ready(&mut starting.kubectl()?)))
    }

    fn wait_until(&mut self, what: &str, ready: impl Fn(&Self) -> Result<bool>) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !ready(self)? {
            for (name, child) in &mut self.running {
                if let Some(status) = child.try_wait().with_context(|| format!("cannot watch {name}"))? {
                    bail!("{name} ended ({status}) while the cluster waited for {what}\n{}", log_tail(name));
                }
            }
            if Instant::now() > deadline {
                bail!("{what} was not ready after {} s", PATIENCE.as_secs());
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    fn kubectl(&self) -> Result<Command> {
        let mut command = program(format!("{}/kubectl", self.plan.part("kubernetes")?));
        self.clean_environment(&mut command)?;
        command.env("KUBECONFIG", format!("{STATE}/config/admin.kubeconfig"));
        Ok(command)
    }

    /// Nothing of the owner's environment reaches the cluster: a proxy variable alone would break it.
    fn clean_environment(&self, command: &mut Command) -> Result<()> {
        let mut path = Vec::new();
        for (part, _) in &self.plan.parts {
            path.push(self.plan.part(part)?);
        }
        path.push("/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned());
        command.env_clear().env("PATH", path.join(":"));
        command.env("HOME", "/run/kube").env("TMPDIR", format!("{STATE}/tmp"));
        // Programs written in Go that collect garbage less often: a test machine has more memory than time.
        command.env("GOGC", "400");
        Ok(())
    }
}

/// Reaps what is left to pid 1, and ends when a component has ended or a leased cluster has no user any more.
fn supervise(plan: &Plan, running: Vec<(&'static str, Child)>) -> Result<()> {
    send(&Event::Ready(Box::new(super::keeper::record(plan)?)));
    let names: HashMap<u32, &str> = running.iter().map(|(name, child)| (child.id(), *name)).collect();
    let lease = Path::new(STATE).join("lease");
    let mut last_used = Instant::now();
    loop {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let pid = u32::try_from(Pid::as_raw(Some(pid))).unwrap_or_default();
            if let Some(name) = names.get(&pid) {
                bail!("{name} ended ({status:?})\n{}", log_tail(name));
            }
        }
        if let Some(idle) = plan.idle_seconds {
            // Users hold a shared lock. A user that comes after we took the exclusive one finds the cluster ending.
            match lock::try_exclusive(&lease)? {
                None => last_used = Instant::now(),
                Some(held) if last_used.elapsed() > Duration::from_secs(idle) => {
                    // Held to the end of the process: no other process may take it in between.
                    std::mem::forget(held);
                    return Ok(());
                }
                Some(_) => {}
            }
        }
        std::thread::sleep(POLL);
    }
}

fn log_tail(name: &str) -> String {
    let text = std::fs::read_to_string(format!("{STATE}/logs/{name}.log")).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
}
