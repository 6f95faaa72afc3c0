//! Refuses flags that have no meaning in a cluster, with what to do instead.

use anyhow::anyhow;

use super::skills;
use crate::failure::Failure;
use crate::run::arguments::RunArguments;

pub fn check_for_cluster(arguments: &RunArguments) -> Result<(), Failure> {
    let key_hint = "put the key into a Secret of the namespace, and name it in `authRefs` of the agent";
    let has_directory = arguments.skills.iter().any(|it| it.contains('/') && skills::directory(it).is_some());
    let refused = [
        (arguments.key_file.is_some(), "--key-file", "the model's key is a Secret in the cluster", key_hint),
        (arguments.key_command.is_some(), "--key-command", "no command of this machine runs there", key_hint),
        (
            arguments.floor.is_some(),
            "--floor",
            "the floor is the cluster's own",
            "`sympozium explain --floor` shows what another floor would permit",
        ),
        (
            arguments.policy.is_some(),
            "--policy",
            "the policy is that of the agent in the cluster",
            "set `policyRef` of the agent",
        ),
        (
            arguments.workspace.is_some(),
            "--workspace",
            "a directory of this machine is not there",
            "give the run a volume in its manifest",
        ),
        (
            has_directory,
            "--skill with a directory",
            "a directory of this machine is no image and no pack there",
            "make a pack of it with `sympozium skill import`, apply that, and name the pack",
        ),
    ];
    match refused.into_iter().find(|(is_given, ..)| *is_given) {
        None => Ok(()),
        Some((_, flag, why, hint)) => Err(Failure::usage(anyhow!("{flag} has no meaning in a cluster: {why}"), hint)),
    }
}
