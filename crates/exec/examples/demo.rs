//! A hostile program in every profile this machine has: what it tries, and what stops it (`make demo`).
//!
//! What stopped an attempt is found out, not looked up: the sandbox is built again without one layer at a
//! time, and whatever becomes possible was stopped by that layer.

#![expect(clippy::print_stdout, reason = "a demonstration prints")]

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use sympozium_exec::world::{Bind, BindAccess};
use sympozium_exec::{Config, Executor, Floor, Guarantee, Invocation, Layer, Profile, Request};
use sympozium_testkit::as_user;
use sympozium_testkit::probe::{self, Findings};

/// Given to this program when it starts itself again as an ordinary user.
const ONLY: &str = "--only";

fn main() -> ExitCode {
    sympozium_exec::stage::enter_if_asked();
    match demonstrate() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// `false`: something was possible that the profile promises to refuse.
fn demonstrate() -> anyhow::Result<bool> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    if let [flag, profile] = arguments.as_slice()
        && flag == ONLY
    {
        let profile = Profile::ALL
            .into_iter()
            .find(|known| known.as_str() == profile)
            .context("no such profile")?;
        return show(profile);
    }
    println!(
        "A hostile program runs in each sandbox of this machine. Every line is something it really tried."
    );
    let mut all_well = true;
    if as_user::is_root() {
        all_well &= show(Profile::HostRoot)?;
    }
    for profile in [Profile::HostUser, Profile::Container] {
        all_well &= show_as_ordinary_user(profile)?;
    }
    println!(
        "\ngvisor: needs a gVisor kernel below; it is a pod's profile (see docs/isolation.md)"
    );
    Ok(all_well)
}

/// These profiles are an ordinary user's. Root starts this program again as one.
fn show_as_ordinary_user(profile: Profile) -> anyhow::Result<bool> {
    if !as_user::is_root() {
        return show(profile);
    }
    let directory = tempfile::tempdir()?;
    // The user must reach it, and own what the demonstration makes.
    std::os::unix::fs::chown(directory.path(), Some(as_user::ORDINARY), None)?;
    let program = as_user::readable_copy(&std::env::current_exe()?, directory.path())?;
    let probe = as_user::readable_copy(probe::path(), directory.path())?;
    let status = as_user::command(as_user::ORDINARY, program)
        .args([ONLY, profile.as_str()])
        .env("TMPDIR", directory.path())
        .env(probe::PROBE, probe)
        .current_dir("/")
        .status()?;
    Ok(status.success())
}

/// A host with things worth stealing.
struct Target {
    directory: tempfile::TempDir,
    listener: TcpListener,
    _service: UnixListener,
}

impl Target {
    fn new() -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        std::fs::create_dir(directory.path().join("ipc"))?;
        std::fs::write(
            directory.path().join("ipc/request"),
            "another skill's request",
        )?;
        let service = UnixListener::bind(directory.path().join("service.sock"))?;
        Ok(Self {
            directory,
            listener: TcpListener::bind("127.0.0.1:0")?,
            _service: service,
        })
    }

    fn service(&self) -> PathBuf {
        self.directory.path().join("service.sock")
    }

    fn ipc(&self) -> PathBuf {
        self.directory.path().join("ipc")
    }

    /// What the program tries: each with words for a person, where the probe's own are not enough.
    fn attempts(&self, profile: Profile) -> anyhow::Result<Vec<(String, &'static str)>> {
        let port = self.listener.local_addr()?.port();
        let own = std::process::id();
        let mut attempts: Vec<(String, &'static str)> = vec![
            (
                format!("read-file={}", self.ipc().join("request").display()),
                "read another skill's request",
            ),
            ("read-shadow".into(), ""),
            ("write-file=/usr".into(), "change the system's programs"),
            ("open-powerful-device".into(), ""),
            ("write-core-pattern".into(), ""),
            ("setuid-by-chmod".into(), "leave a setuid file for later"),
            ("hold-capabilities".into(), ""),
            ("gain-by-exec".into(), ""),
            ("vsock-socket".into(), ""),
            ("raw-socket".into(), ""),
            ("signal".into(), "kill its supervisor"),
            (
                "change-limits".into(),
                "set its supervisor's CPU limit to 1 s",
            ),
            ("proc-mem".into(), "read its supervisor's memory"),
            ("ptrace".into(), "trace its supervisor"),
            ("unshare-user".into(), ""),
            ("clone3-user".into(), ""),
            ("mount".into(), ""),
            ("bpf".into(), ""),
            ("io-uring".into(), ""),
            ("keyctl".into(), ""),
            ("type-into-terminal".into(), ""),
            ("call-32bit-unshare".into(), ""),
            ("call-x32-mount".into(), ""),
        ];
        if profile.is_host() {
            attempts.extend([
                (
                    format!("connect-socket-file={}", self.service().display()),
                    "talk to a service behind a socket (a container engine, say)",
                ),
                (
                    format!("tcp-connect=127.0.0.1:{port}"),
                    "talk to a service on this machine",
                ),
                ("metadata-service".into(), ""),
                ("see-interfaces".into(), ""),
                (
                    format!("proc-cmdline={own}"),
                    "see the executor among the processes",
                ),
                ("make-processes=600".into(), "start 600 processes"),
                ("fill-directory=/tmp:300000000".into(), "fill the disk"),
            ]);
        } else {
            attempts.push((format!("signal={own}"), "kill the executor"));
        }
        Ok(attempts)
    }

    fn config(&self, profile: Profile) -> Config {
        let mut config = Config::new(profile).bind(Bind {
            source: probe::path().to_owned(),
            target: "/probe".into(),
            access: BindAccess::ReadOnly,
        });
        if !profile.is_host() {
            config.view.hidden.push(self.ipc());
            config.view.writable = vec!["/dev/shm".into()];
        }
        config
    }
}

