//! Resolves names, again for each request: a result is valid for one decision and the connection that it allows.
//!
//! There is no cache, so no result outlives its decision; no search list, so a name is never completed to another one;
//! and no hosts file. `localhost` is never resolved: it is this machine.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::Name;
use hickory_resolver::system_conf::read_system_conf;

use crate::plans::is_localhost;

/// Maximum number of name servers.
pub const MAX_NAME_SERVERS: usize = 3;
/// What precedes the cluster domain in the search list of a pod.
const SERVICE_PREFIX: &str = "svc.";
/// Timeout of one query to one name server.
const QUERY_TIMEOUT: Duration = Duration::from_secs(3);
/// Number of attempts for a query without an answer.
const QUERY_ATTEMPTS: usize = 2;

#[derive(Debug)]
pub struct Resolver {
    resolver: TokioResolver,
    cluster_domain: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    #[error("there is no such name, or it has no address")]
    NotFound,
    #[error("no name server answered in time")]
    Timeout,
    /// The answer was an error, or could not be parsed.
    #[error("{0}")]
    Failed(String),
}

#[derive(Debug, thiserror::Error)]
pub enum ResolverError {
    #[error("the name servers in /etc/resolv.conf cannot be used")]
    System(#[source] NetError),
    #[error("there is no name server in /etc/resolv.conf")]
    NoServer,
    #[error("the resolver cannot be made")]
    Library(#[source] NetError),
}

impl Resolver {
    /// Uses these name servers, or those of `/etc/resolv.conf` if there are none. Names that end in `.svc` are
    /// completed with the cluster domain, if there is one, as in a cluster. If it is not given and `/etc/resolv.conf`
    /// is used, it is taken from the search list that the kubelet writes.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no name server.
    pub fn new(servers: &[SocketAddr], cluster_domain: Option<&str>) -> Result<Self, ResolverError> {
        let mut servers: Vec<NameServerConfig> = servers.iter().map(|server| name_server(*server)).collect();
        let mut cluster_domain = cluster_domain.map(str::to_owned);
        if servers.is_empty() {
            let (system, _) = read_system_conf().map_err(ResolverError::System)?;
            let (_, search, found) = system.into_parts();
            servers = found;
            cluster_domain = cluster_domain.or_else(|| pod_cluster_domain(&search));
        }
        if servers.is_empty() {
            return Err(ResolverError::NoServer);
        }
        servers.truncate(MAX_NAME_SERVERS);
        let config = ResolverConfig::from_name_servers(servers);
        let builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        let resolver = builder.with_options(options()).build();
        Ok(Self { resolver: resolver.map_err(ResolverError::Library)?, cluster_domain })
    }

    /// All addresses of a name, IPv4 and IPv6.
    ///
    /// # Errors
    ///
    /// Returns an error if there is none, or if no name server answers.
    pub async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, ResolveError> {
        if is_localhost(name) {
            return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
        }
        // The trailing dot makes the name absolute.
        let asked = match &self.cluster_domain {
            Some(domain) if name.ends_with(".svc") => format!("{name}.{domain}."),
            _ => format!("{name}."),
        };
        let found = self.resolver.lookup_ip(asked).await.map_err(to_resolve_error)?;
        let mut addresses: Vec<IpAddr> = found.iter().collect();
        // IPv4 first: without an IPv6 route, no time is lost on it.
        addresses.sort();
        addresses.dedup();
        if addresses.is_empty() {
            return Err(ResolveError::NotFound);
        }
        Ok(addresses)
    }
}

/// The cluster domain in the search list of a pod, which has `NAMESPACE.svc.DOMAIN`, `svc.DOMAIN` and `DOMAIN`.
fn pod_cluster_domain(search: &[Name]) -> Option<String> {
    let search: Vec<String> =
        search.iter().map(|name| name.to_ascii().trim_end_matches('.').to_ascii_lowercase()).collect();
    let mut domains = search.iter().filter_map(|domain| domain.strip_prefix(SERVICE_PREFIX));
    domains.find(|domain| !domain.is_empty() && search.iter().any(|other| other == domain)).map(str::to_owned)
}

fn name_server(address: SocketAddr) -> NameServerConfig {
    let mut server = NameServerConfig::udp_and_tcp(address.ip());
    let connections: &mut Vec<ConnectionConfig> = &mut server.connections;
    for connection in connections {
        connection.port = address.port();
    }
    server
}

fn options() -> ResolverOpts {
    let mut options = ResolverOpts::default();
    options.ndots = 0;
    options.timeout = QUERY_TIMEOUT;
    options.attempts = QUERY_ATTEMPTS;
    options.cache_size = 0;
    options.use_hosts_file = ResolveHosts::Never;
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    // A forged answer has to guess more than an ID and a port.
    options.case_randomization = true;
    // Name servers that do not preserve the case are queried over TCP, which needs no such protection.
    options.try_tcp_on_error = true;
    options
}

fn to_resolve_error(error: NetError) -> ResolveError {
    if error.is_no_records_found() || error.is_nx_domain() {
        return ResolveError::NotFound;
    }
    match error {
        NetError::Timeout => ResolveError::Timeout,
        other => ResolveError::Failed(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_knows_the_domain_of_its_cluster() {
        let found = |search: &[&str]| {
            let search: Vec<Name> = search.iter().map(|domain| domain.parse().unwrap()).collect();
            pod_cluster_domain(&search)
        };
        let pod = ["team.svc.cluster.local", "svc.cluster.local", "cluster.local"];
        assert_eq!(found(&pod).as_deref(), Some("cluster.local"));
        let other = ["a.svc.K8s.Example.org.", "svc.k8s.example.org", "k8s.example.org", "lan"];
        assert_eq!(found(&other).as_deref(), Some("k8s.example.org"));
        for machine in [&[][..], &["example.org"], &["svc.example.org", "lan"], &["svc"]] {
            assert_eq!(found(machine), None, "{machine:?}");
        }
    }
}
