//! Admission of the runs of files, and the positions of its findings.

use sympozium_plan::plan::{PlanSettings, plan};

use super::*;
use crate::load::{Budget, load};
use crate::validate::{Report, Schemas, Session};

const AGENT: &str = "---
apiVersion: sympozium.ai/v1alpha1
kind: Agent
metadata: {name: a}
spec:
  agents:
    default:
      model: gpt-4o
";

fn with(head: &str, more: &str) -> String {
    format!("{head}{more}")
}

fn run(spec: &str) -> String {
    format!("---\napiVersion: sympozium.ai/v1alpha1\nkind: AgentRun\nmetadata: {{name: r}}\nspec:\n{spec}\n")
}

/// `severity line field: rule` of every finding of this stage.
fn findings(text: &str) -> Vec<String> {
    let mut session = Session::new("default");
    session.add_text("a.yaml".to_owned(), Ok(text.to_owned()));
    let report = session.finish(&mut Schemas::default(), Completeness::Partial);
    let errors: Vec<_> =
        report.findings().iter().filter(|finding| finding.severity == FindingSeverity::Error).collect();
    assert!(errors.is_empty(), "{errors:?}");
    report
        .findings()
        .iter()
        .filter(|finding| finding.stage == ValidationStage::Admission)
        .map(|finding| format!("{} {} {}: {}", finding.severity.as_str(), finding.line, finding.field, finding.rule))
        .collect()
}

#[test]
fn an_admitted_run_has_no_findings() {
    let text = with(AGENT, &run("  agentRef: a\n  task: hello"));
    assert_eq!(findings(&text), [] as [&str; 0]);
}

#[test]
fn a_denial_has_the_position_of_its_field() {
    let text = with(AGENT, &run("  agentRef: a\n  task: hello\n  env:\n    OK: x\n    LD_PRELOAD: x\n    PATH: x"));
    let found = findings(&text);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("denied 18 spec.env"), "{found:?}");
    assert!(found[1].starts_with("denied 19 spec.env"), "{found:?}");
}

#[test]
fn inherited_fields_are_reported_once_at_the_agent() {
    let agent = with(AGENT, "      env:\n        LD_PRELOAD: x\n");
    let alone = findings(&agent);
    assert_eq!(alone.len(), 1, "{alone:?}");
    assert!(alone[0].starts_with("denied 10 spec.agents.default.env"), "{alone:?}");
    let text = with(&agent, &run("  agentRef: a\n  task: hello"));
    assert_eq!(findings(&text), alone);
}

#[test]
fn an_agent_without_runs_is_judged_by_the_plainest_run() {
    let policy = "---\napiVersion: sympozium.ai/v1alpha1\nkind: SympoziumPolicy\nmetadata: {name: p}\nspec:\n  modelPolicy: {allowedModels: [other]}\n";
    let agent = AGENT.replace("spec:\n", "spec:\n  policyRef: p\n");
    let found = findings(&with(policy, &agent));
    assert_eq!(found, ["denied 15 spec.agents.default.model: model-not-allowed"]);
}

#[test]
fn the_policies_that_are_shipped_need_not_be_among_the_files() {
    let agent = AGENT.replace("spec:\n", "spec:\n  policyRef: restrictive\n");
    let found = findings(&with(&agent, &run("  agentRef: a\n  task: hello")));
    assert!(found.iter().any(|finding| finding.contains("sandbox")), "{found:?}");
}

#[test]
fn the_packs_that_are_shipped_need_not_be_among_the_files() {
    let run = |skills: &str| run(&format!("  agentRef: a\n  task: hello\n  skills: [{{skillPackRef: {skills}}}]"));
    assert_eq!(
        findings(&with(AGENT, &run("k8s-ops"))),
        ["warning 10 : cluster-rbac-consent", "warning 16 spec.skills[0].skillPackRef: fetch-unrestricted",]
    );
    // Permissions that need an exception, used three times, and reported once for each permission.
    let found = findings(&with(AGENT, &run("k8s-ops-admin")));
    let denied = found.iter().filter(|finding| finding.starts_with("denied"));
    assert!(denied.clone().all(|finding| finding.ends_with(": rbac-escalation")), "{found:?}");
    assert_eq!(denied.count(), 21, "{found:?}");
}

