//! The shipped packs: what they can access, and whether their texts are correct.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use regex_lite::Regex;
use serde_json::Value;
use sympozium_api::SkillPack;
use sympozium_api::builtin_tool::{BUILTIN_TOOLS, BuiltinTool};
use sympozium_api::skill_pack::{Executor, InputMode, Skill, Tool};
use sympozium_plan::admit::MAX_PACK_BYTES;
use sympozium_plan::rbac::{Rule, escalations};
use sympozium_testkit::command;
use sympozium_testkit::static_build::workspace_root;

/// The maximum lines and bytes of one text: about 5,000 tokens.
const MOST_LINES: usize = 500;
const MOST_BYTES: usize = 20_000;

/// Parameters that may have any text: queries and comments.
const FREE_TEXTS: &[&str] = &["body", "query"];

/// Objects of one kind in the files of a directory, each with its file's name.
pub fn objects(directory: &str, kind: &str) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(workspace_root().join(directory)).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|it| it != "yaml") {
            continue;
        }
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let text = fs::read_to_string(&path).unwrap();
        let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
        let ours = documents.into_iter().filter(|it| it["kind"] == kind);
        found.extend(ours.map(|it| (name.clone(), it)));
    }
    found.sort_by(|left, right| left.0.cmp(&right.0));
    found
}

/// The packs of a directory, by name.
pub fn packs(directory: &str) -> BTreeMap<String, SkillPack> {
    let objects = objects(directory, "SkillPack").into_iter();
    objects
        .map(|(_, object)| {
            let pack: SkillPack = serde_json::from_value(object).unwrap();
            (pack.metadata.name.clone().unwrap(), pack)
        })
        .collect()
}

fn built_in() -> BTreeMap<String, SkillPack> {
    packs("config/skillpacks")
}

/// The shipped packs, and those of the samples, which users copy.
pub fn all() -> BTreeMap<String, SkillPack> {
    let mut all = built_in();
    all.extend(packs("config/samples"));
    assert!(all.len() >= 10);
    all
}

pub fn tools(pack: &SkillPack) -> &[Tool] {
    pack.spec.sidecar.as_ref().map_or(&[], |it| it.tools.as_slice())
}

#[test]
fn shipped_packs_have_names_and_descriptions() {
    let labels = |pack: &SkillPack| -> Vec<String> {
        let labels = pack.metadata.labels.as_ref().unwrap();
        let of = |name: &str| labels[&format!("sympozium.ai/{name}")].clone();
        vec![of("builtin"), of("category"), of("maturity")]
    };
    let expected = [
        ("code-review", ["true", "development", "alpha"], None),
        ("incident-response", ["true", "sre", "alpha"], Some("skill-incident-response")),
        ("k8s-ops", ["true", "kubernetes", "stable"], Some("skill-k8s-ops")),
        ("k8s-ops-admin", ["true", "kubernetes", "alpha"], Some("skill-k8s-ops-admin")),
        ("llmfit", ["true", "sre", "alpha"], Some("skill-llmfit")),
        ("sre-observability", ["true", "sre", "alpha"], Some("skill-sre-observability")),
        ("web-endpoint", ["true", "connectivity", "alpha"], Some("web-proxy")),
    ];
    let packs = built_in();
    assert_eq!(packs.len(), expected.len());
    for (name, words, image) in expected {
        let pack = &packs[name];
        assert_eq!(labels(pack), words, "{name}");
        assert_eq!(pack.spec.category.as_deref(), Some(words[1]), "{name}");
        assert_eq!(pack.spec.source.as_deref(), Some("builtin"), "{name}");
        let sidecar = pack.spec.sidecar.as_ref();
        assert_eq!(
            sidecar.map(|it| it.image.as_str().to_owned()),
            image.map(|it| format!("ghcr.io/sympozium-ai/sympozium/{it}:0.1.0")),
            "{name}"
        );
        assert!(sidecar.is_none_or(|it| it.mount_workspace && it.host_access.is_none()), "{name}");
        assert!(sidecar.is_none_or(|it| it.resources.is_some() && it.egress.is_empty()), "{name}");
    }
}

/// Packs whose image runs its own program: the web endpoint is a server and runs no commands.
const START_THEMSELVES: &[&str] = &["web-endpoint"];

