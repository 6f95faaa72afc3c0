//! The command line. Help, manual page and shell completions are generated from it.
//!
//! The variables of options are named `SYMPOZIUM_*`: variables with such names are never passed to a command.

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

/// Names the SkillPack of this container.
pub const PACK_VARIABLE: &str = "SYMPOZIUM_SKILL_PACK";
/// Holds the token of callers.
pub const TOKEN_VARIABLE: &str = "SKILL_TOKEN";
/// Names a file of such tokens.
pub const TOKEN_FILE_VARIABLE: &str = "SKILL_TOKEN_FILE";

/// Run the commands of an agent's skill: each is confined and bounded, and ends with every process it started.
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

  Replace tool-executor.sh in the image of a SkillPack:
    SYMPOZIUM_SKILL_PACK=my-skill skill-sidecar

Exit codes:
  0  stopped by SIGTERM, SIGINT or /ipc/done
  1  could not start or continue; the last line of the log has the reason
  2  invalid command line"
)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Execute requests that arrive as files on a shared volume.
    ///
    /// Each exec-request-ID.json in the directory `tools` of the volume is claimed, executed and answered with
    /// exec-result-ID.json, as Sympozium's guide to custom sidecars describes. Exits when the file `done` appears.
    Ipc(IpcArguments),
    /// Execute skills on request over HTTP.
    ///
    /// POST /skill/NAME runs the program NAME of the skills directory. GET /openapi.json describes the rest.
    Serve(ServeArguments),
    /// Check whether the sidecar in this container works; for exec probes.
    ///
    /// Asks the server's /healthz, or the executor on the volume. Exits with 0 when it works.
    Healthcheck(HealthcheckArguments),
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Print the manual page; view it with `skill-sidecar man | man -l -`.
    Man,
}

#[derive(Debug, Args)]
pub struct IpcArguments {
    /// The shared volume.
    #[arg(long, value_name = "DIR", env = "SYMPOZIUM_IPC_DIR", default_value = "/ipc")]
    pub ipc_dir: PathBuf,
    /// The longest timeout of a command; a longer one is reduced to it [seconds].
    #[arg(
        long,
        value_name = "N",
        env = "SYMPOZIUM_MAX_TIMEOUT",
        default_value_t = 120,
        value_parser = clap::value_parser!(u64).range(1..=86_400)
    )]
    pub max_timeout: u64,
    /// Commands that run concurrently; further requests wait on the volume.
    #[arg(
        long,
        value_name = "N",
        env = "SYMPOZIUM_MAX_CONCURRENT",
        default_value_t = 16,
        value_parser = clap::value_parser!(u16).range(1..=1024)
    )]
    pub max_concurrent: u16,
    /// How long a claim without a result is valid; then its request is answered as ambiguous [seconds]
    /// [default: the longest timeout plus 30].
    #[arg(
        long,
        value_name = "N",
        env = "SYMPOZIUM_CLAIM_LEASE",
        value_parser = clap::value_parser!(u64).range(1..=172_800)
    )]
    pub claim_lease: Option<u64>,
    /// Started by Sympozium in an image that must be confined: no option is read from the environment, which the image
    /// controls, and what the profile enforces is required besides --minimum-isolation.
    #[arg(long, hide = true, requires_all = ["pack", "profile", "minimum_isolation", "platform_holds"])]
    pub injected: bool,
    /// Guarantees that the platform around this container holds: required ones among them may be delegated.
    #[arg(long, value_name = "LIST", hide = true, value_delimiter = ',', value_parser = parse_guarantee)]
    pub platform_holds: Option<Vec<GuaranteeArgument>>,
    /// Answer only requests to this pack, and those without a target [default: answer all].
    #[arg(long, value_name = "NAME", env = PACK_VARIABLE)]
    pub pack: Option<String>,
    /// Serve only requests that the run's bridge has signed, and none before it has handed over the key. There is no
    /// variable for it, because the image must not be able to decide it.
    #[arg(long)]
    pub authenticated: bool,
    #[command(flatten)]
    pub sandbox: SandboxArguments,
    #[command(flatten)]
    pub log: LogArguments,
}

