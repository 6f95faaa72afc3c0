//! What a backend must do to be tried.

use sympozium_api::guarantee::Guarantee;

use crate::case::Case;
use crate::observed::Observed;

/// Realises a case and says what was seen of it.
pub trait Backend: Sync {
    /// Its name, as cases write it.
    fn name(&self) -> &str;

    /// What it promises to enforce around each command of a skill, if a case does not say otherwise.
    fn guarantees(&self) -> &[Guarantee];

    /// Realises the case to its end: starts it, gives its decisions, does what is to be done meanwhile, collects what is records,
    /// and looks for what is left over.
    ///
    /// # Errors
    ///
    /// When the case could not be tried, or what came of it cannot be read.
    fn realise(&self, case: &Case) -> anyhow::Result<Observed>;
}
