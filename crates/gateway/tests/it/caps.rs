//! Bounds of count, bytes and time.

use std::time::{Duration, Instant};

use sympozium_gateway::Settings;
use sympozium_harness::plan::Public;
use sympozium_testkit::growing;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::dns::everybody;
use crate::harness::{Behavior, Catcher, NetworkHarness, echoes, read_all, read_head, reason_of, run};

const TARGET: &str = "api.example.com:8080";
const LISTED: &[&str] = &["api.example.com 8080"];

#[test]
fn connections_are_counted_for_credential_run_and_all() {
    run(connections_are_counted_for_credential_run_and_all, async || {
        let _catcher = Catcher::at(8080, &Behavior::Echo);
        let settings = |of_credential, of_run, all| Settings {
            connections_of_credential: of_credential,
            connections_of_run: of_run,
            connections: all,
            ..Settings::default()
        };
        for (settings, reason) in [
            (settings(2, 9, 9), "connections-of-credential"),
            (settings(9, 2, 9), "connections-of-run"),
            (settings(9, 9, 2), "connections"),
        ] {
            let harness = NetworkHarness::with(settings, Public::Closed, LISTED, everybody).await;
            let first = harness.tunnel(TARGET).await.expect("the first");
            let _second = harness.tunnel(TARGET).await.expect("the second");
            assert_eq!(harness.tunnel(TARGET).await.expect_err("the third"), reason);
            drop(first);
            harness.wait_for("ended closed").await;
            // One that went makes room for one.
            let mut again = harness.tunnel(TARGET).await;
            for _ in 0..1000 {
                if again.is_ok() {
                    break;
                }
                tokio::task::yield_now().await;
                again = harness.tunnel(TARGET).await;
            }
            assert!(again.is_ok(), "{again:?}");
        }
    });
}

#[test]
fn bytes_are_counted_for_connection_credential_and_run() {
    run(bytes_are_counted_for_connection_credential_and_run, async || {
        let _catcher = Catcher::at(8080, &Behavior::Echo);
        let settings = |connection, of_credential, of_run| Settings {
            bytes_of_connection: connection,
            bytes_of_credential: of_credential,
            bytes_of_run: of_run,
            ..Settings::default()
        };
        const MUCH: u64 = 1 << 40;
        for (settings, reason, again) in [
            (settings(1000, MUCH, MUCH), "bytes-of-connection", true),
            (settings(MUCH, 1000, MUCH), "bytes-of-credential", false),
            (settings(MUCH, MUCH, 1000), "bytes-of-run", false),
        ] {
            let harness = NetworkHarness::with(settings, Public::Closed, LISTED, everybody).await;
            let mut tunnel = harness.tunnel(TARGET).await.expect("allowed");
            // There and back: all that may be.
            assert!(echoes(&mut tunnel, &[1; 500]).await);
            assert!(!echoes(&mut tunnel, &[1; 1]).await, "{reason}");
            harness.wait_for(&format!("ended {reason}")).await;
            assert_eq!(harness.tunnel(TARGET).await.is_ok(), again, "{reason}");
        }
    });
}

#[test]
fn silence_and_length_end_a_tunnel_and_bytes_keep_it() {
    run(silence_and_length_end_a_tunnel_and_bytes_keep_it, async || {
        let _catcher = Catcher::at(8080, &Behavior::Echo);
        // A machine that is too slow for a limit gets a longer one.
        let mut in_time = false;
        for idle_limit in growing(Duration::from_millis(200)) {
            let idle = Settings { idle_limit, ..Settings::default() };
            let harness = NetworkHarness::with(idle, Public::Closed, LISTED, everybody).await;
            let started = Instant::now();
            let mut tunnel = harness.tunnel(TARGET).await;
            let echoed = match &mut tunnel {
                Ok(tunnel) => echoes(tunnel, b"x").await,
                Err(_) => false,
            };
            let (Ok(mut tunnel), true) = (tunnel, echoed) else {
                assert!(started.elapsed() >= idle_limit, "{:?}", harness.outcomes());
                continue;
            };
            assert_eq!(read_all(&mut tunnel).await, b"");
            harness.wait_for("ended idle").await;
            in_time = true;
            break;
        }
        assert!(in_time);

        let mut in_time = false;
        for connection_limit in growing(Duration::from_millis(300)) {
            let long = Settings { connection_limit, ..Settings::default() };
            let harness = NetworkHarness::with(long, Public::Closed, LISTED, everybody).await;
            let started = Instant::now();
            let Ok(mut tunnel) = harness.tunnel(TARGET).await else {
                assert!(started.elapsed() >= connection_limit);
                continue;
            };
            while echoes(&mut tunnel, b"x").await {}
            assert!(started.elapsed() >= connection_limit);
            harness.wait_for("ended too-long").await;
            in_time = true;
            break;
        }
        assert!(in_time);
    });
}

#[test]
fn heads_that_do_not_come_hold_nothing_open() {
    run(heads_that_do_not_come_hold_nothing_open, async || {
        // A machine that is too slow to say anything before the deadline gets a longer one.
        for head_deadline in growing(Duration::from_millis(200)) {
            let settings = Settings { head_timeout: head_deadline, ..Settings::default() };
            let harness = NetworkHarness::with(settings, Public::Closed, LISTED, everybody).await;
            let mut silent = TcpStream::connect(harness.address).await.expect("it listens");
            assert_eq!(read_all(&mut silent).await, b"");
            let started = Instant::now();
            let mut slow = TcpStream::connect(harness.address).await.expect("it listens");
            let written = slow.write_all(b"CONNECT a").await;
            if started.elapsed() < head_deadline {
                written.expect("it reads");
                let answer = read_head(&mut slow).await;
                assert_eq!(reason_of(&answer).as_deref(), Some("head-slow"));
                return;
            }
        }
        panic!("this machine is too slow");
    });
}

#[test]
fn no_peer_at_the_other_end() {
    run(no_peer_at_the_other_end, async || {
        let harness = NetworkHarness::new(Public::Closed, LISTED, everybody).await;
        assert_eq!(harness.tunnel(TARGET).await.expect_err("refused"), "connect-failed");
        assert_eq!(harness.outcomes(), ["refused connect-failed"]);
    });
}
