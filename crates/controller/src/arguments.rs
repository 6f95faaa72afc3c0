//! What can be typed. Settings that have a flag have a variable `SYMPOZIUM_*` too.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, ValueEnum};
use sympozium_api::installation::PROBE_PORT;
use sympozium_api::labels::SYSTEM_NAMESPACE;
use sympozium_api::names::{ImageRef, ObjectName};
use sympozium_plan::plan::{Images, PlanSettings};
use sympozium_program::LogArguments;

use crate::settings::{ACTIVE_RUNS, CONCURRENCY, HISTORY, PATIENCE, Settings, UserNamespaces};
use crate::surroundings::Overrides;

/// Realises runs on Kubernetes: plans each once, gives its skills their rights, and takes everything back.
#[derive(Debug, Parser)]
#[command(
    name = "sympozium-controller",
    version,
    max_term_width = 100,
    after_long_help = "\
It works by the ServiceAccount of its pod, or by a kubeconfig. Of several processes one works, by the Lease
`sympozium-controller` in the system namespace; the others stand by.

Examples:
  In a cluster, as config/install does it:
    sympozium-controller

  From a machine beside the cluster, to see what it does:
    sympozium-controller --kubeconfig ~/.kube/config --context test --probe-listen 127.0.0.1:0 --log-level debug

  Where is it?
    curl http://127.0.0.1:8081/readyz

Exit codes:
  0  it was asked to end, by SIGTERM or SIGINT, and gave the Lease back
  1  it could not start or go on, or lost the Lease; the last line says why
  2  the command line was not understood"
)]
pub struct Arguments {
    /// The kubeconfig to work by [default: the pod's ServiceAccount].
    #[arg(long, value_name = "FILE", env = "SYMPOZIUM_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig [default: its current one].
    #[arg(long, value_name = "NAME", env = "SYMPOZIUM_CONTEXT")]
    pub context: Option<String>,
    /// Where controller, gateway, built-in packs and the floor are.
    #[arg(long, value_name = "NAME", env = "SYMPOZIUM_SYSTEM_NAMESPACE", default_value = SYSTEM_NAMESPACE)]
    pub system_namespace: String,
    /// What this process is called in the Lease; something random is added [default: the machine's name].
    #[arg(long, value_name = "NAME", env = "SYMPOZIUM_IDENTITY")]
    pub identity: Option<String>,
    /// Where /healthz, /readyz and /metrics are answered.
    #[arg(long, value_name = "ADDR", env = "SYMPOZIUM_PROBE_LISTEN", default_value_t = SocketAddr::from((Ipv6Addr::UNSPECIFIED, PROBE_PORT)))]
    pub probe_listen: SocketAddr,
    /// How runs are treated.
    #[command(flatten)]
    pub runs: RunArguments,
    /// What pods are made of.
    #[command(flatten)]
    pub pods: PodArguments,
    /// What is logged.
    #[command(flatten)]
    pub log: LogArguments,
}

/// How runs are treated.
#[derive(Debug, Args)]
pub struct RunArguments {
    /// Runs that are worked on at a time.
    #[arg(long, value_name = "N", env = "SYMPOZIUM_CONCURRENCY", default_value_t = CONCURRENCY, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub concurrency: u16,
    /// Runs that go on at a time, in the whole cluster. Those beyond it wait.
    #[arg(long, value_name = "N", env = "SYMPOZIUM_ACTIVE_RUNS", default_value_t = ACTIVE_RUNS)]
    pub active_runs: usize,
    /// Finished runs of one agent that are kept.
    #[arg(long, value_name = "N", env = "SYMPOZIUM_HISTORY", default_value_t = HISTORY)]
    pub history: usize,
    /// How long a finished run is kept [seconds; default: for ever].
    #[arg(long, value_name = "N", env = "SYMPOZIUM_KEEP", value_parser = clap::value_parser!(u64).range(..=MOST_SECONDS))]
    pub keep: Option<u64>,
    /// How long a run waits for an agent, a pack, a policy or a model that is not there yet [seconds].
    #[arg(long, value_name = "N", env = "SYMPOZIUM_PATIENCE", default_value_t = PATIENCE.as_secs(), value_parser = clap::value_parser!(u64).range(..=MOST_SECONDS))]
    pub patience: u64,
}

