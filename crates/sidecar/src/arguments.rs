//! What can be typed. Help, man page and shell completions are made from here.
//!
//! Settings that have a flag have a variable `SYMPOZIUM_*` too: such names never reach a command.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use sympozium_api::Guarantee;
use sympozium_exec::Profile;
use sympozium_exec::environment::DEFAULT_SCRATCH;
use sympozium_exec::seccomp::Sockets;
use sympozium_program::LogArguments;

/// The variable that says which SkillPack this container is.
pub const PACK: &str = "SYMPOZIUM_SKILL_PACK";
/// The variable that holds the token of callers.
pub const TOKEN: &str = "SKILL_TOKEN";
/// The variable that names a file of such tokens.
pub const TOKEN_FILE: &str = "SKILL_TOKEN_FILE";

/// Run the commands of an agent's skill, each confined, bounded and ended with everything it started.
///
/// Without a subcommand: `ipc` when SYMPOZIUM_SKILL_PACK is set, else `serve`.
#[derive(Debug, Parser)]
#[command(
    name = "skill-sidecar",
    version,
    max_term_width = 100,
    after_long_help = "\
Examples:
  Serve the programs of /usr/local/bin to an agent in the same pod:
    SKILL_TOKEN=$(cat token) skill-sidecar serve
    curl -H \"X-Skill-Token: $(cat token)\" -d '{\"args\": [\"--version\"]}' 127.0.0.1:8080/skill/gh

  Take the place of tool-executor.sh in an image of a SkillPack:
    SYMPOZIUM_SKILL_PACK=my-skill skill-sidecar

Exit codes:
  0  it was asked to end: by SIGTERM, SIGINT or /ipc/done
  1  it could not start or go on; the last line says why
  2  the command line was not understood"
)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The front ends, and what helps with them.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Execute requests that arrive as files on a shared volume.
    ///
    /// Each exec-request-ID.json in the directory `tools` of the volume is claimed, executed and answered with
    /// exec-result-ID.json, as Sympozium's guide to custom sidecars describes. Ends when the file `done` appears.
    Ipc(IpcArguments),
    /// Execute skills on request over HTTP.
    ///
    /// POST /skill/NAME runs the program NAME of the skills directory. GET /openapi.json describes the rest.
    Serve(ServeArguments),
    /// Tell by the exit code whether the sidecar in this container works; for exec probes.
    ///
    /// Asks the server's /healthz, or has the executor on the volume run `true`.
    Healthcheck(HealthcheckArguments),
    /// Print a completion script for a shell.
    Completions {
        /// For which.
        shell: Shell,
    },
    /// Print the manual page; `skill-sidecar man | man -l -` shows it.
    Man,
}

/// The arguments of `ipc`.
#[derive(Debug, Args)]
pub struct IpcArguments {
    /// The shared volume.
    #[arg(long, value_name = "DIR", env = "SYMPOZIUM_IPC_DIR", default_value = "/ipc")]
    pub ipc_dir: PathBuf,
    /// The longest a command may run; requests for more get this [seconds].
    #[arg(
        long,
        value_name = "N",
        env = "SYMPOZIUM_MAX_TIMEOUT",
        default_value_t = 120,
        value_parser = clap::value_parser!(u64).range(1..=86_400)
    )]
    pub max_timeout: u64,
    /// Commands that run at once; further requests wait on the volume.
    #[arg(
        long,
        value_name = "N",
        env = "SYMPOZIUM_MAX_CONCURRENT",
        default_value_t = 16,
        value_parser = clap::value_parser!(u16).range(1..=1024)
    )]
    pub max_concurrent: u16,
    /// After how long a claim without a result counts as lost, and its request is answered as such [seconds]
    /// [default: the longest timeout and 30].
    #[arg(
        long,
        value_name = "N",
        env = "SYMPOZIUM_CLAIM_LEASE",
        value_parser = clap::value_parser!(u64).range(1..=172_800)
    )]
    pub claim_lease: Option<u64>,
    /// Started by Sympozium in an image that is to be confined: no option is read from the environment, which is the image's,
    /// and what the profile enforces is required besides --minimum-isolation.
    #[arg(long, hide = true, requires_all = ["pack", "profile", "minimum_isolation", "platform_holds"])]
    pub injected: bool,
    /// Guarantees that the platform around this container holds: of those that are required, these may be delegated.
    #[arg(long, value_name = "LIST", hide = true, value_delimiter = ',', value_parser = minimum)]
    pub platform_holds: Option<Vec<Minimum>>,
    /// Answer only requests to this pack, and those that name none [default: answer all].
    #[arg(long, value_name = "NAME", env = PACK)]
    pub pack: Option<String>,
    /// Serve only requests that the run's bridge has signed, and nothing before it has handed over the key. There is no variable
    /// for it: the image must not decide.
    #[arg(long)]
    pub authenticated: bool,
    /// How commands are confined.
    #[command(flatten)]
    pub sandbox: SandboxArguments,
    /// What is logged.
    #[command(flatten)]
    pub log: LogArguments,
}

