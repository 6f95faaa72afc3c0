//! The command line. Every setting that has a flag also has a variable `SYMPOZIUM_*`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use sympozium_api::labels::SYSTEM_NAMESPACE;
use sympozium_plan::host::Host;
use sympozium_program::LogArguments;

use crate::forward::{Forward, GatewayAddress};
use crate::settings::{
    CONNECTION_LIMIT, IDLE_LIMIT, Loopback, MAX_BYTES_OF_CONNECTION, MAX_BYTES_OF_CREDENTIAL, MAX_BYTES_OF_RUN,
    MAX_CONNECTIONS, MAX_CONNECTIONS_OF_CREDENTIAL, MAX_CONNECTIONS_OF_PEER, MAX_CONNECTIONS_OF_RUN,
    MAX_UNAUTHENTICATED_OF_PEER, Settings,
};

/// The only way out of a run: a proxy that lets each part reach what its run's plan lists for it.
#[derive(Debug, Parser)]
#[command(
    name = "sympozium-gateway",
    version,
    max_term_width = 100,
    after_long_help = "\
Examples:
  Serve the plans of a directory, and read them again after one was added or removed:
    printf 'k1 %s\\n' \"$(openssl rand -hex 32)\" > keys
    sympozium-gateway serve --plans plans --key-file keys --listen 127.0.0.1:3128 &
    kill -HUP %1

  Serve the runs of a cluster, with files that the kubelet mounts:
    sympozium-gateway serve --kubernetes --listen 0.0.0.0:8443 --canary 8444 --probe-listen 0.0.0.0:8081 \\
      --tls-cert tls/tls.crt --tls-key tls/tls.key --plain-proxy --key-file keys/keys

  Be a part of a run, to see what it may reach:
    export HTTPS_PROXY=$(sympozium-gateway sign --key-file keys --run UID --name web)
    curl -sS https://example.org

Exit codes:
  0  it was asked to end: by SIGTERM or SIGINT
  1  it could not start or go on; the last line says why
  2  the command line was not understood"
)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What the program does.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve runs until asked to terminate.
    ///
    /// SIGHUP reloads plans, keys and certificates. A run whose plan is gone has ended: its connections are closed. In a
    /// cluster, keys and certificates are reloaded when their files change.
    Serve(Box<ServeArguments>),
    /// Print the proxy's address with the credential of one part of a run in it.
    ///
    /// For experiments: in a cluster the controller does this.
    Sign(SignArguments),
    /// Listen on loopback and forward each port through a gateway to one host.
    #[command(hide = true)]
    Forward(ForwardArguments),
}

