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
    pub source: Source,
}

const fn from(source: Source, name: &'static str) -> Target {
    Target { name, source }
}

/// The most exposed first: a search that is interrupted has seen those.
pub const TARGETS: &[Target] = &[
    // What a run sends to the gateway and to the bridge, across the boundary of its pod.
    from(Source::Run, "connect_head"),
    from(Source::Run, "client_hello"),
    from(Source::Run, "run_api"),
    from(Source::Run, "proxy_credential"),
    from(Source::Run, "bridge_request"),
    from(Source::Run, "door_call"),
    from(Source::Run, "fetch_address"),
    // What servers answer.
    from(Source::Network, "bridge_sse"),
    from(Source::Network, "fetch_body"),
    from(Source::Network, "agent_sse"),
    from(Source::Network, "agent_openai"),
    from(Source::Network, "agent_anthropic"),
    from(Source::Network, "page_text"),
    from(Source::Network, "neutral_text"),
    // What a run asks of its sidecars.
    from(Source::Run, "http_head"),
    from(Source::Run, "http_body"),
    from(Source::Run, "ipc_request"),
    from(Source::Run, "ipc_result"),
    from(Source::Run, "ipc_name"),
    // What a model asks of its tools, and what commands do.
    from(Source::Run, "beneath"),
    from(Source::Run, "agent_arguments"),
    from(Source::Run, "agent_edit"),
    from(Source::Run, "answer"),
    from(Source::Run, "captured"),
    from(Source::Run, "command_output"),
    from(Source::Run, "environment"),
    from(Source::Run, "process_stat"),
    from(Source::Run, "program"),
    from(Source::Run, "skill_name"),
    // What we wrote ourselves, and what the kernel says.
    from(Source::Machine, "run_plan"),
    from(Source::Machine, "job"),
    from(Source::Machine, "job_stream"),
    from(Source::Machine, "control_message"),
    from(Source::Machine, "control_stream"),
    from(Source::Machine, "cgroup_events"),
    from(Source::Machine, "cgroup_layout"),
    from(Source::Machine, "cgroup_name"),
    from(Source::Machine, "cgroup_procs"),
    from(Source::Machine, "kernel_log"),
    from(Source::Person, "manifest"),
    from(Source::Person, "agent_skill"),
    from(Source::Person, "image_reference"),
    from(Source::Person, "duration"),
    from(Source::Person, "quantity"),
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
        let rows: BTreeSet<String> = TARGETS.iter().map(|it| it.name.to_owned()).collect();
        assert_eq!(rows, programs);
        assert_eq!(rows.len(), TARGETS.len());
    }
}
