//! The flags that select a cluster, for every command that can work in one.

use std::path::PathBuf;

use clap::Args;

use crate::arguments::parse_namespace;

const HELP_HEADING: &str = "In a cluster";
/// The environment variable for `--context`.
const CONTEXT_VARIABLE: &str = "SYMPOZIUM_CONTEXT";
/// The environment variable for `--namespace`.
const NAMESPACE_VARIABLE: &str = "SYMPOZIUM_NAMESPACE";

/// Selects this machine, or a cluster if one of these is given.
#[derive(Debug, Clone, Default, Args)]
pub struct ClusterArguments {
    /// Use the cluster of kubectl's current context instead of this machine.
    #[arg(long, help_heading = HELP_HEADING)]
    pub cluster: bool,

    /// Use the cluster of this kubeconfig context. Also set by the variable SYMPOZIUM_CONTEXT, if it is not empty.
    #[arg(long, value_name = "NAME", help_heading = HELP_HEADING)]
    pub context: Option<String>,

    /// The namespace. In a cluster the default is SYMPOZIUM_NAMESPACE, then the namespace of the context; on this machine it is
    /// `default`. `run` and `explain` also use it for objects of files that name none; for all other commands it implies
    /// --cluster.
    #[arg(short, long, value_name = "NAME", value_parser = parse_namespace, help_heading = HELP_HEADING)]
    pub namespace: Option<String>,

    /// The kubeconfig file. The default is $KUBECONFIG, then ~/.kube/config.
    #[arg(long, value_name = "FILE", help_heading = HELP_HEADING)]
    pub kubeconfig: Option<PathBuf>,
}

/// What `--namespace` means when no other flag selects a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamespaceFlag {
    /// It selects a cluster: runs of this machine are addressed without a namespace.
    SelectsCluster,
    /// It is the namespace of objects in files that name none.
    AppliesToFiles,
}

/// The cluster that flags and variables select.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterChoice {
    /// The current context when absent.
    pub context: Option<String>,
    /// The context's namespace when absent.
    pub namespace: Option<String>,
    /// The default kubeconfig when absent.
    pub kubeconfig: Option<PathBuf>,
}

impl ClusterArguments {
    /// The namespace of objects in files that name none, on this machine.
    pub fn local_namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or("default")
    }

    /// The selected cluster; `None` when the command works on this machine.
    pub fn choice(&self, by_namespace: NamespaceFlag) -> Option<ClusterChoice> {
        self.choice_with_env(by_namespace, &|name| std::env::var(name).ok())
    }

    fn choice_with_env(
        &self,
        by_namespace: NamespaceFlag,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Option<ClusterChoice> {
        let variable = |name: &str| variable(name).filter(|it| !it.is_empty());
        let context = self.context.clone().or_else(|| variable(CONTEXT_VARIABLE));
        let is_chosen = self.cluster
            || context.is_some()
            || self.kubeconfig.is_some()
            || (by_namespace == NamespaceFlag::SelectsCluster && self.namespace.is_some());
        is_chosen.then(|| ClusterChoice {
            context,
            namespace: self.namespace.clone().or_else(|| variable(NAMESPACE_VARIABLE)),
            kubeconfig: self.kubeconfig.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::arguments::{Arguments, Command};

    fn choice(typed: &[&str], by_namespace: NamespaceFlag, variables: &[(&str, &str)]) -> Option<ClusterChoice> {
        let all = ["sympozium", "runs"].into_iter().chain(typed.to_vec());
        let Command::Runs(arguments) = Arguments::try_parse_from(all).unwrap().command else {
            panic!("another command");
        };
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        arguments.cluster.choice_with_env(by_namespace, &variable)
    }

    fn chosen(context: Option<&str>, namespace: Option<&str>) -> Option<ClusterChoice> {
        Some(ClusterChoice {
            context: context.map(str::to_owned),
            namespace: namespace.map(str::to_owned),
            kubeconfig: None,
        })
    }

    #[test]
    fn a_cluster_is_chosen_by_any_flag_and_by_nothing_else() {
        use NamespaceFlag::{AppliesToFiles, SelectsCluster};
        let set = [(CONTEXT_VARIABLE, "staging"), (NAMESPACE_VARIABLE, "team")];
        let empty = [(CONTEXT_VARIABLE, ""), (NAMESPACE_VARIABLE, "")];
        let namespace = [(NAMESPACE_VARIABLE, "team")];
        for (typed, by_namespace, variables, expected) in [
            (&[][..], SelectsCluster, &[][..], None),
            (&["--cluster"], SelectsCluster, &[], chosen(None, None)),
            (&["--context", "kind"], SelectsCluster, &[], chosen(Some("kind"), None)),
            (&["-n", "team"], SelectsCluster, &[], chosen(None, Some("team"))),
            (&["-n", "team"], AppliesToFiles, &[], None),
            (&["-n", "a", "--cluster"], AppliesToFiles, &[], chosen(None, Some("a"))),
            (&[], AppliesToFiles, &set, chosen(Some("staging"), Some("team"))),
            (&["--context", "kind", "-n", "a"], SelectsCluster, &set, chosen(Some("kind"), Some("a"))),
            (&[], SelectsCluster, &empty, None),
            // A namespace variable alone does not select a cluster.
            (&[], SelectsCluster, &namespace, None),
            (&["--cluster"], SelectsCluster, &namespace, chosen(None, Some("team"))),
        ] {
            assert_eq!(choice(typed, by_namespace, variables), expected, "{typed:?}");
        }
        let by_file = choice(&["--kubeconfig", "config"], SelectsCluster, &[]).unwrap();
        assert_eq!(by_file.kubeconfig, Some(PathBuf::from("config")));
    }
}
