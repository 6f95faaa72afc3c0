//! Objects that are checked alone.

use sympozium_api::{AgentSpec, SkillPack, SkillPackSpec, SympoziumPolicySpec};

use super::harness::{Harness, yaml};
use crate::admit::{
    Denial, MAX_PACK_BYTES, Permissions, Subject, admit_agent, admit_agent_author, admit_pack, admit_policy,
};
use crate::rbac::Rule;

fn rules(denied: &Denial) -> Vec<(&'static str, &str)> {
    denied.violations.iter().map(|violation| (violation.rule, violation.field.as_str())).collect()
}

fn pack(spec: &str) -> SkillPack {
    SkillPack::new("x", yaml::<SkillPackSpec>(spec))
}

fn rights(rules: &str) -> Permissions {
    Permissions { namespace: yaml::<Vec<Rule>>(rules), ..Permissions::default() }
}

#[test]
fn a_pack_grants_no_more_than_its_author_holds() {
    let pack = pack(
        "{skills: [], sidecar: {image: 'ghcr.io/org/x:1',
          rbac: [{apiGroups: [''], resources: [pods], verbs: [get]}],
          clusterRBAC: [{apiGroups: [''], resources: [nodes], verbs: [get]}]}}",
    );
    let of_namespace = rights("[{apiGroups: ['*'], resources: ['*'], verbs: ['*']}]");
    let denied = admit_pack(&pack, Some("team"), Some(&of_namespace));
    assert_eq!(rules(&denied), [("rbac-author", "spec.sidecar.clusterRBAC[0]")]);
    assert_eq!(denied.violations[0].message, "the pack's author may not do `get nodes`, and cannot grant it");
    let denied = admit_pack(&pack, Some("team"), Some(&Permissions::default()));
    let both = [("rbac-author", "spec.sidecar.rbac[0]"), ("rbac-author", "spec.sidecar.clusterRBAC[0]")];
    assert_eq!(rules(&denied), both);
    let escalating = Permissions { may_escalate: true, ..Permissions::default() };
    assert_eq!(rules(&admit_pack(&pack, Some("team"), Some(&escalating))), []);
    assert_eq!(rules(&admit_pack(&pack, None, None)), []);
}

#[test]
fn a_pack_is_looked_at_whole() {
    let pack = pack(
        "{skills: [], sidecar: {image: 'Bad', env: [{name: PATH, value: x}], resources: {cpu: much},
          egress: [{host: '127.1'}], tools: [{name: read_file, description: d, exec: []}],
          secretRef: s, secretMountPath: /ipc, volumes: [{name: v, csi: {}}], rbac: [{apiGroups: [''], resources: [], verbs: [get]}]}}",
    );
    let expected = [
        ("tool-built-in", "spec.sidecar.tools[0].name"),
        ("tool-exec", "spec.sidecar.tools[0].exec"),
        ("egress-invalid", "spec.sidecar.egress[0].host"),
        ("amount-invalid", "spec.sidecar.resources.cpu"),
        ("image-invalid", "spec.sidecar.image"),
        ("env-denied", "spec.sidecar.env[0].name"),
        ("volume-type", "spec.sidecar.volumes[0].csi"),
        ("mount-path", "spec.sidecar.secretMountPath"),
        ("rbac-incomplete", "spec.sidecar.rbac[0]"),
    ];
    assert_eq!(rules(&admit_pack(&pack, None, None)), expected);
    let mut sandbox = SkillPack::new("sandbox", SkillPackSpec::default());
    assert_eq!(rules(&admit_pack(&sandbox, None, None)), [("pack-name-reserved", "metadata.name")]);
    sandbox.metadata.name = Some("sandboxes".to_owned());
    assert_eq!(rules(&admit_pack(&sandbox, None, None)), []);
}

#[test]
fn agents_and_instances_share_one_name_space() {
    let spec: AgentSpec = yaml("agents: {default: {model: m}}");
    let subject = Subject::new("SympoziumInstance", Some("team"), "a");
    assert_eq!(rules(&admit_agent(&subject, &spec, false)), []);
    let denied = admit_agent(&subject, &spec, true);
    assert_eq!(rules(&denied), [("agent-ambiguous", "metadata.name")]);
    assert_eq!(
        denied.violations[0].to_string(),
        "SympoziumInstance a, metadata.name: `a` is both an Agent and a SympoziumInstance (agent-ambiguous)"
    );
}