fn show(profile: Profile) -> anyhow::Result<bool> {
    let target = Target::new()?;
    let attempts = target.attempts(profile)?;
    let names: Vec<&str> = attempts.iter().map(|(name, _)| name.as_str()).collect();
    let config = target.config(profile);
    let executor = match Executor::new(config.clone()) {
        Ok(executor) => executor,
        Err(error) => {
            println!("\n{profile}: not on this machine: {error}");
            if let Some(hint) = error.hint() {
                println!("hint: {hint}");
            }
            return Ok(true);
        }
    };
    let findings = attempt(&executor, &config, &names)?;
    let layers: Vec<Layer> = executor.report().layers.keys().copied().collect();
    drop(executor);
    let stopped_by = attribute(&config, &layers, &names, &findings);

    println!("\n{profile} ({} layers live)", layers.len());
    let mut stopped = 0;
    let mut guarantee = "";
    let mut shown: Vec<_> = attempts
        .iter()
        .map(|(name, words)| (findings.of(name), name, words))
        .collect();
    shown.sort_by_key(|(finding, ..)| {
        Guarantee::ALL
            .map(Guarantee::as_str)
            .iter()
            .position(|it| *it == finding.guarantee)
    });
    for (finding, name, words) in shown {
        if finding.guarantee != guarantee {
            guarantee = &finding.guarantee;
            println!("  {guarantee}");
        }
        let what = if words.is_empty() {
            &finding.what
        } else {
            *words
        };
        if finding.possible {
            println!("    {what:<60} POSSIBLE ({})", finding.detail);
            continue;
        }
        stopped += 1;
        let by = stopped_by.get(name.as_str()).map_or_else(
            || ", whichever one layer is taken away".to_owned(),
            |layers| {
                let names: Vec<_> = layers.iter().map(|layer| layer.as_str()).collect();
                format!(" by {}", names.join(" and by "))
            },
        );
        println!("    {what:<60} stopped{by} ({})", finding.detail);
    }
    println!("  {stopped} of {} attempts stopped", attempts.len());
    Ok(stopped == attempts.len())
}

/// Which single layers each attempt was stopped by: without them it succeeds.
fn attribute<'a>(
    config: &Config,
    layers: &[Layer],
    names: &[&'a str],
    findings: &Findings,
) -> BTreeMap<&'a str, Vec<Layer>> {
    let mut stopped_by: BTreeMap<&str, Vec<Layer>> = BTreeMap::new();
    for &layer in layers {
        let mut without = config.clone().leaving_out([layer]);
        without.floor = Floor::none();
        // A world that cannot even be built without the layer says nothing about single attempts.
        let Ok(executor) = Executor::new(without.clone()) else {
            continue;
        };
        let Ok(weaker) = attempt(&executor, &without, names) else {
            continue;
        };
        for &name in names {
            if !findings.of(name).possible && weaker.of(name).possible {
                stopped_by.entry(name).or_default().push(layer);
            }
        }
    }
    stopped_by
}

fn attempt(executor: &Executor, config: &Config, names: &[&str]) -> anyhow::Result<Findings> {
    let has_own_root = config.profile.is_host() && !config.without.contains(&Layer::MountNamespace);
    let program = if has_own_root {
        Path::new("/probe")
    } else {
        probe::path()
    };
    let mut request = Request::argv(["", "attempt"].into_iter().chain(names.iter().copied()));
    if let Invocation::Argv(argv) = &mut request.invocation {
        argv[0] = program.into();
    }
    request.output_bytes = 1024 * 1024;
    request.timeout = Duration::from_secs(120);
    let outcome = executor.run(&request, None)?;
    if outcome.timed_out || outcome.stdout.bytes.is_empty() {
        bail!(
            "the hostile program did not report: {}",
            outcome.stderr.text()
        );
    }
    Ok(Findings::parse(&outcome.stdout.bytes))
}
