//! Executes the scripts of the packs with hostile arguments.
//!
//! `kubectl`, `curl` and `helm` are fakes that record their arguments. `PATH` has only them and the programs that the skill
//! declares.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Output;

use sympozium_api::SkillPack;
use sympozium_api::skill_pack::{InputMode, Skill, Tool};
use sympozium_testkit::{command, skip};
use tempfile::TempDir;

use crate::packs::{accepts, all, examples, text, tools};
use crate::{stderr, stdout};

/// Arguments that could be read as options, other commands, other files, other numbers.
const HOSTILE: &[&str] = &[
    "-h",
    "-",
    "--",
    "--all",
    "--all-namespaces",
    "--kubeconfig=/etc/shadow",
    "-oyaml",
    "",
    " ",
    "a b",
    "a;reboot",
    "a|reboot",
    "a&reboot",
    "$(reboot)",
    "`reboot`",
    "${PATH}",
    "a\nb",
    "a\n--all",
    "a\tb",
    "a'b",
    "a\"b",
    "a\\b",
    "a,b",
    "a=b",
    "a=b=c",
    "../../etc/passwd",
    "/etc/passwd",
    "a/b",
    "a/b/c",
    "*",
    "a*",
    "?",
    "[a]",
    "~",
    "A",
    "é",
    "\u{7f}",
    "\u{1b}[2J",
    "@/etc/passwd",
    "0x1",
    "01",
    "1e3",
    "1.5",
    "-1",
    "+1",
    "999999999",
    "99999999999999999999999",
    "secret",
];

/// Programs with fakes.
const FAKES: &[&str] = &["cat", "curl", "gh", "helm", "kubectl", "llmfit"];

const FAKE: &str = r#"#!/bin/sh
NOTHING='{"items":[]}'
SUCCESS='{"status":"success","data":{"resultType":"vector","result":[]}}'
{
  printf '%s' "${0##*/}"
  for argument; do printf ' [%s]' "$argument"; done
  printf '\n'
} >>"$RECORD"
case "${0##*/} $*" in
  curl*) printf '%s' "${CURL-$SUCCESS}" ;;
  kubectl*jsonpath*) printf '%s' "${OWNER-ReplicaSet}" ;;
  kubectl*metrics.k8s.io*) printf '%s' "${METRICS-$NOTHING}" ;;
  kubectl*' -o json') printf '%s' "${ANSWER-$NOTHING}" ;;
  kubectl*) printf '%s' "${ANSWER-}" ;;
esac
"#;

/// The files of all packs as in a run, and a directory of programs for each skill.
pub struct Harness {
    root: TempDir,
}

impl Harness {
    /// `None` if this machine lacks a program that has no fake.
    pub fn new(packs: &BTreeMap<String, SkillPack>) -> Option<Self> {
        let harness = Self { root: tempfile::tempdir().unwrap() };
        harness.write_fake();
        for (name, pack) in packs {
            for skill in &pack.spec.skills {
                let directory = harness.path(&format!("skills/{name}/{}", skill.name));
                for file in &skill.files {
                    let path = directory.join(file.path.as_str());
                    fs::create_dir_all(path.parent().unwrap()).unwrap();
                    fs::write(&path, file.content.as_deref().unwrap()).unwrap();
                    let mode = if file.executable == Some(true) { 0o755 } else { 0o644 };
                    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
                }
                harness.add_programs(name, skill)?;
            }
        }
        fs::create_dir_all(harness.path("workspace/notes")).unwrap();
        fs::write(harness.path("workspace/notes/today.txt"), "one two").unwrap();
        Some(harness)
    }

    /// Written by another program: a process that another test starts could inherit our descriptor, and a file that is open
    /// for writing cannot be executed.
    fn write_fake(&self) {
        let mut writer = command("sh");
        writer.args(["-c", "printf '%s' \"$1\" > \"$0\" && chmod 755 \"$0\""]).arg(self.fake()).arg(FAKE);
        assert!(writer.status().unwrap().success());
    }

    fn fake(&self) -> PathBuf {
        self.path("fake")
    }

