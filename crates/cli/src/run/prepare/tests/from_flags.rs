//! Runs from flags alone.

use super::*;

#[test]
fn a_task_alone_is_a_run_without_skills() {
    let machine = Harness::new();
    let prepared = expect_prepared(machine.assemble(&["Say hello"]));
    let PreparedRun { plan, plan_bytes: bytes, plan_digest: digest, .. } = &prepared;
    assert_eq!(plan.run.uid, UID);
    assert_eq!(plan.run.name, "run-0b5e2f0a");
    assert_eq!(plan.run.namespace, "default");
    assert_eq!(plan.run.agent, "assistant");
    assert_eq!(plan.task.task, Some(Task::Text("Say hello".to_owned())));
    let model = (plan.model.provider.as_str(), plan.model.model.as_str());
    assert_eq!(model, ("openai", "gpt-4o"));
    let parts: Vec<&str> = plan.parts.iter().map(|it| it.name.0.as_str()).collect();
    assert_eq!(parts, ["agent", "ipc-bridge"]);
    assert_eq!(RunPlan::read_verified(bytes, digest).unwrap(), *plan);
    assert_eq!(model_key(&prepared), Some(("OPENAI_API_KEY", "sk-env")));
    assert!(prepared.roots.is_empty() && prepared.skill_texts.is_empty());
    assert!(prepared.config_maps.is_empty() && prepared.secrets.is_empty());
    assert_eq!(prepared.workspace, None);
    assert_eq!(prepared.approve, ApprovalMode::Ask);
    assert_eq!(prepared.warnings, Vec::<String>::new());
}

#[test]
fn without_a_task_there_is_nothing_to_do() {
    let machine = Harness::new();
    machine.assert_refused(&[], USAGE, &["there is no task", "sympozium run"]);
    machine.assert_refused(&["one", "two"], USAGE, &["two tasks"]);
    machine.assert_refused(&["--agent", "a", "x"], USAGE, &["none is named"]);
}

#[test]
fn flags_say_what_the_run_is() {
    let mut machine = Harness::new();
    machine.set("ANTHROPIC_API_KEY", "sk-ant");
    let workspace = machine.path("files");
    let prepared = expect_prepared(machine.assemble(&[
        "Review it",
        "--model",
        "anthropic/claude-x",
        "--timeout",
        "90s",
        "--skill",
        "code-review",
        "--policy",
        "permissive",
        "--workspace",
        workspace.to_str().unwrap(),
        "--approve",
        "all",
        "-n",
        "team",
    ]));
    let plan = &prepared.plan;
    assert_eq!(plan.run.namespace, "team");
    assert_eq!(plan.deadlines.run_seconds, 90);
    assert_eq!(plan.model.model, "claude-x");
    assert_eq!(model_key(&prepared), Some(("ANTHROPIC_API_KEY", "sk-ant")));
    let texts = &prepared.skill_texts["code-review"];
    assert_eq!(*texts, built_in::pack("code-review").unwrap().spec.skills);
    // It has skill texts only: no part needs a root.
    assert!(prepared.roots.is_empty());
    assert_eq!(prepared.workspace, Some(workspace));
    assert_eq!(prepared.approve, ApprovalMode::All);
    let policies = plan.resolved.iter().filter(|it| it.kind == "SympoziumPolicy");
    let policies: Vec<_> = policies.map(|it| it.name.to_string()).collect();
    assert!(policies.contains(&"permissive".to_owned()), "{policies:?}");
}

