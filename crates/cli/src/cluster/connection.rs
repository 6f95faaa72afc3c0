//! The connection to a cluster: from a kubeconfig to a client, and every call with a timeout.

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, Resource};
use serde::de::DeserializeOwned;
use sympozium_api::text::quote;
use sympozium_api::{AgentRun, RunRecord, ToolApproval};

use super::arguments::ClusterChoice;
use super::call_error::{CallContext, CallError, Role};
use sympozium_runs::HintedError;
use sympozium_runs::TargetFlags;

/// The timeout for connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout of one call.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// The timeouts of watches.
#[derive(Debug, Clone, Copy)]
pub struct WatchTimeouts {
    /// How long one watch lasts, in seconds. The next one continues where it ended.
    pub watch_seconds: u32,
    /// How long the connection may stay silent beyond that before it counts as dead.
    pub idle: Duration,
}

const WATCH_TIMEOUTS: WatchTimeouts = WatchTimeouts { watch_seconds: 30, idle: Duration::from_secs(15) };

/// The client for watches.
#[derive(Clone)]
pub struct WatchClient {
    /// A client with a read timeout: a list or a watch that is never answered would otherwise last for ever.
    client: Client,
    /// How long one watch lasts, in seconds.
    pub timeout_seconds: u32,
}

/// A client with the namespace and the flags that a command was given.
#[derive(Clone)]
pub struct Connection {
    pub client: Client,
    pub watch_client: WatchClient,
    pub namespace: String,
    /// The flags that select the same cluster and namespace in another command.
    pub target: TargetFlags,
    /// The API server's address, for messages.
    pub server: String,
    choice: ClusterChoice,
}

/// The user that the API server authenticates us as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CurrentUser {
    pub name: String,
    pub groups: Vec<String>,
}

impl Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("namespace", &self.namespace)
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

impl Connection {
    /// Reads the kubeconfig and builds the clients. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// When the kubeconfig cannot be read, or has no such context.
    pub async fn open(choice: &ClusterChoice) -> Result<Self, HintedError> {
        // Another part of this process may have installed it already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let hint = "`kubectl config get-contexts` lists the contexts; select one with --context or --kubeconfig";
        let failed = |error: anyhow::Error| HintedError::new(error, hint);
        let mut config = load_config(choice).await.map_err(failed)?;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        let namespace = choice.namespace.clone();
        let namespace = namespace.unwrap_or_else(|| config.default_namespace.clone());
        Self::new(config, namespace, choice, WATCH_TIMEOUTS).map_err(failed)
    }

    fn new(config: Config, namespace: String, choice: &ClusterChoice, timeouts: WatchTimeouts) -> anyhow::Result<Self> {
        let server = config.cluster_url.to_string();
        let mut watched = config.clone();
        let seconds = timeouts.watch_seconds;
        watched.read_timeout = Some(Duration::from_secs(seconds.into()) + timeouts.idle);
        // The timeout counts from the request, not from the last use of the connection.
        watched.reset_reader_on_write = true;
        let unusable = "cannot use the kubeconfig";
        let watching = WatchClient { client: Client::try_from(watched).context(unusable)?, timeout_seconds: seconds };
        Ok(Self {
            client: Client::try_from(config).context(unusable)?,
            watch_client: watching,
            target: target_flags(choice, &namespace),
            namespace,
            server,
            choice: choice.clone(),
        })
    }

