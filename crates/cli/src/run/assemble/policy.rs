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
use sympozium_manifests::validate::Object;

use super::source::{RunSource, not_found};
use super::{Assembler, DEFAULT_POLICY};
use crate::failure::Failure;
use crate::run::arguments::PolicyChoice;

impl Assembler<'_> {
    /// Keeps the one policy of the file that `--policy` names, and removes its other objects: all from `first` on are
    /// of that file.
    pub(super) fn keep_policy_of_file(&mut self, first: usize) -> Result<(), Failure> {
        let Some(PolicyChoice::InFile(path)) = &self.arguments.policy else {
            return Ok(());
        };
        let added = self.session.objects().iter().enumerate().skip(first);
        let policies: Vec<usize> =
            added.filter(|(_, it)| it.is_kind(Kind::SympoziumPolicy)).map(|(index, _)| index).collect();
        let [index] = policies.as_slice() else {
            let count = match policies.len() {
                0 => "no SympoziumPolicy",
                _ => "more than one SympoziumPolicy",
            };
            let path = printable(path.display().to_string());
            return Err(Failure::usage(
                anyhow!("there is {count} in {path}, which --policy names"),
                "give --policy a file with the one policy that is meant, or the name of one that is shipped",
            ));
        };
        if let Some(policy) = self.session.object_mut(*index) {
            policy.is_explicit = true;
        }
        let mut index = 0;
        self.session.retain(|object| {
            let is_retained = index < first || object.is_explicit;
            index += 1;
            is_retained
        });
        Ok(())
    }

    /// Selects the policy that the flags mean, and returns its name; `None` if they name none. Removes other policies of
    /// its name, which changes the indices of objects.
    pub(super) fn choose_policy(&mut self, source: RunSource, namespace: &str) -> Result<Option<String>, Failure> {
        let arguments = self.arguments;
        match &arguments.policy {
            // An agent that is built from flags has the default policy.
            None if source == RunSource::FlagsOnly => {
                self.keep_shipped(DEFAULT_POLICY, namespace);
                Ok(None)
            }
            None => Ok(None),
            Some(PolicyChoice::Named(name)) => {
                check_exists(self.session.objects(), name, namespace)?;
                self.keep_shipped(name, namespace);
                Ok(Some(name.clone()))
            }
            Some(PolicyChoice::InFile(_)) => Ok(self.keep_explicit(namespace)),
        }
    }

    /// Removes policies with the name of a shipped one that differ from it, with a warning.
    fn keep_shipped(&mut self, name: &str, namespace: &str) {
        let Some(shipped) = built_in::policy(name) else {
            return;
        };
        let (floor, before) = (self.session.floor_file(), self.session.objects().len());
        self.session.retain(|object| {
            let is_namesake = has_name(object, name, namespace) && Some(object.file) != floor;
            let read = || serde_json::from_value::<SympoziumPolicy>(object.node.to_json());
            !is_namesake || read().is_ok_and(|it| it.spec == shipped.spec)
        });
        if self.session.objects().len() < before {
            self.warnings.push(format!(
                "policy {} is the one that is shipped; the one of that name among the files does not count: name its file with --policy ./FILE.yaml if you mean it",
                quote(name)
            ));
        }
    }

    /// Moves the policy that was chosen by its file into the run's namespace, and removes all others of its name.
    fn keep_explicit(&mut self, namespace: &str) -> Option<String> {
        let index = self.session.objects().iter().position(|it| it.is_explicit)?;
        let policy = self.session.object_mut(index)?;
        namespace.clone_into(&mut policy.name.namespace);
        policy.node.set(&["metadata", "namespace"], json!(namespace));
        let name = policy.name.name.clone();
        let floor = self.session.floor_file();
        self.session.retain(|object| {
            let is_namesake = has_name(object, &name, namespace) && Some(object.file) != floor;
            object.is_explicit || !is_namesake
        });
        Some(name)
    }
}

/// Checks that a policy of this name exists.
fn check_exists(objects: &[Object], name: &str, namespace: &str) -> Result<(), Failure> {
    let in_files = objects.iter().filter(|it| it.is_kind(Kind::SympoziumPolicy));
    let in_files = in_files.filter(|it| [namespace, SYSTEM_NAMESPACE].contains(&it.name.namespace.as_str()));
    let built_in = built_in::POLICIES.iter().map(|(name, _)| *name);
    let known: Vec<&str> = in_files.map(|it| it.name.name.as_str()).chain(built_in).collect();
    match known.contains(&name) {
        true => Ok(()),
        false => Err(not_found("policy", name, &known)),
    }
}

/// Whether it is a policy of this name that an agent of the namespace could refer to.
fn has_name(object: &Object, name: &str, namespace: &str) -> bool {
    object.is_kind(Kind::SympoziumPolicy)
        && object.name.name == name
        && [namespace, SYSTEM_NAMESPACE].contains(&object.name.namespace.as_str())
}
