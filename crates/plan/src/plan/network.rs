//! The hosts that each part may reach: the model's host for the bridge, the web for `fetch_url`, a pack's hosts for its
//! sidecar.

use sympozium_api::run_plan::{Destination, GatewayCredential, ModelPlan, PartName, Reach};

use super::parts::{BRIDGE, PackPart};
use crate::admit::Admitted;
use crate::host;
use crate::policy::reach::destination;
use crate::policy::tools::{Action, FETCH_URL};

/// The credential for requests to the model.
const MODEL: &str = "model";
/// The credential for pages that the agent fetches, which does not include the model's host.
const WEB: &str = "web";

/// Every gateway credential of a run, those of the bridge first.
pub fn credentials(admitted: &Admitted<'_>, model: &ModelPlan, packs: &[PackPart<'_>]) -> Vec<GatewayCredential> {
    let bridge =
        |name: &str, reach| GatewayCredential { name: name.to_owned(), part: PartName(BRIDGE.to_owned()), reach };
    let of_model = model.endpoint.as_ref().map(|endpoint| {
        let destination = Destination { host: endpoint.host.clone(), port: Some(endpoint.port) };
        bridge(MODEL, only([destination]))
    });
    let fetches = admitted.tools.iter().any(|tool| tool.name == FETCH_URL && tool.action != Action::Deny);
    let of_web = fetches.then(|| bridge(WEB, web(admitted)));
    let of_packs = packs.iter().filter_map(|pack| {
        let hosts = pack.sidecar.egress.iter();
        // Admission has parsed them all.
        let hosts: Vec<Destination> = hosts.filter_map(|egress| Some(written(&destination(egress).ok()?))).collect();
        (!hosts.is_empty()).then(|| GatewayCredential {
            name: pack.part.0.clone(),
            part: pack.part.clone(),
            reach: only(hosts),
        })
    });
    of_model.into_iter().chain(of_web).chain(of_packs).collect()
}

fn only(destinations: impl IntoIterator<Item = Destination>) -> Reach {
    let mut destinations: Vec<Destination> = destinations.into_iter().collect();
    destinations.sort();
    destinations.dedup();
    Reach { public: false, destinations }
}

/// The hosts that the policy allows.
fn web(admitted: &Admitted<'_>) -> Reach {
    let reach = &admitted.policy.reach;
    Reach { public: reach.public, ..only(reach.listed().map(written)) }
}

fn written(destination: &host::Destination) -> Destination {
    let host = match &destination.hosts {
        host::Hosts::One(host) => host.to_string(),
        host::Hosts::Below(domain) => format!("*.{domain}"),
    };
    Destination { host, port: destination.port }
}
