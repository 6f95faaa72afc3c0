//! A skill that does what it likes on its volume: results that are none, results of others, floods, a `done` that nobody
//! meant, a directory that is no longer there. It can lie about its own commands. It cannot touch another's, and it cannot
//! stop the bridge. Names with `bNN` are lines in the list of hostile cases.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};
use sympozium_harness::executor::{Executor, requests, result, write_result};
use sympozium_harness::{POLL_INTERVAL, RunHarness};
use sympozium_ipc::door::{Refusal, RefusalCode, ToolAnswer};
use sympozium_ipc::receipt::{Event, Outcome};
use sympozium_ipc::run_api::AgentEnd;
use sympozium_testkit::{as_user, command, skip};
use tokio::time::sleep;

use super::{PROGRAM, open_plan, start};

/// Waits for the requests of so many commands, and gives their ids in the order of the commands.
pub async fn requested(volume: &Path, commands: &[&str]) -> Vec<String> {
    loop {
        let there = requests(volume);
        let id = |command: &&str| {
            let of = there.iter().find(|(_, request)| request["command"] == **command)?;
            Some(of.0.clone())
        };
        let ids: Option<Vec<String>> = commands.iter().map(id).collect();
        match ids {
            Some(ids) => return ids,
            None => sleep(POLL_INTERVAL).await,
        }
    }
}

fn place(volume: &Path, id: &str) -> PathBuf {
    volume.join(format!("tools/exec-result-{id}.json"))
}

fn unusable(answer: Result<ToolAnswer, Refusal>, why: &str) {
    let refused = answer.expect_err(why);
    assert_eq!(refused.code, RefusalCode::Unknown, "{why}: {}", refused.message);
    let start = "the skill's result cannot be used: ";
    assert!(refused.message.starts_with(start) && refused.message.contains(why), "{why}: {}", refused.message);
}

/// Puts something in the place of a result: the volume, the place, the id.
type Put = fn(&Path, &Path, &str);
/// The bytes of a result, by the id.
type Written<'t> = dyn Fn(&str) -> Vec<u8> + 't;

