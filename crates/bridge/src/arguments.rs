//! The command line. Every setting that has a flag also has a variable `SYMPOZIUM_*`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use sympozium_api::guarantee::Guarantee;
use sympozium_api::names::Digest;
use sympozium_api::run_plan::paths;
use sympozium_program::LogArguments;

use crate::check_network::{CheckNetwork, DEFAULT_TIMEOUT, Enforcement, MAX_TIMEOUT};
use crate::inputs::Directories;
use crate::program::GatewayTarget;

/// Default time to wait for the plan, in seconds.
const WAIT_FOR_INPUT_SECONDS: u64 = 60;
/// Maximum of that: a warm sandbox may wait a week for its run.
const MAX_WAIT_FOR_INPUT_SECONDS: u64 = 604_800;

/// The reference monitor of a run: decides about every call of a tool, and holds the model's key.
///
/// It serves one agent at one socket, for one run, and ends with it. What the agent may do is in the run's plan, and
/// nowhere else; the plan is known by its digest.
#[derive(Debug, Parser)]
#[command(
    name = "ipc-bridge",
    version,
    max_term_width = 100,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_long_help = "\
What it reads, each file once and within bounds:
  INPUT/plan.json          the run's plan, whose digest must be --plan-digest
  INPUT/credential-NAME    USER:PASSWORD at the gateway, for each credential of the plan that is the bridge's
  INPUT/token              the run's own token (optional where the gateway is a unix socket)
  INPUT/ca.crt             the certificates that the gateway's is checked by (optional)
  HEADERS/NAME             a header for the model's provider, where the plan has a Secret of them
  SCRIPT/*                 the turns of a scripted model, where the plan has one
  the variables that the plan names for the model's key; they are overwritten at once

Examples:
  Serve a run on one machine, whose files are below ./run:
    ipc-bridge --plan-digest=\"$DIGEST\" --gateway=unix:/run/user/1000/gateway \\
      --input=run/input --door=run/door --ipc=run/ipc

  Check whether pods of this cluster are confined by their NetworkPolicies:
    ipc-bridge check-network --gateway=10.96.0.20:8443 --canary=10.96.0.20:8444 --required

Exit codes:
  0  the run has ended and was reported; or the network was checked
  1  it could not start or go on; the last lines say why, and what to try
  2  the command line was not understood"
)]
pub struct Arguments {
    /// What to do instead of serving a run.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The run to serve.
    #[command(flatten)]
    pub serve: ServeArguments,
}

/// What the program does besides serving a run.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Wait until the gateway answers, and see that nothing else does.
    ///
    /// A NetworkPolicy that is not enforced looks like any other. The gateway's canary sends a greeting to every client that reaches
    /// it, and no run's policy lets one reach it: where it answers, nothing holds the run in.
    CheckNetwork(CheckNetworkArguments),
}

/// The arguments of the program itself.
#[derive(Debug, Args)]
pub struct ServeArguments {
    /// The digest of the run's plan. Another plan is refused.
    #[arg(long, value_name = "sha256:DIGEST", env = "SYMPOZIUM_BRIDGE_PLAN_DIGEST", required = true, value_parser = parse_digest)]
    pub plan_digest: Option<Digest>,
    /// The gateway: the only address that is ever connected to.
    #[arg(long, value_name = "HOST:PORT|unix:PATH", env = "SYMPOZIUM_GATEWAY", required = true, value_parser = GatewayTarget::parse)]
    pub gateway: Option<GatewayTarget>,
    /// The directory of the run's inputs.
    #[arg(long, value_name = "DIR", env = "SYMPOZIUM_BRIDGE_INPUT", default_value = paths::INPUT)]
    pub input: PathBuf,
    /// The directory in which the agent finds the socket.
    #[arg(long, value_name = "DIR", env = "SYMPOZIUM_BRIDGE_DOOR", default_value = paths::DOOR)]
    pub door: PathBuf,
    /// The directory with the skills' directories.
    #[arg(long, value_name = "DIR", env = "SYMPOZIUM_BRIDGE_IPC", default_value = paths::IPC)]
    pub ipc: PathBuf,
    /// The directory of headers for the model's provider.
    #[arg(long, value_name = "DIR", env = "SYMPOZIUM_BRIDGE_HEADERS", default_value = paths::HEADERS)]
    pub headers: PathBuf,
    /// The directory with the script of a scripted model.
    #[arg(long, value_name = "DIR", env = "SYMPOZIUM_BRIDGE_SCRIPT", default_value = paths::SCRIPT)]
    pub script: PathBuf,
    /// How long the plan may take to appear, as in a sandbox that was started before its run [seconds].
    #[arg(long, value_name = "N", env = "SYMPOZIUM_BRIDGE_WAIT_FOR_INPUT", default_value_t = WAIT_FOR_INPUT_SECONDS,
        value_parser = clap::value_parser!(u64).range(0..=MAX_WAIT_FOR_INPUT_SECONDS))]
    pub wait_for_input: u64,
    /// A file of PEM certificates of authorities that the model's endpoint and servers of pages may have their certificates
    /// from, in addition to the public ones.
    #[arg(long, value_name = "FILE", env = "SSL_CERT_FILE")]
    pub certificates: Option<PathBuf>,
    /// Guarantees that the platform around the skills holds, such as memory,cpu; or none. Where an executor reports one of
    /// them as delegated, that counts as held; any other that is delegated does not.
    #[arg(long, value_name = "LIST", hide = true, default_value = NONE_WORD, value_delimiter = ',', value_parser = parse_guarantee)]
    pub platform_holds: Vec<PlatformWord>,
    /// A pack whose executor verifies who wrote a request although the plan does not say so: one machine starts ours for packs
    /// that it has no image of.
    #[arg(long, value_name = "PACK", hide = true)]
    pub verifying: Vec<String>,
    /// What is logged.
    #[command(flatten)]
    pub log: LogArguments,
}

/// The word of `--platform-holds` for no guarantee.
const NONE_WORD: &str = "none";

/// A word of `--platform-holds`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlatformWord {
    None,
    Guarantee(Guarantee),
}

impl ServeArguments {
    /// Guarantees that the platform around the skills holds, without the word `none`.
    pub fn platform_guarantees(&self) -> Vec<Guarantee> {
        let words = self.platform_holds.iter();
        let held = words.filter_map(|word| match word {
            PlatformWord::None => None,
            PlatformWord::Guarantee(guarantee) => Some(*guarantee),
        });
        held.collect()
    }

    pub fn directories(&self) -> Directories {
        Directories {
            input: self.input.clone(),
            door: self.door.clone(),
            ipc: self.ipc.clone(),
            headers: self.headers.clone(),
            script: self.script.clone(),
        }
    }

    /// How long the plan may take to appear.
    pub const fn input_timeout(&self) -> Duration {
        Duration::from_secs(self.wait_for_input)
    }
}

/// The arguments of `check-network`.
#[derive(Debug, Args)]
pub struct CheckNetworkArguments {
    /// The gateway, which must answer.
    #[arg(long, value_name = "IP:PORT")]
    pub gateway: SocketAddr,
    /// Its canary, which must not.
    #[arg(long, value_name = "IP:PORT")]
    pub canary: SocketAddr,
    /// Fail where the canary answers, instead of saying so.
    #[arg(long)]
    pub required: bool,
    /// How long it may take in all [seconds].
    #[arg(long, value_name = "N", default_value_t = DEFAULT_TIMEOUT.as_secs(),
        value_parser = clap::value_parser!(u64).range(1..=MAX_TIMEOUT.as_secs()))]
    pub timeout: u64,
    /// The termination message, which the pod's status shows; written only if the file exists.
    #[arg(long, value_name = "FILE", default_value = "/dev/termination-log")]
    pub termination_log: PathBuf,
    /// What is logged.
    #[command(flatten)]
    pub log: LogArguments,
}

impl CheckNetworkArguments {
    pub const fn to_check(&self) -> CheckNetwork {
        CheckNetwork {
            gateway: self.gateway,
            canary: self.canary,
            enforcement: if self.required { Enforcement::Required } else { Enforcement::Reported },
            timeout: Duration::from_secs(self.timeout),
        }
    }
}

fn parse_guarantee(word: &str) -> Result<PlatformWord, String> {
    if word == NONE_WORD {
        return Ok(PlatformWord::None);
    }
    let mut all = Guarantee::ALL.into_iter();
    let found = all.find(|guarantee| guarantee.as_str() == word);
    found.map(PlatformWord::Guarantee).ok_or_else(|| {
        let known = Guarantee::ALL.map(Guarantee::as_str).join(", ");
        format!("it is none of {known}, {NONE_WORD}")
    })
}

fn parse_digest(text: &str) -> Result<Digest, String> {
    let digest = Digest::new(text);
    match digest.check() {
        Ok(()) => Ok(digest),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn the_definition_is_sound_and_its_defaults_are_the_plans() {
        Arguments::command().debug_assert();
        let words = ["x", "--plan-digest", DIGEST, "--gateway=gateway:8443"];
        let arguments = Arguments::parse_from(words);
        assert!(arguments.command.is_none());
        let places = Directories {
            input: "/run/sympozium".into(),
            door: "/run/door".into(),
            ipc: "/ipc".into(),
            headers: "/run/headers".into(),
            script: "/run/script".into(),
        };
        assert_eq!(arguments.serve.directories(), places);
        assert_eq!(arguments.serve.plan_digest, Some(Digest::new(DIGEST)));
        assert_eq!(arguments.serve.platform_guarantees(), []);
    }

    #[test]
    fn what_the_platform_holds_is_listed_by_name() {
        let read = |list: &str| {
            let words = ["x", "--plan-digest", DIGEST, "--gateway=gateway:8443"];
            let list = format!("--platform-holds={list}");
            let words = words.into_iter().chain([list.as_str()]);
            Arguments::try_parse_from(words).map(|arguments| arguments.serve.platform_guarantees())
        };
        assert_eq!(read("none").unwrap(), []);
        let all = Guarantee::ALL.map(Guarantee::as_str).join(",");
        assert_eq!(read(&all).unwrap(), Guarantee::ALL);
        for wrong in ["", "files", "memory,", "Memory"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    /// As the renderer of the plan writes it.
    #[test]
    fn checking_the_network_needs_no_run() {
        let words = ["x", "check-network", "--gateway=10.96.0.20:8443", "--canary=10.96.0.20:8444", "--required"];
        let Some(Command::CheckNetwork(arguments)) = Arguments::parse_from(words).command else {
            panic!("it was asked to check the network");
        };
        let expected = CheckNetwork {
            gateway: "10.96.0.20:8443".parse().unwrap(),
            canary: "10.96.0.20:8444".parse().unwrap(),
            enforcement: Enforcement::Required,
            timeout: DEFAULT_TIMEOUT,
        };
        assert_eq!(arguments.to_check(), expected);
    }

    #[test]
    fn what_is_refused() {
        let upper = DIGEST.to_uppercase();
        for words in [
            &["--gateway=gateway:8443"][..],
            &["--plan-digest", DIGEST],
            &["--plan-digest", &upper, "--gateway=gateway:8443"],
            &["--plan-digest", &DIGEST[7..], "--gateway=gateway:8443"],
            &["--plan-digest", DIGEST, "--gateway=gateway"],
            &["--plan-digest", DIGEST, "--gateway=g:1", "--wait-for-input=604801"],
            &["check-network", "--gateway=gateway:1", "--canary=10.0.0.1:2"],
            &["check-network", "--gateway=10.0.0.1:1"],
            &["check-network", "--gateway=10.0.0.1:1", "--canary=10.0.0.1:2", "--timeout=0"],
        ] {
            let words = std::iter::once("x").chain(words.iter().copied());
            assert!(Arguments::try_parse_from(words.clone()).is_err(), "{:?}", words.collect::<Vec<_>>());
        }
    }
}
