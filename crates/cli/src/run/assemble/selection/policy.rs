//! Selects the policy that the flags mean.
//!
//! The name of a shipped policy means the shipped one, whatever the files have under that name; a file means the policy
//! in it, whatever its name.

use anyhow::anyhow;
use serde_json::json;
use sympozium_api::SympoziumPolicy;
use sympozium_api::labels::SYSTEM_NAMESPACE;
use sympozium_api::text::{printable, quote};
use sympozium_manifests::built_in;
use sympozium_manifests::kinds::Kind;
use sympozium_manifests::validate::{Object, Session};

use super::{Assembler, DEFAULT_POLICY, RunSource, not_found};
use crate::failure::Failure;
use crate::run::arguments::PolicyChoice;

#[derive(Debug, Default)]
pub struct ChosenPolicy {
    /// `None` if the flags name none.
    pub name: Option<String>,
    pub warnings: Vec<String>,
}

impl Assembler<'_> {
    /// Keeps the one policy of the file that `--policy` names, and removes its other objects.
    pub(super) fn keep_policy_of_file(&self, session: &mut Session<'_>) -> Result<(), Failure> {
        let Some(PolicyChoice::InFile(path)) = &self.arguments.policy else {
            return Ok(());
        };
        let first = self.policy_file_start;
        let added = session.objects().iter().enumerate().skip(first);
        let policies: Vec<usize> =
            added.filter(|(_, it)| it.is_kind(Kind::SympoziumPolicy)).map(|(index, _)| index).collect();
        let [index] = policies.as_slice() else {
            let how_many = match policies.len() {
                0 => "no SympoziumPolicy",
                _ => "more than one SympoziumPolicy",
            };
            let path = printable(path.display().to_string());
            return Err(Failure::usage(
                anyhow!("there is {how_many} in {path}, which --policy names"),
                "give --policy a file with the one policy that is meant, or the name of one that is shipped",
            ));
        };
        if let Some(policy) = session.object_mut(*index) {
            policy.is_explicit = true;
        }
        let mut place = 0;
        session.retain(|object| {
            let is_beside = place >= first && !object.is_explicit;
            place += 1;
            !is_beside
        });
        Ok(())
    }

    /// Selects the policy that the flags mean. Removes other policies of its name, which changes the indices of
    /// objects.
    pub(super) fn choose_policy(
        &self,
        session: &mut Session<'_>,
        place: RunSource,
        namespace: &str,
    ) -> Result<ChosenPolicy, Failure> {
        match &self.arguments.policy {
            // An agent that is built from flags has the default policy.
            None if place == RunSource::FlagsOnly => {
                Ok(ChosenPolicy { name: None, warnings: keep_shipped(session, DEFAULT_POLICY, namespace) })
            }
            None => Ok(ChosenPolicy::default()),
            Some(PolicyChoice::Named(name)) => {
                check_policy_exists(session.objects(), name, namespace)?;
                Ok(ChosenPolicy { name: Some(name.clone()), warnings: keep_shipped(session, name, namespace) })
            }
            Some(PolicyChoice::InFile(_)) => {
                Ok(ChosenPolicy { name: keep_chosen(session, namespace), warnings: Vec::new() })
            }
        }
    }
}

/// Checks that a policy of this name exists.
fn check_policy_exists(objects: &[Object], name: &str, namespace: &str) -> Result<(), Failure> {
    let of_files = objects.iter().filter(|it| it.is_kind(Kind::SympoziumPolicy));
    let of_files = of_files.filter(|it| [namespace, SYSTEM_NAMESPACE].contains(&it.name.namespace.as_str()));
    let built_in = built_in::POLICIES.iter().map(|(name, _)| *name);
    let known: Vec<&str> = of_files.map(|it| it.name.name.as_str()).chain(built_in).collect();
    match known.contains(&name) {
        true => Ok(()),
        false => Err(not_found("policy", name, &known)),
    }
}

/// Removes policies with the name of a shipped one that differ from it. Returns a warning if there were any.
fn keep_shipped(session: &mut Session<'_>, name: &str, namespace: &str) -> Vec<String> {
    let Some(shipped) = built_in::policy(name) else {
        return Vec::new();
    };
    let floor = session.floor_file();
    let mut left_out = 0;
    session.retain(|object| {
        let is_namesake = matches_policy(object, name, namespace) && Some(object.file) != floor;
        let is_other = is_namesake && {
            let read = serde_json::from_value::<SympoziumPolicy>(object.node.to_json());
            read.map_or(true, |it| it.spec != shipped.spec)
        };
        left_out += usize::from(is_other);
        !is_other
    });
    match left_out {
        0 => Vec::new(),
        _ => vec![format!(
            "policy {} is the one that is shipped; the one of that name among the files does not count: name its file with --policy ./FILE.yaml if you mean it",
            quote(name)
        )],
    }
}

/// Moves the policy that was chosen by its file into the run's namespace, and removes all others of its name.
fn keep_chosen(session: &mut Session<'_>, namespace: &str) -> Option<String> {
    let index = session.objects().iter().position(|it| it.is_explicit)?;
    let policy = session.object_mut(index)?;
    namespace.clone_into(&mut policy.name.namespace);
    policy.node.set(&["metadata", "namespace"], json!(namespace));
    let name = policy.name.name.clone();
    let floor = session.floor_file();
    session.retain(|object| {
        let is_namesake = matches_policy(object, &name, namespace) && Some(object.file) != floor;
        object.is_explicit || !is_namesake
    });
    Some(name)
}

/// Whether it is a policy of this name that an agent of the namespace could refer to.
fn matches_policy(object: &Object, name: &str, namespace: &str) -> bool {
    object.is_kind(Kind::SympoziumPolicy)
        && object.name.name == name
        && [namespace, SYSTEM_NAMESPACE].contains(&object.name.namespace.as_str())
}
