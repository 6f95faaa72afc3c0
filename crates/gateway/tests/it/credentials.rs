//! Who may ask: credentials that are not what they should be, and runs that are over.

use std::time::{Duration, Instant};

use sympozium_gateway::Settings;
use sympozium_harness::credential::{now, sign};
use sympozium_harness::plan::{Public, credential};
use sympozium_ipc::credential::{Claims, KEY_BYTES, KeyRing};
use sympozium_testkit::{growing, wait_until};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::dns::everybody;
use crate::harness::{Behavior, Catcher, NetworkHarness, RUN, TIMEOUT, authorization, echoes, read_all, run};

async fn answer_to(harness: &NetworkHarness, authorization: &str) -> String {
    let mut stream = TcpStream::connect(harness.address).await.expect("it listens");
    let head = format!("CONNECT api.example.com:8080 HTTP/1.1\r\nHost: api.example.com:8080\r\n{authorization}\r\n");
    stream.write_all(head.as_bytes()).await.expect("it reads");
    stream.shutdown().await.expect("it can be closed");
    String::from_utf8(read_all(&mut stream).await).expect("text")
}

#[test]
fn forged_credentials_all_get_the_same_answer_and_the_log_knows_why() {
    run(forged_credentials_all_get_the_same_answer_and_the_log_knows_why, async || {
        let harness = NetworkHarness::new(Public::Closed, &["api.example.com 8080"], everybody).await;
        let catcher = Catcher::at(8080, &Behavior::Echo);
        let good = sign(RUN, "c", now() + 600);
        let other_key = KeyRing::single("k1", [8; KEY_BYTES]).expect("a key");
        let unknown_key = KeyRing::single("k2", [9; KEY_BYTES]).expect("a key");
        let claims = Claims { run: RUN.into(), name: "c".into(), expires: now() + 600 };
        let mut other_password = good.clone();
        other_password.password = "0".repeat(64).into();
        let mut other_run = good.clone();
        other_run.user = good.user.replace("2a11", "2a12");
        let mut other_name = good.clone();
        other_name.user = good.user.replace(".c.", ".d.");
        let mut later = good.clone();
        later.user = format!("{}9", good.user);
        let cases = [
            (String::new(), "credential-missing"),
            ("Proxy-Authorization: Bearer x\r\n".into(), "credential-malformed"),
            (authorization(&other_password), "credential-forged"),
            (authorization(&other_run), "credential-forged"),
            (authorization(&other_name), "credential-forged"),
            (authorization(&later), "credential-forged"),
            (authorization(&other_key.sign(&claims).expect("it fits")), "credential-forged"),
            (authorization(&unknown_key.sign(&claims).expect("it fits")), "credential-unknown-key"),
            (authorization(&sign(RUN, "c", now())), "credential-expired"),
            (authorization(&sign(RUN, "d", now() + 600)), "credential-not-planned"),
            (authorization(&sign("another-run", "c", now() + 600)), "run-unknown"),
        ];
        let mut answers = Vec::new();
        for (sent, _) in &cases {
            answers.push(answer_to(&harness, sent).await);
        }
        assert!(answers[0].starts_with("HTTP/1.1 407 "), "{}", answers[0]);
        assert!(answers.iter().all(|it| *it == answers[0]), "{answers:#?}");
        let expected: Vec<String> = cases.iter().map(|(_, it)| format!("refused {it}")).collect();
        assert_eq!(harness.outcomes(), expected);
        assert_eq!(catcher.caught().await, Vec::<String>::new());
        assert_eq!(harness.dns.asked(), Vec::<String>::new());
        assert!(answer_to(&harness, &authorization(&good)).await.starts_with("HTTP/1.1 200 "));
    });
}

#[test]
fn a_credential_opens_what_is_listed_for_it_and_not_for_another() {
    run(a_credential_opens_what_is_listed_for_it_and_not_for_another, async || {
        let harness = NetworkHarness::new(Public::Closed, &["api.example.com 8080"], everybody).await;
        let _catcher = Catcher::at(8080, &Behavior::Echo);
        let other = [credential("c", Public::Closed, &["other.example.com 8080"])];
        harness.gateway.plans().add_credentials("second", &other).expect("a plan");
        let own = sign("second", "c", now() + 600);
        let answer = answer_to(&harness, &authorization(&own)).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        assert!(harness.tunnel("api.example.com:8080").await.is_ok());
        assert!(harness.tunnel("other.example.com:8080").await.is_err());
    });
}