#[tokio::test(flavor = "multi_thread")]
async fn b25_a_result_that_is_no_file() {
    let mut run = start(|_| ());
    let _tickets = Executor::echo(run.volume("tickets"));
    let agent = run.agent().await;
    fs::write(run.at("secret"), "sk-secret").expect("a secret");
    let mut cases: Vec<(&str, Put)> = vec![
        ("symbolic link", |volume, place, _| {
            symlink(volume.join("../../secret"), place).expect("a link");
        }),
        ("symbolic link", |_, place, _| symlink("/proc/self/environ", place).expect("a link")),
        ("symbolic link", |_, place, _| symlink("/dev/zero", place).expect("a link")),
        ("symbolic link", |_, place, _| symlink(place, place).expect("a link")),
        ("directory", |_, place, _| fs::create_dir(place).expect("a directory")),
        ("directory", |_, place, _| fs::create_dir_all(place.join("full/of/these")).expect("a directory")),
        ("FIFO", |_, place, _| {
            mknodat(CWD, place, FileType::Fifo, Mode::from(0o666), 0).expect("a FIFO");
        }),
        ("socket", |_, place, _| {
            drop(std::os::unix::net::UnixListener::bind(place).expect("a socket"));
        }),
        ("hard links", |volume, place, id| {
            let mut good = result(0, "");
            good["id"] = json!(id);
            let other = volume.join("other");
            fs::write(&other, good.to_string()).expect("a file");
            fs::hard_link(other, place).expect("a link");
        }),
    ];
    if as_user::is_root() {
        cases.push(("device", |_, place, _| {
            // /dev/zero, which never ends.
            let zero = rustix::fs::makedev(1, 5);
            if mknodat(CWD, place, FileType::CharacterDevice, Mode::from(0o666), zero).is_err() {
                // Not in every container; then something else that is none.
                symlink("/dev/zero", place).expect("a link");
            }
        }));
    }
    let volume = run.volume("cluster");
    for (number, (why, put)) in cases.into_iter().enumerate() {
        let line = format!("{number}");
        let skill = async {
            let id = requested(&volume, &[&line]).await.remove(0);
            put(&volume, &place(&volume, &id), &id);
            id
        };
        let (answer, id) = tokio::join!(agent.execute("cluster", &line), skill);
        let refused = answer.expect_err(why);
        assert_eq!(refused.code, RefusalCode::Unknown, "{why}: {}", refused.message);
        assert!(refused.message.starts_with("the skill's result cannot be used: "), "{}", refused.message);
        assert!(!refused.message.contains("sk-secret") && !refused.message.contains("PATH="), "{}", refused.message);
        // Others are not held up, and what can be removed is.
        assert!(agent.execute("tickets", "ls").await.is_ok());
        assert!(requests(&volume).iter().all(|(left, _)| *left != id));
        let _ = fs::remove_dir_all(place(&volume, &id));
        let _ = fs::remove_file(volume.join("other"));
    }
    agent.finish("").await;
    drop(agent);
    assert_eq!(run.wait_exit().await, 0, "{}", run.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn b25_a_result_that_is_no_result() {
    let mut run = start(|_| ());
    let agent = run.agent().await;
    let volume = run.volume("cluster");
    let good = |id: &str| {
        let mut good = result(0, "fine");
        good["id"] = json!(id);
        good
    };
    let changed = |id: &str, field: &str, value: Value| {
        let mut good = good(id);
        good[field] = value;
        good.to_string().into_bytes()
    };
    let cases: Vec<(&str, Box<Written<'_>>)> = vec![
        ("ends early", Box::new(|_| Vec::new())),
        ("ends early", Box::new(|id| good(id).to_string().into_bytes()[..20].to_vec())),
        ("not a JSON object", Box::new(|_| b"[]".to_vec())),
        ("not a JSON object", Box::new(|_| b"null".to_vec())),
        ("not a JSON object", Box::new(|id| [good(id).to_string().as_bytes(), b"{}"].concat())),
        ("the result", Box::new(|id| good(id).to_string().replace("fine", "\u{0}").into_bytes())),
        ("the result", Box::new(|id| [&b"{\"stdout\":\"\xff\","[..], &good(id).to_string().as_bytes()[1..]].concat())),
        ("does not equal the id", Box::new(|id| changed(id, "id", json!("1")))),
        ("does not equal the id", Box::new(|id| changed(id, "id", json!(format!("{id} "))))),
        ("`id`", Box::new(|id| changed(id, "id", json!(7)))),
        ("`exitCode`", Box::new(|id| changed(id, "exitCode", json!(1.5)))),
        ("`exitCode`", Box::new(|id| changed(id, "exitCode", json!("0")))),
        (
            "`exitCode`",
            Box::new(|id| good(id).to_string().replace("\"exitCode\":0", "\"exitCode\":1e400").into_bytes()),
        ),
        (
            "`exitCode`",
            Box::new(|id| {
                good(id).to_string().replace("\"exitCode\":0", "\"exitCode\":9223372036854775808").into_bytes()
            }),
        ),
        ("`stdout`", Box::new(|id| changed(id, "stdout", json!(null)))),
        ("`timedOut`", Box::new(|id| changed(id, "timedOut", json!("yes")))),
        ("more than once", Box::new(|id| good(id).to_string().replacen('{', "{\"exitCode\":1,", 1).into_bytes())),
        (
            "nested deeper",
            Box::new(|id| {
                good(id)
                    .to_string()
                    .replacen('{', &format!("{{\"x\":{}{},", "[".repeat(100), "]".repeat(100)), 1)
                    .into_bytes()
            }),
        ),
        ("bytes, and may have", Box::new(|id| changed(id, "stdout", json!("a".repeat(1 << 20))))),
    ];
    for (number, (why, bytes)) in cases.iter().enumerate() {
        let line = format!("{number}");
        let skill = async {
            let id = requested(&volume, &[&line]).await.remove(0);
            let beside = volume.join("beside");
            fs::write(&beside, bytes(&id)).expect("a file");
            fs::rename(beside, place(&volume, &id)).expect("in its place");
        };
        let (answer, ()) = tokio::join!(agent.execute("cluster", &line), skill);
        unusable(answer, why);
    }
    // A gigabyte that is not there.
    let skill = async {
        let id = requested(&volume, &["sparse"]).await.remove(0);
        let file = fs::File::create(volume.join("beside")).expect("a file");
        file.set_len(1 << 30).expect("a length");
        fs::rename(volume.join("beside"), place(&volume, &id)).expect("in its place");
    };
    let (answer, ()) = tokio::join!(agent.execute("cluster", "sparse"), skill);
    unusable(answer, "1073741824 bytes");
    // Nothing of all this is left.
    let left: Vec<_> = fs::read_dir(volume.join("tools")).expect("tools").flatten().map(|it| it.file_name()).collect();
    assert_eq!(left, Vec::<std::ffi::OsString>::new());
    let _cluster = Executor::echo(volume.clone());
    assert!(agent.execute("cluster", "and now").await.is_ok());
    agent.finish("").await;
    drop(agent);
    assert_eq!(run.wait_exit().await, 0, "{}", run.log());
    let failed = |it: &&Event| matches!(it, Event::Acted { outcome: Outcome::Failed { .. }, .. });
    assert_eq!(run.events().iter().filter(failed).count(), cases.len() + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn b29_a_result_that_is_half_written_is_never_half_believed() {
    let run = start(|_| ());
    let agent = run.agent().await;
    let volume = run.volume("cluster");
    let skill = async {
        use std::io::Write as _;
        let id = requested(&volume, &["a"]).await.remove(0);
        let mut whole = result(0, &"x".repeat(10_000));
        whole["id"] = json!(id);
        let whole = whole.to_string();
        let mut file = fs::File::create(place(&volume, &id)).expect("a file");
        for piece in whole.as_bytes().chunks(1_000) {
            file.write_all(piece).expect("a piece");
            sleep(POLL_INTERVAL).await;
        }
    };
    let (answer, ()) = tokio::join!(agent.execute("cluster", "a"), skill);
    match answer {
        Ok(ToolAnswer::Command { stdout, .. }) => assert_eq!(stdout.len(), 10_000),
        other => unusable(other, "ends early"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b26_nobody_answers_for_another() {
    let mut run = start(|_| ());
    let agent = run.agent().await;
    let (cluster, tickets) = (run.volume("cluster"), run.volume("tickets"));
    let skills = async {
        let ids = requested(&cluster, &["a", "b"]).await;
        // From the volume of another skill, under the very id, before and after its request.
        fs::create_dir_all(tickets.join("tools")).expect("tools");
        write_result(&tickets, &ids[0], &result(0, "forged"));
        let other = requested(&tickets, &["c"]).await.remove(0);
        write_result(&cluster, &other, &result(0, "forged"));
        write_result(&tickets, &ids[1], &result(0, "forged"));
        // Within one volume: the answer to one under the name of the other.
        let mut mixed = result(0, "mixed");
        mixed["id"] = json!(ids[0]);
        fs::write(cluster.join("beside"), mixed.to_string()).expect("a file");
        fs::rename(cluster.join("beside"), place(&cluster, &ids[1])).expect("in its place");
        write_result(&tickets, &other, &result(0, "c"));
        // Only now the one that was forged first.
        sleep(20 * POLL_INTERVAL).await;
        write_result(&cluster, &ids[0], &result(0, "a"));
    };
    let (a, b, c, ()) = tokio::join!(
        agent.execute("cluster", "a"),
        agent.execute("cluster", "b"),
        agent.execute("tickets", "c"),
        skills
    );
    let said = |answer: Result<ToolAnswer, Refusal>| match answer {
        Ok(ToolAnswer::Command { stdout, .. }) => stdout,
        other => panic!("{other:?}"),
    };
    assert_eq!((said(a), said(c)), ("a".to_owned(), "c".to_owned()));
    unusable(b, "does not equal the id");
    agent.finish("").await;
    drop(agent);
    assert_eq!(run.wait_exit().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn b30_junk_by_the_ten_thousand_holds_nobody_up() {
    // As many calls as come to it: how long the junk takes is the machine's.
    let mut run = start(|plan| {
        plan.limits.tool_calls = u32::MAX;
        for tool in &mut plan.tools {
            tool.limits.per_minute = u32::MAX;
        }
    });
    let tickets = Executor::echo(run.volume("tickets"));
    let agent = run.agent().await;
    let volume = run.volume("cluster");
    let skill = async {
        let id = requested(&volume, &["a"]).await.remove(0);
        let tools = volume.join("tools");
        // More than the kernel keeps news of.
        let junk = tokio::task::spawn_blocking(move || {
            for number in 0..30_000 {
                let name = match number % 4 {
                    0 => format!("exec-result-{number}.json"),
                    1 => format!("exec-request-{number}.json"),
                    2 => format!("exec-result-..{number}.json"),
                    _ => format!("junk-{number}"),
                };
                fs::File::create(tools.join(name)).expect("a file");
            }
        });
        while !junk.is_finished() {
            let answer = agent.execute("tickets", "meanwhile").await;
            assert!(answer.is_ok(), "{answer:?}");
            sleep(4 * POLL_INTERVAL).await;
        }
        junk.await.expect("junk");
        write_result(&volume, &id, &result(0, "in the end"));
    };
    let arguments = json!({ "target": "cluster", "command": "a", "timeout": 120 });
    let (answer, ()) = tokio::join!(agent.call("execute_command", arguments), skill);
    assert!(matches!(&answer, Ok(ToolAnswer::Command { stdout, .. }) if stdout == "in the end"), "{answer:?}");
    assert!(!tickets.requests().is_empty());
    agent.finish("").await;
    drop(agent);
    assert_eq!(run.wait_exit().await, 0, "{}", run.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn b28_a_done_that_the_bridge_did_not_write() {
    let mut run = start(|_| ());
    let tickets = Executor::echo(run.volume("tickets"));
    let agent = run.agent().await;
    let volume = run.volume("cluster");
    // What is no file says nothing.
    symlink("/etc/passwd", volume.join("done")).expect("a link");
    let skill = async {
        let id = requested(&volume, &["a"]).await.remove(0);
        write_result(&volume, &id, &result(0, ""));
        fs::remove_file(volume.join("done")).expect("the link");
    };
    let (answer, ()) = tokio::join!(agent.execute("cluster", "a"), skill);
    assert!(answer.is_ok(), "{answer:?}");
    let skill = async {
        requested(&volume, &["b"]).await;
        fs::write(volume.join("done"), "").expect("a file");
    };
    let (answer, ()) = tokio::join!(agent.execute("cluster", "b"), skill);
    let told_to_leave = "the skill's executor was asked to exit before the end of the run; see `";
    let refused = answer.expect_err("there is no peer");
    assert_eq!(refused.code, RefusalCode::Unavailable);
    assert!(refused.message.starts_with(told_to_leave), "{}", refused.message);
    // At once, from then on; the other skill is as it was.
    let refused = agent.execute("cluster", "c").await.expect_err("there is no peer");
    assert!(refused.message.starts_with(told_to_leave), "{}", refused.message);
    assert_eq!(requests(&volume), Vec::new());
    assert!(agent.execute("tickets", "d").await.is_ok());
    assert_eq!(tickets.requests().len(), 1);
    agent.finish("done").await;
    drop(agent);
    assert_eq!(run.wait_exit().await, 0, "{}", run.log());
    assert_eq!(run.ending(), AgentEnd::Answered { text: "done".to_owned() });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_of_tools_that_is_no_longer_the_one() {
    let spoils: [Put; 4] = [
        |volume, _, _| fs::remove_dir(volume.join("tools")).expect("removed"),
        |volume, _, _| fs::rename(volume.join("tools"), volume.join("renamed")).expect("renamed"),
        |volume, elsewhere, _| {
            fs::rename(volume.join("tools"), volume.join("renamed")).expect("renamed");
            symlink(elsewhere, volume.join("tools")).expect("a link");
        },
        |volume, _, _| {
            fs::rename(volume.join("tools"), volume.join("renamed")).expect("renamed");
            fs::create_dir(volume.join("tools")).expect("another");
        },
    ];
    for spoil in spoils {
        let mut run = start(|_| ());
        let _tickets = Executor::echo(run.volume("tickets"));
        let agent = run.agent().await;
        // The door is opened when the volumes are.
        let volume = run.volume("cluster");
        let elsewhere = run.at("elsewhere");
        fs::create_dir(&elsewhere).expect("a directory");
        spoil(&volume, &elsewhere, "");
        let refused = agent.execute("cluster", "a").await.expect_err("no executor reads it");
        assert_eq!(refused.code, RefusalCode::Unavailable, "{}", refused.message);
        assert!(refused.message.starts_with("the skill cannot be asked: "), "{}", refused.message);
        assert_eq!(fs::read_dir(&elsewhere).expect("a directory").count(), 0);
        assert!(agent.execute("tickets", "b").await.is_ok());
        agent.finish("").await;
        drop(agent);
        assert_eq!(run.wait_exit().await, 0, "{}", run.log());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_result_claims_is_cut_and_cleaned_before_it_is_a_receipt() {
    let mut run = start(|_| ());
    let guarantees: serde_json::Map<String, Value> = (0..100)
        .map(|number| {
            // Words, and what is none.
            let name = match number % 2 {
                0 => format!("g{number:04}\u{1b}[31m"),
                _ => format!("g{number:04}"),
            };
            (name, json!("enforced"))
        })
        .collect();
    let _cluster = Executor::on(run.volume("cluster"), move |request| {
        let mut result = result(0, "");
        match request["command"].as_str().unwrap_or_default() {
            "meta" => {
                result["_meta"] = json!({
                    "isolation": { "profile": format!("host\u{202e}\n{}", "p".repeat(500)), "guarantees": guarantees },
                });
            }
            "outcome" => result["_meta"] = json!({ "outcome": format!("\u{1b}]0;owned\u{7}{}", "o".repeat(2_000)) }),
            "shape" => result["_meta"] = json!({ "isolation": { "profile": 7, "guarantees": ["network"] } }),
            "timed out" => {
                result["timedOut"] = json!(true);
                result["exitCode"] = json!(124);
            }
            "huge" => result["exitCode"] = json!(i64::MAX),
            "low" => result["exitCode"] = json!(i64::MIN),
            _ => {
                result["unknown"] = json!({ "a": [1, 2, 3] });
                result["stdout"] = json!("é".repeat(50_000));
            }
        }
        Some(result)
    });
    let agent = run.agent().await;
    let mut told = Vec::new();
    for line in ["meta", "outcome", "shape", "timed out", "huge", "low", "long"] {
        let Ok(ToolAnswer::Command { exit_code, timed_out, stdout, truncated, .. }) =
            agent.execute("cluster", line).await
        else {
            panic!("{line} is not answered");
        };
        told.push((exit_code, timed_out, stdout.len(), truncated));
    }
    assert_eq!(
        told,
        [
            (0, false, 0, false),
            (0, false, 0, false),
            (0, false, 0, false),
            (124, true, 0, false),
            (i32::MAX, false, 0, false),
            (i32::MAX, false, 0, false),
            (0, false, 51_200, true),
        ]
    );
    agent.finish("").await;
    drop(agent);
    assert_eq!(run.wait_exit().await, 0, "{}", run.log());
    let plain = |text: &str| text.chars().count() <= 257 && !text.chars().any(|it| it.is_control() || it == '\u{202e}');
    let mut seen = Vec::new();
    for event in run.events() {
        if let Event::Acted { outcome, isolation, .. } = event {
            if let Outcome::Failed { why } = &outcome {
                assert!(plain(why), "{why}");
            }
            let isolation = isolation.map(|isolation| {
                assert!(plain(&isolation.profile) && isolation.guarantees.iter().all(|it| plain(it)), "{isolation:?}");
                isolation.guarantees.len()
            });
            seen.push((matches!(outcome, Outcome::Failed { .. }), outcome == Outcome::TimedOut, isolation));
        }
    }
    assert_eq!(
        seen,
        [
            (false, false, Some(16)),
            (true, false, None),
            (false, false, None),
            (false, true, None),
            (false, false, None),
            (false, false, None),
            (false, false, None),
        ]
    );
}

/// A file system of its own for one volume, gone with this.
struct Mounted(PathBuf);

impl Mounted {
    fn new(place: &Path) -> Option<Self> {
        let mounted = command("mount")
            .args(["-t", "tmpfs", "-o", "size=64k,nr_inodes=64", "none"])
            .arg(place)
            .output()
            .is_ok_and(|it| it.status.success());
        mounted.then(|| Self(place.to_owned()))
    }

    fn remount(&self, how: &str) {
        let status = command("mount").args(["-o", &format!("remount,{how}")]).arg(&self.0).status();
        assert!(status.is_ok_and(|it| it.success()));
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = command("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b33_a_volume_that_is_full_or_read_only() {
    let setup = RunHarness::setup(open_plan());
    let mounted = Mounted::new(&setup.at("ipc/cluster"));
    let mut run = setup.start(PROGRAM);
    let Some(mounted) = mounted else {
        skip!("no right to mount a file system");
    };
    let volume = run.volume("cluster");
    let _tickets = Executor::echo(run.volume("tickets"));
    let cluster = Executor::echo(volume.clone());
    let agent = run.agent().await;
    assert!(agent.execute("cluster", "a").await.is_ok());
    let cannot = |refused: Refusal| {
        assert_eq!(refused.code, RefusalCode::Unavailable, "{}", refused.message);
        assert!(refused.message.starts_with("the skill cannot be asked: "), "{}", refused.message);
    };
    fs::write(volume.join("fill"), vec![0; 1 << 20]).expect_err("it is full");
    cannot(agent.execute("cluster", &"b".repeat(8_000)).await.expect_err("there is no room"));
    fs::remove_file(volume.join("fill")).expect("room");
    mounted.remount("ro");
    cannot(agent.execute("cluster", "c").await.expect_err("nothing can be written"));
    assert!(agent.execute("tickets", "d").await.is_ok());
    mounted.remount("rw");
    assert!(agent.execute("cluster", "e").await.is_ok());
    assert_eq!(cluster.requests().len(), 2, "nothing of what could not be written was run");
    let left: Vec<_> = fs::read_dir(volume.join("tools")).expect("tools").flatten().map(|it| it.file_name()).collect();
    assert_eq!(left, Vec::<std::ffi::OsString>::new());
    mounted.remount("ro");
    agent.finish("").await;
    drop(agent);
    assert_eq!(run.wait_exit().await, 0, "{}", run.log());
    assert!(run.log().contains("the skill cannot be notified that the run has ended"), "{}", run.log());
}
