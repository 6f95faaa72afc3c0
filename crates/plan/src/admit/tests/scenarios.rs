//! Whole runs: those of the guides, the policies that we ship, and attacks.

mod permissions;

use sympozium_api::model::ModelStatus;
use sympozium_api::run_plan::Gate;
use sympozium_api::{AgentRunSpec, SympoziumPolicy, SympoziumPolicySpec};

use super::harness::{Harness, NAMESPACE, yaml};
use crate::admit::{Admitted, Decision, Denial, Permissions, admit};
use crate::policy::EffectivePolicy;

const PERMISSIVE: &str = include_str!("../../../../../config/policies/permissive.yaml");
const DEFAULT: &str = include_str!("../../../../../config/policies/default.yaml");
const RESTRICTIVE: &str = include_str!("../../../../../config/policies/restrictive.yaml");
const HARDENED: &str = include_str!("../../../../../config/policies/hardened.yaml");

fn admitted(harness: &Harness) -> (AgentRunSpec, Vec<String>, Vec<(String, Gate)>) {
    match admit(&harness.input(&harness.packs())) {
        Decision::Admitted(admitted) => {
            let Admitted { run, warnings, tools, .. } = *admitted;
            let warnings = warnings.iter().map(|warning| warning.rule.to_owned()).collect();
            let name = |pack: &Option<String>| pack.as_ref().map(|pack| format!("{pack}/")).unwrap_or_default();
            let tools = tools.into_iter().map(|tool| (name(&tool.pack) + &tool.name, tool.action)).collect();
            (run.spec, warnings, tools)
        }
        Decision::Denied(denied) => panic!("{:#?}", denied.violations),
    }
}

fn denied(harness: &Harness) -> Denial {
    match admit(&harness.input(&harness.packs())) {
        Decision::Admitted(_) => panic!("it is admitted"),
        Decision::Denied(denied) => denied,
    }
}

fn denying_rules(harness: &Harness) -> Vec<&'static str> {
    denied(harness).violations.iter().map(|violation| violation.rule).collect()
}

fn shipped(text: &str) -> SympoziumPolicySpec {
    let policy: SympoziumPolicy = yaml(text);
    assert_eq!(EffectivePolicy::invalid_entries(&policy.spec), []);
    policy.spec
}

fn with_policy(changes: &str, policy: &str) -> Harness {
    let mut harness = Harness::new(&format!("{changes}\npolicy: {{}}"));
    harness.policy = Some(SympoziumPolicy::new("p", shipped(policy)));
    harness
}

const ECHO: &str = "
own:
  echo-demo:
    category: devops
    version: 0.1.0
    source: custom
    skills:
      - name: echo
        description: Echo commands for testing sidecar connectivity
        content: Run commands using `execute_command`.
    sidecar:
      image: ghcr.io/yourorg/echo-sidecar:latest
      mountWorkspace: true
      resources: {cpu: 100m, memory: 128Mi}
agent:
  skills: [{skillPackRef: echo-demo}]
run:
  agentRef: a
  agentId: primary
  sessionKey: test-echo-1
  task: \"Run: echo 'Hello from sidecar!' and tell me what happened.\"
  model: {provider: openai, model: gpt-4o-mini, authSecretRef: my-agent-openai-key}
";

#[test]
fn the_echo_run_of_the_guide_is_admitted_without_a_policy() {
    let (run, warnings, tools) = admitted(&Harness::new(ECHO));
    assert_eq!(warnings, ["image-floating"]);
    assert_eq!(run.skills.len(), 1);
    assert!(tools.iter().all(|(_, action)| *action == Gate::Allow), "{tools:?}");
    assert!(tools.iter().any(|(name, _)| name == "echo-demo/execute_command"));
}

