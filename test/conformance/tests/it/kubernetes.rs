//! Kubernetes: a real cluster with the real controller and gateway. It is driven as a user drives it, by the Kubernetes API: objects
//! are created, questions are decided through the status of a ToolApproval, a run is ended by `spec.cancel`.
//!
//! Under gVisor a run is the same, in a Sandbox of agent-sandbox with that RuntimeClass: there is no other way to name one.

mod namespace;
mod node;
mod objects;
mod observer;
mod records;
mod turn;

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use sympozium_api::guarantee::Guarantee;
use sympozium_conformance::case::{Moment, OutcomeKind};
use sympozium_conformance::{Backend, Case, Observed, judge};
use sympozium_testkit::cases::{repeat_command, sample};
use sympozium_testkit::cluster::runs::condition;
use sympozium_testkit::cluster::{Cluster, Image, Installation, Tier};

use self::namespace::CaseNamespace;
use self::objects::{IMAGE, KUBECTL_IMAGE, Objects, PASSIVE_IMAGE};
use crate::harness::Test;
use crate::pages;

/// Cases at a time. A node of two cores has room for the pods of four runs, each of which requests 400 thousandths of a core or
/// more and mostly waits for the kubelet; the other half is being prepared, or examined for what is left.
pub const RUNS_AT_A_TIME: usize = 8;
/// Cases of a sample under gVisor; one with rights at the API server and one with hosts to reach come on top.
const GVISOR_SAMPLE: usize = 3;
/// Where pages are while nothing is fetched.
const NO_PAGES: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1));
/// How the error of a run begins whose time was up.
const TIME_IS_UP: &str = "the run's time is up";

/// Which kernel runs have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// The node's.
    Node,
    /// gVisor.
    Gvisor,
}

/// What tests are made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To be named, for which no cluster is started.
    List,
    /// To be run.
    Run,
}

/// A cluster.
pub struct Kubernetes {
    kernel: Kernel,
    /// Namespaces of the cases whose floor has a rule for namespace `default`.
    consenting: Vec<String>,
}

impl Kernel {
    const fn tier(self) -> Tier {
        match self {
            Self::Node => Tier::Node,
            Self::Gvisor => Tier::AgentSandbox,
        }
    }

    /// The name of the backend.
    const fn backend(self) -> &'static str {
        match self {
            Self::Node => "kubernetes",
            Self::Gvisor => "kubernetes-gvisor",
        }
    }

    /// How the names of its tests begin.
    pub fn prefix(self) -> String {
        format!("{}::", self.backend())
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Node => "case",
            Self::Gvisor => "gvisor",
        }
    }

    /// The cases for this backend: all of them on the node's kernel, a sample under gVisor unless everything is asked for.
    ///
    /// Those with a floor of their own come first, so that each floor is put once; then those that wait for something, so that
    /// others have the processors meanwhile.
    fn cases(self, cases: &[Arc<Case>]) -> anyhow::Result<Vec<Arc<Case>>> {
        let name = self.backend();
        let mut own = Vec::new();
        for case in cases.iter().filter(|case| case.is_for(name)) {
            if self.suits(case)? {
                own.push(Arc::clone(case));
            }
        }
        if self == Self::Gvisor {
            let mut picked = Vec::new();
            picked.extend(one_of(&mut own, Objects::have_rights)?);
            picked.extend(one_of(&mut own, Objects::reach_hosts)?);
            picked.extend(sample(own, GVISOR_SAMPLE));
            own = picked;
        }
        let mut ordered = Vec::new();
        for case in own {
            let floor = Objects::read(&case, NO_PAGES)?.floor;
            let floor = floor.map(|it| it.to_string());
            ordered.push(((floor.is_none(), floor, !case.spec.waits()), case));
        }
        ordered.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(ordered.into_iter().map(|(_, case)| case).collect())
    }

    /// Whether a case can be told apart on this kernel. One that is denied never meets it, a run with `sandbox` cannot be in
    /// agent-sandbox as well, and gVisor keeps the files of a pod to itself, so that no watch reports when one is made.
    fn suits(self, case: &Case) -> anyhow::Result<bool> {
        if self == Self::Node {
            return Ok(true);
        }
        let denied = case.spec.expect.outcome == OutcomeKind::Denied;
        let objects = Objects::read(case, NO_PAGES)?;
        let meanwhile = case.spec.meanwhile.as_ref();
        let waits_for_file = meanwhile.is_some_and(|it| matches!(it.when, Moment::File(_)));
        Ok(!denied && !waits_for_file && objects.run["spec"]["sandbox"].is_null())
    }

    /// How a test of its is run again: where it was picked for a sample, the seed belongs to it.
    fn repeat(self, test: &str) -> Option<String> {
        (self == Self::Gvisor).then(|| repeat_command(env!("CARGO_PKG_NAME"), test))
    }

    /// The namespace of a case; its name is known beforehand, because floors name it.
    fn namespace(self, case: &Case) -> String {
        format!("{}-{}-{}", self.word(), std::process::id(), case.name)
    }
}

/// Takes one of the cases whose objects have something out of the rest: whatever else is sampled, that is tried.
fn one_of(others: &mut Vec<Arc<Case>>, has: fn(&Objects) -> bool) -> anyhow::Result<Option<Arc<Case>>> {
    let mut with = Vec::new();
    for case in others.iter() {
        if has(&Objects::read(case, NO_PAGES)?) {
            with.push(Arc::clone(case));
        }
    }
    let picked = sample(with, 1).into_iter().next();
    others.retain(|it| picked.as_ref().is_none_or(|picked| it.name != picked.name));
    Ok(picked)
}

