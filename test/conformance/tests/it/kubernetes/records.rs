//! What is kept of a run in a cluster, and what is left of it although it should not be: one listing of everything.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use sympozium_api::RunPlan;
use sympozium_api::rbac::RbacRule;
use sympozium_conformance::observed::{Records, results};
use sympozium_testkit::cluster::api::Api;
use sympozium_testkit::cluster::runs::{condition, leftovers, listed_of};

/// Everything that bears the UID of a run.
pub struct Listing(Vec<Value>);

impl Listing {
    pub fn of(api: &Api, run: &Value, sandboxes: bool) -> anyhow::Result<Self> {
        let mut more = Vec::new();
        if sandboxes {
            let group = api.get("/apis/agents.x-k8s.io")?;
            let version = group["preferredVersion"]["groupVersion"].as_str();
            let version = version.context("agent-sandbox serves no version")?;
            more.push(format!("/apis/{version}/sandboxes"));
        }
        listed_of(api, run, &more).map(Self)
    }

    fn all(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.0.iter().filter(move |it| it["kind"] == kind)
    }

    /// What should be gone.
    pub fn leftovers(&self) -> Vec<String> {
        leftovers(&self.0)
    }

    /// The lines of all records of a kind, in their order.
    fn lines(&self, kind: &str) -> anyhow::Result<String> {
        let mut records: Vec<&Value> = self.all("RunRecord").collect();
        records.retain(|it| it["spec"]["kind"] == kind);
        records.sort_by_key(|it| it["spec"]["segment"].as_i64());
        let mut text = String::new();
        for (number, record) in records.iter().enumerate() {
            if record["spec"]["segment"].as_u64() != u64::try_from(number).ok() {
                bail!("a piece of the {kind} is missing before {}", record["spec"]["segment"]);
            }
            let lines = record["spec"]["lines"].as_array().into_iter().flatten();
            for line in lines {
                text.push_str(line.as_str().unwrap_or_default());
                text.push('\n');
            }
        }
        Ok(text)
    }

    fn plan(&self) -> anyhow::Result<Option<Vec<u8>>> {
        let plans: Vec<&Value> = self.all("ConfigMap").collect();
        let plans = plans.iter().filter(|it| it["metadata"]["labels"]["sympozium.ai/component"] == "plan");
        let plans: Vec<_> = plans.collect();
        match plans.as_slice() {
            [] => Ok(None),
            [plan] => {
                let text = plan["data"]["plan.json"].as_str();
                Ok(Some(text.context("a plan without a text")?.into()))
            }
            _ => bail!("there are {} plans", plans.len()),
        }
    }

    /// What is kept of a run; nothing of one that was never planned.
    pub fn records(&self, run: &Value, files: Option<BTreeMap<String, Vec<u8>>>) -> anyhow::Result<Option<Records>> {
        let Some(plan) = self.plan()? else {
            return Ok(None);
        };
        let status = &run["status"];
        let digest = RunPlan::digest_of(&plan);
        if status["planDigest"] != digest.as_str() {
            bail!("the plan is not the one whose digest the run has");
        }
        let head = status["report"]["receiptsHead"].as_str();
        Ok(Some(Records {
            plan,
            receipts: self.lines("receipts")?.into_bytes(),
            head: head.map(str::to_owned),
            results: results(&self.lines("transcript")?)?,
            around: around(run),
            files,
        }))
    }
}

/// What is enforced around each part as a whole: by the word of the run's status, and of what looked at the network.
fn around(run: &Value) -> BTreeMap<String, Vec<String>> {
    let network = condition(run, "NetworkEnforced")["status"] == "True";
    let parts = run["status"]["isolation"].as_array().into_iter().flatten();
    parts
        .map(|part| {
            let guarantees = part["guarantees"].as_array().into_iter().flatten();
            let named = guarantees.filter_map(Value::as_str).map(str::to_owned);
            let named = named.chain(network.then(|| "network".to_owned()));
            let name = part["part"].as_str().unwrap_or_default().to_owned();
            (name, named.collect())
        })
        .collect()
}

/// Which of the rights that a plan gave are still there, by the word of the API server.
pub fn rights_left(api: &Api, run: &Value, plan: &[u8]) -> anyhow::Result<Vec<String>> {
    let plan = RunPlan::read(plan)?;
    let grants = run["status"]["grants"].as_array().into_iter().flatten();
    let accounts: Vec<&str> =
        grants.filter(|grant| grant["kind"] == "ServiceAccount").filter_map(|grant| grant["name"].as_str()).collect();
    let namespace = plan.run.namespace.as_str();
    let mut reviews = Vec::new();
    for identity in &plan.identities {
        let rules = identity.namespace_rules.iter().map(|it| (Some(namespace), it));
        let rules = rules.chain(identity.cluster_rules.iter().map(|it| (None, it)));
        for (namespace_of_rule, rule) in rules {
            for account in &accounts {
                let user = format!("system:serviceaccount:{namespace}:{account}");
                reviews.extend(reviews_of(&user, namespace_of_rule, rule));
            }
        }
    }
    let answers = reviews.iter().map(|review| api.create(review));
    let answers: Vec<Value> = answers.collect::<Result<_, _>>()?;
    let allowed = answers.iter().filter(|it| it["status"]["allowed"] == true);
    Ok(allowed.map(|it| format!("the right {}", it["spec"])).collect())
}

fn reviews_of(user: &str, namespace: Option<&str>, rule: &RbacRule) -> Vec<Value> {
    let mut reviews = Vec::new();
    for group in &rule.api_groups {
        for resource in &rule.resources {
            for verb in &rule.verbs {
                let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
                reviews.push(json!({
                    "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
                    "metadata": {},
                    "spec": {"user": user, "resourceAttributes": {
                        "namespace": namespace.unwrap_or_default(), "group": group,
                        "resource": resource, "subresource": subresource, "verb": verb,
                    }},
                }));
            }
        }
    }
    reviews
}