#[derive(Debug, Args)]
#[command(after_long_help = "\
Callers send a token in the header X-Skill-Token. It is the value of SKILL_TOKEN, or one of the lines of the
file that SKILL_TOKEN_FILE names. Each line is a separate caller, which sees only its own tasks.")]
pub struct ServeArguments {
    /// The address to listen on for callers.
    #[arg(long, value_name = "ADDR", env = "SYMPOZIUM_LISTEN", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,
    /// A second address, for the kubelet and Prometheus: serves /healthz and /metrics without a token.
    #[arg(long, value_name = "ADDR", env = "SYMPOZIUM_PROBE_LISTEN")]
    pub probe_listen: Option<SocketAddr>,
    /// The directory whose executable files are skills.
    #[arg(long, value_name = "DIR", env = "SYMPOZIUM_SKILLS_DIR", default_value = "/usr/local/bin")]
    pub skills_dir: PathBuf,
    /// Serve every client without a token; on a loopback address only.
    #[arg(long)]
    pub insecure: bool,
    /// Skills that run concurrently; further requests wait, and are answered with 503 when too many wait.
    #[arg(
        long,
        value_name = "N",
        env = "SYMPOZIUM_MAX_CONCURRENT",
        default_value_t = 64,
        value_parser = clap::value_parser!(u16).range(1..=1024)
    )]
    pub max_concurrent: u16,
    /// Concurrent connections; beyond the limit, the connection that has been idle longest is closed.
    #[arg(
        long,
        value_name = "N",
        env = "SYMPOZIUM_MAX_CONNECTIONS",
        default_value_t = 512,
        value_parser = clap::value_parser!(u16).range(1..=16_384)
    )]
    pub max_connections: u16,
    #[command(flatten)]
    pub sandbox: SandboxArguments,
    #[command(flatten)]
    pub log: LogArguments,
}

#[derive(Debug, Args)]
pub struct HealthcheckArguments {
    /// The address of the server.
    #[arg(long, value_name = "ADDR", env = "SYMPOZIUM_LISTEN", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,
    /// Ask the executor on this volume instead of a server [default: /ipc when SYMPOZIUM_SKILL_PACK is set].
    #[arg(long, value_name = "DIR", env = "SYMPOZIUM_IPC_DIR")]
    pub ipc_dir: Option<PathBuf>,
    /// The pack of the executor.
    #[arg(long, value_name = "NAME", env = PACK_VARIABLE)]
    pub pack: Option<String>,
    /// How long to wait for the answer [seconds].
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=120))]
    pub timeout: u64,
}

/// The options of both front ends that confine commands.
#[derive(Debug, Args)]
pub struct SandboxArguments {
    /// The directory for files of the run: writable, and the working directory of commands.
    #[arg(long, value_name = "DIR", env = "SYMPOZIUM_WORKSPACE", default_value = "/workspace")]
    pub workspace: PathBuf,
    /// Further directories that commands may write to [default: the writable volumes of the container].
    #[arg(long, value_name = "DIR", env = "SYMPOZIUM_WRITABLE", value_delimiter = ':')]
    pub writable: Vec<PathBuf>,
    /// Paths to hide from commands, besides the executor's own.
    #[arg(long, value_name = "PATH", env = "SYMPOZIUM_HIDDEN", value_delimiter = ':')]
    pub hidden: Vec<PathBuf>,
    /// The only paths that commands may read besides the writable ones, for a root file system that is not a container's.
    /// Then commands write only to the workspace, the scratch directory and --writable, and see no processes
    /// [default: everything that is not hidden].
    #[arg(long, value_name = "PATH", hide = true)]
    pub readable: Vec<PathBuf>,
    /// The directory for temporary files, and the home directory of commands.
    #[arg(long, value_name = "DIR", default_value = DEFAULT_SCRATCH, hide = true)]
    pub scratch: PathBuf,
    /// The sockets that commands may open.
    #[arg(long, value_enum, default_value_t = SocketsChoice::Network, hide = true)]
    pub sockets: SocketsChoice,
    /// The environment that this program runs in.
    #[arg(long, value_enum, env = "SYMPOZIUM_PROFILE", default_value_t = ProfileChoice::Auto)]
    pub profile: ProfileChoice,
    /// Guarantees that must be live, or nothing is executed, such as filesystem,processes; or none
    /// [default: all that the profile enforces].
    #[arg(
        long,
        value_name = "LIST",
        env = "SYMPOZIUM_MINIMUM_ISOLATION",
        value_delimiter = ',',
        value_parser = parse_guarantee
    )]
    pub minimum_isolation: Option<Vec<GuaranteeArgument>>,
}

/// With this option no option is read from the environment.
const INJECTED_FLAG: &str = "--injected";

