//! What a run needs of this machine.

use std::os::unix::fs::PermissionsExt;

use super::*;

/// A pack with a sidecar of these fields, an agent that uses it, and a run.
fn manifests(sidecar: &str, run: &str) -> String {
    format!(
        "\
apiVersion: sympozium.ai/v1alpha1
kind: SkillPack
metadata: {{name: tools}}
spec:
  skills: [{{name: tools, content: Use them., requires: {{bins: [jq]}}}}]
  sidecar:
    image: example.com/tools:1
{sidecar}
---
apiVersion: sympozium.ai/v1alpha1
kind: Agent
metadata: {{name: worker}}
spec:
  agents: {{default: {{model: gpt-4o}}}}
  authRefs: [{{provider: openai, secret: openai-key}}]
  skills: [{{skillPackRef: tools}}]
---
apiVersion: sympozium.ai/v1alpha1
kind: AgentRun
metadata: {{name: work}}
spec:
  agentRef: worker
  task: Work.
{run}
"
    )
}

fn new_harness() -> Harness {
    let machine = Harness::new();
    machine.program("jq");
    machine
}

#[test]
fn secrets_come_from_files_first_and_then_from_this_machine() {
    let machine = new_harness();
    let sidecar =
        "    secretRef: github\n    env: [{name: TOKEN, valueFrom: {secretKeyRef: {name: other, key: token}}}]";
    let file = machine.file("all.yaml", &manifests(sidecar, ""));
    machine.assert_refused(
        &[&file],
        FAILED,
        &["there is no Secret `github`", "there is no Secret `other`", "sympozium secret set github KEY"],
    );
    let store = SecretStore::open(&machine.state(), "default").unwrap();
    let value = |text: &str| Zeroizing::new(text.as_bytes().to_vec());
    store.set("github", "token", value("stored")).unwrap();
    store.set("other", "user", value("stored")).unwrap();
    machine.assert_refused(
        &[&file],
        FAILED,
        &["Secret `other` has no key `token`", "sympozium secret set other token"],
    );
    let of_files = machine.file(
        "secret.yaml",
        "apiVersion: v1\nkind: Secret\nmetadata: {name: other}\ndata: {token: ZmlsZQ==, both: eA==}\nstringData: {both: plain}\n",
    );
    let prepared = expect_prepared(machine.assemble(&[&file, &of_files]));
    let found = |name: &str| {
        let all = prepared.secrets[name].0.iter();
        let all = all.map(|(key, value)| (key.clone(), String::from_utf8(value.to_vec()).unwrap()));
        all.collect::<Vec<_>>()
    };
    assert_eq!(found("github"), [("token".to_owned(), "stored".to_owned())]);
    assert_eq!(found("other"), [("both".to_owned(), "plain".to_owned()), ("token".to_owned(), "file".to_owned())]);
    assert_eq!(prepared.secrets.len(), 2);
    assert!(!format!("{prepared:?}").contains("stored"));
    let bad =
        machine.file("bad.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: other}\ndata: {token: hunter2!}\n");
    let (code, text) = machine.expect_failure(&[&file, &bad]);
    assert_eq!(code, FAILED);
    assert!(text.contains("`token` of `data` is not Base64") && !text.contains("hunter2"), "{text}");
}

#[test]
fn what_is_optional_need_not_be_there() {
    let machine = new_harness();
    let sidecar = "    env: [{name: TOKEN, valueFrom: {secretKeyRef: {name: other, key: token, optional: true}}}]\n    \
        volumes: [{name: v, configMap: {name: settings, optional: true}}]\n    volumeMounts: [{name: v, mountPath: /settings}]";
    let file = machine.file("all.yaml", &manifests(sidecar, ""));
    let prepared = expect_prepared(machine.assemble(&[&file]));
    assert!(prepared.secrets.is_empty() && prepared.config_maps.is_empty());
    let settings = machine.file(
        "settings.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {a: b}\nbinaryData: {c: /w==}\n",
    );
    let prepared = expect_prepared(machine.assemble(&[&file, &settings]));
    let expected = BTreeMap::from([("a".to_owned(), b"b".to_vec()), ("c".to_owned(), vec![0xff])]);
    assert_eq!(prepared.config_maps, BTreeMap::from([("settings".to_owned(), expected)]));
}