#[test]
fn an_agent_fills_in_what_its_run_leaves_out() {
    let harness = Harness::new(
        "
agent: null
run: {agentRef: null, instanceRef: a, model: null, task: Analyze cluster security, env: {A: run}}
instance:
  authRefs: [{provider: openai, secret: other}, {provider: anthropic, secret: my-key}]
  imagePullSecrets: [{name: pull}]
  volumes: [{name: v, emptyDir: {}}]
  volumeMounts: [{name: v, mountPath: /data}]
  agents:
    default:
      model: claude-sonnet-4-20250514
      runTimeout: 30m
      env: {A: agent, B: agent}
      agentSandbox: {enabled: true, runtimeClass: gvisor, warmPool: {size: 3, runtimeClass: gvisor}}
",
    );
    let mut harness = harness;
    let labels = [("sympozium.ai/provider".to_owned(), "anthropic".to_owned())];
    if let Some(instance) = &mut harness.instance {
        instance.metadata.labels = Some(labels.into());
    }
    let expected: AgentRunSpec = yaml(
        "
agentRef: a
instanceRef: a
task: Analyze cluster security
model: {provider: anthropic, model: claude-sonnet-4-20250514, authSecretRef: my-key}
agentSandbox: {enabled: true, runtimeClass: gvisor}
timeout: 30m
env: {A: run, B: agent}
imagePullSecrets: [{name: pull}]
volumes: [{name: v, emptyDir: {}}]
volumeMounts: [{name: v, mountPath: /data}]
",
    );
    assert_eq!(admitted(&harness).0, expected);
}

#[test]
fn permissive_allows_every_tool() {
    let (_, _, tools) = admitted(&with_policy(ECHO, PERMISSIVE));
    assert!(tools.iter().all(|(_, action)| *action == Gate::Allow), "{tools:?}");
}

#[test]
fn default_asks_for_commands_and_allows_everything_else() {
    let (_, _, tools) = admitted(&with_policy(ECHO, DEFAULT));
    for (name, action) in tools {
        let expected = if name == "echo-demo/execute_command" { Gate::Ask } else { Gate::Allow };
        assert_eq!(action, expected, "{name}");
    }
}

#[test]
fn restrictive_requires_a_sandbox_and_denies_what_is_not_listed() {
    let echo = ECHO.replace("yourorg", "sympozium-ai");
    assert_eq!(denying_rules(&with_policy(&echo, RESTRICTIVE)), ["sandbox-required"]);
    assert_eq!(denying_rules(&with_policy(ECHO, RESTRICTIVE)), ["sandbox-required", "image-registry"]);
    let sandboxed = format!("{echo}  sandbox: {{enabled: true}}\n");
    let (_, _, tools) = admitted(&with_policy(&sandboxed, RESTRICTIVE));
    for (name, action) in tools {
        let expected = match name.as_str() {
            // The last one reads the text of the skill that the run names, and nothing else.
            "read_file" | "list_directory" | "load_skill" => Gate::Allow,
            "echo-demo/execute_command" | "sandbox/execute_command" => Gate::Ask,
            _ => Gate::Deny,
        };
        assert_eq!(action, expected, "{name}");
    }
}

#[test]
fn hardened_is_met_by_agent_sandbox_alone() {
    let run = |sandbox: &str| with_policy(&format!("run: {{{sandbox}}}"), HARDENED);
    assert_eq!(denying_rules(&run("")), ["sandbox-required", "agent-sandbox-required"]);
    assert_eq!(denying_rules(&run("sandbox: {enabled: true}")), ["agent-sandbox-required"]);
    assert_eq!(denying_rules(&run("agentSandbox: {enabled: true, runtimeClass: runc}")), ["runtime-class"]);
    let (spec, warnings, _) = admitted(&run("agentSandbox: {enabled: true}"));
    let class = spec.agent_sandbox.and_then(|agent_sandbox| agent_sandbox.runtime_class);
    assert_eq!(class, Some("gvisor".into()));
    assert_eq!(warnings, Vec::<String>::new());
    let (spec, _, _) = admitted(&run("agentSandbox: {enabled: true, runtimeClass: kata}"));
    assert_eq!(spec.agent_sandbox.and_then(|agent_sandbox| agent_sandbox.runtime_class), Some("kata".into()));
}

