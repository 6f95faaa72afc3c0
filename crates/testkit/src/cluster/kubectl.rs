//! `kubectl` of the cluster's own version, as tests use it.
//!
//! Starting it takes a tenth of a second of a core, which was a quarter of what the suites with pods cost. So the calls that
//! tests make most (create an object, get one, wait for one) go to the API server from this process where a client is compiled in:
//! see [`Route`].

use std::fs;
use std::io::{BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::static_build::workspace_root;

#[cfg(feature = "kube")]
use super::api::Api;
#[cfg(feature = "kube")]
use super::direct::Direct;
use super::eventually;

/// Where the definitions of our kinds are.
pub(super) const DEFINITIONS: &str = "config/crds";
/// Between two watches.
const WATCH_PAUSE: Duration = Duration::from_millis(100);
/// What `kubectl` says of a connection that a busy machine did not open within ten seconds: the call was not made.
const NOT_CONNECTED: &str = "TLS handshake timeout";
/// How the end of a command in a container is told, which may have said the same itself.
const COMMAND_ENDED: &str = "exit code";
/// How long a connection is tried.
const CONNECT_PATIENCE: Duration = Duration::from_secs(180);

/// One way to call a cluster: with whose rights, in which namespace.
#[derive(Debug, Clone)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    #[cfg_attr(not(feature = "kube"), expect(dead_code, reason = "there is one route without a client"))]
    route: Route,
    namespace: Option<String>,
    user: Option<String>,
    groups: Vec<String>,
}

/// How the API server is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    /// By a client in this process where that gives the same answer, else by `kubectl`.
    Direct,
    /// By `kubectl` only: the kubeconfig leads through a proxy, and what the proxy does to `kubectl` is under test.
    Proxied,
}

/// What a call printed, and whether it succeeded.
#[derive(Debug)]
pub struct Printed {
    /// Whether the exit code was 0.
    pub success: bool,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Kubectl {
    pub(super) fn new(program: &Path, kubeconfig: &Path, route: Route) -> Self {
        Self {
            program: program.to_owned(),
            kubeconfig: kubeconfig.to_owned(),
            route,
            namespace: None,
            user: None,
            groups: Vec::new(),
        }
    }

    /// The same, in a namespace.
    pub fn in_namespace(mut self, name: &str) -> Self {
        self.namespace = Some(name.to_owned());
        self
    }

    /// The same, as another user: `system:serviceaccount:<namespace>:<name>` or any user.
    pub fn impersonating(mut self, user: &str) -> Self {
        self.user = Some(user.to_owned());
        self
    }

    /// The same, as a member of a group; only together with [`Kubectl::impersonating`].
    pub fn in_group(mut self, group: &str) -> Self {
        self.groups.push(group.to_owned());
        self
    }

    /// A command to start and control oneself, such as a port-forward.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = crate::command(&self.program);
        command.env("KUBECONFIG", &self.kubeconfig);
        command.args(self.namespace.iter().map(|name| format!("--namespace={name}")));
        command.args(self.user.iter().map(|user| format!("--as={user}")));
        command.args(self.groups.iter().map(|group| format!("--as-group={group}")));
        command.args(arguments);
        command.stdin(Stdio::null());
        command
    }

    /// Calls and gives what was printed, whatever the outcome.
    ///
    /// # Errors
    ///
    /// When `kubectl` cannot be started.
    pub fn attempt(&self, arguments: &[&str]) -> Result<Printed> {
        connected(|| self.command(arguments).output().context("starting kubectl"))
    }