/// The arguments of `serve`.
#[derive(Debug, Args)]
pub struct ServeArguments {
    /// Where parts connect: an address, or unix:PATH for a socket in the file system.
    #[arg(long, value_name = "ADDR", env = "SYMPOZIUM_GATEWAY_LISTEN", default_value = "127.0.0.1:3128", value_parser = parse_gateway_address)]
    pub listen: GatewayAddress,
    /// The directory of plans: each *.json in it is the plan of a run that has not ended.
    #[arg(long, value_name = "DIR", env = "SYMPOZIUM_GATEWAY_PLANS")]
    pub plans: Option<PathBuf>,
    /// Serve the runs of a Kubernetes cluster instead: AgentRuns are watched, reports become RunRecords and a run's
    /// status.report, and people answer ToolApprovals.
    #[arg(long, env = "SYMPOZIUM_GATEWAY_KUBERNETES")]
    pub kubernetes: bool,
    /// How to reach the cluster [default: the pod's own service account, or else $KUBECONFIG or ~/.kube/config].
    #[arg(long, value_name = "FILE", env = "SYMPOZIUM_GATEWAY_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// The namespace that Sympozium is installed in.
    #[arg(
        long,
        value_name = "NS",
        env = "SYMPOZIUM_GATEWAY_SYSTEM_NAMESPACE",
        default_value = SYSTEM_NAMESPACE
    )]
    pub system_namespace: String,
    /// The keys of credentials: a line each of an id, a space and 64 hexadecimal digits.
    #[arg(long, value_name = "FILE", env = "SYMPOZIUM_GATEWAY_KEY_FILE")]
    pub key_file: PathBuf,
    /// Serve the run API too, and store what runs report in this directory [default: the proxy only].
    #[arg(long, value_name = "DIR", env = "SYMPOZIUM_GATEWAY_RECORDS")]
    pub records: Option<PathBuf>,
    /// The certificate to serve TLS with, and those that signed it [default: no TLS].
    #[arg(long, value_name = "FILE", env = "SYMPOZIUM_GATEWAY_TLS_CERT", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Its key.
    #[arg(long, value_name = "FILE", env = "SYMPOZIUM_GATEWAY_TLS_KEY", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Serve the proxy, and only that, to clients without TLS too: few programs can use TLS to a proxy. Their credential,
    /// valid for one part of one run, is sent to the gateway in clear text.
    #[arg(long, env = "SYMPOZIUM_GATEWAY_PLAIN_PROXY", requires = "tls_cert")]
    pub plain_proxy: bool,
    /// A port that greets every client. A pod that can reach it is not confined by its NetworkPolicy.
    #[arg(long, value_name = "PORT", env = "SYMPOZIUM_GATEWAY_CANARY")]
    pub canary: Option<u16>,
    /// Where GET /healthz, /readyz and /metrics are answered, without a credential.
    #[arg(long, value_name = "ADDR", env = "SYMPOZIUM_GATEWAY_PROBE_LISTEN")]
    pub probe_listen: Option<SocketAddr>,
    /// A name server; up to three [default: those of /etc/resolv.conf].
    #[arg(long, value_name = "ADDR", env = "SYMPOZIUM_GATEWAY_DNS", value_delimiter = ',')]
    pub dns: Vec<SocketAddr>,
    /// The domain that completes names that end in .svc, such as cluster.local [default: in a pod, the domain in the search
    /// list of its /etc/resolv.conf].
    #[arg(long, value_name = "DOMAIN", env = "SYMPOZIUM_GATEWAY_CLUSTER_DOMAIN", value_parser = parse_domain)]
    pub cluster_domain: Option<String>,
    /// Let plans that name localhost reach this machine. For a user's own machine, not for a cluster.
    #[arg(long, env = "SYMPOZIUM_GATEWAY_ALLOW_LOOPBACK")]
    pub allow_loopback: bool,
    /// The bounds.
    #[command(flatten)]
    pub bounds: BoundArguments,
    /// What is logged.
    #[command(flatten)]
    pub log: LogArguments,
}

/// The bounds that can be chosen.
#[derive(Debug, Args)]
pub struct BoundArguments {
    /// Connections at once, in total.
    #[arg(long, value_name = "N", env = "SYMPOZIUM_GATEWAY_MAX_CONNECTIONS", default_value_t = MAX_CONNECTIONS)]
    pub max_connections: usize,
    /// Connections at once from one address.
    #[arg(long, value_name = "N", env = "SYMPOZIUM_GATEWAY_MAX_CONNECTIONS_OF_PEER", default_value_t = MAX_CONNECTIONS_OF_PEER)]
    pub max_connections_of_peer: usize,
    /// Connections at once from one address that have sent no credential. An address with a connection that has sent a
    /// valid one may have eight times as many. Raise it where a proxy makes all pods one address.
    #[arg(long, value_name = "N", env = "SYMPOZIUM_GATEWAY_MAX_UNAUTHENTICATED_OF_PEER", default_value_t = MAX_UNAUTHENTICATED_OF_PEER)]
    pub max_unauthenticated_of_peer: usize,
    /// Connections at once of one run.
    #[arg(long, value_name = "N", env = "SYMPOZIUM_GATEWAY_MAX_CONNECTIONS_OF_RUN", default_value_t = MAX_CONNECTIONS_OF_RUN)]
    pub max_connections_of_run: usize,
    /// Connections at once of one credential.
    #[arg(long, value_name = "N", env = "SYMPOZIUM_GATEWAY_MAX_CONNECTIONS_OF_CREDENTIAL", default_value_t = MAX_CONNECTIONS_OF_CREDENTIAL)]
    pub max_connections_of_credential: usize,
    /// Bytes, both ways together, of one connection.
    #[arg(long, value_name = "N", env = "SYMPOZIUM_GATEWAY_MAX_BYTES_OF_CONNECTION", default_value_t = MAX_BYTES_OF_CONNECTION)]
    pub max_bytes_of_connection: u64,
    /// Bytes, both ways together, of one credential.
    #[arg(long, value_name = "N", env = "SYMPOZIUM_GATEWAY_MAX_BYTES_OF_CREDENTIAL", default_value_t = MAX_BYTES_OF_CREDENTIAL)]
    pub max_bytes_of_credential: u64,
    /// Bytes, both ways together, of one run.
    #[arg(long, value_name = "N", env = "SYMPOZIUM_GATEWAY_MAX_BYTES_OF_RUN", default_value_t = MAX_BYTES_OF_RUN)]
    pub max_bytes_of_run: u64,
    /// How long a connection may last [seconds].
    #[arg(long, value_name = "N", env = "SYMPOZIUM_GATEWAY_CONNECTION_LIMIT", default_value_t = CONNECTION_LIMIT.as_secs())]
    pub connection_limit: u64,
    /// How long a connection may be idle [seconds].
    #[arg(long, value_name = "N", env = "SYMPOZIUM_GATEWAY_IDLE_LIMIT", default_value_t = IDLE_LIMIT.as_secs())]
    pub idle_limit: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunSource<'a> {
    Plans(&'a Path),
    Kubernetes,
}

/// Why the source of runs is not clear, and what to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct SourceError {
    what: &'static str,
    pub hint: &'static str,
}

