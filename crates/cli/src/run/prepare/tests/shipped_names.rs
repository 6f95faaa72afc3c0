//! A shipped name means the shipped object, whatever else has the name.

use super::*;
use sympozium_api::origin::{ObjectOrigin, Origin, PACK_KIND, POLICY_KIND};

/// A policy under which no tool needs approval.
fn policy(name: &str, namespace: &str) -> String {
    format!(
        "---\napiVersion: sympozium.ai/v1alpha1\nkind: SympoziumPolicy\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {{toolGating: {{defaultAction: allow}}}}\n"
    )
}

fn agent(policy: &str, pack: &str) -> String {
    format!(
        "---\napiVersion: sympozium.ai/v1alpha1\nkind: Agent\nmetadata: {{name: worker}}\nspec:\n  policyRef: {policy}\n  skills: [{{skillPackRef: {pack}}}]\n  agents: {{default: {{model: gpt-4o}}}}\n  authRefs: [{{provider: openai, secret: openai-key}}]\n"
    )
}

fn pack(name: &str, namespace: &str) -> String {
    format!(
        "---\napiVersion: sympozium.ai/v1alpha1\nkind: SkillPack\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {{skills: [{{name: own, description: Own., content: Own.}}]}}\n"
    )
}

fn skill(name: &str) -> String {
    format!("---\nname: {name}\ndescription: Use it to greet.\n---\n# Hello\n")
}

/// The gate of the pack's tool, and the origin of the policy.
fn gate_and_origin(prepared: &PreparedRun, name: &str) -> (Gate, Origin) {
    let mut tools = prepared.plan.tools.iter();
    let gate = tools.find(|it| it.pack.as_deref() == Some("hello"));
    (gate.expect("a tool of the pack").gate, origin(prepared, POLICY_KIND, name))
}

#[track_caller]
fn origin(prepared: &PreparedRun, kind: &str, name: &str) -> Origin {
    let mut all = prepared.origins.iter();
    let found = all.find(|it| it.kind == kind && it.name == name);
    let found = found.unwrap_or_else(|| panic!("no {name} in {:?}", prepared.origins));
    found.from.clone()
}

fn from_file(path: &str) -> Origin {
    Origin::File { path: path.to_owned() }
}

const NAMESPACES: [&str; 2] = ["default", "sympozium-system"];

/// A machine with a skill that has a tool, and the argument that names the skill.
fn with_skill() -> (Harness, String) {
    let machine = Harness::new();
    let path = machine.file("hello/SKILL.md", &skill("hello"));
    machine.file("hello/scripts/hello.sh", "#!/bin/sh\necho hello\n");
    (machine, path)
}

/// Whether there is the warning that a policy of the files was left out.
fn warns_left_out(prepared: &PreparedRun) -> bool {
    let mut warnings = prepared.warnings.iter();
    warnings.any(|it| it.contains("among the files does not count: name its file with --policy"))
}

#[test]
fn a_policy_of_the_files_does_not_replace_a_shipped_one() {
    let (machine, skill) = with_skill();
    for namespace in NAMESPACES {
        let file = machine.file(&format!("{namespace}/policy.yaml"), &policy("default", namespace));
        let directory = file.strip_suffix("/policy.yaml").unwrap();
        for input in [file.as_str(), directory] {
            // By default, and by name: the shipped one.
            for choice in [&[][..], &["--policy", "default"]] {
                let mut typed = vec!["x", input, "--skill", &skill];
                typed.extend(choice);
                let prepared = expect_prepared(machine.assemble(&typed));
                let expected = (Gate::Ask, Origin::Shipped);
                assert_eq!(gate_and_origin(&prepared, "default"), expected, "{typed:?}");
                assert!(warns_left_out(&prepared), "{:?}", prepared.warnings);
            }
            // By its file, even if that is also among the inputs: the one in the file.
            for others in [&[][..], &[input]] {
                let mut typed = vec!["x", "--skill", &skill, "--policy", &file];
                typed.extend(others);
                let prepared = expect_prepared(machine.assemble(&typed));
                let expected = (Gate::Allow, from_file(&file));
                assert_eq!(gate_and_origin(&prepared, "default"), expected, "{typed:?}");
                assert!(!warns_left_out(&prepared));
            }
        }
    }
    let elsewhere = machine.file("elsewhere.yaml", &policy("default", "elsewhere"));
    let prepared = expect_prepared(machine.assemble(&["x", &elsewhere, "--skill", &skill]));
    assert_eq!(gate_and_origin(&prepared, "default"), (Gate::Ask, Origin::Shipped));
    assert!(!warns_left_out(&prepared));
}