/// The arguments of `serve`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Callers send a token in the header X-Skill-Token. It is the value of SKILL_TOKEN, or one of the lines of the
file that SKILL_TOKEN_FILE names; each line is a caller of its own, who sees only its own tasks.")]
pub struct ServeArguments {
    /// Where callers connect.
    #[arg(long, value_name = "ADDR", env = "SYMPOZIUM_LISTEN", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,
    /// Where /healthz and /metrics are also answered, without a token: for kubelet and Prometheus.
    #[arg(long, value_name = "ADDR", env = "SYMPOZIUM_PROBE_LISTEN")]
    pub probe_listen: Option<SocketAddr>,
    /// The directory whose programs are skills.
    #[arg(long, value_name = "DIR", env = "SYMPOZIUM_SKILLS_DIR", default_value = "/usr/local/bin")]
    pub skills_dir: PathBuf,
    /// Serve without a token whoever can connect; on a loopback address only.
    #[arg(long)]
    pub insecure: bool,
    /// Skills that run at once; further requests wait, and too many of those are turned away.
    #[arg(
        long,
        value_name = "N",
        env = "SYMPOZIUM_MAX_CONCURRENT",
        default_value_t = 64,
        value_parser = clap::value_parser!(u16).range(1..=1024)
    )]
    pub max_concurrent: u16,
    /// Connections at once; beyond it the one that has been idle longest is closed.
    #[arg(
        long,
        value_name = "N",
        env = "SYMPOZIUM_MAX_CONNECTIONS",
        default_value_t = 512,
        value_parser = clap::value_parser!(u16).range(1..=16_384)
    )]
    pub max_connections: u16,
    /// How skills are confined.
    #[command(flatten)]
    pub sandbox: SandboxArguments,
    /// What is logged.
    #[command(flatten)]
    pub log: LogArguments,
}

/// The arguments of `healthcheck`.
#[derive(Debug, Args)]
pub struct HealthcheckArguments {
    /// Ask the server that listens here [default: as SYMPOZIUM_LISTEN says].
    #[arg(long, value_name = "ADDR", env = "SYMPOZIUM_LISTEN", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,
    /// Ask the executor of this volume instead, as is the default when SYMPOZIUM_SKILL_PACK is set.
    #[arg(long, value_name = "DIR", env = "SYMPOZIUM_IPC_DIR")]
    pub ipc_dir: Option<PathBuf>,
    /// The pack whose executor is asked.
    #[arg(long, value_name = "NAME", env = PACK)]
    pub pack: Option<String>,
    /// How long to wait for the answer [seconds].
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=120))]
    pub timeout: u64,
}

