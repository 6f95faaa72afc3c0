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
A run is `running` while a process holds its lock, whatever was written about it. One that was killed is
`interrupted`.

Examples:
  The runs that wait for a person:
    sympozium runs --all -o json | jq -r '.[] | select(.state == \"waiting for approval\") | .name'

Exit codes:
  0  listed; there may be none
  1  the command failed
  2  the command line was not understood")]
pub struct RunsArguments {
    /// Every run, however many there are.
    #[arg(long, conflicts_with = "limit")]
    pub all: bool,

    /// The newest so many.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,

    /// How to print them.
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Text)]
    pub output: OutputFormat,

    /// Where.
    #[command(flatten)]
    pub cluster: ClusterArguments,
}

/// The arguments of `show`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  The answer of a run, for another program:
    sympozium show run-1a2b3c4d -o json | jq -r .outcome.answer

Exit codes:
  0  shown
  1  there is no such run, or the command failed
  2  the command line was not understood")]
pub struct ShowArguments {
    /// Its name, its UID, or the first four characters or more of its UID. Of several of one name, the newest.
    #[arg(value_name = "RUN")]
    pub run: String,

    /// How to print it.
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Text)]
    pub output: OutputFormat,

    /// Where.
    #[command(flatten)]
    pub cluster: ClusterArguments,
}

/// The arguments of `logs`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
What is printed is the word of the agent: what the model said, which tools it called, what it was told. What was
really decided and done is in the receipts: `sympozium audit RUN`.

Examples:
  Follow a run from another terminal:
    sympozium logs -f run-1a2b3c4d

  What the bridge logged:
    sympozium logs run-1a2b3c4d --part bridge

Exit codes:
  0  printed; with -f: the run is over
  1  there is no such run or part, the run that was followed died, or the command failed
  2  the command line was not understood")]
pub struct LogsArguments {
    /// Its name, its UID, or the beginning of its UID.
    #[arg(value_name = "RUN")]
    pub run: String,

    /// Go on while the run does.
    #[arg(short, long)]
    pub follow: bool,

    /// What this part logged, instead of what was said.
    #[arg(long, value_name = "PART", conflicts_with = "output")]
    pub part: Option<String>,

    /// How to print it.
    #[arg(short, long, value_enum, default_value_t = LinesFormat::Text)]
    pub output: LinesFormat,

    /// Where.
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
Receipts are written by the bridge, not by the agent: one line for each decision and each action, each with the hash of
the line before. A run that is called `verify` is named by its UID.

Examples:
  What was decided and done:
    sympozium audit run-1a2b3c4d

  That nothing of it was changed or left out:
    sympozium audit verify run-1a2b3c4d

Exit codes:
  0  printed, and every line follows from the one before
  1  a line is wrong or missing, there is no such run, or the command failed
  2  the command line was not understood"
)]
pub struct AuditArguments {
    /// Its name, its UID, or the beginning of its UID.
    #[arg(value_name = "RUN", required = true)]
    pub run: Option<String>,

    /// How to print them.
    #[arg(short, long, value_enum, default_value_t = LinesFormat::Text)]
    pub output: LinesFormat,

    /// What else can be done.
    #[command(subcommand)]
    pub command: Option<AuditCommand>,

    /// Where.
    #[command(flatten)]
    pub cluster: ClusterArguments,
}

/// What else can be done with receipts.
#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// Verify that no receipt was changed, moved or left out, from the plan to the last hash that the run reported.
    Verify(VerifyArguments),
}

/// The arguments of `audit verify`.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("what").required(true).args(["runs", "all", "file"]),
    after_long_help = "\
Nothing is asked of anybody: the plan is hashed, every line is, and the last hash and the number of lines are compared with
those that the run reported. Whoever may write to all files of a run can make others that fit together: to be safe from
that, keep the head that this prints elsewhere, and give it with --head.

Examples:
  Everything that is kept:
    sympozium audit verify --all

  Receipts that were copied, against a head that was kept elsewhere:
    sympozium audit verify --file receipts.jsonl --plan sha256:… --head sha256:… --count 42

Exit codes:
  0  all of it holds
  1  a line is wrong or missing (which one is said), there is no such run, or the command failed
  2  the command line was not understood"
)]
pub struct VerifyArguments {
    /// Runs: names, UIDs, or beginnings of UIDs.
    #[arg(value_name = "RUN")]
    pub runs: Vec<String>,

    /// Every run that is kept.
    #[arg(long)]
    pub all: bool,

    /// A file with receipts, one on each line.
    #[arg(long, value_name = "FILE", requires = "plan")]
    pub file: Option<PathBuf>,

    /// The digest of the plan, from which the first receipt follows.
    #[arg(long, value_name = "DIGEST", requires = "file", value_parser = parse_digest)]
    pub plan: Option<Digest>,

    /// The hash of the last receipt. Without it, an end that was cut off does not show.
    #[arg(long, value_name = "HASH", requires = "file", value_parser = parse_digest)]
    pub head: Option<Digest>,

    /// How many receipts there are.
    #[arg(long, value_name = "N", requires = "file")]
    pub count: Option<u64>,

    /// Where.
    #[command(flatten)]
    pub cluster: ClusterArguments,
}

/// The arguments of `rm`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
The workspace goes too where the run made it, which is where none was given to `sympozium run`.

Exit codes:
  0  removed
  1  there is no such run, it goes on, or the command failed
  2  the command line was not understood")]
pub struct RmArguments {
    /// Runs: names, UIDs, or beginnings of UIDs.
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<String>,

    /// End runs that go on first.
    #[arg(long)]
    pub force: bool,

    /// Where.
    #[command(flatten)]
    pub cluster: ClusterArguments,
}

/// The arguments of `prune`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Runs that go on are never touched. What killed processes left (files that are only needed while a run lasts, sockets,
control groups) is removed however old it is; their records are kept as long as others.

Examples:
  See what would go:
    sympozium prune --older-than 30d --dry-run

Exit codes:
  0  removed, or nothing was to be removed
  1  something could not be removed, or the command failed
  2  the command line was not understood")]
pub struct PruneArguments {
    /// How long a run must have been over, such as `12h`, `7d` or `4w`; `0s` is every one.
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = DurationArgument::parse)]
    pub older_than: DurationArgument,

    /// Remove nothing, and say what would be.
    #[arg(long)]
    pub dry_run: bool,

    /// How to print what was removed.
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Text)]
    pub output: OutputFormat,
}

/// How to print lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LinesFormat {
    /// For people.
    Text,
    /// For programs: a JSON value on each line.
    Jsonl,
}

/// Parses a digest.
pub fn parse_digest(typed: &str) -> Result<Digest, &'static str> {
    let digest = Digest::from(typed);
    match digest.check() {
        Ok(()) => Ok(digest),
        Err(_) => Err("it is not `sha256:` and 64 hexadecimal digits"),
    }
}
