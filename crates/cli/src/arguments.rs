//! The command line: commands, their arguments and output formats.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use sympozium_api::names::NamespaceName;
use sympozium_manifests::kinds::Kind;

use crate::approvals::{ApprovalsArguments, ApproveArguments, DenyArguments};
use crate::cancel::CancelArguments;
use crate::cluster::ClusterArguments;
use crate::demo::DemoArguments;
use crate::run::arguments::RunArguments;
use crate::runs::arguments::{
    AuditArguments, LogsArguments, PruneArguments, RmArguments, RunsArguments, ShowArguments,
};
use crate::secret::SecretArguments;
use crate::skill::arguments::SkillArguments;

/// Run AI agents, each skill isolated in a sidecar of its own.
#[derive(Debug, Parser)]
#[command(name = "sympozium", version, max_term_width = 100)]
pub struct Arguments {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run an agent on this machine or in a cluster, each of its skills in a sandbox of its own.
    Run(Box<RunArguments>),

    /// List the runs of this machine or of a cluster.
    Runs(RunsArguments),

    /// Show one run: its task, state, result and isolation.
    Show(ShowArguments),

    /// Print the transcript of a run, or the log of one of its parts.
    Logs(LogsArguments),

    /// Print the receipts of a run, or verify that none was changed or removed.
    Audit(AuditArguments),

    /// Remove runs that have ended, with everything that is stored of them.
    Rm(RmArguments),

    /// Ask a run to end.
    Cancel(CancelArguments),

    /// Remove old runs of this machine, and what killed processes left behind.
    Prune(PruneArguments),

    /// List the pending questions of all runs: the actions that need approval.
    Approvals(ApprovalsArguments),

    /// Approve pending questions of runs.
    Approve(ApproveArguments),

    /// Deny pending questions of runs.
    Deny(DenyArguments),

    /// Manage the Secrets of skills and models on this machine.
    Secret(SecretArguments),

    /// Run a demo: an agent does a job, then attacks its sandbox. Takes a few seconds and needs no model.
    Demo(DemoArguments),

    /// Check which isolation this machine supports, and print how to fix what is missing.
    ///
    /// Every mechanism is tested, not looked up: namespaces are created, filters installed and limits applied,
    /// each in a child process or a control group that is removed afterwards.
    ///
    /// The report names the profile that runs would use here (container, gvisor, host-root or host-user),
    /// its guarantees with the mechanisms that enforce them, and for each missing mechanism the command or
    /// setting that enables it.
    Doctor(DoctorArguments),

    /// Check manifests before they are applied: syntax, schemas, references, and whether runs would be admitted.
    ///
    /// Reads YAML and JSON files, directories, skills (directories with `SKILL.md`) and standard input, and reports every
    /// problem with its line. Needs no cluster and sends nothing.
    ///
    /// Objects of other kinds are not checked, but references to them resolve.
    Validate(ValidateArguments),

    /// Explain what a run could access: tools, permissions, network, Secrets, files, limits.
    ///
    /// Reads the same files as `validate`, admits and plans each run as the cluster would, and describes the plan. An agent
    /// without a run is explained by the simplest run of it. The packs, policies and policy floor of a default installation
    /// need not be among the files. Needs no cluster and sends nothing.
    Explain(ExplainArguments),

    /// Print the Kubernetes objects that the controller would create for a run, in the order of creation.
    ///
    /// For reviews and tests. Secrets are printed without data, which the controller adds.
    Render(RenderArguments),

    /// Convert a directory with `SKILL.md` into a SkillPack, or create such a directory.
    Skill(SkillArguments),

    /// Print the CustomResourceDefinitions of Sympozium.
    Crds(CrdsArguments),

    /// Print a completion script for a shell.
    Completions(CompletionsArguments),

    /// Print the version of this program and of the manifests that it reads.
    Version(VersionArguments),
}

/// The arguments of `validate`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  Check one file:
    sympozium validate agent.yaml

  Check a directory that must be complete (references to missing objects are errors):
    sympozium validate --strict deploy/

  Check what a chart renders:
    helm template my-agents ./chart | sympozium validate -

  Print file, line and message of each finding, in a script:
    sympozium validate -o json deploy/ | jq -r '.findings[] | \"\\(.file):\\(.line) \\(.message)\"'