impl Arguments {
    /// With `--injected` anywhere on the line, variables of the environment are ignored, valid or not.
    ///
    /// # Errors
    ///
    /// When the line is invalid, and for `--help` and `--version`.
    pub fn parse_command_line(line: &[OsString]) -> Result<Self, clap::Error> {
        let is_injected = line.iter().any(|word| word == INJECTED_FLAG);
        let command = if is_injected { remove_variables(Self::command()) } else { Self::command() };
        Self::from_arg_matches(&command.try_get_matches_from(line)?)
    }
}

fn remove_variables(command: clap::Command) -> clap::Command {
    command.mut_args(|argument| argument.env(Option::<&'static str>::None)).mut_subcommands(remove_variables)
}

/// An element of `--minimum-isolation` and `--platform-holds`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuaranteeArgument {
    /// The word `none`, for an empty list.
    None,
    Guarantee(Guarantee),
}

impl GuaranteeArgument {
    pub fn guarantees(list: &[Self]) -> impl Iterator<Item = Guarantee> {
        list.iter().filter_map(|argument| match argument {
            Self::None => None,
            Self::Guarantee(guarantee) => Some(*guarantee),
        })
    }
}

fn parse_guarantee(word: &str) -> Result<GuaranteeArgument, String> {
    if word == "none" {
        return Ok(GuaranteeArgument::None);
    }
    Guarantee::ALL
        .into_iter()
        .find(|guarantee| guarantee.as_str() == word)
        .map(GuaranteeArgument::Guarantee)
        .ok_or_else(|| {
            let known = Guarantee::ALL.map(Guarantee::as_str).join(", ");
            format!("expected one of {known}, none")
        })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SocketsChoice {
    /// Internet and Unix sockets.
    Network,
    /// Unix sockets only.
    Unix,
    /// No sockets.
    None,
}

impl SocketsChoice {
    pub const fn to_sockets(self) -> Sockets {
        match self {
            Self::Network => Sockets::Network,
            Self::Unix => Sockets::UnixOnly,
            Self::None => Sockets::None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ProfileChoice {
    /// A container, on gVisor or not: detected from the kernel.
    Auto,
    /// A container or pod.
    Container,
    /// A container or pod on gVisor.
    Gvisor,
    /// A machine, as root.
    HostRoot,
    /// A machine, as an ordinary user.
    HostUser,
}

/// The kernel below this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// Of the node, or of a virtual machine.
    Linux,
    Gvisor,
}

impl Kernel {
    pub fn detect() -> Self {
        if sympozium_exec::features::is_gvisor() { Self::Gvisor } else { Self::Linux }
    }
}

/// A profile that is made for another kernel: nothing would enforce what it delegates to that kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProfileMismatch {
    #[error("the profile `gvisor` is for gVisor, and the kernel here is not gVisor's")]
    NotGvisor,
    #[error("the profile `container` is for Linux, and the kernel here is gVisor's")]
    Gvisor,
}

impl ProfileChoice {
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

    /// Also of options that will be added: none may be read from the environment of an image.
    #[test]
    fn no_option_of_an_injected_executor_has_a_variable() {
        fn variables(command: &clap::Command) -> Vec<String> {
            let own = command.get_arguments().filter_map(clap::Arg::get_env);
            let own = own.map(|name| name.to_string_lossy().into_owned());
            let of_subcommands = command.get_subcommands().flat_map(variables);
            own.chain(of_subcommands).collect()
        }
        assert!(variables(&Arguments::command()).len() >= 12);
        let command = remove_variables(Arguments::command());
        assert_eq!(variables(&command), [] as [String; 0]);
    }

    #[test]
    fn an_injected_executor_needs_every_option_that_decides_about_isolation() {
        let all = ["--pack=p", "--profile=auto", "--minimum-isolation=none", "--platform-holds=none"];
        let parse = |without: Option<&str>| {
            let given = all.into_iter().filter(|option| Some(*option) != without);
            let line = ["x", "ipc", "--injected"].into_iter().chain(given);
            let line: Vec<OsString> = line.map(OsString::from).collect();
            Arguments::parse_command_line(&line)
        };
        assert!(parse(None).is_ok());
        for option in all {
            assert!(parse(Some(option)).is_err(), "{option}");
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
    fn the_definition_is_valid() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn guarantees_are_parsed_by_their_names() {
        assert_eq!(parse_guarantee("none"), Ok(GuaranteeArgument::None));
        for guarantee in Guarantee::ALL {
            assert_eq!(parse_guarantee(guarantee.as_str()), Ok(GuaranteeArgument::Guarantee(guarantee)));
        }
        assert_eq!(
            parse_guarantee("files"),
            Err("expected one of filesystem, network, processes, syscalls, memory, pids, cpu, kernel, none".to_owned())
        );
    }
}
