//! Files in a skill's `/ipc` that the bridge did not write. Of the plan's packs, `cluster` has our executor, which verifies
//! requests, and `tickets` what its image starts, which cannot.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use sympozium_harness::RunHarness;
use sympozium_harness::executor::{Executor, announce_start, requests, result, write_result};
use sympozium_ipc::door::ToolAnswer;
use sympozium_ipc::receipt::{Event, ForeignKind};
use sympozium_ipc::run_api::AgentEnd;

use super::hostile_skill::requested;
use super::start;

/// What was found, in the order of the receipts.
pub fn found(run: &RunHarness) -> Vec<(String, ForeignKind, String, bool)> {
    (run.events().into_iter())
        .filter_map(|event| match event {
            Event::Foreign { pack, what, name, ends_run } => Some((pack, what, name, ends_run)),
            _ => None,
        })
        .collect()
}

async fn wait_failed(mut run: RunHarness) -> (RunHarness, String) {
    assert_eq!(run.wait_exit().await, 0, "{}", run.log());
    match run.ending() {
        AgentEnd::Failed { error } => (run, error),
        other => panic!("{other:?}: {}", run.log()),
    }
}

pub async fn answered(mut run: RunHarness) -> RunHarness {
    assert_eq!(run.wait_exit().await, 0, "{}", run.log());
    assert_eq!(run.ending(), AgentEnd::Answered { text: "done".to_owned() });
    run
}

/// Puts a request there: the directory, and a complete request.
type Put = fn(&Path, &str);