Exit codes:
  0  no errors; there may be warnings
  1  a file could not be read, an object is invalid, or the command failed
  2  the command line is invalid
  3  no errors, but the cluster would reject an object or deny a run")]
pub struct ValidateArguments {
    /// Files or directories with manifests or skills; `-` is standard input.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// Treat the files as complete: references to objects that are not among them are errors.
    #[arg(long)]
    pub strict: bool,

    /// A file with the policy floor of the cluster.
    ///
    /// The default is the SympoziumPolicy `floor` of namespace `sympozium-system`, if it is among the files.
    #[arg(long, value_name = "FILE")]
    pub floor: Option<PathBuf>,

    /// The namespace of objects that have none.
    #[arg(short, long, default_value = "default", value_parser = parse_namespace)]
    pub namespace: String,

    /// The output format.
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Text)]
    pub output: OutputFormat,
}

/// The arguments of `explain`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  Explain the runs in these files:
    sympozium explain agent.yaml run.yaml

  Explain one of several runs:
    sympozium explain deploy/ --run nightly-report

  Explain a run of the cluster by its stored plan:
    sympozium explain nightly-report --cluster -n team-a

  Explain files with the agents, packs, policies and policy floor of a cluster:
    sympozium explain run.yaml --context staging

  Fail in CI if a change gives a run more power:
    git worktree add /tmp/base origin/main
    sympozium explain --diff /tmp/base/deploy deploy

  Print the permissions that imply further permissions, in a script:
    sympozium explain -o json deploy/ |
      jq -r '.runs[].kubernetes[].grants[].implies[] | select(.weight == \"moreRights\") | .consequence'

Exit codes:
  0  explained; with --diff: no run has more power
  1  a file could not be read, an object is invalid or missing, or the command failed
  2  the command line is invalid
  3  a run is denied; with --diff: a run of NEW
  4  with --diff: a run has more power")]
pub struct ExplainArguments {
    /// Files or directories with manifests or skills (`SKILL.md`); `-` is standard input. In a cluster also names of its runs,
    /// which are explained by their stored plans.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// Compare the powers of the runs in two paths, OLD and NEW.
    #[arg(long)]
    pub diff: bool,

    /// Only the run with this name.
    #[arg(long, value_name = "NAME")]
    pub run: Option<String>,

    /// A file with the policy floor of the cluster.
    ///
    /// The default is the SympoziumPolicy `floor` of namespace `sympozium-system` if it is among the files, and otherwise the
    /// policy floor of a default installation.
    #[arg(long, value_name = "FILE")]
    pub floor: Option<PathBuf>,

    /// Selects this machine or a cluster.
    #[command(flatten)]
    pub cluster: ClusterArguments,

    /// The output format.
    #[arg(short, long, value_enum, default_value_t = ExplainFormat::Text)]
    pub output: ExplainFormat,
}

/// The arguments of `render`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  Print the objects of a run:
    sympozium render agent.yaml run.yaml

  Print them with the UID of the run in the cluster:
    sympozium render deploy/ --run review --uid \"$(kubectl get agentrun review -o jsonpath='{.metadata.uid}')\"

  Print only its Roles and RoleBindings:
    sympozium render deploy/ -o json | jq '.items[] | select(.kind | test(\"Role\"))'

Exit codes:
  0  printed
  1  a file could not be read, an object is invalid or missing, or the command failed
  2  the command line is invalid
  3  a run is denied")]
pub struct RenderArguments {
    /// Files or directories with manifests or skills (`SKILL.md`); `-` is standard input.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// Only the run with this name.
    #[arg(long, value_name = "NAME")]
    pub run: Option<String>,

    /// The UID of the run, if its metadata has none. With several runs, --run selects one.
    #[arg(long, value_parser = crate::planning::parse_uid)]
    pub uid: Option<String>,

    /// A file with the policy floor of the cluster.
    #[arg(long, value_name = "FILE")]
    pub floor: Option<PathBuf>,

    /// The namespace of objects that have none.
    #[arg(short, long, default_value = "default", value_parser = parse_namespace)]
    pub namespace: String,

