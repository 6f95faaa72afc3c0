//! Runs of the cluster begin one at a time, in the order in which they ask: until the pod is bound to the node, or the run is over.
//!
//! The node has room for a few runs only, by what their containers request. Of several pods that wait for it the scheduler would
//! take whichever fits first, and a run with two skills would wait for as long as smaller ones come.
//!
//! And there is one floor for all runs. A run is held to it once, when it is admitted and planned; the plan is stored and never made
//! again. So a case with a floor of its own needs it only while it has its turn, and then runs beside the others.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use parking_lot::{Condvar, Mutex};
use serde_json::{Value, json};
use sympozium_api::labels::{API_VERSION, FLOOR_POLICY, SYSTEM_NAMESPACE};
use sympozium_testkit::cluster::api::{Api, collection_of};
use sympozium_testkit::cluster::eventually;
use sympozium_testkit::cluster::runs::is_over;

/// How long the controller may take to see another floor: watches of different kinds do not wait for each other.
const PATIENCE: Duration = Duration::from_secs(180);
/// How the resource is called by which a run can tell one floor from another.
const MARK: &str = "floors-";
/// The rule by which a run reports that it can.
const ANSWER: &str = "denied[hook-resource]";

/// Who has the turn, and which floor is in force.
struct State {
    /// The number of the one who asks next.
    next: u64,
    /// The number of the one who has the turn.
    serving: u64,
    /// Runs that have given their turn away before they were decided. No other floor is put meanwhile.
    undecided: u64,
    /// The floor in force; nothing for that of the installation.
    floor: Option<Value>,
    /// The floor of the installation, once it has been read; nothing where it has none.
    usual: Option<Option<Value>>,
}

static STATE: Mutex<State> = Mutex::new(State { next: 0, serving: 0, undecided: 0, floor: None, usual: None });
static CHANGED: Condvar = Condvar::new();

/// The turn of a case, with the floor that it needs in force, for as long as this is held.
pub struct Turn {
    api: Api,
}

impl Turn {
    /// Waits for the turn, and puts the floor in force: `None` for that of the installation.
    ///
    /// # Errors
    ///
    /// When the floor is refused, or the controller does not see it in time.
    pub fn take(api: &Api, floor: Option<&Value>) -> anyhow::Result<Self> {
        let mut state = STATE.lock();
        let number = state.next;
        state.next += 1;
        while state.serving != number || state.undecided > 0 && state.floor.as_ref() != floor {
            CHANGED.wait(&mut state);
        }
        // From here on the turn is passed on, whatever comes.
        let turn = Self { api: api.clone() };
        let changed = state.put(api, floor);
        drop(state);
        changed.map(|()| turn)
    }
}

/// A run that will never have a pod, as long as it is undecided: it may take a while to be denied, and needs nothing but that the
/// floor stays.
pub struct Undecided {
    api: Api,
}

impl Turn {
    /// Gives the turn away.
    pub fn pass_on(self) -> Undecided {
        STATE.lock().undecided += 1;
        Undecided { api: self.api.clone() }
    }
}

impl Drop for Undecided {
    fn drop(&mut self) {
        let mut state = STATE.lock();
        state.undecided -= 1;
        state.restore_behind_the_last(&self.api);
        CHANGED.notify_all();
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = STATE.lock();
        state.serving += 1;
        state.restore_behind_the_last(&self.api);
        CHANGED.notify_all();
    }
}

impl State {
    /// Who comes next puts what they need; behind the last one the floor of the installation is back. Not before the last undecided
    /// run is decided: it needs the floor that it was made for.
    fn restore_behind_the_last(&mut self, api: &Api) {
        if self.serving == self.next
            && self.undecided == 0
            && let Err(error) = self.put(api, None)
        {
            // The runs behind this one would be held to the wrong floor.
            eprintln!("error: the floor cannot be restored: {error:#}");
            std::process::abort();
        }
    }