/// The tests of a kernel. The first is that there is a cluster, with an installation that is ready.
pub fn tests(kernel: Kernel, cases: &[Arc<Case>], purpose: Purpose) -> anyhow::Result<Vec<Test>> {
    let first = format!("{}::installation", kernel.backend());
    let there = match purpose {
        Purpose::List => true,
        Purpose::Run => has_cluster(kernel, &first)?,
    };
    let mut tests = vec![Test::new(first, move || {
        if let Some(cluster) = Cluster::shared(kernel.tier())? {
            Installation::shared(cluster)?;
            cluster.import(&Image::with_shell(IMAGE))?;
        }
        Ok(Vec::new())
    })];
    if !there {
        return Ok(tests);
    }
    let cases = kernel.cases(cases)?;
    let mut consenting = Vec::new();
    for case in &cases {
        if Objects::read(case, NO_PAGES)?.consents_to_default() {
            consenting.push(kernel.namespace(case));
        }
    }
    let backend = Arc::new(Kubernetes { kernel, consenting });
    for case in cases {
        let name = format!("{}::{}", kernel.backend(), case.name);
        let (repeat, backend) = (kernel.repeat(&name), Arc::clone(&backend));
        let test = Test::new(name, move || {
            let observed = backend.realise(&case)?;
            Ok(judge(&case, &observed, &*backend))
        });
        tests.push(test.repeated_by(repeat));
    }
    Ok(tests)
}

/// Whether this machine can have a cluster. Asked by the name of a test, so that what is missing is one skip for all callers.
fn has_cluster(kernel: Kernel, test: &str) -> anyhow::Result<bool> {
    let asked = std::thread::Builder::new()
        .name(test.to_owned())
        .spawn(move || Cluster::shared(kernel.tier()).map(|it| it.is_some()))?;
    let answer = asked.join();
    answer.map_err(|_| anyhow::anyhow!("asking for a cluster panicked"))?
}

impl Backend for Kubernetes {
    fn name(&self) -> &str {
        self.kernel.backend()
    }

    /// What the executor enforces in a container (docs/isolation.md), and the network, which the cluster holds and a run looks
    /// at before it begins. Memory, pids and CPU are the kubelet's.
    fn guarantees(&self) -> &[Guarantee] {
        match self.kernel {
            Kernel::Node => &[Guarantee::Filesystem, Guarantee::Network, Guarantee::Processes, Guarantee::Syscalls],
            Kernel::Gvisor => &[Guarantee::Network, Guarantee::Processes, Guarantee::Syscalls, Guarantee::Kernel],
        }
    }

    fn realise(&self, case: &Case) -> anyhow::Result<Observed> {
        let cluster = Cluster::shared(self.kernel.tier())?.context("there is no cluster")?;
        let installation = Installation::shared(cluster)?.context("there is no installation")?;
        let host = cluster.host_address().context("the cluster is not ours")?;
        let mut objects = Objects::read(case, pages::at(host)?)?;
        cluster.import(&Image::with_shell(IMAGE))?;
        if objects.use_image(KUBECTL_IMAGE) {
            let kubectl = cluster.kubectl().command(&[]);
            let program = Path::new(kubectl.get_program());
            cluster.import(&Image::with_shell(KUBECTL_IMAGE).with_program(program))?;
        }
        if objects.use_image(PASSIVE_IMAGE) {
            let passive = Image::with_shell(PASSIVE_IMAGE);
            cluster.import(&passive.starting(&["/bin/sleep", "infinity"]))?;
        }
        let namespace = self.kernel.namespace(case);
        objects.move_to(&namespace, &self.consenting);
        if self.kernel == Kernel::Gvisor {
            objects.run["spec"]["agentSandbox"] = json!({ "enabled": true, "runtimeClass": "gvisor" });
        }
        let namespace = CaseNamespace::new(cluster, namespace)?;
        let observed = namespace.realise(case, &objects, self.kernel);
        observed.with_context(|| format!("controller and gateway said: {}", installation.logs()))
    }
}

/// How a run ended, and its answer or why there is none.
fn outcome(run: &Value) -> anyhow::Result<(OutcomeKind, String)> {
    let status = &run["status"];
    let text = |field: &str| status[field].as_str().unwrap_or_default().to_owned();
    let admitted = condition(run, "Admitted");
    let not_admitted = if admitted["status"] == "False" { &admitted["reason"] } else { &Value::Null };
    let error = text("error");
    Ok(match status["phase"].as_str().unwrap_or_default() {
        "Succeeded" => (OutcomeKind::Succeeded, text("result")),
        "Cancelled" => (OutcomeKind::Cancelled, error),
        "Failed" if not_admitted == "Denied" => (OutcomeKind::Denied, error),
        "Failed" if !not_admitted.is_null() => (OutcomeKind::Refused, error),
        "Failed" if error.starts_with(TIME_IS_UP) => (OutcomeKind::TimedOut, error),
        "Failed" => (OutcomeKind::Failed, error),
        other => bail!("a run that ended {other}"),
    })
}

/// The rules by which a run was denied: one at the beginning of each line.
fn rules(text: &str) -> anyhow::Result<Vec<String>> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("denied["));
    let rules = lines.filter_map(|rest| Some(rest.split_once(']')?.0.to_owned()));
    let mut rules: Vec<String> = rules.collect();
    anyhow::ensure!(!rules.is_empty(), "no rule is named: {text}");
    rules.sort();
    rules.dedup();
    Ok(rules)
}