    fn add_programs(&self, pack: &str, skill: &Skill) -> Option<()> {
        let directory = self.path(&format!("bin/{pack}/{}", skill.name));
        fs::create_dir_all(&directory).unwrap();
        for program in skill.requires.iter().flat_map(|it| &it.bins) {
            let path = directory.join(program);
            if FAKES.contains(&program.as_str()) {
                symlink(self.fake(), path).unwrap();
            } else if program != "python3" {
                let real =
                    ["/usr/bin", "/bin"].map(|it| Path::new(it).join(program)).into_iter().find(|it| it.exists())?;
                symlink(real, path).unwrap();
            }
        }
        Some(())
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    fn record(&self) -> PathBuf {
        self.path("record")
    }

    /// Calls a tool's script as the run does, and returns the recorded calls.
    pub fn call(&self, shell: &[&str], tool: &Tool, arguments: &[String], env: &[(&str, &str)]) -> (Output, String) {
        fs::write(self.record(), "").unwrap();
        let script = tool.exec[0].trim_start_matches('/');
        let mut parts = script.split('/').skip(1);
        let (pack, skill) = (parts.next().unwrap(), parts.next().unwrap());
        let mut child = command(shell[0]);
        child.args(&shell[1..]).arg(self.path(script)).args(&tool.exec[1..]);
        if !arguments.is_empty() {
            child.arg("--");
        }
        child.args(arguments);
        let output = child
            .env_clear()
            .env("PATH", self.path(&format!("bin/{pack}/{skill}")))
            .env("RECORD", self.record())
            .envs(env.iter().copied())
            .current_dir(self.path("workspace"))
            .output()
            .unwrap();
        (output, fs::read_to_string(self.record()).unwrap())
    }
}

const ADDRESSES: &[(&str, &str)] =
    &[("SKILL_PROMETHEUS_URL", "http://prometheus.test:9090/"), ("SKILL_LOKI_URL", "https://loki.test")];

/// The shells of common images.
fn shells() -> Vec<Vec<&'static str>> {
    let mut shells = vec![vec!["/bin/sh"]];
    if Path::new("/usr/bin/busybox").exists() {
        shells.push(vec!["/usr/bin/busybox", "sh"]);
    }
    shells
}

/// The tools with shell scripts, and the schema of each argument.
fn scripted(pack: &SkillPack) -> impl Iterator<Item = (&Tool, Vec<serde_json::Value>)> {
    let scripts = tools(pack).iter().filter(|it| it.exec[0].ends_with(".sh"));
    scripts.map(|tool| {
        assert_eq!(tool.input_mode, InputMode::Args);
        let schema = &tool.parameters.as_ref().unwrap().0["properties"];
        let names = tool.positional_args.iter();
        (tool, names.map(|name| schema[name].clone()).collect())
    })
}

fn usual(schemas: &[serde_json::Value]) -> Vec<String> {
    let first = schemas.iter().map(|it| text(&examples(it)[0]));
    first.collect()
}

#[test]
fn calls_of_each_tool() {
    let packs = all();
    let times = regex_lite::Regex::new("(start|end)=[0-9]+").unwrap();
    let mut reviewed: Option<Vec<String>> = None;
    for shell in shells() {
        // A harness for each: files that a tool leaves in the workspace would affect its next call.
        let Some(harness) = Harness::new(&packs) else {
            skip!("no jq");
        };
        let mut seen = Vec::new();
        for pack in packs.values() {
            // A shell with a built-in `cat` does not use the fake.
            if shell.len() > 1 && needs(pack, "cat") {
                continue;
            }
            for (tool, schemas) in scripted(pack) {
                let arguments = usual(&schemas);
                let (output, called) = harness.call(&shell, tool, &arguments, ADDRESSES);
                assert!(output.status.success(), "{shell:?} {}: {}", tool.name, stderr(&output));
                // With this flag kubectl does not look for the credentials of its pod.
                assert!(!called.contains("--request-timeout"), "{called}");
                let called = times.replace_all(&called, "$1=N");
                seen.push(format!("{} {arguments:?}\n{called}", tool.name));
            }
        }
        match &reviewed {
            None => insta::assert_snapshot!("tools-call", seen.join("\n")),
            Some(reviewed) => assert!(seen.iter().all(|it| reviewed.contains(it)), "{seen:?}"),
        }
        reviewed = Some(seen);
    }
}

fn needs(pack: &SkillPack, program: &str) -> bool {
    let mut requirements = pack.spec.skills.iter().filter_map(|it| it.requires.as_ref());
    requirements.any(|it| it.bins.iter().any(|bin| bin == program))
}

#[test]
fn hostile_arguments_are_refused_before_anything_is_called() {
    let packs = all();
    let Some(harness) = Harness::new(&packs) else {
        skip!("no jq");
    };
    let long = "a".repeat(5000);
    let mut refused = 0;
    for shell in shells() {
        for pack in packs.values() {
            for (tool, schemas) in scripted(pack) {
                let usual = usual(&schemas);
                for index in 0..usual.len() {
                    for hostile in HOSTILE.iter().copied().chain([long.as_str()]) {
                        // The next test checks values that the schema accepts.
                        if accepts(&schemas[index], hostile) {
                            continue;
                        }
                        let mut arguments = usual.clone();
                        arguments[index] = hostile.to_owned();
                        let (output, called) = harness.call(&shell, tool, &arguments, ADDRESSES);
                        let what = format!("{shell:?} {} {arguments:?}", tool.name);
                        assert_eq!(output.status.code(), Some(2), "{what}");
                        assert_eq!(called, "", "{what}");
                        assert_eq!(stdout(&output), "", "{what}");
                        refused += 1;
                    }
                }
                let more = [usual.clone(), vec!["more".to_owned()]].concat();
                let fewer = usual[..usual.len().saturating_sub(1)].to_vec();
                for arguments in [more, fewer] {
                    if arguments == usual {
                        continue;
                    }
                    let (output, called) = harness.call(&shell, tool, &arguments, ADDRESSES);
                    let what = format!("{shell:?} {} {arguments:?}", tool.name);
                    assert_eq!(output.status.code(), Some(2), "{what}");
                    assert_eq!(called, "", "{what}");
                }
            }
        }
    }
    assert!(refused > 1000, "{refused}");
}

