//! The input files of the parts: the plan, the agent's view of it, credentials for the gateway.

use std::collections::BTreeMap;

use anyhow::Context as _;
use sympozium_api::digest::to_canonical_json;
use sympozium_api::run_plan::{AgentView, PartName, Role};
use sympozium_ipc::credential::{Claims, Credential, KeyRing};
use sympozium_ipc::run_api::RUN_CREDENTIAL;
use sympozium_plan::plan::agent_view;
use sympozium_plan::render::key;
use zeroize::Zeroizing;

use crate::forward::PROXY_PORT;
use crate::prepared_run::PreparedRun;
use sympozium_runs::time::now_ms;

/// How long a credential outlives the maximum duration of its run.
const EXPIRY_MARGIN_SECONDS: u64 = 3600;

/// The files of each part, and the proxy URL of each part that has egress.
pub type PartInputs = (BTreeMap<PartName, BTreeMap<String, Vec<u8>>>, BTreeMap<String, Zeroizing<String>>);

/// Builds the files of each part, and the proxy URLs of parts that reach the gateway as a proxy.
pub fn build_inputs(prepared: &PreparedRun, keys: &KeyRing) -> anyhow::Result<PartInputs> {
    let plan = &prepared.plan;
    let expires = now_ms() / 1000 + plan.deadlines.ceiling_seconds + EXPIRY_MARGIN_SECONDS;
    let sign = |name: &str| -> anyhow::Result<Credential> {
        let claims = Claims { run: plan.run.uid.as_str().to_owned(), name: name.to_owned(), expires };
        keys.sign(&claims).with_context(|| format!("cannot sign credential {name}"))
    };
    let pair = |it: &Credential| format!("{}:{}", it.user, *it.password).into_bytes();
    let mut inputs = BTreeMap::new();
    let mut proxies = BTreeMap::new();
    for part in &plan.parts {
        let mut files = BTreeMap::new();
        let own = plan.credentials.iter().filter(|it| it.part == part.name);
        match &part.role {
            Role::Agent => {
                let view = to_canonical_json(&agent_view(plan)).context("cannot serialize the agent's view as JSON")?;
                files.insert(AgentView::FILE.to_owned(), view);
            }
            Role::Bridge => {
                files.insert(key::PLAN.to_owned(), prepared.plan_bytes.clone());
                files.insert(key::TOKEN.to_owned(), pair(&sign(RUN_CREDENTIAL)?));
                for credential in own {
                    let name = format!("{}{}", key::CREDENTIAL, credential.name);
                    files.insert(name, pair(&sign(&credential.name)?));
                }
            }
            _ => {
                if let Some(credential) = own.into_iter().next() {
                    let url = sign(&credential.name)?.proxy_url(&format!("127.0.0.1:{PROXY_PORT}"));
                    files.insert(key::PROXY.to_owned(), url.as_bytes().to_vec());
                    proxies.insert(part.name.0.clone(), url);
                }
            }
        }
        inputs.insert(part.name.clone(), files);
    }
    Ok((inputs, proxies))
}