#[test]
fn a_policy_of_the_system_namespace_holds_for_agents_elsewhere() {
    let mut harness = Harness::new("systemPolicy: {}");
    harness.system_policy = Some(SympoziumPolicy::new("p", shipped(HARDENED)));
    assert_eq!(denying_rules(&harness), ["sandbox-required", "agent-sandbox-required"]);
}

fn pack_with(sidecar: &str) -> String {
    format!(
        "own: {{x: {{skills: [], sidecar: {{image: 'ghcr.io/org/x:1', {sidecar}}}}}}}\nrun: {{skills: [{{skillPackRef: x}}]}}"
    )
}

#[test]
fn a_pack_of_the_namespace_does_not_stand_for_one_of_the_system() {
    let both =
        "own: {k8s-ops: {skills: []}}\nsystem: {k8s-ops: {skills: []}}\nrun: {skills: [{skillPackRef: k8s-ops}]}";
    assert_eq!(denying_rules(&Harness::new(both)), ["pack-ambiguous"]);
    let harness = Harness::new(&format!("{both}\npolicy: {{packPolicy: {{allowShadowing: true}}}}"));
    let packs = harness.packs();
    let Decision::Admitted(admitted) = admit(&harness.input(&packs)) else {
        panic!("it is denied");
    };
    let found: Vec<_> = admitted.packs.iter().map(|pack| (pack.namespace.as_str(), pack.name.as_str())).collect();
    assert_eq!(found, [("team", "k8s-ops")]);
    let strict_floor =
        Harness::new(&format!("{both}\npolicy: {{packPolicy: {{allowShadowing: true}}}}\nfloor: {{packPolicy: {{}}}}"));
    assert_eq!(denying_rules(&strict_floor), ["pack-ambiguous"]);
}

#[test]
fn names_in_the_pod_cannot_run_into_each_other() {
    let harness = Harness::new(
        "
own:
  a-b: {skills: [], sidecar: {image: 'a.io/b:1', volumes: [{name: c}, {name: volume-0}]}}
  a: {skills: [], sidecar: {image: 'a.io/b:1', volumes: [{name: b-c}, {name: ipc}]}}
run:
  skills: [{skillPackRef: a-b}, {skillPackRef: a}]
  volumes: [{name: workspace}]
",
    );
    let packs = harness.packs();
    let Decision::Admitted(admitted) = admit(&harness.input(&packs)) else {
        panic!("it is denied");
    };
    let names: Vec<_> =
        admitted.volumes.iter().map(|volume| (volume.name.as_str(), volume.pod_name.as_str())).collect();
    let expected = [
        ("workspace", "agent-volume-0"),
        ("c", "skill-0-volume-0"),
        ("volume-0", "skill-0-volume-1"),
        ("b-c", "skill-1-volume-0"),
        ("ipc", "skill-1-volume-1"),
    ];
    assert_eq!(names, expected);
}

#[test]
fn depth_is_bounded_without_any_policy() {
    let at = |depth: i64| Harness::new(&format!("run: {{parent: {{runName: q, sessionKey: s, spawnDepth: {depth}}}}}"));
    assert!(at(2).decide().2.is_some());
    for (depth, rule) in [
        (3, "subagent-depth"),
        (2_147_483_647, "subagent-depth"),
        (0, "subagent-depth-false"),
        (-1, "subagent-depth-false"),
    ] {
        assert_eq!(denying_rules(&at(depth)), [rule], "{depth}");
    }
}

#[test]
fn a_policy_that_is_not_there_denies_and_the_run_may_wait() {
    let missing = denied(&Harness::new("agent: {policyRef: misspelt, skills: [{skillPackRef: later}]}"));
    let rules: Vec<_> = missing.violations.iter().map(|violation| violation.rule).collect();
    assert_eq!(rules, ["policy-missing", "pack-missing"]);
    assert!(missing.may_wait());
    let also_wrong = denied(&Harness::new("agent: {policyRef: misspelt}\nrun: {env: {PATH: x}}"));
    assert!(!also_wrong.may_wait());
}