#[test]
fn a_scripted_model_is_a_config_map_of_the_files() {
    let machine = new_harness();
    let script = machine.file(
        "script.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: turns}\ndata: {script.yaml: 'turns: []'}\n",
    );
    let prepared = expect_prepared(machine.assemble(&[&script, "Play", "--model", "scripted/turns"]));
    assert_eq!(prepared.plan.model.endpoint, None);
    assert_eq!(prepared.model_key, None);
    assert_eq!(prepared.config_maps["turns"]["script.yaml"], b"turns: []");
    machine.assert_refused(&["Play", "--model", "scripted/turns"], FAILED, &["there is no ConfigMap `turns`"]);
}

#[test]
fn what_only_a_cluster_has_is_refused() {
    let machine = new_harness();
    let volume =
        |source: &str| format!("    volumes: [{{name: v, {source}}}]\n    volumeMounts: [{{name: v, mountPath: /v}}]");
    for (sidecar, run, words) in [
        (
            "    rbac: [{apiGroups: [''], resources: [pods], verbs: [get]}]".to_owned(),
            "",
            &["permissions at a Kubernetes API"][..],
        ),
        (String::new(), "  agentSandbox: {enabled: true}", &["agent-sandbox", "agentSandbox.enabled: false"]),
        (
            volume("downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.name}}]}"),
            "",
            &["volume `v` is of kind `downwardAPI`"],
        ),
        (
            "    env: [{name: MEMORY, valueFrom: {resourceFieldRef: {resource: limits.memory}}}]".to_owned(),
            "",
            &["variable `MEMORY` of pack `tools`"],
        ),
        (
            String::new(),
            "  model: {provider: ollama, model: x}",
            &["`ollama.default.svc`, which is in a cluster", "--base-url"],
        ),
    ] {
        let file = machine.file("all.yaml", &manifests(&sidecar, run));
        machine.assert_refused(&[&file], FAILED, words);
    }
    // Denied in a cluster, too.
    let file = machine.file("all.yaml", &manifests("", "  mode: server"));
    machine.assert_refused(&[&file], DENIED, &["server-mode-unserved", "server mode"]);
    for source in ["emptyDir: {}", "persistentVolumeClaim: {claimName: cache}"] {
        let file = machine.file("all.yaml", &manifests(&volume(source), ""));
        expect_prepared(machine.assemble(&[&file]));
    }
}

#[test]
fn a_hook_is_run_from_what_it_starts() {
    let machine = new_harness();
    let hook = |command: &str| format!("  lifecycle: {{preRun: [{{name: fetch, image: example.com/git:1{command}}}]}}");
    let file = machine.file("all.yaml", &manifests("", &hook("")));
    machine.assert_refused(&[&file], FAILED, &["hook `fetch` has no `command`", "example.com%2Fgit%3A1"]);
    let file = machine.file("all.yaml", &manifests("", &hook(", command: [git, clone]")));
    machine.assert_refused(&[&file], FAILED, &["hook `fetch` needs `git`"]);
    machine.program("git");
    let prepared = expect_prepared(machine.assemble(&[&file]));
    let part = prepared.plan.parts.iter().find(|it| it.role.is_hook()).unwrap();
    let Some(PartRoot::Host(binaries)) = prepared.part_root(part) else {
        panic!("{:?}", prepared.roots);
    };
    let names: Vec<&str> = binaries.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["git", "sh"]);
}

#[test]
fn a_tool_whose_program_nothing_declares_is_told() {
    let machine = new_harness();
    let tool = |program: &str| {
        format!("    tools: [{{name: look, description: Looks., exec: [{program}], parameters: {{type: object}}}}]")
    };
    let file = machine.file("all.yaml", &manifests(&tool("jq"), ""));
    assert_eq!(expect_prepared(machine.assemble(&[&file])).warnings, Vec::<String>::new());
    let file = machine.file("all.yaml", &manifests(&tool("curl"), ""));
    let warnings = expect_prepared(machine.assemble(&[&file])).warnings;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("tool `look` starts `curl`"), "{warnings:?}");
}

