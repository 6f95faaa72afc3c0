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

/// Run AI agents whose every skill is a separately isolated sidecar.
#[derive(Debug, Parser)]
#[command(name = "sympozium", version, max_term_width = 100)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run an agent, on this machine or in a cluster: each of its skills in a sandbox of its own.
    Run(Box<RunArguments>),

    /// List the runs of this machine, or of a cluster.
    Runs(RunsArguments),

    /// Show one run: what it was to do, what came of it, what held it.
    Show(ShowArguments),

    /// Print what was said and done in a run, and follow it while it goes on.
    Logs(LogsArguments),

    /// Print the receipts of a run, or verify that none was changed or left out.
    Audit(AuditArguments),

    /// Remove runs that are over, with everything that is kept of them.
    Rm(RmArguments),

    /// End a run: it is told, and ends by itself.
    Cancel(CancelArguments),

    /// Remove runs that have been over for some time, and what killed processes left behind.
    Prune(PruneArguments),

    /// List the questions of all runs that wait for a person.
    Approvals(ApprovalsArguments),

    /// Say yes to a question of a run.
    Approve(ApproveArguments),

    /// Say no to a question of a run.
    Deny(DenyArguments),

    /// Keep secrets for skills and models on this machine.
    Secret(SecretArguments),

    /// See an agent at work, and a hostile one stopped, in a few seconds and without a model.
    Demo(DemoArguments),

    /// Tell how well commands can be isolated on this machine, and what to fix.
    ///
    /// Every mechanism is tried, not looked up: namespaces are made, filters installed and limits applied,
    /// each in a child process or a control group that is gone afterwards.
    ///
    /// The answer names the profile that would be live here (container, gvisor, host-root or host-user),
    /// which guarantees it holds and by what, and for each missing piece the command or setting that
    /// brings it.
    Doctor(DoctorArguments),

    /// Check manifests before they are applied: their form, what they refer to, and whether runs would be allowed.
    ///
    /// Reads YAML and JSON files, directories, skills (directories with `SKILL.md`) and standard input, and reports everything
    /// that is wrong, each with its line. Nothing is sent anywhere; no cluster is needed.
    ///
    /// Objects of other kinds are not checked; they count as there for what refers to them.
    Validate(ValidateArguments),

    /// Tell what a run could touch: tools, permissions, network, secrets, files, limits.
    ///
    /// Reads the same files as `validate`, admits and plans each run as the cluster would, and prints the plan in words.
    /// An agent without a run is explained as the plainest run of it would be. Packs, policies and the floor that an
    /// installation brings need not be among the files. Nothing is sent anywhere; no cluster is needed.
    Explain(ExplainArguments),

    /// Print the Kubernetes objects of a run, in the order in which they are created.
    ///
    /// What the controller would create, for reviews and tests. Secrets are printed empty: the controller fills them.
    Render(RenderArguments),

    /// Make a SkillPack of a directory with `SKILL.md`, or begin such a directory.
    Skill(SkillArguments),

    /// Print the definitions of our kinds, to install them in a cluster.
    Crds(CrdsArguments),

    /// Print the script that completes this command in a shell.
    Completions(CompletionsArguments),

    /// Print what this program is.
    Version(VersionArguments),
}

/// The arguments of `validate`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  Check one file:
    sympozium validate agent.yaml

  Check a directory that holds everything: a reference to what is not in it is an error:
    sympozium validate --strict deploy/

  Check what a chart renders:
    helm template my-agents ./chart | sympozium validate -

  In a script: the lines of what is wrong
    sympozium validate -o json deploy/ | jq -r '.findings[] | \"\\(.file):\\(.line) \\(.message)\"'

Exit codes:
  0  nothing is wrong; there may be warnings
  1  a file could not be read, an object is not what its kind allows, or the command failed
  2  the command line was not understood
  3  there is no error, and the cluster would refuse an object or deny a run by its rules")]
pub struct ValidateArguments {
    /// Files or directories with manifests or skills; `-` is standard input.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// Take the files for everything there is: what they refer to must be among them.
    #[arg(long)]
    pub strict: bool,

    /// A file with the policy that is the cluster's floor.
    ///
    /// Without it, the SympoziumPolicy `floor` of namespace `sympozium-system` is the floor if it is among the files.
    #[arg(long, value_name = "FILE")]
    pub floor: Option<PathBuf>,

    /// The namespace of objects that name none.
    #[arg(short, long, default_value = "default", value_parser = parse_namespace)]
    pub namespace: String,

    /// How to print the findings.
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Text)]
    pub output: OutputFormat,
}

/// The arguments of `explain`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  What could the runs in these files touch?
    sympozium explain agent.yaml run.yaml

  One of several runs:
    sympozium explain deploy/ --run nightly-report

  What could a run of the cluster touch, by the plan that it was started with?
    sympozium explain nightly-report --cluster -n team-a

  And these files, with the agents, packs, policies and the floor of that cluster?
    sympozium explain run.yaml --context staging

  In CI: fail when a change gives a run more power
    git worktree add /tmp/base origin/main
    sympozium explain --diff /tmp/base/deploy deploy

  In a script: the rights from which more rights follow
    sympozium explain -o json deploy/ |
      jq -r '.runs[].kubernetes[].grants[].implies[] | select(.weight == \"moreRights\") | .consequence'

Exit codes:
  0  explained; with --diff: no run may do more
  1  a file could not be read, an object is not what its kind allows, something is missing, or the command failed
  2  the command line was not understood
  3  a run is denied; with --diff: one of NEW
  4  with --diff: a run may do more")]
