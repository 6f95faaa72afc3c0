//! Errors of calls to the API server: messages with hints.

use std::time::Duration;

use anyhow::anyhow;
use kube::core::Status;
use sympozium_api::text::{Chars, printable, quote, truncate};
use sympozium_program::error_chain;

use sympozium_runs::HintedError;

/// The maximum number of characters of an API server's message that are printed.
pub const MAX_MESSAGE: Chars = Chars(1_000);

/// Why a call has no result.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The API server rejected it, or the connection failed.
    #[error(transparent)]
    Kube(#[from] kube::Error),
    /// There was no response in time.
    #[error("no response within {} s", .0.as_secs())]
    TimedOut(Duration),
}

impl CallError {
    /// The API server's status, if it responded with one.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Kube(kube::Error::Api(status)) => Some(status),
            _ => None,
        }
    }

    pub fn is_forbidden(&self) -> bool {
        self.status().is_some_and(Status::is_forbidden)
    }
}

/// The ClusterRoles that permit what was tried: those of an installation, and those of Kubernetes itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Reads objects.
    Viewer,
    /// Starts, cancels and removes runs.
    Runner,
    /// Votes on questions.
    Approver,
    /// Creates agents, packs and models.
    Author,
    /// Kubernetes' own role, which reads pods, their logs and ConfigMaps.
    View,
    /// Kubernetes' own role, which creates ConfigMaps and Secrets.
    Edit,
    /// Kubernetes' own role, which creates policies: who may write policies bounds the authors of everything else.
    ClusterAdmin,
}

impl Role {
    /// The name of the ClusterRole.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Viewer => "sympozium-viewer",
            Self::Runner => "sympozium-runner",
            Self::Approver => "sympozium-approver",
            Self::Author => "sympozium-author",
            Self::View => "view",
            Self::Edit => "edit",
            Self::ClusterAdmin => "cluster-admin",
        }
    }
}

/// What was called and where, for messages.
#[derive(Debug, Clone, Copy)]
pub struct CallContext<'r> {
    /// The operation, as it follows `cannot` in a message.
    pub operation: &'r str,
    /// A role that permits it.
    pub role: Role,
    pub namespace: &'r str,
    /// The API server's address.
    pub server: &'r str,
}

impl CallContext<'_> {
    /// The message and the hint for an error of this call.
    pub fn as_failure(&self, error: &CallError) -> HintedError {
        let Self { operation, .. } = self;
        let message = |status: &Status| printable(truncate(status.message.trim(), MAX_MESSAGE)).into_owned();
        match (error, error.status()) {
            (_, Some(status)) if status.code == 401 => HintedError::new(
                anyhow!("cannot {operation}: the API server rejected your credentials"),
                "log in again, and check that `kubectl auth whoami` succeeds",
            ),
            (_, Some(status)) if status.is_forbidden() => HintedError::new(
                anyhow!("cannot {operation}: {}", message(status)),
                format!(
                    "ask for the ClusterRole `{}`: kubectl create rolebinding NAME --clusterrole {} --user YOU -n {}",
                    self.role.name(),
                    self.role.name(),
                    self.namespace
                ),
            ),
            (_, Some(status)) if is_unknown_kind(status) => HintedError::new(
                anyhow!("cannot {operation}: the CustomResourceDefinitions of Sympozium are not installed"),
                "an administrator installs them with `sympozium crds | kubectl apply --server-side -f -`; docs/kubernetes.md has the rest of the installation",
            ),
            (_, Some(status)) if status.is_not_found() => HintedError::new(
                anyhow!("cannot {operation}: {}", message(status)),
                format!("check that namespace {} is the right one", quote(self.namespace)),
            ),
            (_, Some(status)) => HintedError::new(
                anyhow!("cannot {operation}: {}", message(status)),
                "fix what the API server rejects, and try again",
            ),
            (error, None) => HintedError::new(
                anyhow!(
                    "cannot {operation}: cannot reach the API server at {}: {}",
                    printable(self.server),
                    printable(truncate(error_chain(error).trim(), MAX_MESSAGE))
                ),
                "check that `kubectl cluster-info` succeeds; --context selects another cluster",
            ),
        }
    }
}

/// Whether the path is unknown, and not the object at it.
fn is_unknown_kind(status: &Status) -> bool {
    let is_named = |it: &kube::core::response::StatusDetails| !it.name.is_empty();
    status.code == 404 && !status.details.as_ref().is_some_and(is_named)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn api(status: serde_json::Value) -> CallError {
        let status = serde_json::from_value(status).unwrap();
        CallError::Kube(kube::Error::Api(Box::new(status)))
    }

    fn text(error: &CallError) -> String {
        let context = CallContext {
            operation: "list AgentRuns",
            role: Role::Viewer,
            namespace: "team",
            server: "https://10.0.0.1:6443/",
        };
        let failure = crate::failure::Failure::from(context.as_failure(error));
        assert_eq!(failure.code(), crate::failure::FAILED);
        failure.text()
    }

    #[test]
    fn every_error_has_a_hint() {
        let forbidden = json!({"status": "Failure", "code": 403, "reason": "Forbidden",
            "message": "agentruns.sympozium.ai is forbidden: User \"bob\u{1b}[2J\" cannot list"});
        assert_eq!(
            text(&api(forbidden)),
            "error: cannot list AgentRuns: agentruns.sympozium.ai is forbidden: User \"bob\\u{1b}[2J\" cannot list\n\
             hint: ask for the ClusterRole `sympozium-viewer`: kubectl create rolebinding NAME --clusterrole \
             sympozium-viewer --user YOU -n team\n"
        );
        let unknown = json!({"status": "Failure", "code": 401, "reason": "Unauthorized", "message": "Unauthorized"});
        assert_eq!(
            text(&api(unknown)),
            "error: cannot list AgentRuns: the API server rejected your credentials\n\
             hint: log in again, and check that `kubectl auth whoami` succeeds\n"
        );
        let no_kind = json!({"status": "Failure", "code": 404, "reason": "NotFound",
            "message": "404 page not found"});
        assert!(text(&api(no_kind)).contains("sympozium crds | kubectl apply"));
        let no_object = json!({"status": "Failure", "code": 404, "reason": "NotFound",
            "message": "agentruns.sympozium.ai \"a\" not found", "details": {"name": "a", "kind": "agentruns"}});
        assert_eq!(
            text(&api(no_object)),
            "error: cannot list AgentRuns: agentruns.sympozium.ai \"a\" not found\n\
             hint: check that namespace `team` is the right one\n"
        );
        let silent = CallError::TimedOut(Duration::from_secs(30));
        assert_eq!(
            text(&silent),
            "error: cannot list AgentRuns: cannot reach the API server at https://10.0.0.1:6443/: \
             no response within 30 s\n\
             hint: check that `kubectl cluster-info` succeeds; --context selects another cluster\n"
        );
    }

    #[test]
    fn a_long_message_is_truncated() {
        let long = "ä".repeat(MAX_MESSAGE.0 + 1);
        assert_eq!(printable(truncate(&long, MAX_MESSAGE)).chars().count(), MAX_MESSAGE.0);
        assert_eq!(printable(truncate(" a\nb ".trim(), MAX_MESSAGE)), "a\\nb");
    }
}
