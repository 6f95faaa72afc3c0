//! Command line of `sympozium-controller`. Every flag that is a setting has a variable `SYMPOZIUM_*` too.

use std::fs::File;
use std::io::Read as _;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::{Args, Parser, ValueEnum};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use sympozium_api::installation::PROBE_PORT;
use sympozium_api::labels::SYSTEM_NAMESPACE;
use sympozium_api::names::{ImageRef, NamespaceName, ObjectName};
use sympozium_plan::admit::KERNEL_HANDLERS;
use sympozium_plan::plan::{Images, PlanSettings};
use sympozium_plan::prices::{self, Prices};
use sympozium_program::{Failure, LogArguments};

use crate::cluster_info::Overrides;
use crate::settings::{
    CONCURRENCY, HISTORY_LIMIT, MAX_ACTIVE_RUNS, MAX_WEIGHT, RESOLVE_TIMEOUT, Settings, UserNamespaces,
};

/// Realises runs on Kubernetes: plans each once, grants its skills their permissions, and revokes and deletes everything
/// at its end.
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
    /// The kubeconfig to use [default: the pod's ServiceAccount].
    #[arg(long, value_name = "FILE", env = "SYMPOZIUM_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig [default: its current one].
    #[arg(long, value_name = "NAME", env = "SYMPOZIUM_CONTEXT")]
    pub context: Option<String>,
    /// Where controller, gateway, built-in packs and the floor are.
    #[arg(long, value_name = "NAME", env = "SYMPOZIUM_SYSTEM_NAMESPACE", default_value = SYSTEM_NAMESPACE)]
    pub system_namespace: String,
    /// The name of this process in the Lease; a random suffix is added [default: the machine's name].
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
    /// Runs that are reconciled at a time.
    #[arg(long, value_name = "N", env = "SYMPOZIUM_CONCURRENCY", default_value_t = CONCURRENCY, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub concurrency: u16,
    /// Runs that are active at a time, in the whole cluster. Further ones wait.
    #[arg(long, value_name = "N", env = "SYMPOZIUM_ACTIVE_RUNS", default_value_t = MAX_ACTIVE_RUNS)]
    pub active_runs: usize,
    /// The share of those slots that a namespace gets relative to others, from 1 to 1000; may be given for several
    /// [default: 1 for each].
    #[arg(
        long = "namespace-weight",
        value_name = "NAMESPACE=N",
        env = "SYMPOZIUM_NAMESPACE_WEIGHT",
        value_delimiter = ',',
        value_parser = parse_weight
    )]
    pub namespace_weights: Vec<(String, u16)>,
    /// Finished runs of one agent that are retained.
    #[arg(long, value_name = "N", env = "SYMPOZIUM_HISTORY", default_value_t = HISTORY_LIMIT)]
    pub history: usize,
    /// How long a finished run is retained [seconds; default: for ever].
    #[arg(long, value_name = "N", env = "SYMPOZIUM_KEEP", value_parser = clap::value_parser!(u64).range(..=MAX_SECONDS))]
    pub keep: Option<u64>,
    /// How long a run waits for an agent, a pack, a policy or a model that does not exist yet [seconds].
    #[arg(long, value_name = "N", env = "SYMPOZIUM_PATIENCE", default_value_t = RESOLVE_TIMEOUT.as_secs(), value_parser = clap::value_parser!(u64).range(..=MAX_SECONDS))]
    pub patience: u64,
    /// A file with the prices of models, as JSON, from which `status.costEstimate` of runs is computed. Read at the start
    /// [default: none, and no costs].
    #[arg(long, value_name = "FILE", env = "SYMPOZIUM_PRICES")]
    pub prices: Option<PathBuf>,
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
    /// The RuntimeClass of runs in agent-sandbox that name none.
    #[arg(long, value_name = "NAME", env = "SYMPOZIUM_RUNTIME_CLASS")]
    pub runtime_class: Option<String>,
    /// Handlers of RuntimeClasses that give a pod a kernel of its own, for runs whose policy requires one.
    #[arg(
        long,
        value_name = "LIST",
        env = "SYMPOZIUM_KERNEL_HANDLERS",
        value_delimiter = ',',
        default_values_t = KERNEL_HANDLERS.map(str::to_owned)
    )]
    pub kernel_handlers: Vec<String>,
    /// The kubelets bound the processes of a pod (`podPidsLimit`), so that a policy may require `pids`.
    #[arg(long, env = "SYMPOZIUM_POD_PIDS_LIMIT")]
    pub pod_pids_limit: bool,
    /// The StorageClass of workspaces that outlive their pod [default: the cluster's].
    #[arg(long, value_name = "NAME", env = "SYMPOZIUM_STORAGE_CLASS")]
    pub storage_class: Option<String>,
    /// The gateway's address, for a cluster without its Service.
    #[arg(long, value_name = "IP", env = "SYMPOZIUM_GATEWAY_ADDRESS")]
    pub gateway_address: Option<IpAddr>,
    /// A file of PEM certificates of authorities that runs trust for their model's endpoint and for pages, in addition to
    /// the public ones. Read at the start [default: none].
    #[arg(long, value_name = "FILE", env = "SYMPOZIUM_CERTIFICATES")]
    pub certificates: Option<PathBuf>,
}

