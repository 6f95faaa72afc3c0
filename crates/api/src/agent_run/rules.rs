//! The rules of a run's spec, in CEL.

/// Holds while none of these fields is added, removed or changed.
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

/// What a user is told who changes a run.
const IMMUTABLE: &str = "a run cannot be changed, only cancelled (`cancel: true`): create a new one";

/// Each rule, and what a user is told.
///
/// The rules cannot see into `task`, nor into volumes beyond their names, because the schema leaves these open: there the
/// admission webhook holds that nothing changes.
pub const SPEC: &[(&str, &str)] = &[
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

/// Holds while a field of the status, once it is there, stays as it is. A rule of the whole object: one of the status alone
/// would not be asked when somebody removes the status.
macro_rules! once {
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

/// Nobody plans a run twice.
pub const ONE_PLAN: &str = once!(planDigest);
/// The first pod is the run's; another would be somebody else's.
pub const ONE_POD: &str = once!(podUID);
/// What is over cannot begin again.
pub const OVER_IS_OVER: &str = "!has(oldSelf.status) || !has(oldSelf.status.phase) || \
    !(oldSelf.status.phase in ['Succeeded', 'Failed', 'Skipped', 'Cancelled']) || (\
    has(self.status) && has(self.status.phase) && self.status.phase == oldSelf.status.phase)";
