//! Kubernetes: a real cluster with the real controller and gateway. It is driven as a user drives it, by `kubectl`: objects
//! are created, questions are decided through the status of a ToolApproval, a run is ended by `spec.cancel`.
//!
//! Under gVisor a run is the same, in a Sandbox of agent-sandbox with that RuntimeClass: there is no other way to name one.

mod course;
mod floor;
mod kept;
mod node;
mod objects;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use sympozium_api::guarantee::Guarantee;
use sympozium_api::run_plan::RunIdentity;
use sympozium_conformance::case::{Moment, OutcomeKind};
use sympozium_conformance::{Backend, Case, Seen, judge};
use sympozium_plan::render::names::object_name;
use sympozium_testkit::cases::sample;
use sympozium_testkit::cluster::runs::condition;
use sympozium_testkit::cluster::{Cluster, Image, Installation, Namespace, Tier};

use self::course::{Course, PERSON};
use self::floor::Floor;
use self::kept::{Listing, rights_left};
use self::node::Node;
use self::objects::{IMAGE, KUBECTL_IMAGE, Objects};
use crate::harness::Test;

/// Cases of a sample on the ordinary kernel; those for Kubernetes alone come on top.
const SAMPLE: usize = 10;
/// Cases of a sample under gVisor; one with rights at the API server and one with hosts to reach come on top.
const GVISOR_SAMPLE: usize = 3;
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

/// A cluster.
pub struct Kubernetes {
    kernel: Kernel,
}

impl Kernel {
    const fn tier(self) -> Tier {
        match self {
            Self::Node => Tier::Node,
            Self::Gvisor => Tier::AgentSandbox,
        }
    }

    /// The cases for this backend: all that are for it, or a sample and those that are for clusters alone.
    fn cases(self, cases: &[Arc<Case>]) -> anyhow::Result<Vec<Arc<Case>>> {
        let name = Kubernetes { kernel: self }.name().to_owned();
        let (mut always, mut others) = (Vec::new(), Vec::new());
        for case in cases.iter().filter(|case| case.is_for(&name)) {
            let only_on = case.spec.only_on.as_ref();
            let is_own = only_on.is_some_and(|it| it.backends.iter().all(|it| it != "local"))
                && self == Self::Node;
            match self.suits(case)? {
                true if is_own => always.push(Arc::clone(case)),
                true => others.push(Arc::clone(case)),
                false => {}
            }
        }
        let count = match self {
            Self::Node => SAMPLE,
            Self::Gvisor => {
                always.extend(one_of(&mut others, Objects::have_rights)?);
                always.extend(one_of(&mut others, Objects::reach_hosts)?);
                GVISOR_SAMPLE
            }
        };
        always.extend(sample(others, count));
        // Those that wait for something first: others have the processors meanwhile.
        always.sort_by_key(|case| !case.spec.waits());
        Ok(always)
    }

    /// Whether a case can be told apart on this kernel. One that is denied never meets it, a run with `sandbox` cannot be in
    /// agent-sandbox as well, and gVisor keeps the files of a pod to itself, so that nobody sees when one is made.
    fn suits(self, case: &Case) -> anyhow::Result<bool> {
        if self == Self::Node {
            return Ok(true);
        }
        let denied = case.spec.expect.outcome == OutcomeKind::Denied;
        let objects = Objects::read(case)?;
        let meanwhile = case.spec.meanwhile.as_ref();
        let waits_for_file = meanwhile.is_some_and(|it| matches!(it.when, Moment::File(_)));
        Ok(!denied && !waits_for_file && objects.run["spec"]["sandbox"].is_null())
    }
}

/// Takes one of the cases whose objects have something out of the rest: whatever else is sampled, that is tried.
fn one_of(
    others: &mut Vec<Arc<Case>>,
    has: fn(&Objects) -> bool,
) -> anyhow::Result<Option<Arc<Case>>> {
    let mut with = Vec::new();
    for case in others.iter() {
        if has(&Objects::read(case)?) {
            with.push(Arc::clone(case));
        }
    }
    let picked = sample(with, 1).into_iter().next();
    others.retain(|it| picked.as_ref().is_none_or(|picked| it.name != picked.name));
    Ok(picked)
}

