//! What a plan gives to whom, as `sympozium explain -o json` says it.

use std::collections::BTreeMap;

use anyhow::Context as _;
use serde::Deserialize;
use serde_json::Value;

/// What a plan must give. What is written is compared as a whole: a Secret, a host or a mount more is a failure.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Grants {
    /// The gates of these tools, by `tool` or `pack/tool`: `allow`, `ask` or `deny`; `absent` where there is no such tool.
    #[serde(default)]
    pub tools: BTreeMap<String, String>,
    /// Every part that reaches anything, and what.
    #[serde(default)]
    pub reach: Option<BTreeMap<String, Vec<String>>>,
    /// Every Secret that a part can read: which part, and how.
    #[serde(default)]
    pub secrets: Option<BTreeMap<String, BTreeMap<String, String>>>,
    /// All mounts of these parts, by path: `readOnly` or `readWrite`.
    #[serde(default)]
    pub mounts: BTreeMap<String, BTreeMap<String, String>>,
    /// The guarantees without which the run is refused.
    #[serde(default)]
    pub floor: Option<Vec<String>>,
}

/// An explanation, as far as it is compared.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Granted {
    tools: Vec<Tool>,
    secrets: Vec<Secret>,
    parts: Vec<Part>,
    isolation: Isolation,
}

#[derive(Debug, Deserialize)]
struct Tool {
    tool: String,
    #[serde(default)]
    pack: Option<String>,
    gate: String,
}

#[derive(Debug, Deserialize)]
struct Secret {
    secret: String,
    seen: Vec<SecretSeen>,
}

#[derive(Debug, Deserialize)]
struct SecretSeen {
    #[serde(default)]
    part: Option<String>,
    how: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Part {
    part: String,
    role: String,
    mounts: Vec<Mount>,
    reaches: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mount {
    path: String,
    access: String,
    #[serde(default)]
    shared_with: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Isolation {
    floor: Vec<String>,
}

impl Granted {
    /// From an explanation in JSON.
    ///
    /// # Errors
    ///
    /// When it is none.
    pub fn read(explanation: Value) -> anyhow::Result<Self> {
        serde_json::from_value(explanation).context("this is no explanation of a plan")
    }

    /// What is wrong with it whatever the case: what holds for every run.
    pub fn always(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for part in &self.parts {
            let at = |path: &str| part.mounts.iter().find(|mount| mount.path == path);
            match part.role.as_str() {
                "agent" => {
                    if !part.reaches.is_empty() {
                        problems.push(format!("the agent reaches {:?}", part.reaches));
                    }
                    if part.mounts.iter().any(|it| it.path.starts_with("/ipc")) {
                        problems.push("the agent sees an /ipc".to_owned());
                    }
                }
                "bridge" if at("/workspace").is_some() => {
                    problems.push("the bridge sees the workspace".to_owned());
                }
                "skill" | "sandbox" => match at("/ipc") {
                    Some(ipc) if ipc.shared_with == ["ipc-bridge"] => {}
                    _ => problems.push(format!("the /ipc of {} is not its own", part.part)),
                },
                _ => {}
            }
            for path in ["/tmp", "/dev/shm"] {
                if !at(path).is_some_and(|it| it.shared_with.is_empty()) {
                    problems.push(format!("{path} of {} is not its own", part.part));
                }
            }
        }
        let agents = self.parts.iter().filter(|part| part.role == "agent");
        for agent in agents {
            for secret in &self.secrets {
                let sees = |seen: &SecretSeen| seen.part.as_deref() == Some(agent.part.as_str());
                if secret.seen.iter().any(sees) {
                    problems.push(format!("the agent sees Secret {}", secret.secret));
                }
            }
        }
        problems
    }
}

impl Grants {
    /// What is wrong with what is granted.
    pub fn problems(&self, granted: &Granted) -> Vec<String> {
        let mut problems = Vec::new();
        let mut compare = |what: &str, found: String, wanted: String| {
            if found != wanted {
                problems.push(format!("{what}: is {found}, and should be {wanted}"));
            }
        };
        for (name, gate) in &self.tools {
            let found = granted.tools.iter().find(|tool| match &tool.pack {
                Some(pack) => *name == format!("{pack}/{}", tool.tool),
                None => *name == tool.tool,
            });
            let found = found.map_or("absent", |tool| tool.gate.as_str());
            compare(&format!("the gate of {name}"), found.to_owned(), gate.clone());
        }
        if let Some(reach) = &self.reach {
            let parts = granted.parts.iter().filter(|part| !part.reaches.is_empty());
            let found: BTreeMap<_, _> = parts.map(|it| (it.part.clone(), it.reaches.clone())).collect();
            compare("what is reached", format!("{found:?}"), format!("{reach:?}"));
        }
        if let Some(secrets) = &self.secrets {
            let found: BTreeMap<String, BTreeMap<String, String>> = (granted.secrets.iter())
                .map(|secret| {
                    let seen = secret.seen.iter().map(|seen| {
                        let part = seen.part.clone().unwrap_or_else(|| "kubelet".to_owned());
                        (part, seen.how.clone())
                    });
                    (secret.secret.clone(), seen.collect())
                })
                .collect();
            compare("the Secrets", format!("{found:?}"), format!("{secrets:?}"));
        }
        for (name, mounts) in &self.mounts {
            let part = granted.parts.iter().find(|part| part.part == *name);
            let found: Option<BTreeMap<_, _>> = part.map(|part| {
                let mounts = part.mounts.iter();
                mounts.map(|it| (it.path.clone(), it.access.clone())).collect()
            });
            let wanted = Some(mounts.clone());
            compare(&format!("mounts of {name}"), format!("{found:?}"), format!("{wanted:?}"));
        }
        if let Some(floor) = &self.floor {
            let found = &granted.isolation.floor;
            compare("the floor", format!("{found:?}"), format!("{floor:?}"));
        }
        problems
    }
}
