//! `kubectl` of the cluster's own version, as tests use it.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

/// One way to call a cluster: with whose rights, in which namespace.
#[derive(Debug, Clone)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    options: Vec<String>,
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
    pub(super) fn new(program: &Path, kubeconfig: &Path) -> Self {
        Self {
            program: program.to_owned(),
            kubeconfig: kubeconfig.to_owned(),
            options: Vec::new(),
        }
    }

    /// The same, in a namespace.
    pub fn in_namespace(mut self, name: &str) -> Self {
        self.options.push(format!("--namespace={name}"));
        self
    }

    /// The same, as somebody else: `system:serviceaccount:<namespace>:<name>` or any user.
    pub fn impersonating(mut self, user: &str) -> Self {
        self.options.push(format!("--as={user}"));
        self
    }

    /// The same, as a member of a group; only together with [`Kubectl::impersonating`].
    pub fn in_group(mut self, group: &str) -> Self {
        self.options.push(format!("--as-group={group}"));
        self
    }

    /// A command to start and control oneself, such as a port-forward.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = crate::command(&self.program);
        command
            .env("KUBECONFIG", &self.kubeconfig)
            .args(&self.options)
            .args(arguments);
        command.stdin(Stdio::null());
        command
    }

    /// Calls and gives what was printed, whatever the outcome.
    ///
    /// # Errors
    ///
    /// When `kubectl` cannot be started.
    pub fn attempt(&self, arguments: &[&str]) -> Result<Printed> {
        let output = self
            .command(arguments)
            .output()
            .context("starting kubectl")?;
        Ok(Printed {
            success: output.status.success(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// Calls and gives standard output.
    ///
    /// # Errors
    ///
    /// When the call fails; the message has what it printed.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        let printed = self.attempt(arguments)?;
        if !printed.success {
            bail!(
                "kubectl {} failed: {}",
                arguments.join(" "),
                printed.stderr.trim()
            );
        }
        Ok(printed.stdout)
    }

    /// Calls with `-o json` and reads the answer.
    ///
    /// # Errors
    ///
    /// When the call fails or prints no JSON.
    pub fn json(&self, arguments: &[&str]) -> Result<Value> {
        let text = self.run(&[arguments, &["-o", "json"]].concat())?;
        serde_json::from_str(&text)
            .with_context(|| format!("reading what kubectl {} printed", arguments.join(" ")))
    }

    /// Creates an object as it is given.
    ///
    /// # Errors
    ///
    /// When the API server refuses it; the message has its reasons.
    pub fn create(&self, object: &Value) -> Result<Value> {
        let printed = self.feed(&["create", "-o", "json", "-f", "-"], object)?;
        if !printed.success {
            bail!(
                "creating {} {}: {}",
                object["kind"],
                object["metadata"]["name"],
                printed.stderr.trim()
            );
        }
        serde_json::from_str(&printed.stdout).context("reading the created object")
    }

    /// Calls with an object on standard input.
    ///
    /// # Errors
    ///
    /// When `kubectl` cannot be started or does not read.
    pub fn feed(&self, arguments: &[&str], object: &Value) -> Result<Printed> {
        let mut command = self.command(arguments);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().context("starting kubectl")?;
        let mut stdin = child
            .stdin
            .take()
            .context("kubectl has no standard input")?;
        stdin
            .write_all(object.to_string().as_bytes())
            .context("writing to kubectl")?;
        drop(stdin);
        let output = child.wait_with_output().context("waiting for kubectl")?;
        Ok(Printed {
            success: output.status.success(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }
}