/// The findings where an object of the files has the name of a shipped one, by kind, namespace and completeness.
#[test]
fn a_shipped_name_is_the_shipped_object() {
    let policy = "---\napiVersion: sympozium.ai/v1alpha1\nkind: SympoziumPolicy\nmetadata: {name: permissive}\nspec:\n  toolGating: {defaultAction: allow}\n";
    let pack = PACK.replace("{name: p}", "{name: code-review}");
    let agent = AGENT.replace("spec:\n", "spec:\n  policyRef: permissive\n  skills: [{skillPackRef: code-review}]\n");
    let run = run("  agentRef: a\n  task: hello");
    let findings_about = |text: &str, completeness| -> Vec<String> {
        let report = report(text, completeness);
        let all = report.findings().iter();
        let found = all.filter(|finding| finding.message.contains("is a shipped object, and"));
        found.map(|finding| format!("{} {}: {}", finding.severity.as_str(), finding.field, finding.rule)).collect()
    };
    for (object, field, rule, partial) in [
        // The cluster's floor may consent.
        (policy, "spec.policyRef", "policy-ambiguous", "warning"),
        (&pack, "spec.skills[0].skillPackRef", "pack-ambiguous", "denied"),
    ] {
        let own = format!("{object}{agent}{run}");
        assert_eq!(findings_about(&own, Completeness::Partial), [format!("{partial} {field}: {rule}")]);
        assert_eq!(findings_about(&own, Completeness::Complete), [format!("denied {field}: {rule}")]);
        let of_system = object.replace("metadata: {name", "metadata: {namespace: sympozium-system, name");
        let of_system = format!("{of_system}{agent}{run}");
        for completeness in [Completeness::Partial, Completeness::Complete] {
            assert_eq!(findings_about(&of_system, completeness), [format!("denied {field}: shipped-name")]);
        }
        // In another namespace it does not concern the run.
        let elsewhere = object.replace("metadata: {name", "metadata: {namespace: other, name");
        let elsewhere = format!("{elsewhere}{agent}{run}");
        assert_eq!(findings_about(&elsewhere, Completeness::Complete), [] as [&str; 0]);
    }
    // The shipped objects themselves do not clash.
    let shipped = format!(
        "{}\n---\n{}\n{agent}{run}",
        built_in::policy_text("permissive").unwrap(),
        built_in::pack_text("code-review").unwrap()
    );
    assert_eq!(findings_about(&shipped, Completeness::Complete), [] as [&str; 0]);
}

/// In a cluster, shipped objects do not stand in for missing ones.
#[test]
fn objects_for_a_cluster_are_not_compared_with_shipped_ones() {
    let pack = PACK.replace("{name: p}", "{name: code-review}");
    let agent = AGENT.replace("spec:\n", "spec:\n  skills: [{skillPackRef: code-review}]\n");
    let mut session = Session::for_cluster("default");
    session.add_text("a.yaml".to_owned(), Ok(format!("{pack}{agent}")));
    let report = session.finish(&mut Schemas::default(), Completeness::Partial);
    let mut all = report.findings().iter();
    assert!(!all.any(|finding| finding.message.contains("is a shipped object, and")));
}

#[test]
fn missing_objects_do_not_hide_denials() {
    let text =
        with(AGENT, &run("  agentRef: a\n  task: hello\n  skills:\n    - skillPackRef: nowhere\n  env:\n    PATH: x"));
    let found = findings(&text);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("denied 19 spec.env"), "{found:?}");
    let without_policy = AGENT.replace("spec:\n", "spec:\n  policyRef: nowhere\n");
    assert_eq!(findings(&with(&without_policy, &run("  agentRef: a\n  task: hello"))), [] as [&str; 0]);
}

#[test]
fn a_run_without_its_agent_is_checked_by_its_own_fields() {
    let alone = run("  agentRef: missing\n  task: hello");
    assert_eq!(findings(&alone), [] as [&str; 0]);
    let found = findings(&run("  agentRef: missing\n  task: hello\n  env:\n    PATH: x"));
    assert_eq!(found, ["denied 9 spec.env.PATH: env-denied"]);
    let mut session = Session::new("default");
    session.add_text("a.yaml".to_owned(), Ok(alone));
    let report = session.finish(&mut Schemas::default(), Completeness::Partial);
    assert!(report.summary().ends_with("; 1 run undecided because objects are missing"));
}