#[test]
fn an_agent_of_the_files_cannot_mean_a_policy_that_takes_a_shipped_name() {
    let (machine, skill) = with_skill();
    for namespace in NAMESPACES {
        let rule = match namespace {
            "default" => "denied[policy-ambiguous]",
            _ => "denied[shipped-name]",
        };
        let mine = policy("restrictive", namespace);
        let agent = agent("restrictive", "hello");
        let file = machine.file("all.yaml", &format!("{agent}{mine}"));
        machine.assert_refused(
            &["x", &file, "--skill", &skill],
            DENIED,
            &[
                rule,
                "SympoziumPolicy `restrictive` is a shipped object",
                "all.yaml has a different one with that name in namespace",
                &format!("`{namespace}`"),
                "rename the object of the file, or select it by its file: sympozium run --policy ./FILE.yaml",
            ],
        );
        // Chosen by its file, although the file contains more.
        let typed = ["x", &file, "--skill", &skill, "--policy", &file];
        let prepared = expect_prepared(machine.assemble(&typed));
        assert_eq!(gate_and_origin(&prepared, "restrictive"), (Gate::Allow, from_file(&file)));
        assert_eq!(prepared.plan.run.agent, "worker");
        // By name the shipped one is meant, which requires a sandbox.
        machine.assert_refused(
            &["x", &file, "--skill", &skill, "--policy", "restrictive"],
            DENIED,
            &["denied[sandbox-required]"],
        );
    }
}

#[test]
fn a_policy_is_taken_from_a_file_of_its_own() {
    let (machine, skill) = with_skill();
    let none = machine.file("none.yaml", &pack("p", "default"));
    let two = machine.file("two.yaml", &format!("{}{}", policy("a", "default"), policy("b", "default")));
    for (file, said) in [(&none, "there is no SympoziumPolicy in"), (&two, "there is more than one SympoziumPolicy in")]
    {
        machine.assert_refused(&["x", "--policy", file], USAGE, &[said, "which --policy names"]);
    }
    machine.assert_refused(&["x", "--policy", "./missing.yaml"], FAILED, &["no such file or directory"]);
    let misspelt = machine.file("misspelt.yaml", &policy("a", "default").replace("toolGating", "toolGatin"));
    machine.assert_refused(&["x", "--policy", &misspelt], FAILED, &["toolGatin"]);
    // Whatever namespace it has, it applies in the run's namespace; other objects of the file are ignored.
    let more = format!("{}{}", policy("careful", "elsewhere"), agent("permissive", "x"));
    let file = machine.file("more.yaml", &more);
    let typed = ["x", "--skill", &skill, "--policy", &file, "-n", "team"];
    let prepared = expect_prepared(machine.assemble(&typed));
    assert_eq!(gate_and_origin(&prepared, "careful"), (Gate::Allow, from_file(&file)));
    assert_eq!(prepared.plan.run.agent, "assistant");
    let mut resolved = prepared.plan.resolved.iter();
    let found = resolved.find(|it| it.name == "careful").unwrap();
    assert_eq!(found.namespace, "team");
    // The floor cannot be chosen like this.
    let floor = machine.file(
        "floor.yaml",
        &policy("floor", "sympozium-system").replace("toolGating", "subagentPolicy: {maxDepth: 0}, toolGating"),
    );
    let typed = ["x", "--skill", &skill, "--policy", &floor];
    let prepared = expect_prepared(machine.assemble(&typed));
    let floors: Vec<_> = (prepared.origins.iter()).filter(|it| it.name == "floor").map(|it| it.from.clone()).collect();
    assert_eq!(floors, [from_file(&floor), Origin::Shipped]);
}

