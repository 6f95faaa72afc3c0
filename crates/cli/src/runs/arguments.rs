//! The arguments of the commands about runs.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use sympozium_api::names::Digest;

use super::duration::DurationArgument;
use crate::arguments::OutputFormat;
use crate::cluster::ClusterArguments;

/// The arguments of `runs`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
On this machine, a run is `running` while a process holds its lock. A run whose process was killed is `interrupted`.

Examples:
  Print the names of the runs that wait for approval:
    sympozium runs --all -o json | jq -r '.[] | select(.state == \"waiting for approval\") | .name'

Exit codes:
  0  the runs are listed; there may be none
  1  the command failed
  2  the command line is invalid")]
pub struct RunsArguments {
    /// List every run.
    #[arg(long, conflicts_with = "limit")]
    pub all: bool,

    /// The maximum number of runs, newest first.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,

    /// The output format.
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Text)]
    pub output: OutputFormat,

    /// Selects this machine or a cluster.
    #[command(flatten)]
    pub cluster: ClusterArguments,
}

/// The arguments of `show`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  Print only the answer of a run:
    sympozium show run-1a2b3c4d -o json | jq -r .outcome.answer

Exit codes:
  0  the run is shown
  1  there is no such run, or the command failed
  2  the command line is invalid")]
pub struct ShowArguments {
    /// The run: its name (the newest of several with that name), its UID, or a UID prefix of at least four characters.
    #[arg(value_name = "RUN")]
    pub run: String,

    /// The output format.
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Text)]
    pub output: OutputFormat,

    /// Selects this machine or a cluster.
    #[command(flatten)]
    pub cluster: ClusterArguments,
}

/// The arguments of `logs`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
The transcript is written by the agent: messages of the model, its tool calls and their results. The verified record of
decisions and actions is in the receipts: `sympozium audit RUN`.

Examples:
  Follow a run from another terminal:
    sympozium logs -f run-1a2b3c4d

  Print the log of the bridge:
    sympozium logs run-1a2b3c4d --part bridge

Exit codes:
  0  printed; with -f: the run has ended
  1  there is no such run or part, the process of the followed run was killed, or the command failed
  2  the command line is invalid")]
pub struct LogsArguments {
    /// The run: its name, its UID or a UID prefix.
    #[arg(value_name = "RUN")]
    pub run: String,

    /// Print new lines until the run has ended.
    #[arg(short, long)]
    pub follow: bool,

    /// Print the log of this part instead of the transcript.
    #[arg(long, value_name = "PART", conflicts_with = "output")]
    pub part: Option<String>,

    /// The output format.
    #[arg(short, long, value_enum, default_value_t = LinesFormat::Text)]
    pub output: LinesFormat,

    /// Selects this machine or a cluster.
    #[command(flatten)]
    pub cluster: ClusterArguments,
}

/// The arguments of `audit`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true,
    override_usage = "sympozium audit [-o FORMAT] RUN\n       sympozium audit verify RUN...\n       sympozium audit verify --all\n       sympozium audit verify --file FILE --plan DIGEST [--head HASH] [--count N]",
    after_long_help = "\
Receipts are written by the bridge, not by the agent: one line for each decision and each action, with the hash of the
line before. Use the UID for a run whose name is `verify`.

Examples:
  Print the decisions and actions of a run:
    sympozium audit run-1a2b3c4d

  Verify that no receipt was changed or removed:
    sympozium audit verify run-1a2b3c4d

Exit codes:
  0  printed and verified
  1  a receipt is invalid or missing, there is no such run, or the command failed
  2  the command line is invalid"
)]
pub struct AuditArguments {
    /// The run: its name, its UID or a UID prefix.
    #[arg(value_name = "RUN", required = true)]
    pub run: Option<String>,

    /// The output format.
    #[arg(short, long, value_enum, default_value_t = LinesFormat::Text)]
    pub output: LinesFormat,