    /// A connection to the API server of a test, without credentials.
    ///
    /// # Errors
    ///
    /// When the client cannot be built.
    #[cfg(test)]
    pub fn to_test_server(address: std::net::SocketAddr, timeouts: WatchTimeouts) -> anyhow::Result<Self> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let config = Config::new(format!("http://{address}/").parse()?);
        let choice = ClusterChoice { context: Some("kind".to_owned()), ..ClusterChoice::default() };
        Self::new(config, "team".to_owned(), &choice, timeouts)
    }

    /// The same connection for another namespace.
    pub fn in_namespace(&self, namespace: &str) -> Self {
        Self { namespace: namespace.to_owned(), target: target_flags(&self.choice, namespace), ..self.clone() }
    }

    /// The objects of a kind, in the namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug,
        K: DeserializeOwned,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The same, with the client for watches.
    pub fn watch_api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug,
        K: DeserializeOwned,
    {
        Api::namespaced(self.watch_client.client.clone(), &self.namespace)
    }

    pub fn runs(&self) -> Api<AgentRun> {
        self.api()
    }

    pub fn records(&self) -> Api<RunRecord> {
        self.api()
    }

    pub fn approvals(&self) -> Api<ToolApproval> {
        self.api()
    }

    /// Awaits one call, with a timeout.
    ///
    /// # Errors
    ///
    /// With a message that names the operation and the cause, and a hint.
    pub async fn call<T>(
        &self,
        operation: &str,
        role: Role,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, HintedError> {
        let result = self.try_call(call).await;
        result.map_err(|error| self.call_context(operation, role).as_failure(&error))
    }

    /// The same, for callers that inspect the error.
    ///
    /// # Errors
    ///
    /// When the API server rejects the call or does not respond in time.
    pub async fn try_call<T>(&self, call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, CallError> {
        match tokio::time::timeout(CALL_TIMEOUT, call).await {
            Ok(result) => result.map_err(CallError::from),
            Err(_) => Err(CallError::TimedOut(CALL_TIMEOUT)),
        }
    }

    /// The context of a call, for the message about its failure.
    pub fn call_context<'r>(&'r self, operation: &'r str, role: Role) -> CallContext<'r> {
        CallContext { operation, role, namespace: &self.namespace, server: &self.server }
    }

    /// Reads the name and groups of the current user, which every user may do.
    ///
    /// # Errors
    ///
    /// When the API server does not return them.
    pub async fn current_user(&self) -> Result<CurrentUser, HintedError> {
        let api: Api<SelfSubjectReview> = Api::all(self.client.clone());
        let (parameters, review) = (PostParams::default(), SelfSubjectReview::default());
        let review = api.create(&parameters, &review);
        let review = self.call("read your user name (SelfSubjectReview)", Role::Viewer, review).await?;
        let user = review.status.and_then(|it| it.user_info);
        let user = user.and_then(|it| Some((it.username?, it.groups.unwrap_or_default())));
        match user {
            Some((name, groups)) if !name.is_empty() => Ok(CurrentUser { name, groups }),
            _ => Err(HintedError::new(
                anyhow!("the API server did not return your user name"),
                "check that `kubectl auth whoami` succeeds",
            )),
        }
    }
}

/// The flags that select this namespace of a cluster in another command.
fn target_flags(choice: &ClusterChoice, namespace: &str) -> TargetFlags {
    let kubeconfig = choice.kubeconfig.as_ref().map(|it| it.to_string_lossy());
    let context = choice.context.as_deref();
    let flags = [("--kubeconfig", kubeconfig.as_deref()), ("--context", context)];
    let flags = flags.into_iter().filter(|(_, value)| value.is_some());
    // A namespace alone selects a cluster, but not for every command.
    let is_named = kubeconfig.is_some() || context.is_some();
    let current = (!is_named).then_some(("--cluster", None));
    let all = current.into_iter().chain(flags);
    TargetFlags::cluster(all.chain([("-n", Some(namespace))]))
}

async fn load_config(choice: &ClusterChoice) -> anyhow::Result<Config> {
    let read = match &choice.kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    let kubeconfig = match read {
        Ok(kubeconfig) => kubeconfig,
        // In a pod there is no kubeconfig, and none is needed.
        Err(error) if choice.kubeconfig.is_none() && choice.context.is_none() => {
            return Config::incluster().map_err(|_| anyhow::Error::from(error).context("there is no kubeconfig"));
        }
        Err(error) => return Err(anyhow::Error::from(error).context("cannot read the kubeconfig")),
    };
    let options = KubeConfigOptions { context: choice.context.clone(), ..KubeConfigOptions::default() };
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    config.with_context(|| match &choice.context {
        Some(context) => format!("cannot use context {} of the kubeconfig", quote(context)),
        None => "cannot use the current context of the kubeconfig".to_owned(),
    })
}