#[test]
fn a_directory_with_a_skill_is_a_pack() {
    let machine = Harness::new();
    let skill = "---\nname: count-lines\ndescription: Use it to count lines.\n---\n# Count\nRun scripts/count.py.\n";
    machine.file("count-lines/scripts/count.py", "print(1)\n");
    let path = machine.file("count-lines/SKILL.md", skill);
    let directory = path.strip_suffix("/SKILL.md").unwrap();
    machine.assert_refused(
        &["Count", "--skill", directory],
        FAILED,
        &["pack `count-lines` needs `python3`, not in any directory of PATH", "unpack the root of its image into"],
    );
    machine.program("python3");
    for typed in [directory, path.as_str()] {
        let prepared = expect_prepared(machine.assemble(&["Count", "--skill", typed, "-n", "team"]));
        assert_eq!(prepared.plan.run.namespace, "team");
        let binary = |name: &str| Binary { name: name.to_owned(), path: machine.path("bin").join(name) };
        let root = PartRoot::Host(vec![binary("python3"), binary("sh")]);
        assert_eq!(prepared.roots, BTreeMap::from([("count-lines".to_owned(), root.clone())]));
        let part = |role: &str| {
            let mut parts = prepared.plan.parts.iter();
            parts.find(|it| it.name.0 == role).unwrap()
        };
        assert_eq!(prepared.part_root(part("skill-count-lines")), Some(&root));
        assert_eq!(prepared.part_root(part("agent")), None);
        // The actions of a skill need approval, unless a policy says otherwise.
        let gates = prepared.plan.tools.iter().filter(|it| it.pack.is_some());
        let gates: Vec<Gate> = gates.map(|it| it.gate).collect();
        assert!(!gates.is_empty() && gates.iter().all(|it| *it == Gate::Ask), "{gates:?}");
    }
    // The root of an image takes precedence over programs of the machine.
    let prepared = expect_prepared(machine.assemble(&["Count", "--skill", directory]));
    let image = prepared.plan.parts[2].image.as_str();
    let usual = |it: char| it.is_ascii_alphanumeric() || it == '.' || it == '-';
    let name = |special: fn(char) -> String| -> String {
        let plain = |it: char| {
            if usual(it) { it.to_string() } else { special(it) }
        };
        image.chars().map(plain).collect()
    };
    let images = machine.path("data").join("images");
    let old = images.join(name(|_| "_".to_owned()));
    fs::create_dir_all(&old).unwrap();
    let root = images.join(name(|it| format!("%{:02X}", u32::from(it))));
    let words = [old.to_str().unwrap(), root.to_str().unwrap()];
    machine.assert_refused(&["Count", "--skill", directory], FAILED, &words);
    fs::rename(old, &root).unwrap();
    let prepared = expect_prepared(machine.assemble(&["Count", "--skill", directory]));
    assert_eq!(prepared.roots["count-lines"], PartRoot::Directory(root));
}

#[test]
fn what_is_not_there_is_named_with_what_is() {
    let machine = Harness::new();
    let not_a_skill = machine.path("files");
    let not_a_skill = not_a_skill.to_str().unwrap();
    for (typed, words) in [
        (&["x", "--skill", "code-reveiw"][..], &["no skill `code-reveiw`", "did you mean `code-review`?"][..]),
        (&["x", "--skill", "zzz"], &["no skill `zzz`", "`k8s-ops`"]),
        (&["x", "--skill", not_a_skill], &["it has no SKILL.md", "sympozium skill new"]),
        (&["x", "--policy", "restrictve"], &["no policy `restrictve`", "`restrictive`"]),
    ] {
        machine.assert_refused(typed, USAGE, words);
    }
}

