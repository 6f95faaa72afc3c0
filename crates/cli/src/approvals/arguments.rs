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
  What waits, for another program:
    sympozium approvals -o json | jq -r '.[] | \"\\(.uid) \\(.question.tool) \\(.question.action)\"'

Exit codes:
  0  listed; there may be none
  1  the command failed
  2  the command line was not understood")]
pub struct ApprovalsArguments {
    /// How to print them.
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Text)]
    pub output: OutputFormat,

    /// Where.
    #[command(flatten)]
    pub cluster: ClusterArguments,
}

/// The arguments of `approve`.
#[derive(Debug, Args)]
#[command(
    override_usage = "sympozium approve [OPTIONS] [RUN] [APPROVAL]...",
    after_long_help = "\
On a terminal, what would be approved is shown, and asked about once more. Elsewhere the exact action must be named with
--action, so that nothing is approved that nobody saw: look at it with `sympozium approvals`.

Examples:
  The one question that a run waits with:
    sympozium approve run-1a2b3c4d

  In a script that has looked at it:
    sympozium approve run-1a2b3c4d --action sha256:…

Exit codes:
  0  approved, or noted where several people must say yes
  1  not approved: there is no such question, the policy of the run does not let you, or the command failed
  2  the command line was not understood"
)]
pub struct ApproveArguments {
    /// The run (name, UID, or beginning of its UID), then questions of it; or questions of any run.
    #[arg(value_name = "RUN|APPROVAL")]
    pub words: Vec<String>,

    /// Every question: of the run, or of all runs.
    #[arg(long)]
    pub all: bool,

    /// The hash of the exact action, as `sympozium approvals` shows it. May be given several times.
    #[arg(long = "action", value_name = "HASH", value_parser = parse_digest)]
    pub actions: Vec<Digest>,

    /// Also each time that the run repeats the identical action, where its policy permits that.
    #[arg(long, alias = "for-run")]
    pub for_the_run: bool,

    /// Why. The model reads it.
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,

    /// On a terminal: show it, and do not ask once more.
    #[arg(short, long)]
    pub yes: bool,

    /// Where.
    #[command(flatten)]
    pub cluster: ClusterArguments,
}

/// The arguments of `deny`.
#[derive(Debug, Args)]
#[command(
    override_usage = "sympozium deny [OPTIONS] [RUN] [APPROVAL]...",
    after_long_help = "\
Examples:
  The one question that a run waits with, and why:
    sympozium deny run-1a2b3c4d --reason \"not on a Friday\"

Exit codes:
  0  denied
  1  there is no such question, or the command failed
  2  the command line was not understood"
)]
pub struct DenyArguments {
    /// The run (name, UID, or beginning of its UID), then questions of it; or questions of any run.
    #[arg(value_name = "RUN|APPROVAL")]
    pub words: Vec<String>,

    /// Every question: of the run, or of all runs.
    #[arg(long)]
    pub all: bool,

    /// The hash of the exact action. May be given several times.
    #[arg(long = "action", value_name = "HASH", value_parser = parse_digest)]
    pub actions: Vec<Digest>,

    /// Why. The model reads it.
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,

    /// Where.
    #[command(flatten)]
    pub cluster: ClusterArguments,
}