/// The Sympozium executor isolates the commands of every shipped pack, and reports that, whatever its image has.
#[test]
fn commands_of_shipped_packs_run_under_our_executor() {
    let packs = built_in();
    let sidecars = packs.iter().filter_map(|(name, pack)| {
        let sidecar = pack.spec.sidecar.as_ref()?;
        Some((name.as_str(), sidecar))
    });
    let mut by_image = Vec::new();
    for (name, sidecar) in sidecars {
        match sidecar.executor {
            Executor::Injected => assert!(sidecar.command.is_empty(), "{name}"),
            Executor::Image => {
                assert!(sidecar.tools.is_empty(), "{name}");
                by_image.push(name);
            }
        }
    }
    assert_eq!(by_image, START_THEMSELVES);
}

/// Every single permission: scope, group, resource and verb.
fn rights(pack: &SkillPack) -> BTreeSet<(&'static str, Rule)> {
    let Some(sidecar) = &pack.spec.sidecar else {
        return BTreeSet::new();
    };
    let mut rights = BTreeSet::new();
    for (reach, rules) in [("namespace", &sidecar.rbac), ("cluster", &sidecar.cluster_rbac)] {
        for rule in rules {
            for group in &rule.api_groups {
                for resource in &rule.resources {
                    for verb in &rule.verbs {
                        let right = Rule {
                            api_groups: vec![group.clone()],
                            resources: vec![resource.clone()],
                            verbs: vec![verb.clone()],
                            ..Rule::default()
                        };
                        rights.insert((reach, right));
                    }
                }
            }
        }
    }
    rights
}

#[test]
fn only_the_admin_pack_requests_escalating_permissions() {
    for (name, pack) in built_in() {
        let refused: BTreeSet<String> = rights(&pack)
            .iter()
            .flat_map(|(reach, right)| {
                let found = escalations(right).into_iter();
                found.map(move |(_, right)| format!("{reach}: {right}"))
            })
            .collect();
        let mut expected = BTreeSet::new();
        if name == "k8s-ops-admin" {
            expected.insert("namespace: delete pods".to_owned());
            for (group, resources) in
                [("apps", &["deployments", "statefulsets", "daemonsets"][..]), ("batch", &["jobs", "cronjobs"])]
            {
                for resource in resources {
                    for verb in ["create", "update", "patch", "delete"] {
                        expected.insert(format!("namespace: {verb} {resource} of {group}"));
                    }
                }
            }
        }
        assert_eq!(refused, expected, "{name}");
    }
}

#[test]
fn mutating_and_cluster_wide_permissions_are_listed() {
    let mut changes = BTreeSet::new();
    let mut everywhere = BTreeSet::new();
    for (name, pack) in built_in() {
        for (reach, right) in rights(&pack) {
            let [resource] = right.resources.as_slice() else {
                unreachable!("rights are single");
            };
            assert!(!resource.starts_with("secrets"), "{name}");
            let writes = !["get", "list", "watch"].contains(&right.verbs[0].as_str());
            if writes {
                assert_eq!(reach, "namespace", "{name}: {right}");
                changes.insert(format!("{name}: {resource}"));
            }
            if reach == "cluster" {
                everywhere.insert(format!("{name}: {resource}"));
            }
        }
    }
    changes.retain(|it| !it.starts_with("k8s-ops-admin: "));
    assert_eq!(
        changes.iter().map(String::as_str).collect::<Vec<_>>(),
        ["k8s-ops: deployments/scale", "k8s-ops: replicasets/scale", "k8s-ops: statefulsets/scale"]
    );
    // No logs, no ConfigMaps, no Services.
    assert_eq!(
        everywhere.iter().map(String::as_str).collect::<Vec<_>>(),
        [
            "k8s-ops: daemonsets",
            "k8s-ops: deployments",
            "k8s-ops: events",
            "k8s-ops: namespaces",
            "k8s-ops: nodes",
            "k8s-ops: persistentvolumes",
            "k8s-ops: pods",
            "k8s-ops: replicasets",
            "k8s-ops: statefulsets",
            "k8s-ops: storageclasses",
            "k8s-ops: volumeattachments",
            "llmfit: nodes",
        ]
    );
}