#[test]
fn a_model_on_this_machine_needs_no_key_and_is_all_that_is_opened() {
    let mut machine = Harness::new();
    machine.variables.remove("OPENAI_API_KEY");
    machine.assert_refused(&["x"], FAILED, &["no model is named", "--model ollama/"]);
    for (typed, host, port) in [
        (&["x", "--model", "ollama/qwen3"][..], "127.0.0.1", 11434),
        (&["x", "--model", "local/a", "--base-url", "http://localhost:8080/v1"], "localhost", 8080),
        (&["x", "--model", "openai/a", "--base-url", "http://127.0.0.1:9/v1"], "127.0.0.1", 9),
    ] {
        let prepared = expect_prepared(machine.assemble(typed));
        let endpoint = prepared.plan.model.endpoint.as_ref().unwrap();
        assert_eq!((endpoint.host.as_str(), endpoint.port), (host, port));
        assert_eq!(prepared.model_key, None);
        let only_it = prepared.plan.credentials.iter().all(|it| {
            let mut listed = it.reach.destinations.iter();
            listed.all(|it| it.host == host && it.port == Some(port))
        });
        assert!(only_it, "{:?}", prepared.plan.credentials);
    }
    // The rest of the default policy holds: commands need approval.
    let skill = "---\nname: hello\ndescription: Use it to greet.\n---\n# Hello\n";
    let path = machine.file("hello/SKILL.md", skill);
    machine.file("hello/scripts/hello.sh", "#!/bin/sh\necho hello\n");
    let typed = ["x", "--model", "ollama/qwen3", "--skill", &path];
    let plan = expect_prepared(machine.assemble(&typed)).plan;
    let tools = plan.tools.iter().filter(|it| it.pack.is_some());
    let gates: Vec<Gate> = tools.map(|it| it.gate).collect();
    assert!(!gates.is_empty() && gates.iter().all(|it| *it == Gate::Ask), "{gates:?}");
    // A policy that the user chose is not widened.
    let typed = ["x", "--model", "ollama/qwen3", "--policy", "default"];
    machine.assert_refused(&typed, DENIED, &["denied[model-endpoint]", "error: the run is denied", "allowedEgress"]);
}

/// A server of this machine needs no key, and has the one that is kept for it: also when that cannot be read.
#[test]
fn a_secret_that_cannot_be_read_is_not_taken_for_absent() {
    let machine = Harness::new();
    let typed = ["x", "--model", "ollama/qwen3"];
    let store = SecretStore::open(&machine.state(), "default").unwrap();
    store.set("ollama-key", "OLLAMA_API_KEY", Zeroizing::new(b"sk-store".to_vec())).unwrap();
    assert!(expect_prepared(machine.assemble(&typed)).model_key.is_some());
    let path = machine.path("state/secrets/default/ollama-key.json");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    machine.assert_refused(&typed, FAILED, &["ollama-key.json is accessible to other users"]);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&path, "{}").unwrap();
    machine.assert_refused(&typed, FAILED, &["ollama-key.json is not a valid file of this store"]);
}

#[test]
fn a_key_of_the_environment_stays_with_its_provider_and_this_machine() {
    let mut machine = Harness::new();
    let typed = |url| ["x", "--model", "openai/a", "--base-url", url];
    let local = expect_prepared(machine.assemble(&typed("http://127.0.0.1:9/v1")));
    assert_eq!(model_key(&local), Some(("OPENAI_API_KEY", "sk-env")));
    let elsewhere = expect_prepared(machine.assemble(&typed("https://proxy.example.com/v1")));
    assert_eq!(model_key(&elsewhere), None);
    let command = "printf %s sk-command";
    let mut with_command = typed("https://proxy.example.com/v1").to_vec();
    with_command.extend(["--key-command", command]);
    let prepared = expect_prepared(machine.assemble(&with_command));
    assert_eq!(model_key(&prepared), Some(("OPENAI_API_KEY", "sk-command")));
    machine.variables.clear();
    machine.assert_refused(
        &["x", "--model", "groq/a"],
        FAILED,
        &[
            "there is no key",
            "sympozium secret set groq-key GROQ_API_KEY",
            "--key-file",
            "--key-command",
            "GROQ_API_KEY_FILE",
        ],
    );
    let store = SecretStore::open(&machine.state(), "default").unwrap();
    let value = Zeroizing::new(b"sk-store".to_vec());
    store.set("groq-key", "GROQ_API_KEY", value).unwrap();
    let prepared = expect_prepared(machine.assemble(&["x", "--model", "groq/a"]));
    assert_eq!(model_key(&prepared), Some(("GROQ_API_KEY", "sk-store")));
}

#[test]
fn packs_that_need_a_cluster_are_refused_with_the_reason() {
    let machine = Harness::new();
    machine.assert_refused(
        &["x", "--skill", "k8s-ops"],
        FAILED,
        &["not for one machine", "pack `k8s-ops` has permissions at a Kubernetes API", "sympozium render"],
    );
}