#[test]
fn a_pack_of_the_files_does_not_replace_a_shipped_one() {
    let machine = Harness::new();
    let by_agent = machine.file("agent.yaml", &agent("default", "code-review"));
    let directory = machine.file("skills/code-review/SKILL.md", &skill("code-review"));
    let directory = directory.strip_suffix("/code-review/SKILL.md").unwrap();
    let one = format!("{directory}/code-review");
    let mut inputs = vec![(directory.to_owned(), "denied[pack-ambiguous]"), (one.clone(), "denied[pack-ambiguous]")];
    for namespace in NAMESPACES {
        let rule = match namespace {
            "default" => "denied[pack-ambiguous]",
            _ => "denied[shipped-name]",
        };
        let text = pack("code-review", namespace);
        let file = machine.file(&format!("{namespace}/pack.yaml"), &text);
        let directory = file.strip_suffix("/pack.yaml").unwrap().to_owned();
        inputs.push((directory, rule));
        inputs.push((file, rule));
    }
    for (input, rule) in &inputs {
        let words = [
            rule,
            "SkillPack `code-review` is a shipped object",
            "has a different one with that name",
            "rename the object of the file",
        ];
        machine.assert_refused(&["x", input, "--skill", "code-review"], DENIED, &words);
        machine.assert_refused(&["x", input, &by_agent], DENIED, &words);
        machine.assert_refused(&["x", input, &by_agent, "--skill", "code-review"], DENIED, &words);
    }
    let words = ["denied[pack-ambiguous]", "SkillPack `code-review` is a shipped object"];
    machine.assert_refused(&["x", "--skill", &one], DENIED, &words);
    machine.assert_refused(&["x", &by_agent, "--skill", &one], DENIED, &words);
    let other = machine.file("other/SKILL.md", &skill("other"));
    let prepared = expect_prepared(machine.assemble(&["x", "--skill", &other]));
    assert_eq!(origin(&prepared, PACK_KIND, "other"), from_file(&other));
}

#[test]
fn a_file_that_is_the_shipped_object_is_the_shipped_object() {
    let machine = Harness::new();
    let policy = built_in::policy_text("permissive").unwrap();
    let pack = built_in::pack_text("code-review").unwrap();
    let agent = agent("permissive", "code-review");
    for namespace in [None, Some("sympozium-system"), Some("default")] {
        let placed = |text: &str, name: &str| match namespace {
            Some(namespace) => {
                text.replacen(&format!("  name: {name}\n"), &format!("  name: {name}\n  namespace: {namespace}\n"), 1)
            }
            None => text.to_owned(),
        };
        let policy = placed(policy, "permissive");
        let all = format!("{policy}\n---\n{}\n{agent}", placed(pack, "code-review"));
        let file = machine.file("all.yaml", &all);
        for typed in
            [&["x", &file][..], &["x", &file, "--policy", "permissive"], &["x", &file, "--skill", "code-review"]]
        {
            let prepared = expect_prepared(machine.assemble(typed));
            let expected = [
                (POLICY_KIND, "permissive", Origin::Shipped),
                (PACK_KIND, "code-review", Origin::Shipped),
                (POLICY_KIND, "floor", Origin::Shipped),
            ]
            .map(|(kind, name, from)| ObjectOrigin { kind: kind.to_owned(), name: name.to_owned(), from });
            assert_eq!(prepared.origins, expected, "{typed:?} {namespace:?}");
            assert!(!warns_left_out(&prepared));
        }
        // With one changed word it is a different policy.
        let changed = machine.file("changed.yaml", &all.replacen("maxDepth: 5", "maxDepth: 6", 1));
        machine.assert_refused(&["x", &changed], DENIED, &["is a shipped object"]);
    }
}

#[test]
fn where_everything_came_from_is_known() {
    let mut machine = Harness::new();
    let floor = machine.path("config").join("floor.yaml");
    let text = policy("floor", "sympozium-system");
    fs::write(&floor, text).unwrap();
    fs::set_permissions(&floor, fs::Permissions::from_mode(0o600)).unwrap();
    let file = machine
        .file("all.yaml", &format!("{}{}{}", policy("mine", "default"), pack("own", "default"), agent("mine", "own")));
    let prepared = expect_prepared(machine.assemble(&["x", &file]));
    assert_eq!(origin(&prepared, POLICY_KIND, "mine"), from_file(&file));
    assert_eq!(origin(&prepared, PACK_KIND, "own"), from_file(&file));
    let floor = from_file(floor.to_str().unwrap());
    assert_eq!(origin(&prepared, POLICY_KIND, "floor"), floor);
    machine.variables.remove("OPENAI_API_KEY");
    let typed = ["x", "--model", "ollama/qwen3"];
    let prepared = expect_prepared(machine.assemble(&typed));
    let made = origin(&prepared, POLICY_KIND, "command-line");
    assert_eq!(made, Origin::CommandLine);
    // The policy that flags build has a name too, which no file can take.
    for namespace in NAMESPACES {
        let squatter = machine.file("squatter.yaml", &policy("command-line", namespace));
        let (code, text) = machine.expect_failure(&["x", "--model", "ollama/qwen3", &squatter]);
        let (expected, said) = match namespace {
            "default" => (FAILED, "duplicate-object"),
            _ => (DENIED, "policy-ambiguous"),
        };
        assert!(text.contains(said), "{text}");
        assert_eq!(code, expected, "{text}");
    }
}

