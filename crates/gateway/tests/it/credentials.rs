//! Who may ask: credentials that are not what they should be, and runs that are over.

use std::time::{Duration, Instant};

use sympozium_gateway::Settings;
use sympozium_ipc::credential::{Claims, KEY_BYTES, KeyRing};
use sympozium_testkit::{growing, wait_until};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::dns::everybody;
use crate::harness::{
    Catcher, Manner, NetworkHarness, RUN, TIMEOUT, authorization, credential, echoes, now, read_all, run, signed,
};

async fn answer_to(world: &NetworkHarness, authorization: &str) -> String {
    let mut stream = TcpStream::connect(world.address).await.expect("it listens");
    let head = format!("CONNECT api.example.com:8080 HTTP/1.1\r\nHost: api.example.com:8080\r\n{authorization}\r\n");
    stream.write_all(head.as_bytes()).await.expect("it reads");
    stream.shutdown().await.expect("it can be closed");
    String::from_utf8(read_all(&mut stream).await).expect("text")
}

#[test]
fn forged_credentials_all_get_the_same_answer_and_the_log_knows_why() {
    run(forged_credentials_all_get_the_same_answer_and_the_log_knows_why, async || {
        let world = NetworkHarness::new(false, &["api.example.com 8080"], everybody).await;
        let catcher = Catcher::at(8080, &Manner::Echo);
        let good = signed(RUN, "c", now() + 600);
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
            (authorization(&signed(RUN, "c", now())), "credential-expired"),
            (authorization(&signed(RUN, "d", now() + 600)), "credential-not-planned"),
            (authorization(&signed("another-run", "c", now() + 600)), "run-unknown"),
        ];
        let mut answers = Vec::new();
        for (sent, _) in &cases {
            answers.push(answer_to(&world, sent).await);
        }
        assert!(answers[0].starts_with("HTTP/1.1 407 "), "{}", answers[0]);
        assert!(answers.iter().all(|it| *it == answers[0]), "{answers:#?}");
        let expected: Vec<String> = cases.iter().map(|(_, it)| format!("refused {it}")).collect();
        assert_eq!(world.outcomes(), expected);
        assert_eq!(catcher.caught().await, Vec::<String>::new());
        assert_eq!(world.dns.asked(), Vec::<String>::new());
        assert!(answer_to(&world, &authorization(&good)).await.starts_with("HTTP/1.1 200 "));
    });
}

#[test]
fn a_credential_opens_what_is_listed_for_it_and_not_for_another() {
    run(a_credential_opens_what_is_listed_for_it_and_not_for_another, async || {
        let world = NetworkHarness::new(false, &["api.example.com 8080"], everybody).await;
        let _catcher = Catcher::at(8080, &Manner::Echo);
        let other = [credential("c", false, &["other.example.com 8080"])];
        world.gateway.plans().add_credentials("second", &other).expect("a plan");
        let own = signed("second", "c", now() + 600);
        let answer = answer_to(&world, &authorization(&own)).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        assert!(world.tunnel("api.example.com:8080").await.is_ok());
        assert!(world.tunnel("other.example.com:8080").await.is_err());
    });
}

#[test]
fn e56_when_a_run_is_over_its_tunnels_are_cut_and_nothing_opens_again() {
    run(e56_when_a_run_is_over_its_tunnels_are_cut_and_nothing_opens_again, async || {
        let world = NetworkHarness::new(false, &["api.example.com 8080"], everybody).await;
        let _catcher = Catcher::at(8080, &Manner::Echo);
        let other = [credential("c", false, &["api.example.com 8080"])];
        world.gateway.plans().add_credentials("second", &other).expect("a plan");
        let mut tunnel = world.tunnel("api.example.com:8080").await.expect("allowed");
        assert!(echoes(&mut tunnel, b"before").await);
        assert!(world.gateway.plans().end(RUN));
        assert_eq!(read_all(&mut tunnel).await, b"");
        world.wait_for("ended run-over").await;
        let answer = answer_to(&world, &world.authorization()).await;
        assert!(answer.starts_with("HTTP/1.1 407 "), "{answer}");
        assert_eq!(world.outcomes().last().map(String::as_str), Some("refused run-over"));
        // The other run goes on.
        let second = authorization(&signed("second", "c", now() + 600));
        assert!(answer_to(&world, &second).await.starts_with("HTTP/1.1 200 "));
    });
}

#[test]
fn e56_when_the_gateway_ends_everything_is_cut() {
    run(e56_when_the_gateway_ends_everything_is_cut, async || {
        let world = NetworkHarness::new(false, &["api.example.com 8080"], everybody).await;
        let catcher = Catcher::at(8080, &Manner::Echo);
        let mut tunnel = world.tunnel("api.example.com:8080").await.expect("allowed");
        assert!(echoes(&mut tunnel, b"before").await);
        world.gateway.shut_down();
        assert_eq!(read_all(&mut tunnel).await, b"");
        world.wait_for("ended gateway-ending").await;
        let mut late = TcpStream::connect(world.address).await.expect("it listens");
        assert_eq!(read_all(&mut late).await, b"");
        assert_eq!(catcher.caught().await.len(), 1);
    });
}

#[test]
fn a_tunnel_ends_when_its_credential_expires() {
    run(a_tunnel_ends_when_its_credential_expires, async || {
        let _catcher = Catcher::at(8080, &Manner::Greet(b"hello"));
        // A machine that is too slow to open a tunnel before its credential expires gets one for longer.
        for time in growing(Duration::from_secs(2)) {
            let world = NetworkHarness::with(Settings::default(), false, &["api.example.com 8080"], everybody).await;
            let started = Instant::now();
            let soon = authorization(&signed(RUN, "c", now() + time.as_secs()));
            let mut stream = TcpStream::connect(world.address).await.expect("it listens");
            let head = format!("CONNECT api.example.com:8080 HTTP/1.1\r\nHost: api.example.com:8080\r\n{soon}\r\n");
            stream.write_all(head.as_bytes()).await.expect("it reads");
            let all = read_all(&mut stream).await;
            if !all.ends_with(b"hello") {
                // Credentials expire at whole seconds.
                assert!(started.elapsed() + Duration::from_secs(1) >= time, "{all:?}");
                continue;
            }
            world.wait_for("ended credential-expired").await;
            return;
        }
        panic!("this machine is too slow");
    });
}

#[test]
fn e55_no_event_holds_a_password() {
    run(e55_no_event_holds_a_password, async || {
        let world = NetworkHarness::new(false, &["api.example.com 8080"], everybody).await;
        let _catcher = Catcher::at(8080, &Manner::Echo);
        let good = signed(RUN, "c", now() + 600);
        let _ = answer_to(&world, &authorization(&good)).await;
        let mut wrong = good.clone();
        wrong.user = "k1.x.y.1".into();
        let _ = answer_to(&world, &authorization(&wrong)).await;
        let done = || world.outcomes().len() >= 3;
        assert!(tokio::task::block_in_place(|| wait_until(TIMEOUT, done)));
        let mut watcher = world.gateway.events().subscribe(1);
        while let Some(Ok(event)) = watcher.try_next() {
            let text = serde_json::to_string(&*event).expect("JSON");
            assert!(!text.contains(good.password.as_str()), "{text}");
        }
    });
}