#[test]
fn nothing_of_the_node_without_a_policy_that_names_it() {
    for (sidecar, rules) in [
        ("hostAccess: {enabled: true, hostPID: true}", &["host-access", "host-power"][..]),
        ("hostAccess: {enabled: true, hostNetwork: true}", &["host-access", "host-power"]),
        ("hostAccess: {enabled: true, privileged: true}", &["host-access", "host-power"]),
        ("hostAccess: {enabled: true, runAsRoot: true}", &["host-access", "host-power"]),
        (
            "hostAccess: {enabled: true, mounts: [{hostPath: /proc, mountPath: /host/proc}]}",
            &["host-access", "host-path"],
        ),
        ("volumes: [{name: v, hostPath: {path: /var/run/docker.sock}}]", &["host-access", "host-path"]),
        ("volumes: [{name: v, csi: {driver: x}}]", &["volume-type"]),
        ("volumes: [{name: v, projected: {sources: [{serviceAccountToken: {}}]}}]", &["volume-token"]),
    ] {
        assert_eq!(denying_rules(&Harness::new(&pack_with(sidecar))), rules, "{sidecar}");
        let bound =
            Harness::new(&format!("{}\npolicy: {{sandboxPolicy: {{allowHostMounts: true}}}}", pack_with(sidecar)));
        assert_eq!(denying_rules(&bound), rules, "{sidecar}");
    }
}

#[test]
fn amounts_are_summed_over_the_whole_run() {
    let harness = Harness::new(
        "
own:
  x: {skills: [], sidecar: {image: 'a.io/b:1', resources: {cpu: 200m, memory: 256Mi}}}
  z: {skills: [], sidecar: {image: 'a.io/b:1'}}
run:
  skills: [{skillPackRef: x}, {skillPackRef: z}]
  sandbox: {enabled: true}
  lifecycle: {preRun: [{name: h, image: 'a.io/b:1'}]}
",
    );
    let packs = harness.packs();
    let Decision::Admitted(admitted) = admit(&harness.input(&packs)) else {
        panic!("it is denied");
    };
    // 1 + 100m for agent and bridge, 200m, 100m, 500m; 1Gi + 128Mi, 256Mi, 128Mi, 512Mi.
    let amounts = (admitted.resources.cpu.to_string(), admitted.resources.memory.to_string());
    assert_eq!(amounts, ("1900m".to_owned(), "2Gi".to_owned()));
}

#[test]
fn a_run_narrows_its_own_tools() {
    let harness = Harness::new(&format!(
        "{ECHO}  toolPolicy: {{allow: [echo-demo/*, read_file, fetch_url], deny: [fetch_url]}}\n"
    ));
    let (_, _, tools) = admitted(&harness);
    let allowed: Vec<_> =
        tools.iter().filter(|(_, action)| *action == Gate::Allow).map(|(name, _)| name.as_str()).collect();
    assert_eq!(allowed, ["read_file", "echo-demo/execute_command", "load_skill"]);
}

#[test]
fn skills_are_read_unless_turned_off() {
    for (changes, expected) in [
        ("", Gate::Allow),
        ("  toolPolicy: {allow: [read_file]}\n", Gate::Allow),
        ("  toolPolicy: {deny: [load_skill]}\n", Gate::Deny),
        ("policy: {toolGating: {defaultAction: deny}}\n", Gate::Allow),
        ("policy: {toolGating: {rules: [{tool: load_skill, action: ask}]}}\n", Gate::Ask),
    ] {
        let (_, _, tools) = admitted(&Harness::new(&format!("{ECHO}{changes}")));
        let found = tools.iter().find(|(name, _)| name == "load_skill");
        assert_eq!(found.map(|(_, action)| *action), Some(expected), "{changes}");
    }
}