/// The tests of a kernel. The first is that there is a cluster, with an installation that is ready.
pub fn tests(kernel: Kernel, cases: &[Arc<Case>]) -> anyhow::Result<Vec<Test>> {
    let name = Kubernetes { kernel }.name().to_owned();
    let first = format!("{name}::installation");
    // By the name of the test, so that what is missing is one skip, whoever asks.
    let asked = std::thread::Builder::new()
        .name(first.clone())
        .spawn(move || Cluster::shared(kernel.tier()).map(|it| it.is_some()))?;
    let there = asked
        .join()
        .map_err(|_| anyhow::anyhow!("asking for a cluster broke"))??;
    let mut tests = vec![Test::new(first, move || {
        if let Some(cluster) = Cluster::shared(kernel.tier())? {
            Installation::shared(cluster)?;
        }
        Ok(Vec::new())
    })];
    if !there {
        return Ok(tests);
    }
    for case in kernel.cases(cases)? {
        let name = format!("{name}::{}", case.name);
        tests.push(Test::new(name, move || {
            let backend = Kubernetes { kernel };
            let seen = backend.realise(&case)?;
            Ok(judge(&case, &seen, &backend))
        }));
    }
    Ok(tests)
}

impl Backend for Kubernetes {
    fn name(&self) -> &str {
        match self.kernel {
            Kernel::Node => "kubernetes",
            Kernel::Gvisor => "kubernetes-gvisor",
        }
    }

    /// What the executor enforces in a container (docs/isolation.md), and the network, which the cluster holds and a run looks
    /// at before it begins. Memory, pids and CPU are the kubelet's.
    fn guarantees(&self) -> &[Guarantee] {
        match self.kernel {
            Kernel::Node => &[
                Guarantee::Filesystem,
                Guarantee::Network,
                Guarantee::Processes,
                Guarantee::Syscalls,
            ],
            Kernel::Gvisor => &[
                Guarantee::Network,
                Guarantee::Processes,
                Guarantee::Syscalls,
                Guarantee::Kernel,
            ],
        }
    }

    fn realise(&self, case: &Case) -> anyhow::Result<Seen> {
        let cluster = Cluster::shared(self.kernel.tier())?.context("there is no cluster")?;
        let installation = Installation::shared(cluster)?.context("there is no installation")?;
        let mut objects = Objects::read(case)?;
        cluster.import(&Image::with_shell(IMAGE))?;
        if objects.use_image(KUBECTL_IMAGE) {
            let kubectl = cluster.kubectl().command(&[]);
            let program = Path::new(kubectl.get_program());
            cluster.import(&Image::with_shell(KUBECTL_IMAGE).with_program(program))?;
        }
        let place = Place::new(cluster, installation)?;
        objects.move_to(place.namespace.name());
        let floor = Floor::hold(&cluster.kubectl(), objects.floor.as_ref())?;
        if self.kernel == Kernel::Gvisor {
            objects.run["spec"]["agentSandbox"] =
                json!({ "enabled": true, "runtimeClass": "gvisor" });
        }
        let seen = place.realise(case, &objects, self.kernel);
        drop(floor);
        seen.with_context(|| format!("controller and gateway said: {}", installation.logs()))
    }
}

/// Where a case is.
struct Place {
    cluster: &'static Cluster,
    namespace: Namespace,
    node: Node,
}