    /// The address and port of the gateway. The default is an address that does not respond.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub gateway: Option<SocketAddr>,

    /// The canary port of the gateway: runs test with it whether NetworkPolicies are enforced, which must block it. The
    /// default is the gateway's port plus one.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub canary: Option<u16>,

    /// An address and port of the API server. May be given several times.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub api_server: Vec<SocketAddr>,

    /// The field `hostUsers` of pods: true with `always`, false with `never`.
    #[arg(long, value_enum, default_value_t = HostUsers::Auto)]
    pub host_users: HostUsers,

    /// The version of agent-sandbox that the cluster serves.
    #[arg(long, value_enum, default_value_t = SandboxVersionArgument::V1beta1)]
    pub sandbox_version: SandboxVersionArgument,

    /// The output format.
    #[arg(short, long, value_enum, default_value_t = ObjectFormat::Yaml)]
    pub output: ObjectFormat,
}

/// The arguments of `crds`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  Install or update them:
    sympozium crds | kubectl apply --server-side -f -

  Print the names of one kind:
    sympozium crds AgentRun -o json | jq .spec.names

Exit codes:
  0  printed
  1  the command failed
  2  the command line is invalid")]
pub struct CrdsArguments {
    /// Only these kinds.
    #[arg(value_name = "KIND", value_parser = kind_parser())]
    pub kinds: Vec<String>,

    /// The output format.
    #[arg(short, long, value_enum, default_value_t = ObjectFormat::Yaml)]
    pub output: ObjectFormat,
}

/// The arguments of `completions`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  bash, for the current user:
    sympozium completions bash > ~/.local/share/bash-completion/completions/sympozium

  zsh, into a directory of your fpath:
    sympozium completions zsh > ~/.zfunc/_sympozium

  fish:
    sympozium completions fish > ~/.config/fish/completions/sympozium.fish")]
pub struct CompletionsArguments {
    /// The shell.
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

/// The arguments of `version`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  Print the version only:
    sympozium version -o json | jq -r .version")]
pub struct VersionArguments {
    /// The output format.
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Text)]
    pub output: OutputFormat,
}

/// Parses the name of a namespace.
pub fn parse_namespace(typed: &str) -> Result<String, &'static str> {
    match NamespaceName::from(typed).check() {
        Ok(()) => Ok(typed.to_owned()),
        Err(_) => {
            Err("invalid name of a namespace\n  hint: use lower-case letters, digits and `-`, at most 63 characters")
        }
    }
}

/// The kinds that the command line accepts.
fn kind_parser() -> clap::builder::PossibleValuesParser {
    Kind::ALL.iter().map(|kind| kind.name()).collect::<Vec<_>>().into()
}

/// The arguments of `doctor`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  Check this machine:
    sympozium doctor

  Check as the user that will run agents, in a delegated cgroup:
    systemd-run --user --scope -p Delegate=yes sympozium doctor

  Print the profile that runs would use, in a script:
    sympozium doctor -o json | jq -r .profile

Exit codes:
  0  the intended profile for this machine is available and meets its default isolation floor
  1  it is not available or does not meet its floor (see `What to fix`), or the command failed
  2  the command line is invalid")]
pub struct DoctorArguments {
    /// The output format.
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Text)]
    pub output: OutputFormat,
}

/// The output format of most commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// Human-readable text.
    Text,
    /// JSON, for programs.
    Json,
}

/// The output format of `explain`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExplainFormat {
    /// Human-readable text.
    Text,
    /// JSON, for programs.
    Json,
    /// YAML, human-readable and for programs.
    Yaml,
}

/// The field `hostUsers` of pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum HostUsers {
    /// Omit the field: the cluster decides.
    Auto,
    /// Use the users of the node, without a user namespace (less isolated).
    Always,
    /// Use a user namespace for each pod (more isolated).
    Never,
}

/// A version of agent-sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SandboxVersionArgument {
    /// Up to 0.5.
    V1alpha1,
    /// From 0.5.
    V1beta1,
    /// The cluster does not have agent-sandbox.
    None,
}

/// The output format of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ObjectFormat {
    /// One document for each object.
    Yaml,
    /// One object, or a `List`.
    Json,
}
