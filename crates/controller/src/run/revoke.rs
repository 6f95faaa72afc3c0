//! The first step of the end of a run: revokes its access to the Kubernetes API.

use futures::future::join_all;
use sympozium_api::agent_run::{GrantRecord, GrantRole};

use super::error::Error;
use super::objects;
use super::stored::StoredRun;
use crate::context::Context;

/// Whose grants are revoked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RevocationScope {
    All,
    /// Those of skills; hooks keep theirs.
    Skills,
}

/// Deletes the bindings of a run, which takes effect at once, and then its tokens.
pub async fn revoke_grants(run: &StoredRun, scope: RevocationScope, context: &Context) -> Result<(), Error> {
    let in_scope = |record: &&GrantRecord| scope == RevocationScope::All || record.skill.is_some();
    let mut outcome = Ok(());
    for role in [GrantRole::Binding, GrantRole::Token] {
        let records = run.grants().iter().filter(in_scope).filter(|record| record.role() == role);
        // Concurrently: a deletion that fails or takes long must not delay the others.
        let deletions = join_all(records.map(|record| objects::delete(context, record, run))).await;
        outcome = deletions.into_iter().fold(outcome, Result::and);
    }
    outcome
}
