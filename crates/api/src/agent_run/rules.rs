//! The CEL rules of a run's spec.

/// True while none of these fields is added, removed or changed.
macro_rules! unchanged {
    ($($field:ident),+ $(,)?) => {
        concat!(
            $(
                "has(self.", stringify!($field), ") == has(oldSelf.", stringify!($field), ") && ",
                "(!has(self.", stringify!($field), ") || self.", stringify!($field), " == oldSelf.", stringify!($field), ") && ",
            )+
            "true"
        )
    };
}

/// The message for a user who changes a run.
const IMMUTABLE: &str = "a run cannot be changed, only cancelled (`cancel: true`): create a new one";

/// Each rule, with its message for users.
///
/// The rules cannot read `task`, or volumes beyond their names, because the schema leaves these open: there the
/// admission webhook ensures that nothing changes.
pub const SPEC_RULES: &[(&str, &str)] = &[
    ("has(self.agentRef) || has(self.instanceRef)", "a run needs an agent: set `agentRef` (or `instanceRef`)"),
    (
        "!has(self.agentRef) || !has(self.instanceRef) || self.agentRef == self.instanceRef",
        "`agentRef` and `instanceRef` name the same agent: set one, or both to the same name",
    ),
    ("self.cancel || !oldSelf.cancel", "a cancelled run stays cancelled: create a new one"),
    (
        unchanged!(
            agentRef,
            instanceRef,
            agentId,
            sessionKey,
            systemPrompt,
            model,
            parent,
            skills,
            toolPolicy,
            sandbox,
            agentSandbox,
            timeout,
            cleanup,
            mode,
            useContext,
            dryRun,
            canaryMode,
            env,
            lifecycle,
            imagePullSecrets,
            volumes,
            volumeMounts,
        ),
        IMMUTABLE,
    ),
];

/// True while a field of the status, once it is set, does not change. A rule of the whole object: a rule of the status
/// would not be evaluated when the status is removed.
macro_rules! set_once {
    ($field:ident) => {
        concat!(
            "!has(oldSelf.status) || !has(oldSelf.status.",
            stringify!($field),
            ") || (",
            "has(self.status) && has(self.status.",
            stringify!($field),
            ") && ",
            "self.status.",
            stringify!($field),
            " == oldSelf.status.",
            stringify!($field),
            ")"
        )
    };
}

/// A run is planned only once.
pub const PLAN_IS_FINAL: &str = set_once!(planDigest);
/// The first pod belongs to the run; another one would not.
pub const POD_IS_FINAL: &str = set_once!(podUID);
/// A terminal phase is final.
pub const TERMINAL_IS_FINAL: &str = "!has(oldSelf.status) || !has(oldSelf.status.phase) || \
    !(oldSelf.status.phase in ['Succeeded', 'Failed', 'Skipped', 'Cancelled']) || (\
    has(self.status) && has(self.status.phase) && self.status.phase == oldSelf.status.phase)";
