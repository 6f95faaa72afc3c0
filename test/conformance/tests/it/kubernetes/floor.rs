//! The floor of the cluster. There is one for all runs, so a case that brings its own is alone while it lasts.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};
use sympozium_api::labels::{API_VERSION, FLOOR_POLICY, SYSTEM_NAMESPACE};
use sympozium_testkit::cluster::runs::is_over;
use sympozium_testkit::cluster::{Kubectl, eventually};

/// How long the controller may take to see another floor: watches of different kinds do not wait for each other.
const PATIENCE: Duration = Duration::from_secs(60);
/// How the resource is called by which a run can tell one floor from another.
const MARK: &str = "floors-";
/// The rule by which a run tells that it has.
const ANSWER: &str = "denied[hook-resource]";

static CASES: RwLock<()> = RwLock::new(());

/// The floor as a case needs it, for as long as this is kept.
#[expect(dead_code, reason = "the guards are held, not read")]
pub enum Floor {
    /// That of the installation.
    Usual(RwLockReadGuard<'static, ()>),
    /// The case's own. In this order: the others wait until the usual one is back.
    Own(Restore, RwLockWriteGuard<'static, ()>),
}

/// Puts the floor of the installation back.
pub struct Restore {
    kubectl: Kubectl,
    usual: Option<Value>,
}

impl Floor {
    pub fn hold(kubectl: &Kubectl, own: Option<&Value>) -> anyhow::Result<Self> {
        let Some(own) = own else {
            return Ok(Self::Usual(
                CASES.read().unwrap_or_else(PoisonError::into_inner),
            ));
        };
        let alone = CASES.write().unwrap_or_else(PoisonError::into_inner);
        let kubectl = kubectl.clone().in_namespace(SYSTEM_NAMESPACE);
        let found = kubectl.json(&[
            "get",
            "sympoziumpolicies",
            "--ignore-not-found",
            FLOOR_POLICY,
        ]);
        let usual = found.ok().map(|mut floor| {
            floor["metadata"] = own["metadata"].clone();
            // Without the mark of the one before.
            let denied = floor.pointer_mut("/spec/lifecyclePolicy/deniedResources");
            if let Some(list) = denied.and_then(Value::as_array_mut) {
                list.retain(|it| !it.as_str().is_some_and(|it| it.starts_with(MARK)));
            }
            floor
        });
        let restore = Restore { kubectl, usual };
        restore.put(own)?;
        Ok(Self::Own(restore, alone))
    }
}

impl Restore {
    /// Replaces the whole of it (an apply would keep what the other one says), and waits until runs are held to it.
    ///
    /// By what they are told: each floor that is put denies to hooks a resource that there is not, of a name of its own. To
    /// everybody else that is nothing.
    fn put(&self, floor: &Value) -> anyhow::Result<()> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let mark = format!("{MARK}{}-{count}", std::process::id());
        let mut floor = floor.clone();
        let denied = &mut floor["spec"]["lifecyclePolicy"]["deniedResources"];
        match denied.as_array_mut() {
            Some(list) => list.push(json!(mark)),
            None => *denied = json!([mark]),
        }
        let verb = if self.usual.is_some() {
            "replace"
        } else {
            "create"
        };
        let printed = self.kubectl.feed(&[verb, "-f", "-"], &floor)?;
        if !printed.success {
            bail!("the floor is refused: {}", printed.stderr.trim());
        }
        let mut attempt = 0;
        eventually("the controller to see the floor", PATIENCE, || {
            attempt += 1;
            self.is_held_to(&mark, &format!("{mark}-{attempt}"))
                .map(Some)
        })
    }

    /// An error, unless a run of this name is held to the floor with this mark. It has no task, so it is denied in any case, and
    /// every reason is told at once.
    fn is_held_to(&self, mark: &str, name: &str) -> anyhow::Result<()> {
        let agent = json!({
            "apiVersion": API_VERSION, "kind": "Agent", "metadata": {"name": name},
            "spec": {"agents": {"default": {"model": "m"}}},
        });
        let run = json!({
            "apiVersion": API_VERSION, "kind": "AgentRun", "metadata": {"name": name},
            "spec": {
                "agentRef": name, "model": {"provider": "scripted", "model": "m"},
                "lifecycle": {"rbac": [{"apiGroups": [""], "resources": [mark], "verbs": ["get"]}]},
            },
        });
        self.kubectl.create(&agent)?;
        self.kubectl.create(&run)?;
        let told = eventually("an answer", PATIENCE, || {
            let run = self.kubectl.json(&["get", "agentrun", name])?;
            Ok(is_over(&run).then_some(run))
        });
        let both = [format!("agentrun/{name}"), format!("agent/{name}")];
        self.kubectl
            .run(&["delete", &both[0], &both[1], "--wait=false"])?;
        let told = told?;
        let error = told["status"]["error"].as_str().unwrap_or_default();
        let seen = error.contains(ANSWER) && error.contains(mark);
        ensure!(seen, "a run is told {error}");
        Ok(())
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        let put_back = match &self.usual {
            Some(usual) => self.put(usual),
            None => self
                .kubectl
                .run(&["delete", "sympoziumpolicy", FLOOR_POLICY])
                .map(drop),
        };
        // The cases behind this one would be held to the wrong floor.
        if let Err(error) = put_back.context("the floor cannot be put back") {
            eprintln!("error: {error:#}");
            std::process::abort();
        }
    }
}