/// Whether pods run in a user namespace of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum UserNamespaceChoice {
    /// If every node that takes pods reports that its runtime can.
    Auto,
    /// Always: a node that cannot refuses the pod.
    Always,
    /// Never.
    Never,
}

const MAX_CERTIFICATES_BYTES: usize = 256 << 10;

/// A century: adding more to a time may overflow.
const MAX_SECONDS: u64 = 100 * 366 * 86_400;

impl Arguments {
    pub fn settings(&self) -> Settings {
        let Self { runs, pods, .. } = self;
        let mut settings = Settings {
            system_namespace: self.system_namespace.clone(),
            plan: pods.plan_settings(),
            history_limit: runs.history,
            retention: runs.keep.map(Duration::from_secs),
            resolve_timeout: Duration::from_secs(runs.patience),
            concurrency: runs.concurrency,
            max_active_runs: runs.active_runs,
            namespace_weights: runs.namespace_weights.iter().cloned().collect(),
            pod_pids_limit: pods.pod_pids_limit,
            user_namespaces: match pods.user_namespaces {
                UserNamespaceChoice::Auto => UserNamespaces::Auto,
                UserNamespaceChoice::Always => UserNamespaces::Always,
                UserNamespaceChoice::Never => UserNamespaces::Never,
            },
            ..Settings::default()
        };
        settings.admission.system_namespace.clone_from(&self.system_namespace);
        settings.admission.default_runtime_class = pods.runtime_class.as_deref().map(ObjectName::new);
        let handlers = pods.kernel_handlers.iter().filter(|handler| !handler.is_empty());
        settings.admission.kernel_handlers = handlers.cloned().collect();
        settings
    }

    /// Reads the price table, if there is one.
    ///
    /// # Errors
    ///
    /// When the table cannot be read or parsed.
    pub fn load_prices(&self) -> Result<Option<Arc<Prices>>, Failure> {
        let prices = self.runs.prices.as_deref().map(read_prices).transpose()?;
        Ok(prices.map(Arc::new))
    }

    /// The values that replace discovery. Reads the file of certificates, if there is one.
    ///
    /// # Errors
    ///
    /// When the certificates cannot be read, or are invalid.
    pub fn load_overrides(&self) -> Result<Overrides, Failure> {
        let certificates = self.pods.certificates.as_deref();
        Ok(Overrides {
            gateway: self.pods.gateway_address,
            storage_class: self.pods.storage_class.as_deref().map(ObjectName::new),
            certificates: certificates.map(read_certificates).transpose()?,
        })
    }
}

