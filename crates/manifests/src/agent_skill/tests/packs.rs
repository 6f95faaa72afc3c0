//! The content of a pack.

use std::collections::BTreeMap;

use super::super::directory::RawFile;
use super::super::pack::{self, BASE_IMAGE, PackOptions};
use super::super::skill::Skill;
use super::{raw, read};
use crate::agent_skill::limits::MAX_BINARY_BYTES;
use serde_json::{Value, json};

fn skill(head: &str, files: &[(&str, &[u8], bool)]) -> (Skill, Vec<String>) {
    let mut raw = raw(format!("---\nname: skill\ndescription: d\n{head}---\nx\n"));
    raw.files = files
        .iter()
        .map(|(path, bytes, has_execute_bit)| RawFile {
            path: (*path).to_owned(),
            bytes: bytes.to_vec(),
            has_execute_bit: *has_execute_bit,
        })
        .collect();
    let (skill, problems) = read(raw);
    (skill.unwrap(), problems)
}

fn spec(skills: Vec<Skill>, options: &PackOptions) -> Value {
    serde_json::to_value(pack::build(skills, options).spec).unwrap()
}

#[test]
fn a_skill_of_texts_has_no_sidecar() {
    let (skill, _) = skill("allowed-tools: Read\n", &[("references/a.md", b"# A\n", false)]);
    let expected = json!({
        "skills": [{
            "name": "skill",
            "description": "d",
            "content": "x\n",
            "allowedTools": ["read_file"],
            "files": [{"path": "references/a.md", "content": "# A\n"}],
        }],
        "source": "agent-skill",
    });
    assert_eq!(spec(vec![skill], &PackOptions::default()), expected);
}

#[test]
fn scripts_and_bash_bring_a_sidecar_with_an_image_and_the_workspace() {
    let least = json!({"image": BASE_IMAGE, "executor": "image", "mountWorkspace": true});
    for (head, files) in [
        ("allowed-tools: Bash\n", &[][..]),
        ("", &[("run", &b"\x7fELF"[..], true)][..]),
        ("", &[("run", &b"#!/bin/sh\n"[..], false)][..]),
        ("", &[("scripts/run.sh", &b"echo"[..], false)][..]),
    ] {
        let (skill, problems) = skill(head, files);
        assert_eq!(problems, [""; 0]);
        let spec = spec(vec![skill], &PackOptions::default());
        assert_eq!(spec["sidecar"], least, "{head}{files:?}");
    }
}

#[test]
fn an_image_that_is_named_gets_our_executor() {
    let options = PackOptions {
        name: Some("pack".to_owned()),
        namespace: Some("team".to_owned()),
        image: Some("python:3.13-slim".to_owned()),
        category: Some("documents".to_owned()),
    };
    let (skill, _) = skill("allowed-tools: Bash\nmetadata: {category: x}\n", &[("scripts/a.py", b"pass", false)]);
    assert_eq!(pack::warnings(&skill, &options), []);
    let pack = serde_json::to_value(pack::build(vec![skill], &options)).unwrap();
    assert_eq!(pack["metadata"], json!({"name": "pack", "namespace": "team"}));
    assert_eq!(pack["spec"]["category"], "documents");
    assert_eq!(
        pack["spec"]["sidecar"],
        json!({"image": "python:3.13-slim", "executor": "injected", "mountWorkspace": true})
    );
    assert_eq!(pack["spec"]["skills"][0]["allowedTools"], json!(["pack/execute_command"]));
    assert_eq!(pack["spec"]["skills"][0]["requires"], json!({"bins": ["python3"]}));
}

#[test]
fn programs_that_the_base_image_lacks_are_reported() {
    let files: &[(&str, &[u8], bool)] = &[
        ("scripts/a", b"#!/usr/bin/env python3\n", false),
        ("scripts/b.sh", b"#!/bin/sh\n", true),
        ("scripts/c", b"#!/bin/bash\n", true),
        ("references/d.py", b"not a script", false),
    ];
    let (skill, problems) = skill("", files);
    assert_eq!(problems, [""; 0]);
    let [warning] = pack::warnings(&skill, &PackOptions::default()).try_into().unwrap();
    assert_eq!(warning.message, "the skill needs `bash`, `python3`, but the base image has only `sh`");
}