impl Place {
    fn new(cluster: &'static Cluster, installation: &Installation) -> anyhow::Result<Self> {
        let namespace = installation.namespace("case")?;
        namespace.create(&json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": "approver"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "sympozium-approver"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": PERSON}],
        }))?;
        Ok(Self {
            cluster,
            namespace,
            node: Node::new(cluster)?,
        })
    }

    fn realise(&self, case: &Case, objects: &Objects, kernel: Kernel) -> anyhow::Result<Seen> {
        let claims = objects.claims();
        for claim in &claims {
            self.claim(claim)?;
        }
        let kubectl = self.namespace.kubectl();
        let run = objects.create(kubectl)?;
        let workspace = objects.has_hooks_after().then(|| self.workspace(&run));
        let workspace = workspace.transpose()?;
        let mut course = Course::new(case, kubectl, &self.node, run);
        course.sees_files = kernel == Kernel::Node;
        course.claim = workspace.as_ref().map(|(_, directory)| directory.clone());
        course.follow()?;
        let seen = self.seen(course, kernel);
        for claim in claims.iter().chain(workspace.iter().map(|(name, _)| name)) {
            self.node.withdraw(self.namespace.name(), claim);
        }
        seen
    }

    /// A claim that manifests name, and a volume for it.
    fn claim(&self, name: &str) -> anyhow::Result<()> {
        self.node.provide(self.namespace.name(), name)?;
        self.namespace.create(&json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "",
                "resources": {"requests": {"storage": "1Mi"}},
            },
        }))?;
        Ok(())
    }

    /// A volume for the claim that will be made for the run's workspace: its name, and where its files are.
    fn workspace(&self, run: &Value) -> anyhow::Result<(String, PathBuf)> {
        let identity: RunIdentity = serde_json::from_value(json!({
            "namespace": self.namespace.name(), "name": run["metadata"]["name"],
            "uid": run["metadata"]["uid"], "agent": "worker", "agentKind": "Agent",
            "agentId": "", "sessionKey": "",
        }))?;
        let claim = object_name(&identity, "workspace");
        let directory = self.node.provide(self.namespace.name(), &claim)?;
        Ok((claim, directory))
    }

    fn seen(&self, course: Course<'_>, kernel: Kernel) -> anyhow::Result<Seen> {
        let kubectl = self.cluster.kubectl();
        let sandboxes = kernel == Kernel::Gvisor;
        let listing = Listing::of(&kubectl, &course.run, sandboxes)?;
        let (outcome, text) = outcome(&course.run)?;
        let rules = match outcome {
            OutcomeKind::Denied => rules(&text)?,
            _ => Vec::new(),
        };
        let kept = listing.kept(&course.run, course.files())?;
        let mut leftovers = listing.leftovers();
        if let Some(kept) = &kept {
            leftovers.extend(rights_left(&kubectl, &course.run, &kept.plan)?);
        }
        let remaining = course.run["status"]["revocation"]["remaining"].as_array();
        let remaining = remaining.into_iter().flatten();
        leftovers.extend(remaining.map(|it| format!("{it}, by the run's own word")));
        Ok(Seen {
            outcome,
            text,
            rules,
            kept,
            leftovers,
            surprises: course.surprises,
        })
    }
}

/// How a run ended, and its answer or why there is none.
fn outcome(run: &Value) -> anyhow::Result<(OutcomeKind, String)> {
    let status = &run["status"];
    let text = |field: &str| status[field].as_str().unwrap_or_default().to_owned();
    let admitted = condition(run, "Admitted");
    let not_admitted = match admitted["status"] == "False" {
        true => &admitted["reason"],
        false => &Value::Null,
    };
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

/// What is said about every pack of a case that asks for rights: nobody has stamped who wrote it.
const NO_AUTHOR: &str = "rbac-author";

/// The rules by which a run was denied: one at the beginning of each line.
fn rules(text: &str) -> anyhow::Result<Vec<String>> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("denied["));
    let rules = lines.filter_map(|rest| Some(rest.split_once(']')?.0.to_owned()));
    let mut rules: Vec<String> = rules.collect();
    anyhow::ensure!(!rules.is_empty(), "no rule is named: {text}");
    rules.sort();
    rules.dedup();
    if rules.len() > 1 {
        rules.retain(|it| it != NO_AUTHOR);
    }
    Ok(rules)
}
