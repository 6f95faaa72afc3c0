//! The arguments of the commands about questions.

use clap::Args;
use sympozium_api::names::Digest;

use crate::arguments::OutputFormat;
use crate::cluster::ClusterArguments;
use crate::runs::arguments::parse_digest;

/// The arguments of `approvals`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  The pending questions, one line each:
    sympozium approvals -o json | jq -r '.[] | \"\\(.uid) \\(.question.tool) \\(.question.action)\"'

Exit codes:
  0  the pending questions are listed; there may be none
  1  the command failed
  2  the command line is invalid")]
pub struct ApprovalsArguments {
    /// The output format.
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Text)]
    pub output: OutputFormat,

    /// Selects this machine or a cluster.
    #[command(flatten)]
    pub cluster: ClusterArguments,
}

/// The arguments of `approve`.
#[derive(Debug, Args)]
#[command(
    override_usage = "sympozium approve [OPTIONS] [RUN] [APPROVAL]...",
    after_long_help = "\
On a terminal, each action is printed and must be confirmed. Without a terminal, name the exact action with --action;
`sympozium approvals` prints actions and their hashes.

Examples:
  Approve the only pending question of a run:
    sympozium approve run-1a2b3c4d

  Approve one exact action, in a script:
    sympozium approve run-1a2b3c4d --action sha256:…

Exit codes:
  0  approved; or recorded, if more approvals are required
  1  not approved: there is no such question, the policy of the run forbids your vote, or the command failed
  2  the command line is invalid"
)]
pub struct ApproveArguments {
    /// A run (name, UID or UID prefix), optionally followed by questions of it; or questions of any run.
    #[arg(value_name = "RUN|APPROVAL")]
    pub words: Vec<String>,

    /// Every pending question of the run, or of all runs if no run is named.
    #[arg(long)]
    pub all: bool,

    /// The hash of an exact action, as `sympozium approvals` prints it. May be given several times.
    #[arg(long = "action", value_name = "HASH", value_parser = parse_digest)]
    pub actions: Vec<Digest>,

    /// Approve every repetition of the identical action in this run, if its policy permits that.
    #[arg(long, alias = "for-run")]
    pub for_the_run: bool,

    /// The reason for the decision, which the model reads.
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,

    /// On a terminal: print the action, but do not ask for confirmation.
    #[arg(short, long)]
    pub yes: bool,

    /// Selects this machine or a cluster.
    #[command(flatten)]
    pub cluster: ClusterArguments,
}

/// The arguments of `deny`.
#[derive(Debug, Args)]
#[command(
    override_usage = "sympozium deny [OPTIONS] [RUN] [APPROVAL]...",
    after_long_help = "\
Examples:
  Deny the only pending question of a run, with a reason:
    sympozium deny run-1a2b3c4d --reason \"not on a Friday\"

Exit codes:
  0  denied
  1  there is no such question, or the command failed
  2  the command line is invalid"
)]
pub struct DenyArguments {
    /// A run (name, UID or UID prefix), optionally followed by questions of it; or questions of any run.
    #[arg(value_name = "RUN|APPROVAL")]
    pub words: Vec<String>,

    /// Every pending question of the run, or of all runs if no run is named.
    #[arg(long)]
    pub all: bool,

    /// The hash of an exact action. May be given several times.
    #[arg(long = "action", value_name = "HASH", value_parser = parse_digest)]
    pub actions: Vec<Digest>,

    /// The reason for the decision, which the model reads.
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,

    /// Selects this machine or a cluster.
    #[command(flatten)]
    pub cluster: ClusterArguments,
}