    /// Calls and gives standard output.
    ///
    /// # Errors
    ///
    /// When the call fails; the message has what it printed.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        let printed = self.attempt(arguments)?;
        if !printed.success {
            bail!("kubectl {} failed: {}", arguments.join(" "), printed.stderr.trim());
        }
        Ok(printed.stdout)
    }

    /// Calls with `-o json` and reads the answer.
    ///
    /// # Errors
    ///
    /// When the call fails or prints no JSON.
    pub fn json(&self, arguments: &[&str]) -> Result<Value> {
        #[cfg(feature = "kube")]
        if let ["get", kind, name] = arguments
            && !name.starts_with('-')
            && let Some(direct) = self.direct(kind)?
        {
            return direct.get(name);
        }
        let text = self.run(&[arguments, &["-o", "json"]].concat())?;
        serde_json::from_str(&text).with_context(|| format!("reading what kubectl {} printed", arguments.join(" ")))
    }

    /// Watches an object until something holds of it, and gives it as it is then. It need not be there yet.
    ///
    /// # Errors
    ///
    /// When it does not come to be so in time, or `kubectl` cannot be started; the message has the object as it was last.
    pub fn until(
        &self,
        kind: &str,
        name: &str,
        patience: Duration,
        mut holds: impl FnMut(&Value) -> bool,
    ) -> Result<Value> {
        #[cfg(feature = "kube")]
        if let Some(direct) = self.direct(kind)? {
            return direct.until(name, patience, holds);
        }
        let deadline = Instant::now() + patience;
        let selector = format!("--field-selector=metadata.name={name}");
        let words = ["get", kind, &selector, "--output=json", "--watch", "--output-watch-events"];
        let mut last = Value::Null;
        while Instant::now() < deadline {
            let watch = Watch::start(self.command(&words))?;
            loop {
                let left = deadline.saturating_duration_since(Instant::now());
                match watch.events.recv_timeout(left) {
                    Ok(event) if event["type"] == "DELETED" => last = Value::Null,
                    Ok(mut event) => {
                        last = event["object"].take();
                        if holds(&last) {
                            return Ok(last);
                        }
                    }
                    // The API server ends watches now and then, and refuses them while it starts.
                    Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout) => break,
                }
            }
            std::thread::sleep(WATCH_PAUSE);
        }
        bail!("waited {} s for {kind} {name}, which is {last:#}", patience.as_secs());
    }

    /// Creates an object as it is given.
    ///
    /// # Errors
    ///
    /// When the API server refuses it; the message has its reasons.
    pub fn create(&self, object: &Value) -> Result<Value> {
        #[cfg(feature = "kube")]
        if let Some(api) = self.api()?
            && let Some(direct) = Direct::for_object(api, object, self.namespace.as_deref())?
        {
            return direct.create(object);
        }
        let printed = self.feed(&["create", "-o", "json", "-f", "-"], object)?;
        if !printed.success {
            bail!("creating {} {}: {}", object["kind"], object["metadata"]["name"], printed.stderr.trim());
        }
        serde_json::from_str(&printed.stdout).context("reading the created object")
    }

    /// Applies an object as it is given, whoever applied it before.
    ///
    /// # Errors
    ///
    /// When the API server refuses it; the message has its reasons.
    pub fn apply(&self, object: &Value) -> Result<()> {
        let printed = self.feed(&["apply", "--server-side", "--force-conflicts", "-f", "-"], object)?;
        if !printed.success {
            bail!("applying {} {}: {}", object["kind"], object["metadata"]["name"], printed.stderr.trim());
        }
        Ok(())
    }

    /// Installs our kinds, and waits until the API server serves them and clients find them.
    ///
    /// # Errors
    ///
    /// When the API server refuses them, or does not serve them in time.
    pub fn install_kinds(&self) -> Result<()> {
        let directory = workspace_root().join(DEFINITIONS);
        let count = fs::read_dir(&directory).with_context(|| format!("listing {}", directory.display()))?.count();
        let directory = directory.to_string_lossy();
        // Server-side: tests of several processes may do this at a time.
        self.run(&["apply", "--server-side", "--force-conflicts", "-f", &directory])?;
        self.run(&["wait", "--for=condition=Established", "--timeout=180s", "-f", &directory])?;
        // Discovery may have them a moment later.
        eventually("our kinds to be discovered", CONNECT_PATIENCE, || {
            let found = self.run(&["api-resources", "--api-group=sympozium.ai", "--output=name"])?;
            Ok((found.lines().count() >= count).then_some(()))
        })
    }

    /// Waits until `auth can-i` with these words says yes: the API server learns of roles and bindings a moment after they are
    /// made.
    ///
    /// # Errors
    ///
    /// When it does not in time.
    pub fn wait_for_permission(&self, question: &[&str]) -> Result<()> {
        let ask = [&["auth", "can-i"], question].concat();
        eventually(&format!("permission to {}", question.join(" ")), CONNECT_PATIENCE, || {
            Ok(self.attempt(&ask)?.success.then_some(()))
        })
    }

    /// Calls with an object on standard input.
    ///
    /// # Errors
    ///
    /// When `kubectl` cannot be started or does not read.
    pub fn feed(&self, arguments: &[&str], object: &Value) -> Result<Printed> {
        connected(|| {
            let mut command = self.command(arguments);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn().context("starting kubectl")?;
            let mut stdin = child.stdin.take().context("kubectl has no standard input")?;
            stdin.write_all(object.to_string().as_bytes()).context("writing to kubectl")?;
            drop(stdin);
            child.wait_with_output().context("waiting for kubectl")
        })
    }
}

/// Makes a call, and makes it again where there was no connection to make it by.
fn connected(call: impl Fn() -> Result<Output>) -> Result<Printed> {
    let deadline = Instant::now() + CONNECT_PATIENCE;
    loop {
        let output = call()?;
        let printed = Printed {
            success: output.status.success(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        };
        let was_made = !printed.stderr.contains(NOT_CONNECTED) || printed.stderr.contains(COMMAND_ENDED);
        if printed.success || was_made || Instant::now() > deadline {
            return Ok(printed);
        }
    }
}

#[cfg(feature = "kube")]
impl Kubectl {
    /// Calls about this kind from this process; nothing where `kubectl` has to make them.
    fn direct(&self, kind: &str) -> Result<Option<Direct>> {
        // A list of kinds, a kind with its name, and such are for kubectl to understand.
        let is_plain = kind.bytes().all(|byte| byte.is_ascii_alphabetic());
        match self.api()?.filter(|_| is_plain) {
            Some(api) => Direct::new(api, kind, self.namespace.as_deref()),
            None => Ok(None),
        }
    }

    fn api(&self) -> Result<Option<Api>> {
        // The client blocks, which a runtime does not permit.
        if self.route == Route::Proxied || tokio::runtime::Handle::try_current().is_ok() {
            return Ok(None);
        }
        Api::connect(self.kubeconfig.clone(), self.user.clone(), self.groups.clone()).map(Some)
    }
}

/// A `kubectl` that watches, ended when it is dropped.
struct Watch {
    child: Child,
    /// Disconnected when it has ended.
    events: Receiver<Value>,
}

impl Watch {
    fn start(mut command: Command) -> Result<Self> {
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().context("starting kubectl")?;
        let stdout = child.stdout.take().context("kubectl has no output")?;
        let (sender, events) = mpsc::channel();
        std::thread::spawn(move || {
            let read = serde_json::Deserializer::from_reader(BufReader::new(stdout));
            for event in read.into_iter::<Value>() {
                let Ok(event) = event else { return };
                if sender.send(event).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child, events })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
