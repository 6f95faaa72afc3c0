//! The runs of a namespace of a cluster, as every program sees runs.

use sympozium_runs::{
    Cancellation, HintedError, Listed, LogError, LogRequest, LogSink, PendingQuestion, Removal, RunDetails, RunRef,
    RunStore, RunView, StoredReceipts, TargetFlags, VoteChoice, VoteResult, display_name,
};

use super::{Cluster, approvals, audit, logs, remove, show, view};

impl RunStore for Cluster {
    fn target(&self) -> TargetFlags {
        self.connection.target.clone()
    }

    fn list(&self, limit: Option<usize>) -> Result<Listed<RunView>, HintedError> {
        show::list_views(self, limit)
    }

    fn find(&self, run: &str) -> Result<RunRef, HintedError> {
        let found = Self::find(self, run)?;
        Ok(RunRef { is_running: view::run_end(&found.run).is_none(), name: found.name, uid: found.uid })
    }

    fn show(&self, run: &str) -> Result<RunDetails, HintedError> {
        show::show_run(self, run)
    }

    fn read_log(&self, run: &str, request: LogRequest<'_>, sink: &mut dyn LogSink) -> Result<(), LogError> {
        logs::read(self, run, request, sink)
    }

    fn receipts(&self, run: &str) -> Result<Box<dyn StoredReceipts>, HintedError> {
        Ok(Box::new(audit::read_receipts(self, run)?))
    }

    fn runs_with_receipts(&self) -> Result<Vec<String>, HintedError> {
        audit::reported_runs(self)
    }

    /// Asks the controller.
    fn cancel(&self, run: &str) -> Result<Cancellation, HintedError> {
        let found = Self::find(self, run)?;
        let name = display_name(&found.name, &found.uid);
        if let Some(end) = view::run_end(&found.run) {
            return Ok(Cancellation::AlreadyEnded { name, end: end.as_str() });
        }
        self.block_on(approvals::patch_cancel(&self.connection, &found))?;
        Ok(Cancellation::Requested { name })
    }

    /// The controller ends a running run before it is deleted; without `force` the caller has checked that it has ended.
    fn remove(&self, run: &RunRef, _force: bool) -> Result<Removal, HintedError> {
        self.block_on(remove::delete_and_wait(&self.connection, run))
    }

    fn questions(&self) -> Result<Listed<PendingQuestion>, HintedError> {
        let items = approvals::list_questions(self)?;
        Ok(Listed { items, omitted: 0, warnings: Vec::new() })
    }

    fn vote(&self, question: &PendingQuestion, vote: VoteChoice, reason: Option<&str>) -> anyhow::Result<VoteResult> {
        approvals::cast_vote_blocking(self, question, vote, reason)
    }
}