    fn put(&mut self, api: &Api, wanted: Option<&Value>) -> anyhow::Result<()> {
        if self.floor.as_ref() == wanted {
            return Ok(());
        }
        let floor = json!({
            "apiVersion": API_VERSION, "kind": "SympoziumPolicy",
            "metadata": { "name": FLOOR_POLICY, "namespace": SYSTEM_NAMESPACE },
        });
        let path = format!("{}/{FLOOR_POLICY}", collection_of(&floor)?);
        if self.usual.is_none() {
            self.usual = Some(usual(api, &path)?);
        }
        let usual = self.usual.clone().flatten();
        match wanted.or(usual.as_ref()) {
            Some(wanted) => put(api, &path, wanted)?,
            None => api.delete(&path)?,
        }
        self.floor = wanted.cloned();
        Ok(())
    }
}

/// The floor of the installation, without the mark of a process that was killed before it could restore it.
fn usual(api: &Api, path: &str) -> anyhow::Result<Option<Value>> {
    let found = api.find(path)?;
    Ok(found.map(|mut floor| {
        let denied = floor.pointer_mut("/spec/lifecyclePolicy/deniedResources");
        if let Some(list) = denied.and_then(Value::as_array_mut) {
            list.retain(|resource| !resource.as_str().is_some_and(|name| name.starts_with(MARK)));
        }
        floor
    }))
}

/// Replaces the whole of the floor (an apply would keep what the other one says), and waits until runs are held to it.
///
/// That is seen by what a run is denied for: each floor that is put denies hooks a resource of a name of its own, which does not
/// exist, so no other test notices.
fn put(api: &Api, path: &str, floor: &Value) -> anyhow::Result<()> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let mark = format!("{MARK}{}-{count}", std::process::id());
    let mut floor = floor.clone();
    let denied = &mut floor["spec"]["lifecyclePolicy"]["deniedResources"];
    match denied.as_array_mut() {
        Some(list) => list.push(json!(mark)),
        None => *denied = json!([mark]),
    }
    if let Some(metadata) = floor["metadata"].as_object_mut() {
        metadata.retain(|name, _| ["name", "namespace", "labels"].contains(&name.as_str()));
    }
    // The controller writes the floor's status whenever it suits: a version may be old when it is replaced.
    let written = eventually("the floor to be written", PATIENCE, || match api.find(path)? {
        Some(found) => {
            floor["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"].clone();
            api.replace(&floor).map(Some)
        }
        None => api.create(&floor).map(Some),
    });
    written.context("the floor is refused")?;
    let mut attempt = 0;
    eventually("the controller to see the floor", PATIENCE, || {
        attempt += 1;
        is_held_to(api, &mark, &format!("{mark}-{attempt}")).map(Some)
    })
}

/// An error, unless a run of this name is held to the floor with this mark. It has no task, so it is denied in any case, and
/// every reason is reported at once.
fn is_held_to(api: &Api, mark: &str, name: &str) -> anyhow::Result<()> {
    let metadata = json!({ "name": name, "namespace": SYSTEM_NAMESPACE });
    let agent = json!({
        "apiVersion": API_VERSION, "kind": "Agent", "metadata": metadata,
        "spec": {"agents": {"default": {"model": "m"}}},
    });
    let run = json!({
        "apiVersion": API_VERSION, "kind": "AgentRun", "metadata": metadata,
        "spec": {
            "agentRef": name, "model": {"provider": "scripted", "model": "m"},
            "lifecycle": {"rbac": [{"apiGroups": [""], "resources": [mark], "verbs": ["get"]}]},
        },
    });
    let runs = collection_of(&run)?;
    api.create(&agent)?;
    api.create(&run)?;
    let error = api.wait_for("an answer", (&runs, name), PATIENCE, |run| {
        let error = run["status"]["error"].as_str().unwrap_or_default();
        is_over(run).then(|| error.to_owned())
    });
    api.delete(&format!("{runs}/{name}"))?;
    api.delete(&format!("{}/{name}", collection_of(&agent)?))?;
    let error = error?;
    let seen = error.contains(ANSWER) && error.contains(mark);
    ensure!(seen, "a run is denied with {error}");
    Ok(())
}