#[test]
fn closed_features_and_networks_deny_their_tools() {
    let closed = |policy: &str| -> Vec<String> {
        let (_, _, tools) = admitted(&Harness::new(&format!("{ECHO}policy: {policy}\n")));
        tools.into_iter().filter(|(_, action)| *action == Gate::Deny).map(|(name, _)| name).collect()
    };
    assert_eq!(
        closed("{featureGates: {file-access: false}}"),
        ["read_file", "write_file", "edit_file", "list_directory"]
    );
    assert_eq!(closed("{featureGates: {code-execution: false}}"), ["echo-demo/execute_command"]);
    assert_eq!(closed("{featureGates: {sub-agents: false}}"), ["spawn_subagents"]);
    assert_eq!(closed("{networkPolicy: {denyAll: true}}"), ["fetch_url"]);
    assert_eq!(closed("{networkPolicy: {denyAll: true, allowEventBus: false}}"), ["fetch_url", "send_channel_message"]);
    assert_eq!(closed("{networkPolicy: {denyAll: true, allowedEgress: [{host: a.example}]}}"), Vec::<String>::new());
}

#[test]
fn a_policy_stands_for_one_of_the_system_by_consent_of_the_floor_only() {
    let both = |floor: &str| Harness::new(&format!("policy: {{}}\nsystemPolicy: {{}}\nfloor: {floor}"));
    for floor in ["null", "{}", "{packPolicy: {}}", "{packPolicy: {allowShadowing: false}}"] {
        assert_eq!(denying_rules(&both(floor)), ["policy-ambiguous"], "{floor}");
    }
    assert!(both("{packPolicy: {allowShadowing: true}}").decide().2.is_some());
    let by_itself = Harness::new("policy: {packPolicy: {allowShadowing: true}}\nsystemPolicy: {}");
    assert_eq!(denying_rules(&by_itself), ["policy-ambiguous"]);
}

#[test]
fn volumes_cover_programs_of_packs_but_not_of_ours() {
    let volume = "volumes: [{name: v}], volumeMounts: [{name: v, mountPath: /etc/app}]";
    assert!(Harness::new(&pack_with(volume)).decide().2.is_some());
    assert_eq!(denying_rules(&Harness::new(&format!("run: {{{volume}}}"))), ["mount-path"]);
}

#[test]
fn what_the_guides_show_is_admitted_as_it_stands() {
    let sidecar = |parts: &str| Harness::new(&pack_with(parts));
    for parts in [
        "mountWorkspace: true, resources: {cpu: 200m, memory: 256Mi}",
        "env: [{name: API_URL, value: 'https://api.example.com'}]",
        "secretRef: my-api-key, secretMountPath: /secrets/my-api-key",
        "volumes: [{name: my-data, persistentVolumeClaim: {claimName: my-data-pvc}}], volumeMounts: [{name: my-data, mountPath: /data}]",
    ] {
        assert_eq!(sidecar(parts).decide().0, [], "{parts}");
    }
    let sandboxed = "
agent: null
instance: {agents: {default: {model: claude-sonnet-4-20250514}}}
run:
  agentRef: null
  instanceRef: a
  task: Analyze cluster security
  model: {provider: anthropic, model: claude-sonnet-4-20250514, authSecretRef: my-key}
  agentSandbox: {enabled: true, runtimeClass: gvisor, warmPoolRef: wp-my-agent}
";
    let served = format!("{sandboxed}servesAll: true\n");
    assert_eq!(Harness::new(&served).decide().1, []);
    let (spec, warnings, _) = admitted(&with_policy(&served, HARDENED));
    assert_eq!(warnings, Vec::<String>::new());
    assert_eq!(spec.agent_sandbox.and_then(|agent_sandbox| agent_sandbox.warm_pool_ref), Some("wp-my-agent".into()));
}