#[tokio::test(flavor = "multi_thread")]
async fn a_request_ends_the_run_where_the_executor_cannot_verify_it() {
    let ways: [(&str, Put); 4] = [
        ("exec-request-222.json", |tools, request| {
            fs::write(tools.join(".part"), request).expect("a file");
            fs::rename(tools.join(".part"), tools.join("exec-request-222.json")).expect("in place");
        }),
        ("exec-request-222.json", |tools, request| {
            fs::write(tools.join("exec-request-222.json"), request).expect("a file");
        }),
        ("exec-request-222.json", |tools, request| {
            fs::write(tools.join("beside"), request).expect("a file");
            fs::hard_link(tools.join("beside"), tools.join("exec-request-222.json")).expect("a link");
        }),
        // No id of ours, and still a request to a script that lists `exec-request-*.json`.
        ("exec-request-*.json (with an unusable id)", |tools, request| {
            fs::write(tools.join("exec-request-a b.json"), request).expect("a file");
        }),
    ];
    for (name, put) in ways {
        let run = start(|_| ());
        // Nothing is going on: no call waits for a result.
        let agent = run.agent().await;
        run.first_report().await;
        let tools = run.volume("tickets").join("tools");
        put(&tools, &json!({"id": "222", "command": "true"}).to_string());
        let (run, error) = wait_failed(run).await;
        assert_eq!(
            error,
            format!(
                "skill pack `tickets`: {name} is in its /ipc, which the bridge did not write: a command that was not allowed may have run"
            )
        );
        let expected = ("tickets".to_owned(), ForeignKind::Request, name.to_owned(), true);
        assert_eq!(found(&run), [expected]);
        drop(agent);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_of_ours_that_is_changed_while_it_waits_ends_the_run_too() {
    let changes: [Put; 2] = [
        |place, request| {
            fs::write(place.with_extension("part"), request).expect("a file");
            fs::rename(place.with_extension("part"), place).expect("in its place");
        },
        |place, request| fs::write(place, request).expect("in its place"),
    ];
    for change in changes {
        let run = start(|_| ());
        let agent = run.agent().await;
        let volume = run.volume("tickets");
        let skill = async {
            let id = requested(&volume, &["harmless"]).await.remove(0);
            let forged = json!({"id": id, "command": "harmful"}).to_string();
            change(&volume.join(format!("tools/exec-request-{id}.json")), &forged);
            id
        };
        let (answer, id) = tokio::join!(agent.execute("tickets", "harmless"), skill);
        assert!(answer.is_err(), "{answer:?}");
        let (run, error) = wait_failed(run).await;
        assert!(error.contains(&format!("exec-request-{id}.json")), "{error}");
        assert_eq!(found(&run).len(), 1);
    }
}

/// An image's executor would run any request under a used id. One that verifies would run the genuine one, which is authentic
/// until it expires: a command that kept it and forged its result could have it run after the call was answered.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_under_the_id_of_an_answered_one_ends_the_run_too() {
    for pack in ["tickets", "cluster"] {
        let run = start(|_| ());
        let agent = run.agent().await;
        let volume = run.volume(pack);
        let place = |id: &str| volume.join(format!("tools/exec-request-{id}.json"));
        let skill = async {
            let id = requested(&volume, &["harmless"]).await.remove(0);
            let genuine = fs::read(place(&id)).expect("a request");
            write_result(&volume, &id, &result(0, "ours"));
            (id, genuine)
        };
        let (answer, (id, genuine)) = tokio::join!(agent.execute(pack, "harmless"), skill);
        assert!(answer.is_ok(), "{answer:?}");
        assert!(!place(&id).exists(), "the bridge has removed it");
        let content = match pack {
            "tickets" => json!({"id": id, "command": "harmful"}).to_string().into_bytes(),
            _ => genuine,
        };
        fs::write(place(&id), content).expect("a file");
        let (run, error) = wait_failed(run).await;
        let name = format!("exec-request-{id}.json");
        assert!(error.contains(&name), "{error}");
        let expected = (pack.to_owned(), ForeignKind::Request, name, true);
        assert_eq!(found(&run), [expected]);
        assert!(!place(&id).exists(), "it is removed again");
        drop(agent);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_a_receipt_where_the_executor_verifies_and_the_run_goes_on() {
    let run = start(|_| ());
    let agent = run.agent().await;
    run.first_report().await;
    let volume = run.volume("cluster");
    let forged = volume.join("tools/exec-request-222.json");
    fs::write(&forged, json!({"id": "222", "command": "true"}).to_string()).expect("a file");
    run.wait_until("the forged request is removed", || !forged.exists()).await;
    let cluster = Executor::echo(volume);
    let answer = agent.execute("cluster", "genuine").await;
    assert!(matches!(answer, Ok(ToolAnswer::Command { .. })), "{answer:?}");
    agent.finish("done").await;
    drop(agent);
    let run = answered(run).await;
    assert_eq!(cluster.requests().len(), 1);
    let name = "exec-request-222.json".to_owned();
    let expected = ("cluster".to_owned(), ForeignKind::Request, name, false);
    assert_eq!(found(&run), [expected]);
}

/// Another directory takes the place of `tools`, for a while or for good: what is in it is not seen by the bridge, and would be
/// executed where the executor verifies nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_in_another_directory_ends_the_run_where_the_executor_cannot_verify_it() {
    let hide: [fn(&Path); 2] = [
        |volume| {
            let (tools, aside) = (volume.join("tools"), volume.join("aside"));
            fs::rename(&tools, &aside).expect("out of the way");
            fs::create_dir(&tools).expect("another");
            fs::write(tools.join("exec-request-9.json"), "{}").expect("a file");
            fs::remove_dir_all(&tools).expect("without a trace");
            fs::rename(&aside, &tools).expect("back");
        },
        |volume| {
            fs::remove_dir_all(volume.join("tools")).expect("out of the way");
            fs::create_dir(volume.join("tools")).expect("another");
        },
    ];
    for hide in hide {
        for pack in ["tickets", "cluster"] {
            let run = start(|_| ());
            let agent = run.agent().await;
            run.first_report().await;
            hide(&run.volume(pack));
            let why = "`tools` was moved, removed, replaced or closed to the bridge";
            let is_noticed = || run.lines_so_far().iter().any(|line| line.contains(why));
            run.wait_until("it is noticed", is_noticed).await;
            let run = match pack {
                "tickets" => {
                    let (run, error) = wait_failed(run).await;
                    assert!(error.starts_with(&format!("skill pack `tickets`: {why}: ")), "{error}");
                    run
                }
                _ => {
                    agent.finish("done").await;
                    answered(run).await
                }
            };
            let name = format!("exec-request-*.json (possibly: {why})");
            assert_eq!(found(&run)[0], (pack.to_owned(), ForeignKind::Request, name, pack == "tickets"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_a_result_and_a_done_are_receipts_and_that_packs_loss() {
    let run = start(|_| ());
    let agent = run.agent().await;
    run.first_report().await;
    let _cluster = Executor::echo(run.volume("cluster"));
    let tickets = run.volume("tickets");
    fs::create_dir(tickets.join("tools/.claim-5")).expect("a claim");
    write_result(&tickets, "6", &result(0, "forged"));
    // The result of a request of ours is none of them; a second one is.
    let skill = async {
        let id = requested(&tickets, &["ours"]).await.remove(0);
        fs::create_dir(tickets.join(format!("tools/.claim-{id}"))).expect("a claim");
        write_result(&tickets, &id, &result(0, "ours"));
        id
    };
    let (answer, id) = tokio::join!(agent.execute("tickets", "ours"), skill);
    assert!(answer.is_ok(), "{answer:?}");
    write_result(&tickets, &id, &result(0, "once more"));
    let again = format!("exec-result-{id}.json");
    run.wait_until("a second result is noticed", || run.lines_so_far().iter().any(|line| line.contains(&again))).await;
    fs::write(tickets.join("done"), "").expect("a file");
    assert!(agent.execute("tickets", "gone").await.is_err(), "it was told to leave");
    assert!(agent.execute("cluster", "here").await.is_ok(), "others were not");
    agent.finish("done").await;
    drop(agent);
    let run = answered(run).await;
    let found: Vec<_> = found(&run);
    let of_tickets = |what, name: &str| ("tickets".to_owned(), what, name.to_owned(), false);
    assert_eq!(
        found,
        [
            of_tickets(ForeignKind::Claim, ".claim-5"),
            of_tickets(ForeignKind::Result, "exec-result-6.json"),
            of_tickets(ForeignKind::Result, &again),
            of_tickets(ForeignKind::Done, "done"),
        ]
    );
}

/// A skill can make any number of files, and not any number of receipts.
#[tokio::test(flavor = "multi_thread")]
async fn findings_are_bounded() {
    let run = start(|_| ());
    let agent = run.agent().await;
    run.first_report().await;
    let tickets = run.volume("tickets");
    for number in 0..200 {
        fs::create_dir(tickets.join(format!("tools/.claim-{number}"))).expect("a claim");
    }
    let _tickets = Executor::echo(tickets);
    assert!(agent.execute("tickets", "a").await.is_ok());
    agent.finish("done").await;
    drop(agent);
    let run = answered(run).await;
    assert_eq!(found(&run).len(), 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_start_gets_a_key_and_a_second_one_ends_the_run() {
    let run = start(|_| ());
    let agent = run.agent().await;
    run.first_report().await;
    let volume = run.volume("cluster");
    let announce = |nonce: &str| announce_start(&volume, nonce, &json!({}));
    let (first, second) = ("0a".repeat(16), "0b".repeat(16));
    announce(&first);
    let key = volume.join(".key");
    run.wait_until("a key is handed over", || key.exists()).await;
    let handed = fs::read_to_string(&key).expect("a key");
    let (start, digits) = handed.trim_end().split_once(' ').expect("two words");
    assert_eq!((start, digits.len()), (first.as_str(), 64));
    fs::remove_file(&key).expect("it is taken");
    // The same announcement again is the same start.
    announce(&first);
    let _cluster = Executor::echo(volume.clone());
    assert!(agent.execute("cluster", "a").await.is_ok());
    assert!(!key.exists(), "a key is handed over once");
    announce(&second);
    let (run, error) = wait_failed(run).await;
    assert_eq!(
        error,
        "the executor of skill pack `cluster` was started again: it has no key for this run any more, and what it was doing may have been done in part"
    );
    assert!(!key.exists(), "there is none for a second start");
    let expected = ("cluster".to_owned(), ForeignKind::Start, ".start".to_owned(), true);
    assert_eq!(found(&run), [expected]);
    // Whatever the agent says.
    drop(agent);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_signed_where_they_are_verified_and_are_what_they_were_elsewhere() {
    let mut run = start(|_| ());
    let agent = run.agent().await;
    let (cluster, tickets) = (run.volume("cluster"), run.volume("tickets"));
    let (executor, image) = (Executor::echo(cluster.clone()), Executor::echo(tickets));
    for line in ["a", "b"] {
        assert!(agent.execute("cluster", line).await.is_ok());
        assert!(agent.execute("tickets", line).await.is_ok());
    }
    assert_eq!(requests(&cluster), Vec::new());
    agent.finish("done").await;
    drop(agent);
    assert_eq!(run.wait_exit().await, 0);
    let counters: Vec<Value> =
        (executor.requests().iter()).map(|request| request["_meta"]["counter"].clone()).collect();
    assert_eq!(counters, [json!(1), json!(2)]);
    for request in executor.requests() {
        let mac = request["_meta"]["mac"].as_str().unwrap_or_default();
        assert_eq!(mac.len(), 64, "{request}");
    }
    for request in image.requests() {
        assert_eq!(request.get("_meta"), None, "{request}");
    }
}