/// Queries, comments and some names may have any text: it stays within one argument.
#[test]
fn accepted_values_stay_one_argument() {
    let packs = all();
    let Some(harness) = Harness::new(&packs) else {
        skip!("no jq");
    };
    let mut count = 0;
    for pack in packs.values() {
        for (tool, schemas) in scripted(pack) {
            let usual = usual(&schemas);
            let words = |called: &str| called.matches(" [").count();
            let (_, called) = harness.call(&["/bin/sh"], tool, &usual, ADDRESSES);
            let expected = words(&called);
            for index in 0..usual.len() {
                let is_free = schemas[index]["type"] == "string"
                    && schemas[index]["pattern"].is_null()
                    && schemas[index]["enum"].is_null();
                if !is_free {
                    continue;
                }
                for hostile in HOSTILE.iter().copied().filter(|it| accepts(&schemas[index], it)) {
                    let mut arguments = usual.clone();
                    arguments[index] = hostile.to_owned();
                    let (output, called) = harness.call(&["/bin/sh"], tool, &arguments, ADDRESSES);
                    let what = format!("{} {arguments:?}: {called}", tool.name);
                    assert!(output.status.success(), "{what}{}", stderr(&output));
                    assert_eq!(words(&called), expected, "{what}");
                    assert!(called.contains(&format!("={hostile}]")), "{what}");
                    count += 1;
                }
            }
        }
    }
    assert!(count > 100, "{count}");
}

#[test]
fn invalid_addresses_are_refused() {
    let packs = all();
    let Some(harness) = Harness::new(&packs) else {
        skip!("no jq");
    };
    let pack = &packs["sre-observability"];
    let mut count = 0;
    for (tool, schemas) in scripted(pack) {
        if !["prometheus_query", "prometheus_range", "loki_query"].contains(&tool.name.as_str()) {
            continue;
        }
        for address in [
            "",
            "file:///etc/passwd",
            "http://",
            "-K/etc/passwd",
            "http://host -o /tmp/x",
            "http://host/$(reboot)",
            "http://user@host",
            "http://host\nurl=http://other",
        ] {
            let env = [("SKILL_PROMETHEUS_URL", address), ("SKILL_LOKI_URL", address)];
            let (output, called) = harness.call(&["/bin/sh"], tool, &usual(&schemas), &env);
            assert_eq!(output.status.code(), Some(2), "{address:?}");
            assert_eq!(called, "", "{address:?}");
            count += 1;
        }
    }
    assert_eq!(count, 24);
}

#[test]
fn a_pod_without_a_controller_is_not_deleted() {
    let packs = all();
    let Some(harness) = Harness::new(&packs) else {
        skip!("no jq");
    };
    let pack = &packs["k8s-ops-admin"];
    let (tool, schemas) = scripted(pack).find(|(tool, _)| tool.name == "delete_pod").unwrap();
    for (owner, is_deleted) in [("ReplicaSet", true), ("", false), ("Node", false)] {
        let env = [("OWNER", owner)];
        let (output, called) = harness.call(&["/bin/sh"], tool, &usual(&schemas), &env);
        assert_eq!(output.status.success(), is_deleted, "{owner}");
        assert_eq!(called.contains("[delete]"), is_deleted, "{owner}");
    }
}

#[test]
fn every_script_has_valid_syntax() {
    let packs = all();
    let Some(harness) = Harness::new(&packs) else {
        skip!("no jq");
    };
    let mut count = 0;
    for (name, pack) in &packs {
        for skill in &pack.spec.skills {
            let scripts = skill.files.iter().filter(|it| it.path.as_str().ends_with(".sh"));
            for file in scripts {
                let path = harness.path(&format!("skills/{name}/{}/{}", skill.name, file.path));
                for shell in shells() {
                    let mut child = command(shell[0]);
                    let output = child.args(&shell[1..]).arg("-n").arg(&path).output().unwrap();
                    assert!(output.status.success(), "{path:?}: {}", stderr(&output));
                    count += 1;
                }
            }
        }
    }
    assert!(count > 20, "{count}");
}
