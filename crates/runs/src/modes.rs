//! Choices of a user for a whole run.

/// How questions are decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ApprovalMode {
    /// Ask the user, at this terminal or with `sympozium approve`.
    Ask,
    /// Approve every question as the user who starts the run, if the policy permits that.
    All,
    /// Deny every question.
    None,
}

/// Whether and how a run is to end. Levels only increase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StopLevel {
    None,
    /// The agent is asked to end, and gets its grace period.
    Gently,
    /// Everything is killed.
    Now,
}
