//! What a user decides for a whole run.

/// What becomes of questions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ApprovalMode {
    /// A person is asked: at this terminal, or from another by `sympozium approve`.
    Ask,
    /// Each is answered yes in the name of the user who started the run, if the policy permits that.
    All,
    /// Each is answered no.
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
