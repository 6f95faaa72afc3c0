//! The flags that select a cluster, for every command that can work in one.

use std::path::PathBuf;

use clap::Args;

use crate::arguments::namespace;

const HEADING: &str = "In a cluster";
/// The variable that stands in for `--context`.
const CONTEXT: &str = "SYMPOZIUM_CONTEXT";
/// The variable that stands in for `--namespace`.
const NAMESPACE: &str = "SYMPOZIUM_NAMESPACE";

/// Where a command works: on this machine, or in a cluster when one of these is given.
#[derive(Debug, Clone, Default, Args)]
pub struct ClusterArguments {
    /// Work in a cluster, the one of kubectl's current context, and not on this machine.
    #[arg(long, help_heading = HEADING)]
    pub cluster: bool,

    /// Work in the cluster of this context of the kubeconfig. Also by the variable SYMPOZIUM_CONTEXT; an empty one is none.
    #[arg(long, value_name = "NAME", help_heading = HEADING)]
    pub context: Option<String>,

    /// The namespace: the context's own in a cluster, and `default` on this machine, when absent. For `run` and `explain` it is
    /// that of objects that name none; everywhere else to name one is to choose a cluster. In a cluster also by the variable
    /// SYMPOZIUM_NAMESPACE.
    #[arg(short, long, value_name = "NAME", value_parser = namespace, help_heading = HEADING)]
    pub namespace: Option<String>,

    /// The kubeconfig; $KUBECONFIG or ~/.kube/config when absent.
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    pub kubeconfig: Option<PathBuf>,
}

/// What `--namespace` means when no other flag selects a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Namespace {
    /// It selects a cluster: runs of this machine are addressed without a namespace.
    Chooses,
    /// It is the namespace of objects in files that name none.
    IsAboutFiles,
}

/// The cluster that flags and variables select.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choice {
    /// The current context when absent.
    pub context: Option<String>,
    /// The context's namespace when absent.
    pub namespace: Option<String>,
    /// The default kubeconfig when absent.
    pub kubeconfig: Option<PathBuf>,
}

impl ClusterArguments {
    /// The namespace of objects in files that name none, on this machine.
    pub fn namespace_here(&self) -> &str {
        self.namespace.as_deref().unwrap_or("default")
    }

    /// The selected cluster; `None` when the command works on this machine.
    pub fn choice(&self, by_namespace: Namespace) -> Option<Choice> {
        self.choice_in(by_namespace, &|name| std::env::var(name).ok())
    }

    fn choice_in(&self, by_namespace: Namespace, variable: &dyn Fn(&str) -> Option<String>) -> Option<Choice> {
        let variable = |name: &str| variable(name).filter(|it| !it.is_empty());
        let context = self.context.clone().or_else(|| variable(CONTEXT));
        let is_chosen = self.cluster
            || context.is_some()
            || self.kubeconfig.is_some()
            || (by_namespace == Namespace::Chooses && self.namespace.is_some());
        is_chosen.then(|| Choice {
            context,
            namespace: self.namespace.clone().or_else(|| variable(NAMESPACE)),
            kubeconfig: self.kubeconfig.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::arguments::{Arguments, Command};

    fn choice(typed: &[&str], by_namespace: Namespace, variables: &[(&str, &str)]) -> Option<Choice> {
        let all = ["sympozium", "runs"].into_iter().chain(typed.to_vec());
        let Command::Runs(arguments) = Arguments::try_parse_from(all).unwrap().command else {
            panic!("another command");
        };
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        arguments.cluster.choice_in(by_namespace, &variable)
    }

    fn chosen(context: Option<&str>, namespace: Option<&str>) -> Option<Choice> {
        Some(Choice { context: context.map(str::to_owned), namespace: namespace.map(str::to_owned), kubeconfig: None })
    }

    #[test]
    fn a_cluster_is_chosen_by_any_flag_and_by_nothing_else() {
        use Namespace::{Chooses, IsAboutFiles};
        let set = [(CONTEXT, "staging"), (NAMESPACE, "team")];
        let empty = [(CONTEXT, ""), (NAMESPACE, "")];
        let namespace = [(NAMESPACE, "team")];
        for (typed, by_namespace, variables, expected) in [
            (&[][..], Chooses, &[][..], None),
            (&["--cluster"], Chooses, &[], chosen(None, None)),
            (&["--context", "kind"], Chooses, &[], chosen(Some("kind"), None)),
            (&["-n", "team"], Chooses, &[], chosen(None, Some("team"))),
            (&["-n", "team"], IsAboutFiles, &[], None),
            (&["-n", "a", "--cluster"], IsAboutFiles, &[], chosen(None, Some("a"))),
            (&[], IsAboutFiles, &set, chosen(Some("staging"), Some("team"))),
            (&["--context", "kind", "-n", "a"], Chooses, &set, chosen(Some("kind"), Some("a"))),
            (&[], Chooses, &empty, None),
            // A namespace variable alone does not select a cluster.
            (&[], Chooses, &namespace, None),
            (&["--cluster"], Chooses, &namespace, chosen(None, Some("team"))),
        ] {
            assert_eq!(choice(typed, by_namespace, variables), expected, "{typed:?}");
        }
        let by_file = choice(&["--kubeconfig", "config"], Chooses, &[]).unwrap();
        assert_eq!(by_file.kubeconfig, Some(PathBuf::from("config")));
    }
}