impl PodArguments {
    fn plan_settings(&self) -> PlanSettings {
        let defaults = PlanSettings::default();
        let image = |given: &Option<String>, ours: ImageRef| given.as_deref().map_or(ours, ImageRef::new);
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

fn parse_weight(text: &str) -> anyhow::Result<(String, u16)> {
    let (namespace, weight) = text.split_once('=').context("it is not NAMESPACE=N")?;
    NamespaceName::new(namespace).check()?;
    let weight = weight.parse::<u16>().ok();
    let weight = weight.filter(|weight| (1..=MAX_WEIGHT).contains(weight));
    let weight = weight.with_context(|| format!("a weight is from 1 to {MAX_WEIGHT}"))?;
    Ok((namespace.to_owned(), weight))
}

fn read_prices(path: &Path) -> Result<Prices, Failure> {
    let read = || -> anyhow::Result<Prices> {
        let mut text = String::new();
        let limit = u64::try_from(prices::MAX_BYTES).unwrap_or(u64::MAX) + 1;
        File::open(path)?.take(limit).read_to_string(&mut text)?;
        Ok(Prices::parse(&text)?)
    };
    read().map_err(|error| {
        let error = error.context(format!("the prices in {} cannot be used", path.display()));
        Failure::new(error, "--prices is a file of JSON; docs/controller.md shows one")
    })
}

/// Reads a bundle of CA certificates. It is copied into a Secret of each run, and a Secret holds one megabyte in total.
fn read_certificates(path: &Path) -> Result<String, Failure> {
    let read = || -> anyhow::Result<String> {
        let mut text = String::new();
        let limit = u64::try_from(MAX_CERTIFICATES_BYTES).unwrap_or(u64::MAX) + 1;
        File::open(path)?.take(limit).read_to_string(&mut text)?;
        ensure!(text.len() <= MAX_CERTIFICATES_BYTES, "it has more than {MAX_CERTIFICATES_BYTES} bytes");
        let mut count = 0;
        for certificate in CertificateDer::pem_slice_iter(text.as_bytes()) {
            certificate.context("it is no list of PEM certificates")?;
            count += 1;
        }
        ensure!(count > 0, "there is no certificate in it");
        Ok(text)
    };
    read().map_err(|error| {
        let error = error.context(format!("the certificates in {} cannot be used", path.display()));
        Failure::new(error, "--certificates is a file of PEM certificates")
    })
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
        assert_eq!(arguments.load_overrides().unwrap(), Overrides::default());
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
            "--kernel-handlers=runsc,own-vm",
            "--pod-pids-limit",
            "--namespace-weight=prod=4,ci=2",
            "--namespace-weight=prod=5",
            "--gateway-address=203.0.113.7",
        ]);
        let settings = arguments.settings();
        let mut expected = Settings {
            system_namespace: "other".to_owned(),
            retention: Some(Duration::from_secs(60)),
            user_namespaces: UserNamespaces::Never,
            pod_pids_limit: true,
            namespace_weights: [("prod".to_owned(), 5), ("ci".to_owned(), 2)].into(),
            ..Settings::default()
        };
        expected.admission.kernel_handlers = ["runsc", "own-vm"].map(str::to_owned).into();
        expected.admission.system_namespace = "other".to_owned();
        expected.admission.default_runtime_class = Some(ObjectName::new("gvisor"));
        expected.plan.images.agent = ImageRef::new("example/agent:1");
        assert_eq!(settings, expected);
        let gateway = arguments.load_overrides().unwrap().gateway;
        assert_eq!(gateway, Some("203.0.113.7".parse().unwrap()));
        for wrong in [
            "--concurrency=0",
            "--keep=99999999999",
            "--patience=x",
            "--namespace-weight=prod",
            "--namespace-weight==4",
            "--namespace-weight=Prod=4",
            "--namespace-weight=prod=0",
            "--namespace-weight=prod=1001",
            "--namespace-weight=prod=-1",
        ] {
            assert!(Arguments::try_parse_from(["x", wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn prices_are_read_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("prices");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            let flag = format!("--prices={}", path.display());
            let prices = Arguments::parse_from(["x", &flag]).load_prices();
            prices.map_err(|error| format!("{error:?}"))
        };
        let table = r#"{"currency": "USD", "models": {"m": {"input": 1, "output": 2}}}"#;
        assert!(read(table).unwrap().is_some());
        let error = read("{}").unwrap_err();
        assert!(error.contains("cannot be used"), "{error}");
        assert!(Arguments::parse_from(["x"]).load_prices().unwrap().is_none());
        assert!(Arguments::parse_from(["x", "--prices=/nowhere"]).load_prices().is_err());
    }

    #[test]
    fn certificates_are_read_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("certificates");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            let flag = format!("--certificates={}", path.display());
            let overrides = Arguments::parse_from(["x", &flag]).load_overrides();
            overrides.map(|overrides| overrides.certificates).map_err(|error| format!("{error:?}"))
        };
        let good = rcgen::generate_simple_self_signed(["model.test".to_owned()]).unwrap();
        let good = good.cert.pem();
        assert_eq!(read(&good), Ok(Some(good.clone())));
        let half = good.split_at(good.len() / 2).0.to_owned();
        let long = good.repeat(MAX_CERTIFICATES_BYTES / good.len() + 1);
        for (text, why) in [
            ("", "there is no certificate in it"),
            ("model.test", "there is no certificate in it"),
            (&half, "it is no list of PEM certificates"),
            (&format!("{good}{half}"), "it is no list of PEM certificates"),
            (&long, "it has more than 262144 bytes"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        let missing = Arguments::parse_from(["x", "--certificates=/nowhere"]).load_overrides();
        let error = missing.map_err(|error| format!("{error:?}")).unwrap_err();
        assert!(error.contains("/nowhere"), "{error}");
    }
}