impl ServeArguments {
    /// Where runs come from.
    ///
    /// # Errors
    ///
    /// Returns an error if no source or two are given, or an option that belongs to the other one.
    pub fn source(&self) -> Result<RunSource<'_>, SourceError> {
        let wrong = |what, hint| SourceError { what, hint };
        match (&self.plans, self.kubernetes) {
            (None, false) => {
                Err(wrong("no source of runs is given", "choose --plans DIR, or --kubernetes in a cluster"))
            }
            (Some(_), true) => {
                Err(wrong("runs come from --plans or from --kubernetes, and not from both", "leave one of them out"))
            }
            (Some(_), false) if self.kubeconfig.is_some() => {
                Err(wrong("--kubeconfig says how to reach a cluster, and --plans serves none", "leave one of them out"))
            }
            (None, true) if self.records.is_some() => Err(wrong(
                "--records stores reports as files, and in a cluster they are stored there",
                "leave --records out",
            )),
            (Some(directory), false) => Ok(RunSource::Plans(directory)),
            (None, true) => Ok(RunSource::Kubernetes),
        }
    }

    pub fn settings(&self) -> Settings {
        let bounds = &self.bounds;
        Settings {
            connections: bounds.max_connections.max(1),
            connections_of_peer: bounds.max_connections_of_peer,
            unauthenticated_of_peer: bounds.max_unauthenticated_of_peer.max(1),
            connections_of_run: bounds.max_connections_of_run,
            connections_of_credential: bounds.max_connections_of_credential,
            bytes_of_connection: bounds.max_bytes_of_connection,
            bytes_of_credential: bounds.max_bytes_of_credential,
            bytes_of_run: bounds.max_bytes_of_run,
            connection_limit: Duration::from_secs(bounds.connection_limit.min(MAX_SECONDS)),
            idle_limit: Duration::from_secs(bounds.idle_limit.min(MAX_SECONDS)),
            loopback: if self.allow_loopback { Loopback::AsPlanned } else { Loopback::Refused },
            ..Settings::default()
        }
    }
}

/// A year: larger durations need not be added to a clock.
const MAX_SECONDS: u64 = 366 * 86_400;

/// The arguments of `sign`.
#[derive(Debug, Args)]
pub struct SignArguments {
    /// The keys of credentials; the first one signs.
    #[arg(long, value_name = "FILE", env = "SYMPOZIUM_GATEWAY_KEY_FILE")]
    pub key_file: PathBuf,
    /// The run's UID.
    #[arg(long, value_name = "UID")]
    pub run: String,
    /// The credential's name in the run's plan.
    #[arg(long, value_name = "NAME")]
    pub name: String,
    /// How long it is valid [seconds].
    #[arg(long, value_name = "N", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=604_800))]
    pub expires_in: u64,
    /// Where the gateway is.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:3128")]
    pub gateway: String,
}

