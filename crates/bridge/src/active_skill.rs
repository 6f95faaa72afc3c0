//! The skill that the agent works on: the one that it loaded last with `load_skill`.
//!
//! Its pack runs commands that name no target, and while it is active only the tools of its `allowedTools` can be called:
//! the agent's own as well as those of sidecars. `load_skill` always can, so that the agent can go on to another skill. This
//! narrows what an honest agent does by mistake or because a text tells it to. It is no boundary against an agent that loads
//! another skill: what the run may do at all is the plan's tool table.

use sympozium_api::run_plan::{SkillPlan, SkillSource, ToolPlan};
use sympozium_ipc::door::{Refusal, RefusalCode};

use crate::calls::refusal;
use crate::permits::LOAD_SKILL;
use crate::session::{Session, lock};

/// Patterns that a refusal lists.
const MAX_LISTED: usize = 16;

impl Session {
    /// The pack of the active skill.
    pub(crate) fn active_pack(&self) -> Option<&str> {
        match &self.active_skill()?.source {
            SkillSource::Pack { pack, .. } => Some(pack),
            SkillSource::ConfigMap { .. } => None,
        }
    }

    fn active_skill(&self) -> Option<&SkillPlan> {
        let index = (*lock(&self.active))?;
        self.plan.skills.get(index)
    }

    /// The agent loads a skill. A name that is not exactly one skill changes nothing: the agent loads nothing by it either.
    pub(crate) fn activate_skill(&self, name: &str) {
        if let Ok(index) = SkillPlan::find(&self.plan.skills, name) {
            *lock(&self.active) = Some(index);
        }
    }

    /// That the active skill allows a tool.
    ///
    /// # Errors
    ///
    /// With what the model is told, where it does not.
    pub(crate) fn is_for_active_skill(&self, tool: &ToolPlan) -> Result<(), Refusal> {
        let Some(skill) = self.active_skill() else {
            return Ok(());
        };
        let Some(allowed) = &skill.allowed_tools else {
            return Ok(());
        };
        if tool.name == LOAD_SKILL || allowed.iter().any(|it| names(it.as_str(), tool)) {
            return Ok(());
        }
        let listed = allowed.iter().take(MAX_LISTED).map(|it| it.as_str());
        let listed = match allowed.is_empty() {
            true => "no tools".to_owned(),
            false => format!("only {}", listed.collect::<Vec<_>>().join(", ")),
        };
        let name = skill.short_name();
        let message = format!(
            "the skill `{name}` allows {listed}; load another skill with `{LOAD_SKILL}` to use `{}`",
            tool.name
        );
        Err(refusal(RefusalCode::Denied, &message))
    }
}

/// Whether a pattern names a tool: `tool`, `pack/tool`, `pack/*` or `*`.
fn names(pattern: &str, tool: &ToolPlan) -> bool {
    match pattern.split_once('/') {
        Some((pack, name)) => tool.pack.as_deref() == Some(pack) && (name == "*" || name == tool.name),
        None => pattern == "*" || pattern == tool.name,
    }
}
