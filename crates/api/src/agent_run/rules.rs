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
const IMMUTABLE: &str =
    "a run cannot be changed, only cancelled (`cancel: true`): create a new one";

/// Each rule, and what a user is told.
///
/// The rules cannot see into `task`, nor into volumes beyond their names, because the schema leaves these open: there the
/// admission webhook holds that nothing changes.
pub const SPEC: &[(&str, &str)] = &[
    (
        "has(self.agentRef) || has(self.instanceRef)",
        "a run needs an agent: set `agentRef` (or `instanceRef`)",
    ),
    (
        "!has(self.agentRef) || !has(self.instanceRef) || self.agentRef == self.instanceRef",
        "`agentRef` and `instanceRef` name the same agent: set one, or both to the same name",
    ),
    (
        "self.cancel || !oldSelf.cancel",
        "a cancelled run stays cancelled: create a new one",
    ),
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