/// `modelRef` is one more way to set where the key goes: the author of the Model sets it, or users who may write
/// Services in its namespace.
#[test]
fn the_address_of_a_model_is_judged_as_any_other() {
    const OPEN: &str = "{modelPolicy: {allowedNamespaces: [team]}}";
    const CLOSED: &str = "{networkPolicy: {denyAll: true}}";
    let both = &["model-endpoint", "model-service-plain"][..];
    for (reference, endpoint, policy, floor, expected) in [
        ("m", None, "null", "null", &["model-service-plain"][..]),
        ("m", None, "{}", "null", both),
        ("m", None, "null", "{}", both),
        ("m", None, "null", CLOSED, both),
        ("m", None, OPEN, "null", &[]),
        ("m", None, OPEN, "{}", &[]),
        ("m", None, OPEN, CLOSED, both),
        ("m", None, OPEN, "{networkPolicy: {denyAll: true}, modelPolicy: {allowedNamespaces: [team]}}", &[]),
        ("m", None, OPEN, "{modelPolicy: {allowedNamespaces: [other]}}", &["model-namespace"]),
        // There is no Service of such a name: the address is a host of another Service.
        ("a.b", None, OPEN, "null", &["model-endpoint", "model-url-plain"]),
        // The address in the status.
        ("m", Some("http://model-m.team.svc:8080/v1"), OPEN, "null", &[]),
        ("m", Some("http://model-m.team.svc:9090/v1"), OPEN, "null", both),
        ("m", Some("http://model-m.other.svc:8080/v1"), OPEN, "null", both),
        ("m", Some("https://evil.example.com/v1"), OPEN, "null", &["model-endpoint"]),
        ("m", Some("https://evil.example.com/v1"), "null", CLOSED, &["model-endpoint"]),
        ("m", Some("http://evil.example.com/v1"), "null", "null", &["model-url-plain"]),
        ("m", Some("http://127.0.0.1:8080/v1"), "null", CLOSED, &["model-endpoint"]),
        ("m", Some("https://169.254.169.254/latest"), "null", "null", &["model-url-link-local"]),
        (
            "m",
            Some("http://10.0.0.1/v1"),
            "{networkPolicy: {allowedEgress: [{host: 10.0.0.1, port: 80}]}}",
            "null",
            &["model-url-plain"],
        ),
        ("m", Some("https://10.0.0.1/v1"), "{networkPolicy: {allowedEgress: [{host: 10.0.0.1}]}}", "null", &[]),
        ("m", Some("file:///etc/passwd"), "null", "null", &["model-url"]),
    ] {
        let mut harness = Harness::new(&format!(
            "run: {{model: {{provider: x, model: x, modelRef: {reference}}}}}\nownModel: true\npolicy: {policy}\nfloor: {floor}"
        ));
        if let Some(model) = &mut harness.own_model {
            model.status =
                endpoint.map(|endpoint| ModelStatus { endpoint: Some(endpoint.to_owned()), ..ModelStatus::default() });
        }
        let rules: Vec<_> = harness.decide().0.iter().map(|violation| violation.rule).collect();
        assert_eq!(rules, expected, "{reference} {endpoint:?} {policy} {floor}");
    }
}

/// A profile on the node may only log. Without a policy that names it a run would choose how much of its pod is
/// filtered.
#[test]
fn a_profile_of_the_node_is_for_policies_to_name() {
    const NAMES: &str = "{sandboxPolicy: {seccompProfile: {type: Localhost, localhostProfile: audit.json}}}";
    const OTHER: &str = "{sandboxPolicy: {seccompProfile: {type: Localhost, localhostProfile: other.json}}}";
    for (enabled, policy, floor, expected) in [
        (true, "null", "null", &["seccomp-localhost"][..]),
        (true, "{}", "{}", &["seccomp-localhost"]),
        (true, "{sandboxPolicy: {}}", "null", &["seccomp-localhost"]),
        (true, NAMES, "null", &[]),
        (true, NAMES, "{sandboxPolicy: {}}", &[]),
        (true, NAMES, NAMES, &[]),
        (true, NAMES, OTHER, &["seccomp-profile", "seccomp-none-left"]),
        // The floor applies the profile that it names itself, and lets no run choose it.
        (true, "null", NAMES, &["seccomp-localhost"]),
        (true, "null", OTHER, &["seccomp-profile"]),
        (false, "null", "null", &[]),
        (false, "{}", OTHER, &[]),
    ] {
        let harness = Harness::new(&format!(
            "run: {{sandbox: {{enabled: {enabled}, securityContext: {{seccompProfile: {{type: Localhost, localhostProfile: audit.json}}}}}}}}\npolicy: {policy}\nfloor: {floor}"
        ));
        let rules: Vec<_> = harness.decide().0.iter().map(|violation| violation.rule).collect();
        assert_eq!(rules, expected, "{enabled} {policy} {floor}");
    }
}
