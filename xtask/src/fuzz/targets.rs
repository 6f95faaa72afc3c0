//! Every fuzz target, and where the bytes come from that its parser reads.

/// Who chooses the bytes of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The run: its model, its commands, whatever runs in its containers.
    Run,
    /// A peer on the network: a provider, a page.
    Network,
    /// The kernel, or another process of ours.
    Machine,
    /// A person who writes manifests.
    Person,
}

impl Source {
    /// How long a target is fuzzed unless the caller says otherwise.
    pub fn seconds(self) -> u64 {
        match self {
            Self::Run | Self::Network => 600,
            Self::Machine | Self::Person => 120,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Network => "network",
            Self::Machine => "machine",
            Self::Person => "person",
        }
    }
}

pub struct Target {
    pub name: &'static str,
    /// The crate whose parser it tries, which is the feature of `fuzz/Cargo.toml` that it needs.
    pub package: &'static str,
    pub source: Source,
}

const fn from(source: Source, package: &'static str, name: &'static str) -> Target {
    Target { name, package, source }
}

/// The most exposed first: a search that is interrupted has seen those.
pub const TARGETS: &[Target] = &[
    // What a run sends to the gateway and to the bridge, across the boundary of its pod.
    from(Source::Run, "gateway", "connect_head"),
    from(Source::Run, "gateway", "client_hello"),
    from(Source::Run, "gateway", "run_api"),
    from(Source::Run, "ipc", "proxy_credential"),
    from(Source::Run, "bridge", "bridge_request"),
    from(Source::Run, "bridge", "door_call"),
    from(Source::Run, "bridge", "fetch_address"),
    // What servers answer.
    from(Source::Network, "bridge", "bridge_sse"),
    from(Source::Network, "bridge", "fetch_body"),
    from(Source::Network, "agent", "agent_sse"),
    from(Source::Network, "agent", "agent_openai"),
    from(Source::Network, "agent", "agent_anthropic"),
    from(Source::Network, "agent", "page_text"),
    from(Source::Network, "agent", "neutral_text"),
    // What a run asks of its sidecars.
    from(Source::Run, "sidecar", "http_head"),
    from(Source::Run, "sidecar", "http_body"),
    from(Source::Run, "ipc", "ipc_request"),
    from(Source::Run, "ipc", "ipc_result"),
    from(Source::Run, "ipc", "ipc_start"),
    from(Source::Run, "ipc", "ipc_name"),
    // What a model asks of its tools, and what commands do.
    from(Source::Run, "exec", "beneath"),
    from(Source::Run, "agent", "agent_arguments"),
    from(Source::Run, "agent", "agent_edit"),
    from(Source::Run, "exec", "answer"),
    from(Source::Run, "exec", "captured"),
    from(Source::Run, "agent", "command_output"),
    from(Source::Run, "exec", "environment"),
    from(Source::Run, "exec", "process_stat"),
    from(Source::Run, "exec", "program"),
    from(Source::Run, "exec", "skill_name"),
    from(Source::Run, "api", "foreign_text"),
    // What we wrote ourselves, and what the kernel says.
    from(Source::Machine, "plan", "run_plan"),
    from(Source::Machine, "exec", "job"),
    from(Source::Machine, "exec", "job_stream"),
    from(Source::Machine, "exec", "control_message"),
    from(Source::Machine, "exec", "control_stream"),
    from(Source::Machine, "exec", "cgroup_events"),
    from(Source::Machine, "exec", "cgroup_layout"),
    from(Source::Machine, "exec", "cgroup_name"),
    from(Source::Machine, "exec", "cgroup_procs"),
    from(Source::Machine, "exec", "kernel_log"),
    from(Source::Person, "manifests", "manifest"),
    from(Source::Person, "manifests", "agent_skill"),
    from(Source::Person, "cli", "explanation"),
    from(Source::Person, "plan", "image_reference"),
    from(Source::Person, "plan", "duration"),
    from(Source::Person, "plan", "quantity"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::process::workspace_root;

    #[test]
    fn every_program_of_a_target_has_its_row() {
        let programs = std::fs::read_dir(workspace_root().join("fuzz/fuzz_targets")).unwrap();
        let programs: BTreeSet<String> = programs
            .map(|entry| entry.unwrap().path().file_stem().unwrap().to_owned())
            .map(|name| name.into_string().unwrap())
            .collect();
        let rows: BTreeSet<String> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
        assert_eq!(rows, programs);
        assert_eq!(rows.len(), TARGETS.len());
    }

    #[test]
    fn every_row_names_the_crate_that_the_manifest_names() {
        let manifest = std::fs::read_to_string(workspace_root().join("fuzz/Cargo.toml")).unwrap();
        for Target { name, package, .. } in TARGETS {
            let lines = format!("path = \"fuzz_targets/{name}.rs\"\nrequired-features = [\"{package}\"]\n");
            assert!(manifest.contains(&lines), "{name} {package}");
        }
    }
}