#[test]
fn an_agent_is_looked_at_whole() {
    let spec: AgentSpec = yaml(
        "agents: {default: {model: m, runTimeout: 25h, env: {LD_PRELOAD: x},
           lifecycle: {preRun: [{name: h, image: 'a.io/b:1', gate: true, timeout: 2h, env: [{name: HOME}]}], rbac: [{apiGroups: [], resources: [a], verbs: [b]}]}}}",
    );
    let start = "spec.agents.default";
    let found = admit_agent(&Subject::new("Agent", None, "a"), &spec, false);
    let found: Vec<_> =
        found.violations.iter().map(|violation| (violation.rule, violation.field.trim_start_matches(start))).collect();
    let expected = [
        ("env-denied", ".env.LD_PRELOAD"),
        ("timeout-out-of-range", ".runTimeout"),
        ("env-denied", ".lifecycle.preRun[0].env[0].name"),
        ("timeout-out-of-range", ".lifecycle.preRun[0].timeout"),
        ("gate-too-early", ".lifecycle.preRun[0].gate"),
        ("rbac-incomplete", ".lifecycle.rbac[0]"),
    ];
    assert_eq!(found, expected);
}

#[test]
fn entries_of_a_policy_that_mean_nothing_deny_it() {
    let subject = Subject::new("SympoziumPolicy", None, "p");
    let spec: SympoziumPolicySpec = yaml("imagePolicy: {allowedRegistries: [acme]}");
    let denied = admit_policy(&subject, &spec);
    assert_eq!(rules(&denied), [("policy-entry", "spec.imagePolicy.allowedRegistries[0]")]);
    assert_eq!(denied.violations[0].hint, "correct it; as it stands, it allows nothing");
    let spec: SympoziumPolicySpec = yaml("imagePolicy: {allowedRegistries: [docker.io/acme]}");
    assert_eq!(rules(&admit_policy(&subject, &spec)), []);
}

#[test]
fn the_hooks_of_an_agent_are_its_authors() {
    let spec =
        "agents: {default: {model: m, lifecycle: {rbac: [{apiGroups: [''], resources: [events], verbs: [list]}]}}}";
    let agent: AgentSpec = yaml(spec);
    let subject = Subject::new("Agent", None, "a");
    let denied = admit_agent_author(&subject, &agent, &Permissions::default());
    assert_eq!(rules(&denied), [("rbac-author", "spec.agents.default.lifecycle.rbac[0]")]);
    let holds = rights("[{apiGroups: [''], resources: [events], verbs: [list]}]");
    assert_eq!(rules(&admit_agent_author(&subject, &agent, &holds)), []);
    // The user who starts a run need not hold the permissions of its agent's hooks. The author of the agent must.
    let holds = "agentAuthor: {namespace: [{apiGroups: [''], resources: [events], verbs: [list]}]}";
    let run = Harness::new(&format!("agent: {{{spec}}}\nauthor: {{}}\n{holds}"));
    assert_eq!(run.decide().0, []);
    for author in ["agentAuthor: {}", "agentAuthor: {}\nauthor: {mayEscalate: true}"] {
        let run = Harness::new(&format!("agent: {{{spec}}}\n{author}"));
        assert_eq!(run.decide().0[0].message, "the agent's author may not do `list events`, and cannot grant it");
    }
    let other = "run: {lifecycle: {rbac: [{apiGroups: [''], resources: [events], verbs: [list, watch]}]}}";
    let run = Harness::new(&format!("agent: {{{spec}}}\nauthor: {{}}\n{holds}\n{other}"));
    assert_eq!(run.decide().0[0].message, "the run's author may not do `list events`, and cannot grant it");
}

#[test]
fn the_texts_of_a_pack_fit_into_a_config_map() {
    let mut pack = pack("{skills: [{name: s, content: ''}]}");
    pack.spec.skills[0].content = "a".repeat(MAX_PACK_BYTES);
    assert_eq!(rules(&admit_pack(&pack, None, None)), []);
    pack.spec.skills[0].description = Some("b".to_owned());
    assert_eq!(rules(&admit_pack(&pack, None, None)), [("pack-too-large", "spec.skills")]);
}