/// How commands are confined, for every front end.
#[derive(Debug, Args)]
pub struct SandboxArguments {
    /// The directory for files of the run: writable, and where commands start.
    #[arg(long, value_name = "DIR", env = "SYMPOZIUM_WORKSPACE", default_value = "/workspace")]
    pub workspace: PathBuf,
    /// Further directories that commands may write to [default: the writable volumes mounted in the container].
    #[arg(long, value_name = "DIR", env = "SYMPOZIUM_WRITABLE", value_delimiter = ':')]
    pub writable: Vec<PathBuf>,
    /// Paths that commands must not see, besides the executor's own.
    #[arg(long, value_name = "PATH", env = "SYMPOZIUM_HIDDEN", value_delimiter = ':')]
    pub hidden: Vec<PathBuf>,
    /// All that commands may read besides what they may write, where the files around them are not a container's: then they
    /// write to the workspace, the scratch space and --writable alone, and see no processes [default: everything that is not
    /// hidden].
    #[arg(long, value_name = "PATH", hide = true)]
    pub readable: Vec<PathBuf>,
    /// The directory for temporary files and the home of commands.
    #[arg(long, value_name = "DIR", default_value = DEFAULT_SCRATCH, hide = true)]
    pub scratch: PathBuf,
    /// The sockets that commands may open.
    #[arg(long, value_enum, default_value_t = SocketsChoice::Network, hide = true)]
    pub sockets: SocketsChoice,
    /// What this program runs in.
    #[arg(long, value_enum, env = "SYMPOZIUM_PROFILE", default_value_t = ProfileChoice::Auto)]
    pub profile: ProfileChoice,
    /// Guarantees without which nothing is executed, such as filesystem,processes; or none
    /// [default: all that the profile can give].
    #[arg(
        long,
        value_name = "LIST",
        env = "SYMPOZIUM_MINIMUM_ISOLATION",
        value_delimiter = ',',
        value_parser = minimum
    )]
    pub minimum_isolation: Option<Vec<Minimum>>,
}

/// The option by which whoever starts the program says that its environment is not to be read.
const INJECTED: &str = "--injected";

impl Arguments {
    /// Reads a command line. With `--injected` anywhere on it, what the environment sets does not count, nor whether it could
    /// be read.
    ///
    /// # Errors
    ///
    /// When it is not understood. Help and versions come this way, too.
    pub fn read(line: &[OsString]) -> Result<Self, clap::Error> {
        let command = match line.iter().any(|word| word == INJECTED) {
            true => without_environment(Self::command()),
            false => Self::command(),
        };
        Self::from_arg_matches(&command.try_get_matches_from(line)?)
    }
}

fn without_environment(command: clap::Command) -> clap::Command {
    command.mut_args(|argument| argument.env(Option::<&'static str>::None)).mut_subcommands(without_environment)
}

/// A word of `--minimum-isolation`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Minimum {
    /// No guarantee is asked for.
    None,
    /// This one is.
    Guarantee(Guarantee),
}

impl Minimum {
    /// The guarantees among words.
    pub fn guarantees(words: &[Self]) -> impl Iterator<Item = Guarantee> {
        words.iter().filter_map(|word| match word {
            Self::None => None,
            Self::Guarantee(guarantee) => Some(*guarantee),
        })
    }
}

fn minimum(word: &str) -> Result<Minimum, String> {
    if word == "none" {
        return Ok(Minimum::None);
    }
    Guarantee::ALL.into_iter().find(|guarantee| guarantee.as_str() == word).map(Minimum::Guarantee).ok_or_else(|| {
        let known = Guarantee::ALL.map(Guarantee::as_str).join(", ");
        format!("it is none of {known}, none")
    })
}

/// The sockets that commands may open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SocketsChoice {
    /// Those of the network, and Unix.
    Network,
    /// Unix only.
    Unix,
    /// None at all.
    None,
}

impl SocketsChoice {
    /// As the executor has it.
    pub const fn sockets(self) -> Sockets {
        match self {
            Self::Network => Sockets::Network,
            Self::Unix => Sockets::UnixOnly,
            Self::None => Sockets::None,
        }
    }
}

/// What the program runs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ProfileChoice {
    /// A container, of gVisor where the kernel is.
    Auto,
    /// A container or pod.
    Container,
    /// A container or pod of gVisor.
    Gvisor,
    /// A machine, as root.
    HostRoot,
    /// A machine, as an ordinary user.
    HostUser,
}

/// The kernel below this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// Linux, the node's or that of a virtual machine.
    Linux,
    /// gVisor's.
    Gvisor,
}