#[test]
fn packs_and_policies_are_judged_by_themselves() {
    let pack = "---\napiVersion: sympozium.ai/v1alpha1\nkind: SkillPack\nmetadata: {name: p}\nspec:\n  skills: [{name: s, content: c}]\n  sidecar:\n    image: example.com/i:1\n    env:\n      - {name: LD_PRELOAD, value: x}\n";
    let found = findings(pack);
    assert!(!found.is_empty());
    for finding in &found {
        assert!(finding.starts_with("denied 10 spec.sidecar.env[0].name"), "{found:?}");
    }
}

#[test]
fn the_floor_is_found_by_its_name() {
    let floor = "---\napiVersion: sympozium.ai/v1alpha1\nkind: SympoziumPolicy\nmetadata: {name: floor, namespace: sympozium-system}\nspec:\n  modelPolicy: {allowedModels: [other]}\n";
    assert_eq!(findings(&with(AGENT, floor)), ["denied 8 spec.agents.default.model: model-not-allowed"]);
    let elsewhere = floor.replace("sympozium-system", "other");
    assert_eq!(findings(&with(AGENT, &elsewhere)), [] as [&str; 0]);
}

const PACK: &str = "---
apiVersion: sympozium.ai/v1alpha1
kind: SkillPack
metadata: {name: p}
spec:
  skills: [{name: s, content: c}]
  sidecar:
    image: example.com/i:1
";

/// A run with the pack, whose agent names a policy that is missing.
fn with_unknown_policy(of_pack: &str) -> String {
    let agent = AGENT.replace("spec:\n", "spec:\n  policyRef: elsewhere\n");
    let run = run("  agentRef: a\n  task: hello\n  skills: [{skillPackRef: p}]");
    format!("{PACK}{of_pack}{agent}{run}")
}

fn report(text: &str, completeness: Completeness) -> Report {
    let mut session = Session::new("default");
    session.add_text("a.yaml".to_owned(), Ok(text.to_owned()));
    session.finish(&mut Schemas::default(), completeness)
}

#[test]
fn denials_that_an_unknown_policy_may_lift_are_warnings() {
    for (of_pack, expected) in [
        (
            "    hostAccess: {enabled: true, hostPID: true, mounts: [{hostPath: /var/log, mountPath: /h}]}\n",
            &[
                "9 spec.sidecar.hostAccess.enabled: host-access",
                "9 spec.sidecar.hostAccess.hostPID: host-power",
                "9 spec.sidecar.hostAccess.mounts[0].hostPath: host-path",
            ][..],
        ),
        (
            "    rbac: [{apiGroups: [''], resources: [secrets], verbs: [get]}]\n",
            &["9 spec.sidecar.rbac[0]: rbac-escalation"],
        ),
        ("    egress: [{host: 10.0.0.1}]\n", &["9 spec.sidecar.egress[0].host: egress-not-allowed"]),
    ] {
        let text = with_unknown_policy(of_pack);
        let mut found = findings(&text);
        found.sort();
        // A denial that the floor could lift stays a warning with any policy.
        found.retain(|finding| !finding.ends_with("fetch-unrestricted") && !finding.ends_with("rbac-author"));
        let warned: Vec<String> = expected.iter().map(|rule| format!("warning {rule}")).collect();
        assert_eq!(found, warned);
        let summary = report(&text, Completeness::Partial).summary();
        assert!(summary.ends_with("; 1 run undecided because objects are missing"));

        // With a known policy that does not allow it, the same denial is certain.
        let known = text.replace("policyRef: elsewhere", "policyRef: default");
        let mut found = findings(&known);
        found.sort();
        found.retain(|finding| finding.starts_with("denied"));
        let denied: Vec<String> = expected.iter().map(|rule| format!("denied {rule}")).collect();
        assert_eq!(found, denied);
    }
}

#[test]
fn denials_that_no_policy_lifts_need_no_policy() {
    let text = with_unknown_policy("    env: [{name: LD_PRELOAD, value: x}]\n");
    assert_eq!(findings(&text), ["denied 9 spec.sidecar.env[0].name: env-denied"]);
}

#[test]
fn the_policy_of_a_run_without_its_agent_is_unknown() {
    let text = run(
        "  agentRef: missing\n  task: hello\n  lifecycle:\n    preRun: [{name: h, image: 'example.com/h:1'}]\n    rbac: [{apiGroups: [''], resources: [secrets], verbs: [get]}]",
    );
    let rules = ["rbac-escalation", "rbac-author"];
    assert_eq!(findings(&text), rules.map(|rule| format!("warning 10 spec.lifecycle.rbac[0]: {rule}")));
}