/// What an untrusted file may put into the system namespace is denied, each with the line of the claim.
#[test]
fn the_system_namespace_is_what_is_shipped_and_nothing_else() {
    let machine = Harness::new();
    let model = "---\napiVersion: sympozium.ai/v1alpha1\nkind: Model\nmetadata: {name: m, namespace: sympozium-system}\nspec: {source: {modelID: a/b}}\n";
    let agent = agent("permissive", "code-review");
    for (object, kind, name) in [
        (pack("own", "sympozium-system"), "SkillPack", "own"),
        // The name of a shipped policy does not make it a shipped pack.
        (pack("default", "sympozium-system"), "SkillPack", "default"),
        (policy("mine", "sympozium-system"), "SympoziumPolicy", "mine"),
        (model.to_owned(), "Model", "m"),
    ] {
        let said = format!("{kind} `{name}` is not shipped");
        let words = [
            "all.yaml:13:",
            "denied[shipped-name]",
            "metadata.namespace",
            &said,
            "hint: leave `namespace` out",
            "error: the run is denied",
        ];
        // Whether or not the run refers to it.
        let file = machine.file("all.yaml", &format!("{agent}{object}"));
        machine.assert_refused(&["x", &file], DENIED, &words);
        let elsewhere = object.replace("namespace: sympozium-system", "namespace: elsewhere");
        let file = machine.file("all.yaml", &format!("{agent}{elsewhere}"));
        expect_prepared(machine.assemble(&["x", &file]));
    }
    // In a run of that namespace every object would be the system's.
    let run = "---\napiVersion: sympozium.ai/v1alpha1\nkind: AgentRun\nmetadata: {name: r, namespace: sympozium-system}\nspec: {agentRef: worker, task: x}\n";
    let own = agent.replace("{name: worker}", "{name: worker, namespace: sympozium-system}");
    let by_run = machine.file("run.yaml", &format!("{own}{run}"));
    let by_agent = machine.file("agent.yaml", &own);
    for typed in [&[by_run.as_str()][..], &["x", &by_agent], &["x", "-n", "sympozium-system"]] {
        let words = ["denied[shipped-name]", "no run is in namespace"];
        machine.assert_refused(typed, DENIED, &words);
    }
}

/// The floor of the machine grants something to packs by name, and an untrusted file takes the name.
#[test]
fn what_a_floor_gives_to_the_systems_pack_is_not_given_to_a_strangers() {
    let machine = Harness::new();
    machine.program("gh");
    let agent = agent("permissive", "github");
    let compose = |gives: &str, namespace: &str| {
        let floor = machine.file(
            "floor.yaml",
            &format!(
                "apiVersion: sympozium.ai/v1alpha1\nkind: SympoziumPolicy\nmetadata: {{name: floor, namespace: sympozium-system}}\nspec: {{{gives}}}\n"
            ),
        );
        let pack = format!(
            "---\napiVersion: sympozium.ai/v1alpha1\nkind: SkillPack\nmetadata: {{name: github, namespace: {namespace}}}\nspec:\n  skills: [{{name: github, description: Own., content: Own., requires: {{bins: [gh]}}}}]\n  sidecar: {{image: example.com/gh:1, executor: injected}}\n"
        );
        let file = machine.file("all.yaml", &format!("{agent}{pack}"));
        machine.assemble(&["x", &file, "--floor", &floor])
    };
    #[track_caller]
    fn assert_denied(prepared: Result<PreparedRun, Failure>, rule: &str) {
        let failure = prepared.expect_err("it is allowed");
        let text = failure.text();
        assert!(text.contains(&format!("denied[{rule}]")), "{text}");
        assert_eq!(failure.code(), DENIED, "{text}");
    }
    let allowed = "packPolicy: {allowedPacks: [k8s-ops, github]}";
    let unasked = "toolGating: {defaultAction: ask, rules: [{tool: github/*, action: allow}]}";
    for gives in [allowed, unasked] {
        assert_denied(compose(gives, "sympozium-system"), "shipped-name");
    }
    // Outside of the system namespace it is a pack like any other.
    assert_denied(compose(allowed, "default"), "pack-not-allowed");
    let prepared = expect_prepared(compose(unasked, "default"));
    let mut tools = prepared.plan.tools.iter();
    let tool = tools.find(|it| it.pack.as_deref() == Some("github"));
    assert_eq!(tool.expect("a tool of the pack").gate, Gate::Ask);
}