#[test]
fn every_tool_that_a_skill_names_exists() {
    let packs = all();
    let mut known: BTreeSet<&str> = BUILTIN_TOOLS.iter().map(|tool| tool.name).collect();
    for pack in packs.values() {
        for tool in tools(pack) {
            assert!(known.insert(tool.name.as_str()), "{} twice", tool.name);
        }
    }
    let parameters: BTreeSet<&str> = packs
        .values()
        .flat_map(tools)
        .filter_map(|tool| tool.parameters.as_ref()?.0.get("properties")?.as_object())
        .flat_map(|it| it.keys().map(String::as_str))
        .collect();
    let code = Regex::new("`([a-z]+(?:_[a-z]+)+)`").unwrap();
    let mut mentioned = 0;
    for (name, pack) in &packs {
        let own: BTreeSet<&str> = tools(pack).iter().map(|it| it.name.as_str()).collect();
        for skill in &pack.spec.skills {
            let place = format!("{name}/{}", skill.name);
            for captures in code.captures_iter(&without_fences(&skill.content)) {
                let word = captures.get(1).unwrap().as_str().to_owned();
                let is_known = known.contains(word.as_str()) || parameters.contains(word.as_str());
                assert!(is_known, "{place}: `{word}`");
                mentioned += 1;
            }
            for tool in skill.requires.iter().flat_map(|it| &it.tools) {
                let built_in = BuiltinTool::find(tool).is_some();
                assert!(built_in || own.contains(tool.as_str()), "{place}: {tool}");
            }
        }
        let taught: String = pack.spec.skills.iter().map(|it| it.content.as_str()).collect();
        for tool in own {
            assert!(taught.contains(&format!("`{tool}`")), "{name}: no text says when to call {tool}");
        }
    }
    assert!(mentioned > 30, "{mentioned}");
}

fn without_fences(text: &str) -> String {
    let parts = text.split("```").enumerate();
    let outside = parts.filter(|(index, _)| index % 2 == 0);
    outside.map(|(_, part)| part).collect()
}

/// The code blocks of a text in one language, line by line.
fn fenced<'t>(text: &'t str, language: &str) -> Vec<&'t str> {
    let blocks = text.split("```").skip(1).step_by(2);
    let blocks = blocks.filter_map(|block| block.strip_prefix(language)?.strip_prefix('\n'));
    let lines = blocks.flat_map(str::lines).map(str::trim);
    lines.filter(|line| !line.is_empty()).collect()
}

#[test]
fn every_program_of_a_command_line_is_declared() {
    let mut count = 0;
    for (name, pack) in all() {
        for skill in &pack.spec.skills {
            let bins = skill.requires.as_ref().map_or(&[][..], |it| it.bins.as_slice());
            for line in fenced(&skill.content, "sh") {
                for part in line.split('|') {
                    let program = part.split_whitespace().next().unwrap();
                    assert!(bins.iter().any(|it| it == program), "{name}/{}: {line}", skill.name);
                    count += 1;
                }
                let output = command("/bin/sh").args(["-n", "-c", line]).output();
                assert!(output.unwrap().status.success(), "{name}: {line}");
            }
        }
    }
    assert!(count > 25, "{count}");
}

/// A wrong statement about sidecars or other skills would mislead the model.
#[test]
fn packs_and_skills_that_a_text_names_exist() {
    let packs = all();
    let skills: BTreeSet<&str> =
        packs.values().flat_map(|it| it.spec.skills.iter().map(|skill| skill.name.as_str())).collect();
    let named = Regex::new("(skill|pack|target:) `?([a-z0-9-]+)`").unwrap();
    let mut count = 0;
    for (name, pack) in &packs {
        for skill in &pack.spec.skills {
            for captures in named.captures_iter(&skill.content) {
                let (what, word) = (&captures[1], &captures[2]);
                let is_there = match what {
                    "skill" => skills.contains(word),
                    "pack" => packs.contains_key(word),
                    _ => word == name,
                };
                assert!(is_there, "{name}/{}: {what} `{word}`", skill.name);
                count += 1;
            }
        }
    }
    assert!(count > 8, "{count}");
}

#[test]
fn texts_are_short_and_name_only_existing_tools() {
    for (name, pack) in all() {
        let mut bytes = 0;
        for skill in &pack.spec.skills {
            let place = format!("{name}/{}", skill.name);
            assert!(skill.content.lines().count() <= MOST_LINES, "{place}");
            assert!(skill.content.len() <= MOST_BYTES, "{place}");
            assert!(skill.content.starts_with("# "), "{place}");
            for word in ["cluster-admin", "root access", "full access"] {
                assert!(!skill.content.contains(word), "{place}: {word}");
            }
            let description = skill.description.as_deref().unwrap();
            assert!(description.starts_with("Use it "), "{place}");
            assert!(description.ends_with('.'), "{place}");
            assert!(!description.trim_end_matches('.').contains(". "), "{place}");
            assert!(description.len() <= 200, "{place}");
            bytes += size(skill);
        }
        assert!(bytes < MAX_PACK_BYTES / 4, "{name}: {bytes} bytes");
    }
}