#[test]
fn consent_of_an_unknown_floor_is_not_taken_for_refused() {
    let run = run("  agentRef: a\n  task: hello\n  skills: [{skillPackRef: p}]");
    let grant = "    clusterRBAC: [{apiGroups: [''], resources: [pods], verbs: [list]}]\n";
    let text = format!("{PACK}{grant}{AGENT}{run}");
    let consent = |text: &str, completeness| -> Vec<String> {
        let report = report(text, completeness);
        let all = report.findings().iter();
        let found = all.filter(|finding| finding.rule == "cluster-rbac-consent");
        found
            .map(|finding| {
                format!(
                    "{}: {} ({})",
                    finding.severity.as_str(),
                    finding.message,
                    finding.hint.as_deref().unwrap_or_default()
                )
            })
            .collect()
    };
    let message = "grants in the whole cluster need the floor's consent for namespace `default`";
    let remedy = "use `rbac`, or list the namespace in `rbacPolicy.clusterRBACNamespaces` of the policy `floor` in the system namespace";
    assert_eq!(
        consent(&text, Completeness::Partial),
        [format!(
            "warning: {message}; the cluster's floor, which is not among the files, may allow it (set the file of the floor with --floor; if that does not allow it: {remedy})"
        )]
    );
    let denied = [format!("denied: {message} ({remedy})")];
    // The files are complete, or the floor is among them: then it is certain. The shipped floor consents.
    assert_eq!(consent(&text, Completeness::Complete), [] as [&str; 0]);
    let elsewhere = text.replace("metadata: {name: ", "metadata: {namespace: team, name: ");
    let of_team = denied[0].replace("`default`", "`team`");
    assert_eq!(consent(&elsewhere, Completeness::Complete), [of_team]);
    let floor = "---\napiVersion: sympozium.ai/v1alpha1\nkind: SympoziumPolicy\nmetadata: {name: floor, namespace: sympozium-system}\nspec: {}\n";
    assert_eq!(consent(&format!("{text}{floor}"), Completeness::Partial), denied);
}

/// The objects of a run that asks for a right, by where it is written.
fn asking(verb: &str) -> [(&'static str, String); 4] {
    let rbac = format!("rbac: [{{apiGroups: [''], resources: [configmaps], verbs: [{verb}]}}]");
    let lifecycle = format!("lifecycle: {{preRun: [{{name: h, image: 'example.com/h:1'}}], {rbac}}}\n");
    let with_pack = run("  agentRef: a\n  task: hello\n  skills: [{skillPackRef: p}]");
    let pack = format!("{PACK}    {rbac}\n{AGENT}{with_pack}");
    [
        ("the operator's pack", pack.replace("{name: p}", "{name: p, namespace: sympozium-system}")),
        ("a pack", pack),
        ("the run's hook", with(AGENT, &run(&format!("  agentRef: a\n  task: hello\n  {lifecycle}")))),
        ("the agent's hook", format!("{AGENT}      {lifecycle}{}", run("  agentRef: a\n  task: hello"))),
    ]
}

/// Denials are those of the controller, which knows no authors either. A run of this machine is granted no permissions, and denied.
#[test]
fn permissions_are_compared_with_those_of_an_unknown_author() {
    let floor = |namespace: &str| {
        format!(
            "apiVersion: sympozium.ai/v1alpha1\nkind: SympoziumPolicy\nmetadata: {{name: floor, namespace: sympozium-system}}\nspec:\n  rbacPolicy:\n    clusterRBACNamespaces: [{namespace}]\n    exceptions: [{{apiGroups: [''], resources: [configmaps], verbs: [patch]}}]\n"
        )
    };
    let denied = |mut session: Session<'_>, text: &str, floor: Option<&str>| -> Vec<String> {
        session.add_text("a.yaml".to_owned(), Ok(text.to_owned()));
        if let Some(floor) = floor {
            session.add_floor_text("floor.yaml", floor);
        }
        let report = session.finish(&mut Schemas::default(), Completeness::Partial);
        let all = report.findings().iter();
        let found = all.filter(|finding| finding.severity == FindingSeverity::Denied || finding.rule == "rbac-author");
        found.map(|finding| format!("{} {}", finding.severity.as_str(), finding.rule)).collect()
    };
    for (verb, listed, is_granted) in [("get", "default", true), ("get", "team", false), ("patch", "default", false)] {
        let floor = floor(listed);
        for (who, text) in asking(verb) {
            let expected = if is_granted || who == "the operator's pack" { &[][..] } else { &["denied rbac-author"] };
            for session in [Session::new("default"), Session::for_cluster("default")] {
                assert_eq!(denied(session, &text, Some(&floor)), expected, "{who}: {verb}, {listed} is listed");
            }
            let local = denied(Session::for_machine("default"), &text, Some(&floor));
            assert_eq!(local, [] as [&str; 0], "{who}: {verb}");
        }
    }
    // A floor that is not known may list the namespace.
    for (who, text) in asking("get") {
        let expected = match who {
            "the operator's pack" => &[][..],
            _ => &["warning rbac-author"],
        };
        assert_eq!(denied(Session::new("default"), &text, None), expected, "{who}");
    }
}

