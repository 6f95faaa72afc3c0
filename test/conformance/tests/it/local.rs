//! One machine: `sympozium run`, in directories of its own, as root or as an ordinary user.

mod home;
mod observer;

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use anyhow::Context as _;
use sympozium_api::guarantee::Guarantee;
use sympozium_conformance::case::OutcomeKind;
use sympozium_conformance::{Backend, Case, Observed};
use sympozium_testkit::as_user;
use tempfile::TempDir;

use self::home::{Home, directory};
use self::observer::RunObserver;
use crate::explained::{explanation, rules};
use crate::leftovers::{Ended, leftovers};

/// Cases at a time. Each is a handful of processes that mostly wait for each other.
pub const RUNS_AT_A_TIME: usize = 4;
/// The user of the first case; each has one of its own, so that whatever belongs to it can be told from everything else.
const FIRST_USER: u32 = 61_300;
/// A number that no case has, for what is asked of this machine beforehand: another process of this suite may be at its
/// first case meanwhile, and would find a process of that user.
const NO_CASE: usize = 999;
/// Directories in which programs are looked for.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// What every profile of one machine enforces (docs/isolation.md); memory and CPU where there are control groups.
const GUARANTEES: &[Guarantee] =
    &[Guarantee::Filesystem, Guarantee::Network, Guarantee::Processes, Guarantee::Syscalls, Guarantee::Pids];

/// As whom a case is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    Root,
    Ordinary,
}

impl Who {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Ordinary => "user",
        }
    }
}

/// This machine.
#[derive(Debug, Clone)]
pub struct Local {
    who: Who,
    /// The program, where an ordinary user can reach it.
    binary: PathBuf,
    /// Where that is, if it had to be copied.
    _copy: Arc<TempDir>,
    /// Which case this is.
    number: usize,
}

impl Local {
    pub fn new(who: Who, binary: &Path) -> anyhow::Result<Self> {
        let copy = directory().context("no directory for the program")?;
        fs::set_permissions(copy.path(), fs::Permissions::from_mode(0o755))?;
        let binary = as_user::readable_copy(binary, copy.path())?;
        Ok(Self { who, binary, _copy: Arc::new(copy), number: 0 })
    }

    /// The same for one case: with a user of its own.
    pub fn numbered(&self, number: usize) -> Self {
        Self { number, ..self.clone() }
    }

    /// What is missing for runs of this user, if anything: the tier of isolation that the cases expect is not to be had then.
    pub fn missing(&self) -> anyhow::Result<Option<String>> {
        let apart = self.numbered(NO_CASE);
        let home = Home::new(apart.user())?;
        let output = apart.command(&home).args(["doctor", "-o", "json"]).output()?;
        if output.status.success() {
            return Ok(None);
        }
        let report: serde_json::Value = serde_json::from_slice(&output.stdout)
            .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
        let below = report["belowFloor"].to_string();
        Ok(Some(format!("isolation below the floor: {below}")))
    }

    /// The user, where it is not that of the tests.
    fn user(&self) -> Option<u32> {
        let number = u32::try_from(self.number).unwrap_or(0);
        (self.who == Who::Ordinary && as_user::is_root()).then_some(FIRST_USER + number)
    }

    fn command(&self, home: &Home) -> Command {
        let mut command = match self.user() {
            Some(uid) => as_user::command(uid, &self.binary),
            None => sympozium_testkit::command(&self.binary),
        };
        command
            .current_dir(home.path())
            .env_clear()
            .env("PATH", PATH)
            .env("HOME", home.at("home"))
            .env("TMPDIR", home.at("tmp"))
            .env("SYMPOZIUM_STATE", home.at("state"))
            .env("SYMPOZIUM_CONFIG", home.at("config"))
            .env("SYMPOZIUM_DATA", home.at("data"))
            .stdin(Stdio::null());
        command
    }
}

impl Backend for Local {
    fn name(&self) -> &str {
        "local"
    }

    fn guarantees(&self) -> &[Guarantee] {
        GUARANTEES
    }

    fn realise(&self, case: &Case) -> anyhow::Result<Observed> {
        let user = self.user();
        let home = Home::new(user)?;
        let manifests = home.write_manifests(case, user)?;
        let before = fs::read_dir("/tmp")?.flatten().map(|it| it.path()).collect();
        let said = home.at("stderr");
        let mut child = self
            .command(&home)
            .args(["run", "-o", "jsonl", "--run", "case"])
            .arg(&manifests)
            .stdout(Stdio::piped())
            .stderr(File::create(&said)?)
            .spawn()
            .context("the program cannot be started")?;
        let pid = child.id();
        let mut observer = RunObserver::new(self, case, &home, pid);
        let followed = observer.follow(lines(&mut child)?);
        if followed.is_err() {
            let _ = child.kill();
        }
        let status = child.wait()?;
        let said = fs::read_to_string(&said)?;
        followed.with_context(|| format!("it said: {said}"))?;

        let ended = Ended { directory: home.path(), pid, user, temporary_before: before };
        let mut observed = observer.observed(status.code(), &said)?;
        observed.leftovers.extend(leftovers(&ended));
        let never_began = matches!(observed.outcome, OutcomeKind::Denied | OutcomeKind::Refused);
        if never_began && observed.records.is_none() {
            let explanation = explanation(case, &self.binary)?;
            observed.rules = rules(&explanation).into_iter().collect();
            // Where something that decides is missing, the answer is no as well, with the code of what is missing.
            if !observed.rules.is_empty() {
                observed.outcome = OutcomeKind::Denied;
            }
        }
        Ok(observed)
    }
}

/// The lines of standard output, as they come.
fn lines(child: &mut Child) -> anyhow::Result<Receiver<String>> {
    let stdout = child.stdout.take().context("it has no standard output")?;
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    Ok(lines)
}
