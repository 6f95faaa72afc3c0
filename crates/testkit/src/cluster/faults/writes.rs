//! What was written: which requests those are, and what they are about.

use std::fmt;

/// Writes that are kept for [`FaultProxy::writes`](super::FaultProxy::writes). Those beyond it are counted but forgotten.
pub const MOST_KEPT_WRITES: usize = 200_000;

/// What a write is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Objects, which is what a test is usually after.
    Object,
    /// A Lease: who leads.
    Lease,
    /// An Event: what people read.
    Event,
    /// A review (`SubjectAccessReview`, `TokenReview` and so on): a question that is put as a write.
    Review,
}

/// One write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// Its place among those that count, from 1; none if it does not count.
    pub number: Option<usize>,
    /// What it is about.
    pub class: Class,
    /// `POST`, `PUT`, `PATCH` or `DELETE`.
    pub method: String,
    /// Without the query.
    pub path: String,
    /// How the API server answered; nothing while it has not, or was not asked.
    pub status: Option<u16>,
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            Some(number) => write!(f, "{number:>4} ")?,
            None => f.write_str("     ")?,
        }
        write!(f, "{} {}", self.method, self.path)?;
        match self.status {
            Some(status) => write!(f, " {status}"),
            None => f.write_str(" (no answer)"),
        }
    }
}

/// Whether a method writes.
pub(super) fn is_write(method: &str) -> bool {
    matches!(method, "POST" | "PUT" | "PATCH" | "DELETE")
}

/// Whether a request opens a watch.
pub(super) fn is_watch(query: Option<&str>) -> bool {
    query.is_some_and(|query| query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1")))
}

/// What a path is about.
pub(super) fn class(path: &str) -> Class {
    let resource = resource(path);
    match resource {
        "leases" => Class::Lease,
        "events" => Class::Event,
        _ if resource.ends_with("reviews") => Class::Review,
        _ => Class::Object,
    }
}

/// The plural name of the kind in a path: `/api/v1/…` or `/apis/<group>/<version>/…`, `namespaces/<name>/` perhaps before.
fn resource(path: &str) -> &str {
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    let head = match parts.next() {
        Some("api") => parts.next(),
        Some("apis") => parts.nth(1),
        _ => None,
    };
    if head.is_none() {
        return "";
    }
    let first = parts.next().unwrap_or_default();
    if first != "namespaces" {
        return first;
    }
    let _name = parts.next();
    parts.next().unwrap_or(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_path_is_about() {
        let table = [
            ("/api/v1/namespaces", "namespaces", Class::Object),
            ("/api/v1/namespaces/a", "namespaces", Class::Object),
            ("/api/v1/namespaces/a/secrets/b", "secrets", Class::Object),
            ("/api/v1/namespaces/a/serviceaccounts/b/token", "serviceaccounts", Class::Object),
            ("/apis/rbac.authorization.k8s.io/v1/clusterroles/leases", "clusterroles", Class::Object),
            ("/apis/coordination.k8s.io/v1/namespaces/a/leases/b", "leases", Class::Lease),
            ("/apis/events.k8s.io/v1/namespaces/a/events", "events", Class::Event),
            ("/apis/authorization.k8s.io/v1/subjectaccessreviews", "subjectaccessreviews", Class::Review),
            ("/version", "", Class::Object),
        ];
        for (path, expected, about) in table {
            assert_eq!((resource(path), class(path)), (expected, about), "{path}");
        }
    }

    #[test]
    fn a_watch_is_known_by_its_query() {
        assert!(is_watch(Some("allowWatchBookmarks=true&watch=true")));
        assert!(is_watch(Some("watch=1")));
        assert!(!is_watch(Some("watch=false&allowWatchBookmarks=true")));
        assert!(!is_watch(None));
    }
}
