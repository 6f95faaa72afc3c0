//! What can be typed.

use clap::{Args, Parser, Subcommand, ValueEnum};

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
    /// Tell how well commands can be isolated on this machine, and what to fix.
    ///
    /// Every mechanism is tried, not looked up: namespaces are made, filters installed and limits applied,
    /// each in a child process or a control group that is gone afterwards.
    ///
    /// The answer names the profile that would be live here (container, gvisor, host-root or host-user),
    /// which guarantees it holds and by what, and for each missing piece the command or setting that
    /// brings it.
    Doctor(DoctorArguments),
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
