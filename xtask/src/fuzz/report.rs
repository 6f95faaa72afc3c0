//! What a person sees of a search.

use super::corpus::Minimised;
use super::engine::{Outcome, Verdict};
use super::targets::Target;
use crate::output;
use crate::process::workspace_root;

pub struct Report {
    pub target: &'static Target,
    pub outcome: Outcome,
    pub minimised: Minimised,
}

impl Report {
    /// One line as soon as the target is done.
    pub fn progress(&self) -> String {
        let statistics = &self.outcome.statistics;
        format!(
            "{}: {} after {} s and {} executions, {} edges covered",
            self.target.name,
            self.result(),
            self.outcome.seconds,
            statistics.executions,
            statistics.end.edges
        )
    }

    fn result(&self) -> &'static str {
        match self.outcome.verdict {
            Verdict::Nothing => "nothing found",
            Verdict::Found(_) => "FOUND",
            Verdict::Stalled => "STALLED",
            Verdict::Broken(_) => "BROKEN",
        }
    }

    /// The next command to try when something was found.
    pub fn how_to_reproduce(&self) -> String {
        let name = self.target.name;
        let relative = |path: &std::path::PathBuf| {
            let path = path.strip_prefix(workspace_root()).unwrap_or(path);
            path.display().to_string()
        };
        match &self.outcome.verdict {
            Verdict::Nothing => format!("{name}: nothing found"),
            Verdict::Found(input) => {
                format!("{name}: reproduce with `make fuzz TARGET={name} INPUT={}`", relative(input))
            }
            Verdict::Stalled => format!("{name}: the machine was at a stand and the search ended early; fuzz it again"),
            Verdict::Broken(log) => format!("{name}: it ended early; see {}", relative(log)),
        }
    }

    fn row(&self) -> [String; 8] {
        let Minimised { before, after, checked_in } = self.minimised;
        let statistics = &self.outcome.statistics;
        let (start, end) = (statistics.start, statistics.end);
        [
            self.target.name.to_owned(),
            self.target.source.name().to_owned(),
            self.outcome.seconds.to_string(),
            statistics.executions.to_string(),
            format!("{} -> {}", start.edges, end.edges),
            format!("{} -> {}", start.features, end.features),
            format!("{before} -> {after} ({checked_in} checked in)"),
            self.result().to_owned(),
        ]
    }
}

/// All of them, with the sums of what can be added up.
pub fn table(reports: &[Report]) -> String {
    let head = ["target", "from", "seconds", "executions", "cov", "ft", "corpus", "result"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(reports.iter().map(|report| report.row().to_vec()));
    output::table(&rows)
}
