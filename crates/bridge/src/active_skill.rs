//! The active skill: the one that the agent loaded last with `load_skill`.
//!
//! Its pack runs commands that name no target. While it is active, only the tools in its `allowedTools` can be called,
//! both the agent's own and those of sidecars. `load_skill` is always allowed, so that the agent can switch to another
//! skill. This limits what an honest agent does by mistake or because a text tells it to. It is not a boundary against
//! an agent that loads another skill: the limit of the run is the plan's tool table.

use sympozium_api::builtin_tool::LOAD_SKILL;
use sympozium_api::run_plan::{SkillPlan, SkillSource, ToolPlan};
use sympozium_ipc::door::{Refusal, RefusalCode};

use crate::calls::refusal;
use crate::session::Session;

/// Maximum number of patterns that a refusal lists.
const MAX_LISTED: usize = 16;

impl Session {
    pub(crate) fn active_pack(&self) -> Option<&str> {
        match &self.active_skill()?.source {
            SkillSource::Pack { pack, .. } => Some(pack),
            SkillSource::ConfigMap { .. } => None,
        }
    }

    fn active_skill(&self) -> Option<&SkillPlan> {
        let index = (*self.active_skill_index.lock())?;
        self.plan.skills.get(index)
    }

    /// Makes a skill active when the agent loads it. A name that does not match exactly one skill changes nothing,
    /// because the agent loads nothing by it either.
    pub(crate) fn activate_skill(&self, name: &str) {
        if let Ok(index) = SkillPlan::find(&self.plan.skills, name) {
            *self.active_skill_index.lock() = Some(index);
        }
    }

    /// Checks that the active skill allows a tool.
    ///
    /// # Errors
    ///
    /// Returns the refusal for the model if it does not.
    pub(crate) fn check_active_skill(&self, tool: &ToolPlan) -> Result<(), Refusal> {
        let Some(skill) = self.active_skill() else {
            return Ok(());
        };
        let Some(allowed) = &skill.allowed_tools else {
            return Ok(());
        };
        if tool.name == LOAD_SKILL || allowed.iter().any(|pattern| matches(pattern.as_str(), tool)) {
            return Ok(());
        }
        let listed = allowed.iter().take(MAX_LISTED).map(|pattern| pattern.as_str());
        let listed = if allowed.is_empty() {
            "no tools".to_owned()
        } else {
            format!("only {}", listed.collect::<Vec<_>>().join(", "))
        };
        let name = skill.short_name();
        let message = format!(
            "the skill `{name}` allows {listed}; load another skill with `{LOAD_SKILL}` to use `{}`",
            tool.name
        );
        Err(refusal(RefusalCode::Denied, &message))
    }
}

/// Whether a pattern matches a tool: `tool`, `pack/tool`, `pack/*` or `*`.
fn matches(pattern: &str, tool: &ToolPlan) -> bool {
    match pattern.split_once('/') {
        Some((pack, name)) => tool.pack.as_deref() == Some(pack) && (name == "*" || name == tool.name),
        None => pattern == "*" || pattern == tool.name,
    }
}
