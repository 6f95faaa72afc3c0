//! Why a step could not be made. It is made again.

use kube::core::Status;

/// Why a step could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server said no, or nothing.
    #[error("cannot {verb} {kind} `{name}`")]
    Api {
        /// What was tried.
        verb: &'static str,
        /// With what kind of object.
        kind: String,
        /// Which.
        name: String,
        /// Why not.
        #[source]
        error: Box<kube::Error>,
    },
    /// Something is there that is not the run's.
    #[error("{kind} `{name}` is there already and is not this run's: {why}")]
    Foreign {
        /// Its kind.
        kind: String,
        /// Its name.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The plan that is stored is not the one that was made.
    #[error("the stored plan of the run is gone or was changed")]
    PlanChanged,
    /// A value that cannot be written.
    #[error("an object cannot be written as JSON")]
    Json(#[from] serde_json::Error),
    /// A credential that cannot be signed.
    #[error("a credential for the gateway cannot be signed")]
    Unsignable(#[from] sympozium_ipc::credential::Unsignable),
    /// Something is still there and will be looked at again.
    #[error("waiting until {0}")]
    Waiting(&'static str),
}

impl Error {
    /// An error of the API server about an object.
    pub fn api(
        verb: &'static str,
        kind: impl Into<String>,
        name: impl Into<String>,
    ) -> impl FnOnce(kube::Error) -> Self {
        let (kind, name) = (kind.into(), name.into());
        move |error| Self::Api { verb, kind, name, error: Box::new(error) }
    }

    /// Whether trying again cannot help: the API server has understood and refuses, or something of somebody else's is in the
    /// way.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Api { error, .. } => response(error).is_some_and(|it| matches!(it.code, 400 | 403 | 413 | 422)),
            Self::Foreign { .. } | Self::PlanChanged | Self::Json(_) | Self::Unsignable(_) => true,
            Self::Waiting(_) => false,
        }
    }

    /// What a person is told.
    pub fn told(&self) -> String {
        match self {
            Self::Api { error, .. } => match response(error) {
                Some(said) => format!("{self}: {}", said.message),
                None => format!("{self}: {error}"),
            },
            _ => self.to_string(),
        }
    }
}

/// What the API server answered, if it did.
pub fn response(error: &kube::Error) -> Option<&Status> {
    match error {
        kube::Error::Api(status) => Some(status),
        _ => None,
    }
}

/// Whether the API server has no such object.
pub fn is_missing(error: &kube::Error) -> bool {
    response(error).is_some_and(|it| it.code == 404)
}

/// Whether the API server has one already, or another version of it.
pub fn is_conflict(error: &kube::Error) -> bool {
    response(error).is_some_and(|it| it.code == 409)
}
