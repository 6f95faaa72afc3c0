//! What parts read about their run: the plan, the agent's view of it, skill texts, and Secrets that are filled later.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{
    ConfigMap, PersistentVolumeClaim, PersistentVolumeClaimSpec, Secret, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use sympozium_api::RunPlan;
use sympozium_api::digest::to_canonical_json;
use sympozium_api::labels::component;
use sympozium_api::run_plan::{Part, PlanVolume, Role, SkillSource, VolumeSource};

use super::metadata::{ObjectPurpose, RenderContext};
use super::names::suffix;
use super::{CreationStep, Output, PendingSecret, RenderError, SecretPurpose, check};
use crate::admit::decode_contents;
use crate::plan::{PackTexts, agent_view, skill_digest};

/// Keys of our ConfigMaps and Secrets, which are also the names of files at `/run/sympozium`.
pub mod key {
    /// The plan, in the bridge's input: the bytes that the digest covers.
    pub const PLAN: &str = "plan.json";
    /// The agent's view of the plan, in its input.
    pub const AGENT: &str = sympozium_api::run_plan::AgentView::FILE;
    /// The run's own token for the gateway, in the bridge's input. The kubelet writes and renews it.
    pub const TOKEN: &str = "token";
    /// The CA certificate of the gateway, in the input of every part that reaches it.
    pub const GATEWAY_CERTIFICATE: &str = "ca.crt";
    /// Certificates of further CAs that the bridge trusts, in its input, where the operator has set some.
    pub const CERTIFICATES: &str = "certificates.pem";
    /// The URL of the gateway's proxy, with the part's credential in it, in the input of every part but the bridge that
    /// has one.
    pub const PROXY: &str = "proxy";
    /// A credential of the bridge: this prefix, and its name in the plan.
    pub const CREDENTIAL: &str = "credential-";
    /// The token of an identity, in its Secret.
    pub const IDENTITY_TOKEN: &str = "token";
    /// The CA certificate of the API server, beside that token.
    pub const API_SERVER_CERTIFICATE: &str = "ca.crt";
    /// The run's namespace, beside that token.
    pub const NAMESPACE: &str = "namespace";
}

/// The suffix of the plan's ConfigMap.
pub const PLAN_SUFFIX: &str = "plan";

/// Adds everything that parts read.
pub fn render(
    run: &RenderContext<'_>,
    plan: Vec<u8>,
    texts: &[PackTexts<'_>],
    output: &mut Output,
) -> Result<(), RenderError> {
    output.add(CreationStep::Inputs, plan_config_map(run, plan));
    output.add(CreationStep::Inputs, agent_config_map(run)?);
    for (number, texts) in texts.iter().enumerate() {
        if is_mounted(run.plan, &texts.pack) {
            check_planned(run.plan, texts)?;
            output.add(CreationStep::Inputs, texts_config_map(run, number, texts));
        }
    }
    for volume in &run.plan.volumes {
        if let VolumeSource::Kept { size } = &volume.source {
            output.add(CreationStep::Inputs, workspace_claim(run, volume, &size.text())?);
        }
    }
    for part in &run.plan.parts {
        let keys = keys(run, part);
        if keys.is_empty() {
            continue;
        }
        let word = input_suffix(run.plan, part)?;
        let secret = empty_secret(run, &word, component::RUN_INPUT, part.role.pack());
        output.pending_secrets.push(PendingSecret {
            secret: run.names.with_suffix(&word),
            purpose: SecretPurpose::Input { part: part.name.clone() },
            keys,
        });
        output.add(CreationStep::Inputs, secret);
    }
    Ok(())
}

/// A Secret that the backend fills.
pub fn empty_secret(run: &RenderContext<'_>, word: &str, component: &'static str, pack: Option<&str>) -> Secret {
    Secret {
        metadata: run.namespaced_metadata(word, ObjectPurpose { component, pack }),
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    }
}

/// The keys of a part's Secret; empty where it has no Secret.
pub fn keys(run: &RenderContext<'_>, part: &Part) -> Vec<String> {
    let plan = run.plan;
    if part.role == Role::Bridge {
        let credentials = plan.credentials.iter();
        let own = credentials.filter(|credential| credential.part == part.name);
        let own = own.map(|credential| format!("{}{}", key::CREDENTIAL, credential.name));
        let certificates = run.settings.certificates.as_ref();
        return std::iter::once(key::GATEWAY_CERTIFICATE.to_owned())
            .chain(certificates.map(|_| key::CERTIFICATES.to_owned()))
            .chain(own)
            .collect();
    }
    if has_proxy(plan, part) {
        return vec![key::GATEWAY_CERTIFICATE.to_owned(), key::PROXY.to_owned()];
    }
    Vec::new()
}

/// Whether a part reaches hosts through the gateway's proxy.
pub fn has_proxy(plan: &RunPlan, part: &Part) -> bool {
    part.role != Role::Bridge && plan.credentials.iter().any(|credential| credential.part == part.name)
}

/// The suffix of a part's input, from the volume that mounts it: users choose the names of parts.
fn input_suffix(plan: &RunPlan, part: &Part) -> Result<String, RenderError> {
    let is_its = |source: &VolumeSource| matches!(source, VolumeSource::Input { part: it } if *it == part.name);
    let mut volumes = plan.volumes.iter();
    let volume = volumes.find(|volume| is_its(&volume.source));
    let volume = volume.ok_or_else(|| RenderError::Missing { what: "the input of part", name: part.name.0.clone() })?;
    suffix("a volume", &volume.name.0)
}

/// The name of a part's input: a Secret, or for the agent a ConfigMap.
pub fn input_name(run: &RenderContext<'_>, part: &Part) -> Result<String, RenderError> {
    Ok(run.names.with_suffix(&input_suffix(run.plan, part)?))
}

fn plan_config_map(run: &RenderContext<'_>, plan: Vec<u8>) -> ConfigMap {
    // Canonical JSON is UTF-8. If it were not, the bytes would still be those of the digest.
    let (data, binary_data) = match String::from_utf8(plan) {
        Ok(text) => (Some(entry(key::PLAN, text)), None),
        Err(bytes) => (None, Some(entry(key::PLAN, ByteString(bytes.into_bytes())))),
    };
    ConfigMap {
        metadata: run.namespaced_metadata(PLAN_SUFFIX, component::PLAN),
        data,
        binary_data,
        immutable: Some(true),
    }
}

fn agent_config_map(run: &RenderContext<'_>) -> Result<ConfigMap, RenderError> {
    let agent = check::find_part(run.plan, &Role::Agent, "agent")?;
    let view = to_canonical_json(&agent_view(run.plan))?;
    Ok(ConfigMap {
        metadata: run.namespaced_metadata(&input_suffix(run.plan, agent)?, component::RUN_INPUT),
        data: Some(entry(key::AGENT, String::from_utf8_lossy(&view).into_owned())),
        immutable: Some(true),
        ..ConfigMap::default()
    })
}

fn entry<T>(key: &str, value: T) -> BTreeMap<String, T> {
    BTreeMap::from([(key.to_owned(), value)])
}

fn is_mounted(plan: &RunPlan, pack: &str) -> bool {
    let mut sources = plan.volumes.iter().map(|volume| &volume.source);
    sources.any(|source| matches!(source, VolumeSource::Texts { pack: it, .. } if it == pack))
}

/// The texts of a pack, with their index.
pub fn find_texts<'t, 'a>(texts: &'t [PackTexts<'a>], pack: &str) -> Result<(usize, &'t PackTexts<'a>), RenderError> {
    let mut numbered = texts.iter().enumerate();
    numbered
        .find(|(_, texts)| texts.pack == pack)
        .ok_or_else(|| RenderError::Missing { what: "the texts of pack", name: pack.to_owned() })
}