#[test]
fn e56_when_a_run_is_over_its_tunnels_are_cut_and_nothing_opens_again() {
    run(e56_when_a_run_is_over_its_tunnels_are_cut_and_nothing_opens_again, async || {
        let harness = NetworkHarness::new(Public::Closed, &["api.example.com 8080"], everybody).await;
        let _catcher = Catcher::at(8080, &Behavior::Echo);
        let other = [credential("c", Public::Closed, &["api.example.com 8080"])];
        harness.gateway.plans().add_credentials("second", &other).expect("a plan");
        let mut tunnel = harness.tunnel("api.example.com:8080").await.expect("allowed");
        assert!(echoes(&mut tunnel, b"before").await);
        assert!(harness.gateway.plans().end(RUN));
        assert_eq!(read_all(&mut tunnel).await, b"");
        harness.wait_for("ended run-over").await;
        let answer = answer_to(&harness, &harness.authorization()).await;
        assert!(answer.starts_with("HTTP/1.1 407 "), "{answer}");
        assert_eq!(harness.outcomes().last().map(String::as_str), Some("refused run-over"));
        // The other run goes on.
        let second = authorization(&sign("second", "c", now() + 600));
        assert!(answer_to(&harness, &second).await.starts_with("HTTP/1.1 200 "));
    });
}

#[test]
fn e56_when_the_gateway_ends_everything_is_cut() {
    run(e56_when_the_gateway_ends_everything_is_cut, async || {
        let harness = NetworkHarness::new(Public::Closed, &["api.example.com 8080"], everybody).await;
        let catcher = Catcher::at(8080, &Behavior::Echo);
        let mut tunnel = harness.tunnel("api.example.com:8080").await.expect("allowed");
        assert!(echoes(&mut tunnel, b"before").await);
        harness.gateway.shut_down();
        assert_eq!(read_all(&mut tunnel).await, b"");
        harness.wait_for("ended gateway-ending").await;
        let mut late = TcpStream::connect(harness.address).await.expect("it listens");
        assert_eq!(read_all(&mut late).await, b"");
        assert_eq!(catcher.caught().await.len(), 1);
    });
}

#[test]
fn a_tunnel_ends_when_its_credential_expires() {
    run(a_tunnel_ends_when_its_credential_expires, async || {
        let _catcher = Catcher::at(8080, &Behavior::Greet(b"hello"));
        // A machine that is too slow to open a tunnel before its credential expires gets one for longer.
        for time in growing(Duration::from_secs(2)) {
            let harness =
                NetworkHarness::with(Settings::default(), Public::Closed, &["api.example.com 8080"], everybody).await;
            let started = Instant::now();
            let soon = authorization(&sign(RUN, "c", now() + time.as_secs()));
            let mut stream = TcpStream::connect(harness.address).await.expect("it listens");
            let head = format!("CONNECT api.example.com:8080 HTTP/1.1\r\nHost: api.example.com:8080\r\n{soon}\r\n");
            stream.write_all(head.as_bytes()).await.expect("it reads");
            let all = read_all(&mut stream).await;
            if !all.ends_with(b"hello") {
                // Credentials expire at whole seconds.
                assert!(started.elapsed() + Duration::from_secs(1) >= time, "{all:?}");
                continue;
            }
            harness.wait_for("ended credential-expired").await;
            return;
        }
        panic!("this machine is too slow");
    });
}

#[test]
fn e55_no_event_holds_a_password() {
    run(e55_no_event_holds_a_password, async || {
        let harness = NetworkHarness::new(Public::Closed, &["api.example.com 8080"], everybody).await;
        let _catcher = Catcher::at(8080, &Behavior::Echo);
        let good = sign(RUN, "c", now() + 600);
        let _ = answer_to(&harness, &authorization(&good)).await;
        let mut wrong = good.clone();
        wrong.user = "k1.x.y.1".into();
        let _ = answer_to(&harness, &authorization(&wrong)).await;
        let done = || harness.outcomes().len() >= 3;
        assert!(tokio::task::block_in_place(|| wait_until(TIMEOUT, done)));
        let mut watcher = harness.gateway.events().subscribe(1);
        while let Some(Ok(event)) = watcher.try_next() {
            let text = serde_json::to_string(&*event).expect("JSON");
            assert!(!text.contains(good.password.as_str()), "{text}");
        }
    });
}