#[test]
fn a_workspace_holds_nothing_that_decides_about_runs() {
    let machine = new_harness();
    let given = |path: &Path| machine.assemble(&["x", "--workspace", path.to_str().unwrap()]);
    let refused = |path: &Path, said: &str| {
        let failure = given(path).unwrap_err();
        assert!(failure.text().contains(said), "{}", failure.text());
        assert_eq!(failure.code(), FAILED);
    };
    let files = machine.path("files");
    let link = machine.path("link");
    symlink(&files, &link).unwrap();
    assert_eq!(expect_prepared(given(&link)).workspace, Some(files.clone()));
    machine.file("plain", "");
    refused(&files.join("plain"), "is not a directory");
    refused(&files.join("missing"), "cannot use");
    let state = machine.path("state");
    let of_run = state.join("runs/uid/workspace/below");
    fs::create_dir_all(&of_run).unwrap();
    fs::create_dir_all(state.join("secrets")).unwrap();
    assert_eq!(expect_prepared(given(&of_run)).workspace, Some(of_run));
    for path in [
        Path::new("/"),
        &machine.path(""),
        &state,
        &state.join("runs"),
        &state.join("runs/uid"),
        &state.join("secrets"),
        &machine.path("config"),
        &machine.path("data"),
    ] {
        refused(path, "the agent could write to");
    }
    let to_state = machine.path("to-state");
    symlink(&state, &to_state).unwrap();
    refused(&to_state, "the agent could write to");
}

#[test]
fn a_workspace_with_setuid_files_is_refused() {
    let machine = new_harness();
    let files = machine.path("files");
    machine.file("tool", "#!/bin/sh");
    let set = |mode| fs::set_permissions(files.join("tool"), PermissionsExt::from_mode(mode));
    let given = ["x", "--workspace", files.to_str().unwrap()];
    set(0o755).unwrap();
    expect_prepared(machine.assemble(&given));
    for mode in [0o4755, 0o2755] {
        set(mode).unwrap();
        machine.assert_refused(&given, FAILED, &["setuid or setgid", "tool", "chmod ug-s"]);
    }
}

#[test]
fn a_claim_with_setuid_files_is_refused() {
    let machine = Harness::new();
    let pack = |name: &str, read_only: bool| {
        format!(
            "---\napiVersion: sympozium.ai/v1alpha1\nkind: SkillPack\nmetadata: {{name: {name}}}\nspec:\n  skills: [{{name: s, content: c, requires: {{bins: [sh]}}}}]\n  sidecar:\n    image: example.com/i:1\n    volumes: [{{name: data, persistentVolumeClaim: {{claimName: cache}}}}]\n    volumeMounts: [{{name: data, mountPath: /data, readOnly: {read_only}}}]\n"
        )
    };
    let writing = machine.file("writing.yaml", &pack("writing", false));
    let reading = machine.file("reading.yaml", &pack("reading", true));
    let writing = ["x", &writing, "--skill", "writing"];
    let reading = ["x", &reading, "--skill", "reading"];
    // A claim that no run has created is empty, and the search does not create it.
    expect_prepared(machine.assemble(&writing));
    let claim = machine.path("state").join("volumes/default/cache");
    assert!(!claim.exists());
    fs::create_dir_all(claim.join("below")).unwrap();
    let tool = claim.join("below/tool");
    fs::write(&tool, "#!/bin/sh").unwrap();
    let set = |mode| fs::set_permissions(&tool, PermissionsExt::from_mode(mode));
    set(0o755).unwrap();
    expect_prepared(machine.assemble(&writing));
    for mode in [0o4755, 0o2755] {
        set(mode).unwrap();
        let words = ["setuid or setgid", "in claim `cache`", "`below/tool`", "chmod ug-s", "name another claim"];
        machine.assert_refused(&writing, FAILED, &words);
        expect_prepared(machine.assemble(&reading));
        let elsewhere = [&writing[..], &["-n", "elsewhere"]].concat();
        expect_prepared(machine.assemble(&elsewhere));
    }
    // A skill that removes all permissions of its claim does not hide its files.
    fs::set_permissions(&claim, PermissionsExt::from_mode(0o000)).unwrap();
    machine.assert_refused(&writing, FAILED, &["in claim `cache`"]);
}