fn size(skill: &Skill) -> usize {
    let files = skill.files.iter().filter_map(|it| it.content.as_ref());
    skill.content.len() + files.map(String::len).sum::<usize>()
}

#[test]
fn schemas_of_tools_are_strict() {
    for (name, pack) in all() {
        for tool in tools(&pack) {
            let place = format!("{name}/{}", tool.name);
            assert!(tool.description.ends_with('.'), "{place}");
            let schema = Value::Object(tool.parameters.clone().unwrap().0.into_iter().collect());
            assert_eq!(schema["type"], "object", "{place}");
            assert_eq!(schema["additionalProperties"], false, "{place}");
            let properties = schema["properties"].as_object().unwrap();
            let required: BTreeSet<&str> =
                schema["required"].as_array().into_iter().flatten().map(|it| it.as_str().unwrap()).collect();
            let declared: BTreeSet<&str> = properties.keys().map(String::as_str).collect();
            assert_eq!(required, declared, "{place}");
            for (parameter, schema) in properties {
                let place = format!("{place}.{parameter}");
                assert!(schema["description"].is_string(), "{place}");
                let strict = match schema["type"].as_str().unwrap() {
                    "string" if schema["enum"].is_array() => true,
                    "string" if FREE_TEXTS.contains(&parameter.as_str()) => {
                        schema["minLength"] == 1 && schema["maxLength"].is_u64()
                    }
                    "string" => schema["pattern"].is_string() && schema["maxLength"].is_u64(),
                    "integer" => schema["minimum"].is_u64() && schema["maximum"].is_u64(),
                    "number" => schema["exclusiveMinimum"].is_u64() && schema["maximum"].is_u64(),
                    _ => false,
                };
                assert!(strict, "{place}");
                for example in examples(schema) {
                    assert!(accepts(schema, &text(&example)), "{place}: {example}");
                }
            }
        }
    }
}

/// Every program that a tool starts is a script of the pack, or one that a skill declares.
#[test]
fn tools_run_programs_of_the_pack() {
    for (name, pack) in all() {
        for tool in tools(&pack) {
            let place = format!("{name}/{}", tool.name);
            let scripts = tool.exec.iter().filter(|it| it.starts_with("/skills/"));
            let mut found = 0;
            for script in scripts {
                let (skill, file) = pack
                    .spec
                    .skills
                    .iter()
                    .flat_map(|skill| skill.files.iter().map(move |file| (skill, file)))
                    .find(|(skill, file)| *script == format!("/skills/{name}/{}/{}", skill.name, file.path))
                    .unwrap_or_else(|| panic!("{place}: {script}"));
                let is_started = tool.exec[0] == *script;
                assert_eq!(file.executable == Some(true), is_started, "{place}");
                let bins = &skill.requires.as_ref().unwrap().bins;
                assert!(is_started || bins.contains(&tool.exec[0]), "{place}");
                found += 1;
            }
            assert_eq!(found, 1, "{place}");
            assert!(tool.input_mode == InputMode::Args || tool.positional_args.is_empty(), "{place}");
        }
    }
}

/// Valid values: examples, or the values of an enum. The first is the most common one.
pub fn examples(schema: &Value) -> Vec<Value> {
    let examples = schema["examples"].as_array().or(schema["enum"].as_array());
    let examples = examples.unwrap().clone();
    assert!(!examples.is_empty());
    examples
}

/// A value as the program receives it.
pub fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Whether a schema of a tool accepts a value with this text.
pub fn accepts(schema: &Value, text: &str) -> bool {
    let length = text.chars().count() as u64;
    match schema["type"].as_str().unwrap() {
        "string" => {
            let listed = schema["enum"].as_array();
            let pattern = schema["pattern"].as_str().map(|it| Regex::new(it).unwrap());
            listed.is_none_or(|it| it.iter().any(|it| it == text))
                && pattern.is_none_or(|it| it.is_match(text))
                && schema["minLength"].as_u64().is_none_or(|it| length >= it)
                && schema["maxLength"].as_u64().is_none_or(|it| length <= it)
        }
        kind => {
            // As in JSON: no leading zero, no plus.
            let Ok(value) = serde_json::from_str::<Value>(text) else {
                return false;
            };
            let Some(number) = value.as_f64() else {
                return false;
            };
            (kind == "number" || value.is_u64())
                && schema["minimum"].as_f64().is_none_or(|it| number >= it)
                && schema["exclusiveMinimum"].as_f64().is_none_or(|it| number > it)
                && schema["maximum"].as_f64().is_none_or(|it| number <= it)
        }
    }
}
