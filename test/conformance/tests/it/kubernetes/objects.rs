//! The objects of a case, put where a cluster has them.

use std::net::SocketAddr;

use anyhow::bail;
use serde_json::{Value, json};
use sympozium_api::labels::{FLOOR_POLICY, SYSTEM_NAMESPACE};
use sympozium_conformance::Case;

/// The image that the packs and hooks of all cases name: a shell and coreutils. One of this name is loaded into the node, so
/// nothing is rewritten; on one machine its programs are the machine's own.
pub const IMAGE: &str = "docker.io/library/busybox:1.37";
/// The image of cases about rights, which has `kubectl` as well: one with the cluster's own is loaded by this name.
pub const KUBECTL_IMAGE: &str = "docker.io/alpine/kubectl:1.36.3";
/// An image that starts nothing but `sleep infinity`.
pub const PASSIVE_IMAGE: &str = "docker.io/library/passive:1";
/// Where a floor lists the namespaces whose runs may have rights in the whole cluster.
const CONSENT: &str = "/spec/rbacPolicy/clusterRBACNamespaces";
/// The namespace of manifests that name none.
const DEFAULT: &str = "default";
/// What every case calls its run.
pub const RUN: &str = "case";

/// The objects of a case.
pub struct Objects {
    /// What every run of the cluster is held to while the case lasts, where that is its subject.
    pub floor: Option<Value>,
    /// The run.
    pub run: Value,
    /// Everything else.
    pub others: Vec<Value>,
}

impl Objects {
    /// Those of a case, as they are written, with its pages at this address.
    pub fn read(case: &Case, pages: SocketAddr) -> anyhow::Result<Self> {
        let text = case.text(pages)?;
        let mut read = Self { floor: None, run: Value::Null, others: Vec::new() };
        for document in text.split("\n---\n").filter(|it| !it.trim().is_empty()) {
            let object: Value = serde_saphyr::from_str(document)?;
            let metadata = &object["metadata"];
            if metadata["name"] == FLOOR_POLICY && metadata["namespace"] == SYSTEM_NAMESPACE {
                read.floor = Some(object);
            } else if object["kind"] == "AgentRun" {
                read.run = object;
            } else {
                read.others.push(object);
            }
        }
        if read.run["metadata"]["name"] != RUN {
            bail!("there is no run of the name `{RUN}`");
        }
        Ok(read)
    }

    /// Moves them into a namespace. What a floor says of `default`, where manifests are without one, it says of `consenting`.
    pub fn move_to(&mut self, namespace: &str, consenting: &[String]) {
        for object in self.others.iter_mut().chain([&mut self.run]) {
            object["metadata"]["namespace"] = json!(namespace);
        }
        let consent = self.floor.as_mut().and_then(|it| it.pointer_mut(CONSENT));
        if let Some(listed) = consent.and_then(Value::as_array_mut)
            && listed.iter().any(|it| it == DEFAULT)
        {
            listed.retain(|it| it != DEFAULT);
            listed.extend(consenting.iter().map(|it| json!(it)));
        }
    }

    /// Whether it has a floor that says something of namespace `default`.
    pub fn consents_to_default(&self) -> bool {
        let consent = self.floor.as_ref().and_then(|it| it.pointer(CONSENT));
        let mut listed = consent.and_then(Value::as_array).into_iter().flatten();
        listed.any(|it| it == DEFAULT)
    }

    /// Whether the run has a hook after the agent: its workspace is a claim then.
    pub fn has_hooks_after(&self) -> bool {
        let hooks = self.run.pointer("/spec/lifecycle/postRun");
        hooks.and_then(Value::as_array).is_some_and(|it| !it.is_empty())
    }

    /// Whether a pack has rights at the API server.
    pub fn have_rights(&self) -> bool {
        self.packs_have(&["rbac", "clusterRBAC"])
    }

    /// Whether a pack reaches hosts.
    pub fn reach_hosts(&self) -> bool {
        self.packs_have(&["egress"])
    }

    fn packs_have(&self, fields: &[&str]) -> bool {
        let mut packs = self.others.iter().filter(|it| it["kind"] == "SkillPack");
        packs.any(|pack| {
            let lists = fields.iter().map(|it| &pack["spec"]["sidecar"][it]);
            lists.flat_map(Value::as_array).any(|it| !it.is_empty())
        })
    }

    /// Whether a pack names this image.
    pub fn use_image(&self, image: &str) -> bool {
        let mut packs = self.others.iter().filter(|it| it["kind"] == "SkillPack");
        packs.any(|pack| pack["spec"]["sidecar"]["image"] == image)
    }

    /// The claims that packs and the run mount by name.
    pub fn claims(&self) -> Vec<String> {
        let packs = self.others.iter().filter(|it| it["kind"] == "SkillPack");
        let volumes = packs.map(|pack| &pack["spec"]["sidecar"]["volumes"]);
        let mut claims: Vec<String> = volumes
            .chain([&self.run["spec"]["volumes"]])
            .flat_map(|volumes| volumes.as_array().into_iter().flatten())
            .filter_map(|it| it["persistentVolumeClaim"]["claimName"].as_str())
            .map(str::to_owned)
            .collect();
        claims.sort();
        claims.dedup();
        claims
    }
}