#[test]
fn programs_can_be_listed() {
    let head = "allowed-tools: Bash\nmetadata:\n  bins: sort du, sort sh\n";
    let (listed, problems) = skill(head, &[("a.py", b"", true)]);
    assert_eq!(problems, [""; 0]);
    let bins = listed.spec.requires.unwrap().bins;
    assert_eq!(bins, ["du", "python3", "sort"]);
    assert_eq!(listed.metadata, BTreeMap::new());
    let head = "allowed-tools: Bash\nmetadata:\n  bins: /usr/bin/du -x tr $(id)\n";
    let (listed, problems) = skill(head, &[]);
    assert_eq!(problems, ["5:1 warning skill-programs"]);
    assert_eq!(listed.spec.requires.unwrap().bins, ["tr"]);
}

#[test]
fn scripts_that_nothing_can_start_are_a_warning() {
    let (_, problems) = skill("allowed-tools: Read\n", &[("scripts/a.sh", b"", false)]);
    assert_eq!(problems, ["4:1 warning allowed-tools"]);
}

#[test]
fn files_are_preserved_byte_for_byte() {
    let (skill, problems) = skill(
        "",
        &[
            ("a.bin", b"\xff\x00", false),
            ("b.txt", b"a\r\nb\r\n", false),
            ("c.txt", b"\tno end", false),
            ("d.txt", b"", false),
            ("e.txt", "\u{feff}x".as_bytes(), false),
            ("f.bin", &vec![0; MAX_BINARY_BYTES + 1], false),
        ],
    );
    let files = serde_json::to_value(&skill.spec.files).unwrap();
    let expected = json!([
        {"path": "a.bin", "contentBase64": "/wA="},
        {"path": "b.txt", "contentBase64": "YQ0KYg0K"},
        {"path": "c.txt", "content": "\tno end"},
        {"path": "d.txt", "content": ""},
        {"path": "e.txt", "contentBase64": "77u/eA=="},
    ]);
    assert_eq!(files, expected);
    assert_eq!(problems, ["1:1 warning skill-file"]);
}

#[test]
fn several_skills_keep_their_metadata() {
    let named = |name: &str, head: &str| {
        let (mut skill, _) = skill(head, &[]);
        skill.spec.name = name.into();
        skill
    };
    let skills = vec![
        named("one", "license: MIT\nmetadata: {version: 1, author: Ada}\n"),
        named("two", "compatibility: Needs git\n"),
    ];
    let options = PackOptions { name: Some("all".to_owned()), ..PackOptions::default() };
    let pack = serde_json::to_value(pack::build(skills, &options)).unwrap();
    assert_eq!(
        pack["metadata"]["annotations"],
        json!({
            "license.skills.sympozium.ai/one": "MIT",
            "metadata.skills.sympozium.ai/one": "{\"author\":\"Ada\",\"version\":\"1\"}",
            "compatibility.skills.sympozium.ai/two": "Needs git",
        })
    );
    assert_eq!(pack["spec"]["version"], Value::Null);
}

#[test]
fn a_document_has_the_positions_of_its_skill() {
    let (skill, _) = skill("allowed-tools: Read\n", &[]);
    let places = skill.marks;
    let pack = pack::build(vec![skill], &PackOptions::default());
    let document = pack::to_document(&pack, Some(places)).unwrap();
    let at = |field: &str| {
        let at = document.locate(field);
        (at.line, at.column)
    };
    assert_eq!(at("metadata.name"), (2, 7));
    assert_eq!(at("spec.skills[0].name"), (2, 7));
    assert_eq!(at("spec.skills[0].description"), (3, 14));
    assert_eq!(at("spec.skills[0].allowedTools[0]"), (4, 1));
    assert_eq!(at("spec.skills[0].content"), (6, 1));
    assert_eq!(at("spec.sidecar.image"), (1, 1));
    let nowhere = pack::to_document(&pack, None).unwrap();
    assert_eq!(nowhere.locate("spec.skills[0].content").line, 1);
}