/// What pods are made of.
#[derive(Debug, Args)]
pub struct PodArguments {
    /// The image of the agent [default: ours, of this version].
    #[arg(long, value_name = "IMAGE", env = "SYMPOZIUM_AGENT_IMAGE")]
    pub agent_image: Option<String>,
    /// The image of the bridge [default: ours, of this version].
    #[arg(long, value_name = "IMAGE", env = "SYMPOZIUM_BRIDGE_IMAGE")]
    pub bridge_image: Option<String>,
    /// The image of the executor [default: ours, of this version].
    #[arg(long, value_name = "IMAGE", env = "SYMPOZIUM_SIDECAR_IMAGE")]
    pub sidecar_image: Option<String>,
    /// Whether pods run in a user namespace of their own.
    #[arg(long, value_enum, env = "SYMPOZIUM_USER_NAMESPACES", default_value_t = UserNamespaceChoice::Auto)]
    pub user_namespaces: UserNamespaceChoice,
    /// The RuntimeClass of runs in agent-sandbox for which nobody names one.
    #[arg(long, value_name = "NAME", env = "SYMPOZIUM_RUNTIME_CLASS")]
    pub runtime_class: Option<String>,
    /// The StorageClass of workspaces that outlive their pod [default: the cluster's].
    #[arg(long, value_name = "NAME", env = "SYMPOZIUM_STORAGE_CLASS")]
    pub storage_class: Option<String>,
    /// The gateway's address, for a cluster without its Service.
    #[arg(long, value_name = "IP", env = "SYMPOZIUM_GATEWAY_ADDRESS")]
    pub gateway_address: Option<IpAddr>,
}

/// Whether pods run in a user namespace of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum UserNamespaceChoice {
    /// Where every node that takes pods says that its runtime can.
    Auto,
    /// Always: a node that cannot refuses the pod.
    Always,
    /// Never.
    Never,
}

/// A century. Clocks need not be added to further than that.
const MOST_SECONDS: u64 = 100 * 366 * 86_400;

impl Arguments {
    /// How the installation is set up.
    pub fn settings(&self) -> Settings {
        let Self { runs, pods, .. } = self;
        let mut settings = Settings {
            system_namespace: self.system_namespace.clone(),
            plan: pods.plan_settings(),
            history: runs.history,
            keep: runs.keep.map(Duration::from_secs),
            patience: Duration::from_secs(runs.patience),
            concurrency: runs.concurrency,
            active_runs: runs.active_runs,
            host_users: match pods.user_namespaces {
                UserNamespaceChoice::Auto => UserNamespaces::Auto,
                UserNamespaceChoice::Always => UserNamespaces::Always,
                UserNamespaceChoice::Never => UserNamespaces::Never,
            },
            ..Settings::default()
        };
        settings
            .admission
            .system_namespace
            .clone_from(&self.system_namespace);
        settings.admission.default_runtime_class =
            pods.runtime_class.as_deref().map(ObjectName::new);
        settings
    }

    /// What is told instead of looked for.
    pub fn overrides(&self) -> Overrides {
        Overrides {
            gateway: self.pods.gateway_address,
            storage_class: self.pods.storage_class.as_deref().map(ObjectName::new),
        }
    }
}

impl PodArguments {
    fn plan_settings(&self) -> PlanSettings {
        let defaults = PlanSettings::default();
        let image =
            |told: &Option<String>, ours: ImageRef| told.as_deref().map_or(ours, ImageRef::new);
        PlanSettings {
            images: Images {
                agent: image(&self.agent_image, defaults.images.agent),
                bridge: image(&self.bridge_image, defaults.images.bridge),
                sidecar: image(&self.sidecar_image, defaults.images.sidecar),
            },
            ..defaults
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_definition_is_sound_and_its_defaults_are_the_constants() {
        Arguments::command().debug_assert();
        let arguments = Arguments::parse_from(["x"]);
        assert_eq!(arguments.settings(), Settings::default());
        assert_eq!(arguments.overrides(), Overrides::default());
    }

    #[test]
    fn what_is_typed_is_set() {
        let arguments = Arguments::parse_from([
            "x",
            "--system-namespace=other",
            "--keep=60",
            "--user-namespaces=never",
            "--agent-image=example/agent:1",
            "--runtime-class=gvisor",
            "--gateway-address=203.0.113.7",
        ]);
        let settings = arguments.settings();
        let mut expected = Settings {
            system_namespace: "other".to_owned(),
            keep: Some(Duration::from_secs(60)),
            host_users: UserNamespaces::Never,
            ..Settings::default()
        };
        expected.admission.system_namespace = "other".to_owned();
        expected.admission.default_runtime_class = Some(ObjectName::new("gvisor"));
        expected.plan.images.agent = ImageRef::new("example/agent:1");
        assert_eq!(settings, expected);
        let gateway = arguments.overrides().gateway;
        assert_eq!(gateway, Some("203.0.113.7".parse().unwrap()));
        for wrong in ["--concurrency=0", "--keep=99999999999", "--patience=x"] {
            assert!(Arguments::try_parse_from(["x", wrong]).is_err(), "{wrong}");
        }
    }
}
