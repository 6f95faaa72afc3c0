//! The hosts that each part may reach: the model's host for the bridge, the web for `fetch_url`, a pack's hosts for its
//! sidecar.

use sympozium_api::builtin_tool::FETCH_URL;
use sympozium_api::run_plan::Gate;
use sympozium_api::run_plan::{AllowedHosts, Destination, GatewayCredential, ModelPlan, PartName};

use super::parts::{BRIDGE, PackPart};
use crate::admit::Admitted;
use crate::host;
use crate::policy::egress::parse_egress;

/// The credential for requests to the model.
const MODEL_CREDENTIAL: &str = "model";
/// The credential for pages that the agent fetches, which does not include the model's host.
const WEB_CREDENTIAL: &str = "web";

/// Every gateway credential of a run, those of the bridge first.
pub fn credentials(admitted: &Admitted<'_>, model: &ModelPlan, packs: &[PackPart<'_>]) -> Vec<GatewayCredential> {
    let bridge =
        |name: &str, reach| GatewayCredential { name: name.to_owned(), part: PartName(BRIDGE.to_owned()), reach };
    let of_model = model.endpoint.as_ref().map(|endpoint| {
        let destination = Destination { host: endpoint.host.clone(), port: Some(endpoint.port) };
        bridge(MODEL_CREDENTIAL, allow_only([destination]))
    });
    let fetches = admitted.tools.iter().any(|tool| tool.name == FETCH_URL && tool.action != Gate::Deny);
    let of_web = fetches.then(|| bridge(WEB_CREDENTIAL, web_hosts(admitted)));
    let of_packs = packs.iter().filter_map(|pack| {
        let hosts = pack.sidecar.egress.iter();
        // Admission has parsed them all.
        let hosts: Vec<Destination> =
            hosts.filter_map(|egress| Some(to_plan_destination(&parse_egress(egress).ok()?))).collect();
        (!hosts.is_empty()).then(|| GatewayCredential {
            name: pack.part.0.clone(),
            part: pack.part.clone(),
            reach: allow_only(hosts),
        })
    });
    of_model.into_iter().chain(of_web).chain(of_packs).collect()
}

fn allow_only(destinations: impl IntoIterator<Item = Destination>) -> AllowedHosts {
    let mut destinations: Vec<Destination> = destinations.into_iter().collect();
    destinations.sort();
    destinations.dedup();
    AllowedHosts { public: false, destinations }
}

/// The hosts that the policy allows.
fn web_hosts(admitted: &Admitted<'_>) -> AllowedHosts {
    let reach = &admitted.policy.egress;
    AllowedHosts { public: reach.public, ..allow_only(reach.destinations().map(to_plan_destination)) }
}

fn to_plan_destination(destination: &host::Destination) -> Destination {
    let host = match &destination.hosts {
        host::HostSet::Exact(host) => host.to_string(),
        host::HostSet::Subdomains(domain) => format!("*.{domain}"),
    };
    Destination { host, port: destination.port }
}