/// The arguments of `forward`.
#[derive(Debug, Args)]
pub struct ForwardArguments {
    /// A port on loopback and its target, such as 5432=db.team.svc:5432.
    #[arg(long = "to", value_name = "PORT=HOST:PORT", required = true, value_parser = str::parse::<Forward>)]
    pub forwards: Vec<Forward>,
    /// Where the gateway is: an address, or unix:PATH.
    #[arg(long, value_name = "ADDR", env = "SYMPOZIUM_GATEWAY", value_parser = parse_gateway_address)]
    pub gateway: GatewayAddress,
    /// The file with the credential: the user part and the password of a proxy's address, with a colon between them.
    #[arg(long, value_name = "FILE", env = "SYMPOZIUM_GATEWAY_CREDENTIAL_FILE")]
    pub credential_file: PathBuf,
    /// What is logged.
    #[command(flatten)]
    pub log: LogArguments,
}

fn parse_gateway_address(text: &str) -> Result<GatewayAddress, String> {
    match text.strip_prefix("unix:") {
        Some("") => Err("there is no path after `unix:`".to_owned()),
        Some(path) => Ok(GatewayAddress::Unix(path.into())),
        None => {
            text.parse().map(GatewayAddress::Tcp).map_err(|_| "it is neither ADDRESS:PORT nor unix:PATH".to_owned())
        }
    }
}

fn parse_domain(text: &str) -> Result<String, String> {
    match Host::parse(text) {
        Ok(Host::Name(name)) => Ok(name),
        _ => Err("it is not a domain".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_definition_is_sound_and_its_defaults_are_the_constants() {
        Arguments::command().debug_assert();
        let words = ["x", "serve", "--plans", "p", "--key-file", "k"];
        let Command::Serve(serve) = Arguments::parse_from(words).command else {
            panic!("it was asked to serve");
        };
        assert_eq!(serve.settings(), Settings::default());
    }

    #[test]
    fn runs_come_from_one_place() {
        let chosen = |more: &[&str]| {
            let words = [&["x", "serve", "--key-file", "k"], more].concat();
            let Command::Serve(serve) = Arguments::parse_from(words).command else {
                panic!("it was asked to serve");
            };
            let source = serve.source().map_err(|unclear| unclear.to_string());
            source.map(|source| format!("{source:?}"))
        };
        assert_eq!(chosen(&["--plans", "p"]), Ok("Plans(\"p\")".to_owned()));
        assert_eq!(chosen(&["--kubernetes"]), Ok("Kubernetes".to_owned()));
        for (wrong, expected) in [
            (&[][..], "no source of runs is given"),
            (&["--plans", "p", "--kubernetes"], "runs come from --plans or from --kubernetes, and not from both"),
            (
                &["--plans", "p", "--kubeconfig", "c"],
                "--kubeconfig says how to reach a cluster, and --plans serves none",
            ),
            (
                &["--kubernetes", "--records", "r"],
                "--records stores reports as files, and in a cluster they are stored there",
            ),
        ] {
            assert_eq!(chosen(wrong), Err(expected.to_owned()));
        }
    }

    #[test]
    fn places_and_forwards() {
        assert_eq!(parse_gateway_address("127.0.0.1:1"), Ok(GatewayAddress::Tcp("127.0.0.1:1".parse().unwrap())));
        assert_eq!(parse_gateway_address("unix:/a"), Ok(GatewayAddress::Unix("/a".into())));
        for wrong in ["", "unix:", "localhost:1", "/a"] {
            assert!(parse_gateway_address(wrong).is_err(), "{wrong}");
        }
        for (text, local) in
            [("5432=db.team.svc:6432", "127.0.0.1:5432"), ("127.1.0.7:5432=db.team.svc:6432", "127.1.0.7:5432")]
        {
            let good: Forward = text.parse().unwrap();
            assert_eq!(
                (good.local.to_string(), good.host.to_string(), good.port),
                (local.to_owned(), "db.team.svc".into(), 6432)
            );
        }
        for wrong in ["", "1", "1=", "1=a", "a=b:1", "1=b:0", "1=0x7f.1:1", "0.0.0.0:1=b:1", "10.0.0.1:1=b:1"] {
            assert!(wrong.parse::<Forward>().is_err(), "{wrong}");
        }
    }
}