pub struct ExplainArguments {
    /// Files or directories with manifests or skills (`SKILL.md`); `-` is standard input. In a cluster also the names of runs
    /// that are there: their stored plans are explained.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// Compare two paths, OLD and NEW, power by power.
    #[arg(long)]
    pub diff: bool,

    /// Only the run of this name.
    #[arg(long, value_name = "NAME")]
    pub run: Option<String>,

    /// A file with the policy that is the cluster's floor.
    ///
    /// Without it, the SympoziumPolicy `floor` of namespace `sympozium-system` if it is among the files, and otherwise the
    /// floor that an installation brings.
    #[arg(long, value_name = "FILE")]
    pub floor: Option<PathBuf>,

    /// Where.
    #[command(flatten)]
    pub cluster: ClusterArguments,

    /// How to print the answer.
    #[arg(short, long, value_enum, default_value_t = ExplainFormat::Text)]
    pub output: ExplainFormat,
}

/// The arguments of `render`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  What would be created for this run?
    sympozium render agent.yaml run.yaml

  As for the run that is in the cluster:
    sympozium render deploy/ --run review --uid \"$(kubectl get agentrun review -o jsonpath='{.metadata.uid}')\"

  Only what it is allowed to do:
    sympozium render deploy/ -o json | jq '.items[] | select(.kind | test(\"Role\"))'

Exit codes:
  0  printed
  1  a file could not be read, an object is not what its kind allows, something is missing, or the command failed
  2  the command line was not understood
  3  a run is denied")]
pub struct RenderArguments {
    /// Files or directories with manifests or skills (`SKILL.md`); `-` is standard input.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// Only the run of this name.
    #[arg(long, value_name = "NAME")]
    pub run: Option<String>,

    /// The UID of the run, if it has none in its metadata. With several runs, --run says which.
    #[arg(long, value_parser = crate::planning::parse_uid)]
    pub uid: Option<String>,

    /// A file with the policy that is the cluster's floor.
    #[arg(long, value_name = "FILE")]
    pub floor: Option<PathBuf>,

    /// The namespace of objects that name none.
    #[arg(short, long, default_value = "default", value_parser = parse_namespace)]
    pub namespace: String,

    /// The address and port of the gateway; one at which nothing answers when absent.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub gateway: Option<SocketAddr>,

    /// The port of the gateway that no run may reach, by which a run tries whether NetworkPolicies are enforced; the one
    /// after the gateway's when absent.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub canary: Option<u16>,

    /// An address and port of the API server; may be given several times.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub api_server: Vec<SocketAddr>,

    /// Whose users pods have: `hostUsers` of a pod is true with `always`, and false with `never`.
    #[arg(long, value_enum, default_value_t = HostUsers::Auto)]
    pub host_users: HostUsers,

    /// The version of agent-sandbox that the cluster serves.
    #[arg(long, value_enum, default_value_t = SandboxVersionArgument::V1beta1)]
    pub sandbox_version: SandboxVersionArgument,

    /// How to print them.
    #[arg(short, long, value_enum, default_value_t = ObjectFormat::Yaml)]
    pub output: ObjectFormat,
}

/// The arguments of `crds`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  Install or update the definitions:
    sympozium crds | kubectl apply --server-side -f -

  Look at one:
    sympozium crds AgentRun -o json | jq .spec.names

Exit codes:
  0  printed
  1  the command failed
  2  the command line was not understood")]
pub struct CrdsArguments {
    /// Only these kinds.
    #[arg(value_name = "KIND", value_parser = kind_parser())]
    pub kinds: Vec<String>,

    /// How to print them.
    #[arg(short, long, value_enum, default_value_t = ObjectFormat::Yaml)]
    pub output: ObjectFormat,
}

/// The arguments of `completions`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  bash, for this user:
    sympozium completions bash > ~/.local/share/bash-completion/completions/sympozium

  zsh, in a directory of your fpath:
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
  In a script:
    sympozium version -o json | jq -r .version")]
pub struct VersionArguments {
    /// How to print the answer.
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Text)]
    pub output: OutputFormat,
}

/// Parses the name of a namespace.
pub fn parse_namespace(typed: &str) -> Result<String, &'static str> {
    match NamespaceName::from(typed).check() {
        Ok(()) => Ok(typed.to_owned()),
        Err(_) => Err(
            "it cannot be the name of a namespace\n  hint: use lower-case letters, digits and `-`, at most 63 of them",
        ),
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
  Look at this machine:
    sympozium doctor

  As the user that will run agents, in a cgroup where limits work:
    systemd-run --user --scope -p Delegate=yes sympozium doctor

  In a script: which profile would be live?
    sympozium doctor -o json | jq -r .profile

Exit codes:
  0  the profile that suits this machine can be live and hold its whole default floor
  1  it cannot (what to fix says why), or the command failed
  2  the command line was not understood")]
pub struct DoctorArguments {
    /// How to print the answer.
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Text)]
    pub output: OutputFormat,
}

/// How to print an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// How to print an explanation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExplainFormat {
    /// For people.
    Text,
    /// For programs.
    Json,
    /// For both.
    Yaml,
}

/// Whether pods use the node's users.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum HostUsers {
    /// Left out, because no cluster is asked here: the cluster decides.
    Auto,
    /// The node's users, no user namespace (less isolated).
    Always,
    /// A user namespace of its own (more isolated).
    Never,
}

/// A version of agent-sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SandboxVersionArgument {
    /// Up to 0.5.
    V1alpha1,
    /// From 0.5 on.
    V1beta1,
    /// The cluster has none.
    None,
}

/// How to print objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ObjectFormat {
    /// One document for each.
    Yaml,
    /// One object, or a list of them.
    Json,
}
