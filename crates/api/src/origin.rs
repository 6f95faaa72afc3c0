//! Where the policies and packs of a run came from. Printed before the run starts, and stored in its record.

use std::fmt;

use crate::agent_run::ResolvedObject;
use serde::{Deserialize, Serialize};

/// A policy or pack of a run, with its origin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectOrigin {
    /// The kind of the object.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Where it came from.
    pub from: Origin,
}

/// Where an object came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "is")]
pub enum Origin {
    /// Part of this program.
    Shipped,
    /// Read from a file.
    File {
        /// As the user named it, or as found below a directory that they named.
        path: String,
    },
    /// Built from flags of the command line.
    CommandLine,
    /// Read from a cluster.
    Namespace {
        /// The namespace of the object.
        namespace: String,
    },
}

/// Stands in for the file name of an object that was built from flags.
pub const COMMAND_LINE: &str = "<command line>";
/// The kind of policies.
pub const POLICY_KIND: &str = "SympoziumPolicy";
/// The kind of packs.
pub const PACK_KIND: &str = "SkillPack";

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shipped => f.write_str("shipped"),
            Self::File { path } => write!(f, "from {path}"),
            Self::CommandLine => f.write_str("made from flags"),
            Self::Namespace { namespace } => write!(f, "namespace {namespace}"),
        }
    }
}

/// The origins of the policies and packs that a run in a cluster was resolved to.
pub fn from_resolved(resolved: &[ResolvedObject]) -> Vec<ObjectOrigin> {
    let objects = resolved.iter().filter(|object| [POLICY_KIND, PACK_KIND].contains(&object.kind.as_str()));
    objects
        .map(|object| ObjectOrigin {
            kind: object.kind.clone(),
            name: object.name.as_str().to_owned(),
            from: Origin::Namespace { namespace: object.namespace.as_str().to_owned() },
        })
        .collect()
}

/// The objects of a kind as text, such as `default (shipped), floor (from floor.yaml)`.
pub fn format_origins(all: &[ObjectOrigin], kind: &str) -> String {
    let of_kind = all.iter().filter(|object| object.kind == kind);
    let names: Vec<String> = of_kind.map(|object| format!("{} ({})", object.name, object.from)).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_origin_has_its_words_and_comes_back_from_json() {
        let all = [
            (POLICY_KIND, "default", Origin::Shipped),
            (POLICY_KIND, "floor", Origin::File { path: "floor.yaml".to_owned() }),
            (POLICY_KIND, "command-line", Origin::CommandLine),
            (PACK_KIND, "notes", Origin::Namespace { namespace: "team".to_owned() }),
        ];
        let all: Vec<ObjectOrigin> =
            all.map(|(kind, name, from)| ObjectOrigin { kind: kind.to_owned(), name: name.to_owned(), from }).into();
        let policies = "default (shipped), floor (from floor.yaml), command-line (made from flags)";
        assert_eq!(format_origins(&all, POLICY_KIND), policies);
        assert_eq!(format_origins(&all, PACK_KIND), "notes (namespace team)");
        assert_eq!(format_origins(&all, "Agent"), "");
        let text = serde_json::to_string(&all).unwrap();
        let read: Vec<ObjectOrigin> = serde_json::from_str(&text).unwrap();
        assert_eq!(read, all);
    }
}