/// A floor that is silent has consented to nothing that a policy excepts.
#[test]
fn an_exception_of_a_policy_needs_the_floors_consent() {
    let rule = "{apiGroups: [''], resources: [secrets], verbs: [get]}";
    let policy = format!(
        "---\napiVersion: sympozium.ai/v1alpha1\nkind: SympoziumPolicy\nmetadata: {{name: open}}\nspec:\n  rbacPolicy: {{exceptions: [{rule}]}}\n"
    );
    let pack = PACK.replace("{name: p}", "{name: p, namespace: sympozium-system}");
    let agent = AGENT.replace("spec:\n", "spec:\n  policyRef: open\n");
    let run = run("  agentRef: a\n  task: hello\n  skills: [{skillPackRef: p}]");
    let text = format!("{pack}    rbac: [{rule}]\n{policy}{agent}{run}");
    let floor = "---\napiVersion: sympozium.ai/v1alpha1\nkind: SympoziumPolicy\nmetadata: {name: floor, namespace: sympozium-system}\nspec: ";
    for (floor, expected) in [
        (String::new(), &["warning 9 spec.sidecar.rbac[0]: rbac-unlisted"][..]),
        (format!("{floor}{{}}\n"), &["denied 9 spec.sidecar.rbac[0]: rbac-unlisted"]),
        (format!("{floor}{{rbacPolicy: {{exceptions: [{rule}]}}}}\n"), &[]),
    ] {
        let mut found = findings(&format!("{text}{floor}"));
        found.retain(|finding| !finding.ends_with("fetch-unrestricted"));
        assert_eq!(found, expected, "{floor}");
    }
}

#[test]
fn a_runtime_class_may_come_from_the_cluster() {
    let policy = "---\napiVersion: sympozium.ai/v1alpha1\nkind: SympoziumPolicy\nmetadata: {name: k}\nspec:\n  sandboxPolicy: {minimumIsolation: [kernel]}\n";
    let agent = AGENT.replace("spec:\n", "spec:\n  policyRef: k\n");
    let kernel = |more: &str| -> Vec<String> {
        let run = run(&format!("  agentRef: a\n  task: hello{more}"));
        let mut found = findings(&format!("{policy}{agent}{run}"));
        found.retain(|finding| finding.ends_with("isolation-kernel"));
        found
    };
    assert_eq!(kernel(""), ["denied 20 spec.agentSandbox: isolation-kernel"]);
    assert_eq!(kernel("\n  agentSandbox: {enabled: true}"), ["warning 23 spec.agentSandbox: isolation-kernel"]);
}

