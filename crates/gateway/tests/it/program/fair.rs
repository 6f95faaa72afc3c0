//! Peers that hold whatever they can get do not keep a run from its work.

use std::net::SocketAddr;
use std::time::Instant;

use tokio::net::TcpSocket;

use super::*;

/// The most that the gateway takes in this test.
const CONNECTIONS: usize = 256;
/// Of which a hostile peer wants so many: four of them more than there are.
const WANTED: usize = 80;
/// And gets so many.
const OF_PEER: usize = 16;

async fn connect_from(own: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    let own: SocketAddr = format!("{own}:0").parse().expect("an address");
    socket.bind(own).expect("an address of this machine");
    let gateway = "127.0.0.1:3128".parse().expect("an address");
    socket.connect(gateway).await.expect("it listens")
}

/// The value of a line of the metrics.
async fn metric(line: &str) -> usize {
    let mut probe = TcpStream::connect("127.0.0.1:3129").await.expect("it listens");
    let head = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
    probe.write_all(head).await.expect("it reads");
    let text = String::from_utf8(read_all(&mut probe).await).expect("text");
    let value = text.lines().find_map(|it| it.strip_prefix(line));
    value.map_or(0, |it| it.trim().parse().expect("a number"))
}

#[test]
fn hostile_peers_without_a_credential_leave_a_run_its_work() {
    run(hostile_peers_without_a_credential_leave_a_run_its_work, async || {
        let dns = Dns::start(everybody).await;
        let _catcher = Catcher::at(443, &Behavior::Echo);
        let most = format!("--max-connections={CONNECTIONS}");
        let program = Program::start(&dns, &[&most]);
        let started = Instant::now();
        let mut hostile = Vec::new();
        for peer in ["127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"] {
            for _ in 0..WANTED {
                hostile.push(connect_from(peer).await);
            }
        }
        // Connections are accepted in their order: theirs come before those of the run.
        let mut tunnels = Vec::new();
        for _ in 0..3 {
            tunnels.push(program.busy_tunnel().await);
        }
        // None of theirs has been closed for its silence if this was quick, and none is more than it may be.
        let silent = metric("sympozium_gateway_connections_unauthenticated ").await;
        assert!(silent <= 4 * OF_PEER, "{silent} hold a connection");

        // Some are told why; the others are closed.
        let mut with_reason = 0;
        for mut stream in hostile {
            let answer = read_all(&mut stream).await;
            if answer.starts_with(b"HTTP/1.1 429 ") {
                let answer = String::from_utf8_lossy(&answer).into_owned();
                assert!(answer.contains("Sympozium-Reason: unauthenticated-of-peer"), "{answer}");
                with_reason += 1;
            }
        }
        assert!(with_reason > 0);
        let line = "sympozium_gateway_refusals_total{reason=\"unauthenticated-of-peer\"} ";
        let refused = metric(line).await;
        assert!(refused >= with_reason, "{refused} of {with_reason}");
        // The log has a line every ten seconds, not one for each.
        let log = program.daemon.log();
        let lines = log.matches("a connection was refused").count() as u64;
        let most = 1 + started.elapsed().as_secs() / 10;
        assert!((1..=most).contains(&lines), "{lines} lines of {refused}");
        for mut tunnel in tunnels {
            assert!(echoes(&mut tunnel, b"still open").await);
        }
    });
}