/// The suffix of the ConfigMap with the texts of this index.
pub fn texts_suffix(number: usize) -> String {
    format!("texts{number}")
}

/// The key of a skill's text. Names of skills and files need not be valid keys.
pub fn text_key(skill: usize) -> String {
    format!("skill-{skill}.md")
}

/// The key of a file beside it.
pub fn file_key(skill: usize, file: usize) -> String {
    format!("skill-{skill}-file-{file}")
}

/// Checks that texts are those of the plan, which has their digests: a pack may have changed since.
fn check_planned(plan: &RunPlan, texts: &PackTexts<'_>) -> Result<(), RenderError> {
    for skill in texts.skills {
        let found = skill_digest(skill)?;
        let is_planned = plan.skills.iter().any(|planned| {
            matches!(&planned.source, SkillSource::Pack { pack, skill: name, digest, .. }
                if *pack == texts.pack && skill.name == name.as_str() && *digest == found)
        });
        if !is_planned {
            return Err(RenderError::TextsChanged { pack: texts.pack.clone(), skill: skill.name.as_str().to_owned() });
        }
    }
    Ok(())
}

fn texts_config_map(run: &RenderContext<'_>, number: usize, texts: &PackTexts<'_>) -> ConfigMap {
    let mut data = BTreeMap::new();
    let mut binary = BTreeMap::new();
    for (skill_number, skill) in texts.skills.iter().enumerate() {
        data.insert(text_key(skill_number), skill.content.clone());
        for (file_number, file) in skill.files.iter().enumerate() {
            let key = file_key(skill_number, file_number);
            if file.content_base64.is_some() {
                // Admission has checked it.
                binary.insert(key, ByteString(decode_contents(file).unwrap_or_default()));
            } else {
                data.insert(key, file.content.clone().unwrap_or_default());
            }
        }
    }
    let about = ObjectPurpose { component: component::SKILL_PACK, pack: Some(&texts.pack) };
    ConfigMap {
        metadata: run.namespaced_metadata(&texts_suffix(number), about),
        data: Some(data),
        binary_data: (!binary.is_empty()).then_some(binary),
        immutable: Some(true),
    }
}

/// A workspace that exists until the hooks after the run have ended.
fn workspace_claim(
    run: &RenderContext<'_>,
    volume: &PlanVolume,
    size: &str,
) -> Result<PersistentVolumeClaim, RenderError> {
    let class = run.settings.storage_class.as_ref();
    Ok(PersistentVolumeClaim {
        metadata: run.namespaced_metadata(&suffix("a volume", &volume.name.0)?, component::WORKSPACE),
        spec: Some(PersistentVolumeClaimSpec {
            // Pods of a run use it one after the other.
            access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
            storage_class_name: class.map(|class| class.as_str().to_owned()),
            resources: Some(VolumeResourceRequirements {
                requests: Some(entry("storage", Quantity(size.to_owned()))),
                limits: None,
            }),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    })
}