    /// The subcommand.
    #[command(subcommand)]
    pub command: Option<AuditCommand>,

    /// Selects this machine or a cluster.
    #[command(flatten)]
    pub cluster: ClusterArguments,
}

/// The subcommands of `audit`.
#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// Verify that no receipt was changed, moved or removed, from the plan to the last hash that the run reported.
    Verify(VerifyArguments),
}

/// The arguments of `audit verify`.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("what").required(true).args(["runs", "all", "file"]),
    after_long_help = "\
Hashes the plan and every receipt, and compares the last hash and the number of receipts with the last report of the run.
A user who can write to all files of a run can forge a consistent set. To detect that, store the head that this command
prints in another place, and pass it with --head.

Examples:
  Verify all stored runs:
    sympozium audit verify --all

  Verify a copy of the receipts with a head from another place:
    sympozium audit verify --file receipts.jsonl --plan sha256:… --head sha256:… --count 42

Exit codes:
  0  all receipts are verified
  1  a receipt is invalid or missing (its line is printed), there is no such run, or the command failed
  2  the command line is invalid"
)]
pub struct VerifyArguments {
    /// Runs: names, UIDs or UID prefixes.
    #[arg(value_name = "RUN")]
    pub runs: Vec<String>,

    /// Every stored run.
    #[arg(long)]
    pub all: bool,

    /// A file with one receipt per line.
    #[arg(long, value_name = "FILE", requires = "plan")]
    pub file: Option<PathBuf>,

    /// The digest of the run's plan, which the first receipt is chained to.
    #[arg(long, value_name = "DIGEST", requires = "file", value_parser = parse_digest)]
    pub plan: Option<Digest>,

    /// The hash of the last receipt. Without it, a truncated end is not detected.
    #[arg(long, value_name = "HASH", requires = "file", value_parser = parse_digest)]
    pub head: Option<Digest>,

    /// The number of receipts.
    #[arg(long, value_name = "N", requires = "file")]
    pub count: Option<u64>,

    /// Selects this machine or a cluster.
    #[command(flatten)]
    pub cluster: ClusterArguments,
}

/// The arguments of `rm`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
The workspace is removed too if the run created it, which it does if `sympozium run` was given none.

Exit codes:
  0  removed
  1  there is no such run, it is still running, or the command failed
  2  the command line is invalid")]
pub struct RmArguments {
    /// Runs: names, UIDs or UID prefixes.
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<String>,

    /// End running runs first.
    #[arg(long)]
    pub force: bool,

    /// Selects this machine or a cluster.
    #[command(flatten)]
    pub cluster: ClusterArguments,
}

/// The arguments of `prune`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Running runs are never removed. What killed processes left behind (temporary files, sockets, control groups) is removed
regardless of age; the records of their runs are kept as long as those of other runs.

Examples:
  Print what would be removed:
    sympozium prune --older-than 30d --dry-run

Exit codes:
  0  removed, or there was nothing to remove
  1  something could not be removed, or the command failed
  2  the command line is invalid")]
pub struct PruneArguments {
    /// Remove runs that ended at least this long ago, such as `12h`, `7d` or `4w`; `0s` removes every ended run.
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = DurationArgument::parse)]
    pub older_than: DurationArgument,

    /// Remove nothing, and print what would be removed.
    #[arg(long)]
    pub dry_run: bool,

    /// The output format.
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Text)]
    pub output: OutputFormat,
}

/// The output format of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LinesFormat {
    /// Human-readable text.
    Text,
    /// JSON Lines: one JSON value per line, for programs.
    Jsonl,
}

/// Parses a digest.
pub fn parse_digest(typed: &str) -> Result<Digest, &'static str> {
    let digest = Digest::from(typed);
    match digest.check() {
        Ok(()) => Ok(digest),
        Err(_) => Err("invalid digest\n  hint: write `sha256:` and 64 hexadecimal digits"),
    }
}