impl Kernel {
    /// The one that is there.
    pub fn detect() -> Self {
        match sympozium_exec::features::is_gvisor() {
            true => Self::Gvisor,
            false => Self::Linux,
        }
    }
}

/// A profile that is made for another kernel: what it leaves to that kernel nobody would hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProfileMismatch {
    /// `gvisor` elsewhere.
    #[error("the profile `gvisor` is for gVisor, and the kernel here is not gVisor's")]
    NotGvisor,
    /// `container` on gVisor.
    #[error("the profile `container` is for Linux, and the kernel here is gVisor's")]
    Gvisor,
}

impl ProfileChoice {
    /// The profile that is meant, on this kernel.
    ///
    /// # Errors
    ///
    /// When it is made for another kernel.
    pub const fn resolve(self, kernel: Kernel) -> Result<Profile, ProfileMismatch> {
        match (self, kernel) {
            (Self::Auto | Self::Gvisor, Kernel::Gvisor) => Ok(Profile::Gvisor),
            (Self::Auto | Self::Container, Kernel::Linux) => Ok(Profile::Container),
            (Self::Gvisor, Kernel::Linux) => Err(ProfileMismatch::NotGvisor),
            (Self::Container, Kernel::Gvisor) => Err(ProfileMismatch::Gvisor),
            (Self::HostRoot, _) => Ok(Profile::HostRoot),
            (Self::HostUser, _) => Ok(Profile::HostUser),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever options are added: none of them is read from the environment of an image.
    #[test]
    fn no_option_of_an_injected_executor_has_a_variable() {
        fn variables(command: &clap::Command) -> Vec<String> {
            let own = command.get_arguments().filter_map(clap::Arg::get_env);
            let own = own.map(|name| name.to_string_lossy().into_owned());
            let below = command.get_subcommands().flat_map(variables);
            own.chain(below).collect()
        }
        assert!(variables(&Arguments::command()).len() >= 12);
        let command = without_environment(Arguments::command());
        assert_eq!(variables(&command), [] as [String; 0]);
    }

    #[test]
    fn an_injected_executor_is_told_what_decides_about_isolation() {
        let all = ["--pack=p", "--profile=auto", "--minimum-isolation=none", "--platform-holds=none"];
        let read = |without: Option<&str>| {
            let given = all.into_iter().filter(|it| Some(*it) != without);
            let line = ["x", "ipc", "--injected"].into_iter().chain(given);
            let line: Vec<OsString> = line.map(OsString::from).collect();
            Arguments::read(&line)
        };
        assert!(read(None).is_ok());
        for option in all {
            assert!(read(Some(option)).is_err(), "{option}");
        }
    }

    #[test]
    fn a_profile_fits_its_kernel_or_is_refused() {
        use ProfileChoice as Choice;
        for (choice, kernel, expected) in [
            (Choice::Auto, Kernel::Linux, Ok(Profile::Container)),
            (Choice::Auto, Kernel::Gvisor, Ok(Profile::Gvisor)),
            (Choice::Container, Kernel::Linux, Ok(Profile::Container)),
            (Choice::Container, Kernel::Gvisor, Err(ProfileMismatch::Gvisor)),
            (Choice::Gvisor, Kernel::Linux, Err(ProfileMismatch::NotGvisor)),
            (Choice::Gvisor, Kernel::Gvisor, Ok(Profile::Gvisor)),
            (Choice::HostRoot, Kernel::Linux, Ok(Profile::HostRoot)),
            (Choice::HostUser, Kernel::Gvisor, Ok(Profile::HostUser)),
        ] {
            assert_eq!(choice.resolve(kernel), expected, "{choice:?} on {kernel:?}");
        }
    }

    #[test]
    fn the_definition_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn guarantees_are_known_by_their_names() {
        assert_eq!(minimum("none"), Ok(Minimum::None));
        for guarantee in Guarantee::ALL {
            assert_eq!(minimum(guarantee.as_str()), Ok(Minimum::Guarantee(guarantee)));
        }
        assert_eq!(
            minimum("files"),
            Err("it is none of filesystem, network, processes, syscalls, memory, pids, cpu, kernel, none".to_owned())
        );
    }
}
