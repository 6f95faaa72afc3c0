//! Lists of what is allowed, as sets that can be intersected.

use std::collections::BTreeSet;

/// A pattern that denotes a set: a name, a prefix of names, a registry, hosts.
///
/// Two patterns have at most one largest common subset, which makes intersections of lists exact.
pub trait Pattern: Clone + Ord {
    /// Whether `self` includes everything in `other`.
    fn covers(&self, other: &Self) -> bool;

    /// The intersection, if it is not empty.
    fn intersection(&self, other: &Self) -> Option<Self> {
        if self.covers(other) {
            Some(other.clone())
        } else if other.covers(self) {
            Some(self.clone())
        } else {
            None
        }
    }
}

/// The meaning of an allow-list: everything, or only what its members include. No member covers another, so that two
/// lists that allow the same are equal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Allowed<T> {
    /// Everything: there is no list.
    All,
    /// Only what these members include.
    Only(BTreeSet<T>),
}

impl<T: Pattern> Allowed<T> {
    /// A list of these members.
    pub fn only(members: impl IntoIterator<Item = T>) -> Self {
        let members: BTreeSet<T> = members.into_iter().collect();
        let largest =
            members.iter().filter(|member| !members.iter().any(|other| other != *member && other.covers(member)));
        Self::Only(largest.cloned().collect())
    }

    /// The list of an optional field: everything when it is absent.
    pub fn from_list<I: IntoIterator<Item = T>>(members: Option<I>) -> Self {
        members.map_or(Self::All, Self::only)
    }

    /// The empty list.
    pub fn none() -> Self {
        Self::Only(BTreeSet::new())
    }

    /// What both allow.
    #[must_use]
    pub fn meet(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::All, other) => other.clone(),
            (this, Self::All) => this.clone(),
            (Self::Only(these), Self::Only(those)) => {
                Self::only(these.iter().flat_map(|this| those.iter().filter_map(|that| this.intersection(that))))
            }
        }
    }

    /// Whether any member passes `is_within`, or there is no list.
    pub fn allows(&self, is_within: impl FnMut(&T) -> bool) -> bool {
        match self {
            Self::All => true,
            Self::Only(members) => members.iter().any(is_within),
        }
    }

    /// Whether everything in a pattern is allowed.
    pub fn covers(&self, scope: &T) -> bool {
        self.allows(|member| member.covers(scope))
    }
}

impl<T: std::fmt::Display> Allowed<T> {
    /// The members for a message: in backticks, with commas.
    pub fn quote_members(&self) -> String {
        match self {
            Self::All => "everything".to_owned(),
            Self::Only(members) => crate::text::quote_list(members.iter().map(ToString::to_string)),
        }
    }
}

/// A plain name covers itself.
impl Pattern for String {
    fn covers(&self, other: &Self) -> bool {
        self == other
    }
}

impl Pattern for crate::image::RegistryPattern {
    fn covers(&self, other: &Self) -> bool {
        Self::covers(self, other)
    }
}

impl Pattern for crate::host::Destination {
    fn covers(&self, other: &Self) -> bool {
        Self::covers(self, other)
    }

    fn intersection(&self, other: &Self) -> Option<Self> {
        self.meet(other)
    }
}

/// A model's name, or a prefix of names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ModelPattern {
    /// Exactly this name.
    Exact(String),
    /// `prefix*`
    Prefix(String),
}

impl ModelPattern {
    /// Parses a pattern: `*` at the end matches any text.
    pub fn new(text: &str) -> Self {
        match text.strip_suffix('*') {
            Some(start) => Self::Prefix(start.to_owned()),
            None => Self::Exact(text.to_owned()),
        }
    }

    /// Whether this model matches.
    pub fn matches(&self, model: &str) -> bool {
        match self {
            Self::Exact(name) => name == model,
            Self::Prefix(start) => model.starts_with(start.as_str()),
        }
    }
}

impl Pattern for ModelPattern {
    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Prefix(start), Self::Exact(other) | Self::Prefix(other)) => other.starts_with(start.as_str()),
            (Self::Exact(name), Self::Exact(other)) => name == other,
            (Self::Exact(_), Self::Prefix(_)) => false,
        }
    }
}

impl std::fmt::Display for ModelPattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exact(name) => f.write_str(name),
            Self::Prefix(start) => write!(f, "{start}*"),
        }
    }
}

/// A directory of the node, with everything below it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostDirectory {
    /// A plain path without a slash at the end; empty for the root.
    pub path: String,
    /// Whether it may be written to.
    pub writable: bool,
}

impl Pattern for HostDirectory {
    fn covers(&self, other: &Self) -> bool {
        crate::path::is_at_or_below(&other.path, &self.path) && (self.writable || !other.writable)
    }

    fn intersection(&self, other: &Self) -> Option<Self> {
        let deeper = if crate::path::is_at_or_below(&other.path, &self.path) {
            &other.path
        } else if crate::path::is_at_or_below(&self.path, &other.path) {
            &self.path
        } else {
            return None;
        };
        Some(Self { path: deeper.clone(), writable: self.writable && other.writable })
    }
}