/// The RuntimeClass of the red team: its name looks like a separate kernel, and its handler is none.
#[test]
fn a_kernel_is_known_by_the_handler_of_a_runtime_class_among_the_files() {
    let policy = "---\napiVersion: sympozium.ai/v1alpha1\nkind: SympoziumPolicy\nmetadata: {name: k}\nspec:\n  sandboxPolicy: {minimumIsolation: [kernel]}\n";
    let agent = AGENT.replace("spec:\n", "spec:\n  policyRef: k\n");
    let class = |api: &str, name: &str, handler: &str| {
        format!("---\napiVersion: {api}\nkind: RuntimeClass\nmetadata: {{name: {name}}}\nhandler: {handler}\n")
    };
    let kernel = |named: &str, classes: &[String]| -> Vec<String> {
        let sandbox = format!("agentSandbox: {{enabled: true, runtimeClass: {named}}}");
        let run = run(&format!("  agentRef: a\n  task: hello\n  {sandbox}"));
        let mut found = findings(&format!("{policy}{agent}{run}{}", classes.concat()));
        found.retain(|finding| finding.ends_with("isolation-kernel"));
        found
    };
    let api = "node.k8s.io/v1";
    let denied = ["denied 23 spec.agentSandbox.runtimeClass: isolation-kernel"];
    let none: [&str; 0] = [];
    let pretended = [class(api, "kata-but-really-runc", "runc")];
    assert_eq!(kernel("kata-but-really-runc", &pretended), denied);
    assert_eq!(kernel("gvisor", &[]), denied);
    assert_eq!(kernel("gvisor", &[class(api, "kata", "kata")]), denied);
    assert_eq!(kernel("gvisor", &[class(api, "gvisor", "runsc")]), none);
    assert_eq!(kernel("fast", &[class(api, "fast", "kata-qemu")]), none);
    let foreign = [class("example.com/v1", "gvisor", "runsc")];
    assert_eq!(kernel("gvisor", &foreign), denied);
    // It is unknown which of the two a cluster has.
    let both = [class(api, "gvisor", "runsc"), class(api, "gvisor", "runc")];
    assert_eq!(kernel("gvisor", &both), denied);
}

#[test]
fn an_object_with_an_error_is_checked_as_far_as_it_is_readable() {
    let findings_of = |text: &str| -> Vec<String> {
        let report = report(text, Completeness::Partial);
        let all = report.findings().iter();
        all.map(|finding| format!("{} {}: {}", finding.severity.as_str(), finding.field, finding.rule)).collect()
    };
    let with_error = "  agentRef: a\n  task: hello\n  colour: red\n  env:\n    PATH: x";
    assert_eq!(
        findings_of(&with(AGENT, &run(with_error))),
        ["error spec.colour: unknown-field", "denied spec.env.PATH: env-denied"]
    );
    let unreadable = "  agentRef: a\n  task: hello\n  cancel: [1]\n  env:\n    PATH: x";
    assert_eq!(findings_of(&with(AGENT, &run(unreadable))), ["error spec.cancel: type"]);
}

/// The host of the run's model, or the rules that deny the run.
fn host_of_model(session: Session<'_>) -> Result<String, Vec<&'static str>> {
    let mut seen = None;
    let mut look = |judged: &CheckedRun<'_>| {
        seen = Some(match &judged.decision {
            RunDecision::Admitted(input, admitted) => {
                let planned = plan(input, admitted, &PlanSettings::default()).unwrap();
                Ok(planned.plan.model.endpoint.unwrap().host)
            }
            RunDecision::Denied(reasons) => Err(reasons.iter().map(|reason| reason.rule).collect()),
            RunDecision::Undecided => Err(Vec::new()),
        });
    };
    let demand = CheckOptions {
        run: Some("r"),
        uid: Some("00000000-0000-4000-8000-000000000000"),
        purpose: Purpose::Use(&mut look),
    };
    session.finish_with(&mut Schemas::default(), Completeness::Partial, demand);
    seen.unwrap()
}

/// The author of a file can write any status into it, and thus where the key goes.
#[test]
fn the_status_of_an_object_in_a_file_counts_for_nothing() {
    let policy = "---\napiVersion: sympozium.ai/v1alpha1\nkind: SympoziumPolicy\nmetadata: {name: p}\nspec:\n  modelPolicy: {allowedNamespaces: [default]}\n";
    let model = "---\napiVersion: sympozium.ai/v1alpha1\nkind: Model\nmetadata: {name: m}\nspec: {source: {url: 'https://example.org/m'}}\nstatus: {endpoint: 'https://evil.example.com/v1'}\n";
    let run = run(
        "  agentRef: a\n  task: hello\n  model: {provider: openai, model: gpt-4o, modelRef: m, authSecretRef: key}",
    );
    let agent = AGENT.replace("spec:\n", "spec:\n  policyRef: p\n");
    let others = with(&with(&agent, &run), policy);
    let mut of_files = Session::new("default");
    of_files.add_text("a.yaml".to_owned(), Ok(with(&others, model)));
    assert_eq!(host_of_model(of_files).as_deref(), Ok("model-m.default.svc"));
    // Our programs wrote the status that an API server has stored: it is checked like any other address.
    let mut stored = Session::new("default");
    stored.add_text("a.yaml".to_owned(), Ok(others));
    stored.add_stored("b.yaml".to_owned(), load(model, &mut Budget::default()));
    assert_eq!(host_of_model(stored), Err(vec!["model-endpoint"]));
}
