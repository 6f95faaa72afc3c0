//! Errors of a reconcile. A reconcile that fails is retried.

use kube::core::Status;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server rejected a request or did not answer.
    #[error("cannot {verb} {kind} `{name}`")]
    Api {
        verb: &'static str,
        kind: String,
        name: String,
        #[source]
        error: Box<kube::Error>,
    },
    /// An object of that name exists and does not belong to the run.
    #[error("{kind} `{name}` already exists and does not belong to this run: {why}")]
    Foreign { kind: String, name: String, why: &'static str },
    /// The stored plan does not match the digest in the status.
    #[error("the ConfigMap with the plan of the run was deleted or changed")]
    PlanChanged,
    #[error("an object cannot be written as JSON")]
    Json(#[from] serde_json::Error),
    #[error("a credential for the gateway cannot be signed")]
    Unsignable(#[from] sympozium_ipc::credential::ClaimsError),
    /// The API server returned an object without a UID.
    #[error("the API server returned {kind} `{name}` without a UID")]
    WithoutUid { kind: String, name: String },
    #[error("the plan has no credential for part `{0}`")]
    WithoutCredential(String),
    /// A condition that has to become true first; the reconcile is retried.
    #[error("waiting until {0}")]
    Waiting(&'static str),
}

impl Error {
    pub fn api(
        verb: &'static str,
        kind: impl Into<String>,
        name: impl Into<String>,
    ) -> impl FnOnce(kube::Error) -> Self {
        let (kind, name) = (kind.into(), name.into());
        move |error| Self::Api { verb, kind, name, error: Box::new(error) }
    }

    /// Whether a retry cannot help: the API server has rejected a valid request, or a foreign object is in the way.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Api { error, .. } => {
                api_status(error).is_some_and(|status| matches!(status.code, 400 | 403 | 413 | 422))
            }
            Self::Foreign { .. }
            | Self::PlanChanged
            | Self::Json(_)
            | Self::Unsignable(_)
            | Self::WithoutCredential(_) => true,
            Self::WithoutUid { .. } | Self::Waiting(_) => false,
        }
    }

    /// The message for the run's status.
    pub fn user_message(&self) -> String {
        match self {
            Self::Api { error, .. } => match api_status(error) {
                Some(status) => format!("{self}: {}", status.message),
                None => format!("{self}: {error}"),
            },
            _ => self.to_string(),
        }
    }
}

/// The status that the API server returned, if it answered.
pub fn api_status(error: &kube::Error) -> Option<&Status> {
    match error {
        kube::Error::Api(status) => Some(status),
        _ => None,
    }
}

pub fn is_not_found(error: &kube::Error) -> bool {
    api_status(error).is_some_and(|status| status.code == 404)
}

/// Whether an object of that name exists, or the resource version is outdated.
pub fn is_conflict(error: &kube::Error) -> bool {
    api_status(error).is_some_and(|status| status.code == 409)
}
