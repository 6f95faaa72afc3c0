//! The network of a run: no network of its own, and through the gateway only the hosts of its plan (hostile cases 52 to 56).

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::{PACK, Scenario, call, for_each_user, for_each_user_with_probe, pack};

/// The body of the server's responses.
const HELLO: &str = "hello-from-outside";
/// Bytes of a request that the server reads.
const MOST: usize = 4096;

/// A server on this machine's loopback, which counts connections. Its thread ends with the tests.
struct Server {
    address: SocketAddr,
    came: Arc<AtomicUsize>,
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let came = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&came);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                counted.fetch_add(1, Ordering::SeqCst);
                let Ok(mut stream) = stream else { continue };
                let _ = stream.read(&mut [0; MOST]);
                let length = HELLO.len();
                let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{HELLO}");
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        Self { address, came }
    }

    fn port(&self) -> u16 {
        self.address.port()
    }

    fn came(&self) -> usize {
        self.came.load(Ordering::SeqCst)
    }
}

fn policy(allowed: &Value) -> Value {
    json!({
        "apiVersion": "sympozium.ai/v1alpha1", "kind": "SympoziumPolicy", "metadata": {"name": "policy"},
        "spec": {"networkPolicy": {"allowedEgress": allowed}},
    })
}

/// A pack with these programs and egress to these hosts.
fn reaching(programs: &[&str], egress: &Value) -> Value {
    let mut reaching = pack(programs);
    reaching["sidecar"]["egress"] = egress.clone();
    reaching
}

#[test]
fn commands_have_no_network() {
    for_each_user_with_probe(|home| {
        let server = Server::start();
        let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = server.port();
        let attempts = [
            "route-outside".to_owned(),
            "route-outside-ipv6".to_owned(),
            "metadata-service".to_owned(),
            "see-interfaces".to_owned(),
            format!("tcp-connect=127.0.0.1:{port}"),
            format!("tcp-connect=127.1.0.1:{port}"),
            format!("tcp-connect=[::1]:{port}"),
            format!("tcp-connect=[::ffff:127.0.0.1]:{port}"),
            format!("tcp-connect=0.0.0.0:{port}"),
            format!("tcp-connect-by-send=127.0.0.1:{port}"),
            format!("tcp-connect-by-mptcp=127.0.0.1:{port}"),
            "tcp-connect=169.254.169.254:80".to_owned(),
            "tcp-connect=[fd00:ec2::254]:80".to_owned(),
            "tcp-connect=1.1.1.1:443".to_owned(),
            "udp-send=1.1.1.1:53".to_owned(),
            "raw-socket".to_owned(),
            "raw-ipv6-socket".to_owned(),
            "icmp-socket".to_owned(),
            "packet-socket".to_owned(),
            "vsock-socket".to_owned(),
            "sctp-socket".to_owned(),
            "xdp-socket".to_owned(),
            "bluetooth-socket".to_owned(),
        ];
        let attempts: Vec<&str> = attempts.iter().map(String::as_str).collect();
        let mut scenario = Scenario::attempts(&attempts);
        let to_us = datagrams.local_addr().unwrap();
        let more = [format!("probe attempt udp-send={to_us}"), "cat /proc/net/dev".to_owned()];
        scenario.turns.extend(more.iter().map(|it| call(PACK, it)));
        scenario.packs = vec![(PACK.to_owned(), pack(&["probe", "cat"]))];
        let run = home.run(&scenario);
        run.assert_succeeded();
        run.findings(0).assert_refused(attempts);
        // Two header lines, then one line per interface.
        let listing = run.results()[2].clone();
        let interfaces: Vec<&str> =
            (listing.lines().skip(2)).filter_map(|line| Some(line.split_once(':')?.0.trim())).collect();
        assert_eq!(interfaces, ["lo"], "{listing}");
        assert_eq!(server.came(), 0);
        datagrams.set_nonblocking(true).unwrap();
        assert!(datagrams.recv(&mut [0; 16]).is_err());
    });
}

#[test]
fn urls_of_this_machine_are_not_fetched() {
    for_each_user(|home| {
        let server = Server::start();
        let port = server.port();
        let addresses = [
            format!("http://127.0.0.1:{port}/"),
            format!("http://localhost:{port}/"),
            format!("http://2130706433:{port}/"),
            format!("http://0x7f.1:{port}/"),
            format!("http://0177.0.0.1:{port}/"),
            format!("http://[::1]:{port}/"),
            format!("http://[::ffff:127.0.0.1]:{port}/"),
            format!("http://0.0.0.0:{port}/"),
            "http://169.254.169.254/latest/meta-data/".to_owned(),
            "http://[fd00:ec2::254]/".to_owned(),
            "http://metadata.google.internal/".to_owned(),
            "file:///etc/passwd".to_owned(),
        ];
        let fetch = |url: &String| json!({"call": [{"tool": "fetch_url", "arguments": {"url": url}}]});
        let scenario = Scenario {
            turns: addresses.iter().map(fetch).collect(),
            packs: Vec::new(),
            ..Scenario::commands(&[], &[])
        };
        let run = home.run(&scenario);
        run.assert_succeeded();
        assert_eq!(server.came(), 0);
        let results = run.results();
        assert_eq!(results.len(), addresses.len());
        for (address, result) in addresses.iter().zip(&results) {
            let is_told = result.contains(HELLO) || result.contains("root:");
            assert!(!is_told, "{address}: {result}");
        }
    });
}

#[test]
fn a_skill_reaches_only_the_hosts_of_its_plan() {
    for_each_user(|home| {
        let (listed, of_another, unlisted) = (Server::start(), Server::start(), Server::start());
        let egress = |server: &Server| json!([{"host": "localhost", "port": server.port()}]);
        let allowed = json!([
            {"host": "localhost", "port": listed.port()},
            {"host": "localhost", "port": of_another.port()},
        ]);
        // Through the proxy of its environment; `curl` would go to localhost without it.
        let get = |url: &str| format!("curl -sS -m 99 --noproxy '' '{url}'; echo \" code $?\"");
        let at = |server: &Server| format!("http://localhost:{}/", server.port());
        let port = unlisted.port();
        let mut turns = vec![call(PACK, &get(&at(&listed)))];
        let closed = [
            at(&of_another),
            at(&unlisted),
            format!("http://127.0.0.1:{port}/"),
            format!("http://2130706433:{port}/"),
            format!("http://[::1]:{port}/"),
            "http://169.254.169.254/latest/meta-data/".to_owned(),
            "http://metadata.google.internal/".to_owned(),
            "http://example.com/".to_owned(),
        ];
        turns.extend(closed.iter().map(|it| call(PACK, &get(it))));
        // A tunnel, and the same without the proxy.
        let tunnel = |server: &Server| {
            let url = at(server);
            format!("curl -sS -m 99 -p --noproxy '' '{url}'; echo \" code $?\"")
        };
        turns.push(call(PACK, &tunnel(&listed)));
        turns.push(call(PACK, &tunnel(&unlisted)));
        let direct = format!("curl -sS -m 99 --noproxy '*' '{}'; echo \" code $?\"", at(&listed));
        turns.push(call(PACK, &direct));
        // A pack without hosts has neither proxy nor credential, and cannot use a foreign credential.
        let hand = "echo $http_proxy > /workspace/credential";
        turns.push(call(PACK, hand));
        let stolen = format!(
            "echo \"own: $http_proxy\"; curl -sS -m 99 --noproxy '' -x $(cat /workspace/credential) '{}'; echo \" code $?\"",
            at(&listed)
        );
        turns.push(call("closed", &stolen));
        let scenario = Scenario {
            turns,
            packs: vec![
                (PACK.to_owned(), reaching(&["curl", "cat"], &egress(&listed))),
                ("another".to_owned(), reaching(&["curl"], &egress(&of_another))),
                ("closed".to_owned(), pack(&["curl", "cat"])),
            ],
            others: vec![policy(&allowed)],
            ..Scenario::commands(&[], &[])
        };
        let run = home.run(&scenario.patient());
        run.assert_succeeded();
        let results = run.results();
        let (first, rest) = results.split_first().unwrap();
        assert_eq!(first, &format!("{HELLO} code 0"));
        let (refused, rest) = rest.split_at(closed.len());
        for (url, result) in closed.iter().zip(refused) {
            assert!(!result.contains(HELLO), "{url}: {result}");
        }
        let [through, not_through, direct, _, stolen] = rest else {
            panic!("{results:#?}");
        };
        assert_eq!(through, &format!("{HELLO} code 0"));
        assert!(!not_through.contains(HELLO), "{not_through}");
        assert!(!direct.contains(HELLO), "{direct}");
        assert!(stolen.contains("own: \n"), "{stolen}");
        assert!(!stolen.contains(HELLO), "{stolen}");
        assert_eq!(listed.came(), 2);
        assert_eq!((of_another.came(), unlisted.came()), (0, 0));
        // The gateway ended with the run: the credential is useless.
        let credential = fs::read_to_string(run.directory.join("workspace/credential")).unwrap();
        assert!(credential.starts_with("http://"), "{credential}");
    });
}

#[test]
fn programs_without_proxy_support_reach_the_gateway() {
    for_each_user_with_probe(|home| {
        // A name that does not resolve: the test is about the listener and its destination.
        let egress = json!([{"host": "db.nowhere.invalid", "port": 5432}]);
        let scenario = Scenario {
            turns: vec![
                call(PACK, "cat /etc/hosts"),
                call(
                    PACK,
                    "probe attempt tcp-connect=127.1.0.1:5432 tcp-connect=127.1.0.1:5433 tcp-connect=127.1.0.2:5432",
                ),
                call(PACK, "curl -sS -m 20 --noproxy '*' http://db.nowhere.invalid:5432/; echo \" code $?\""),
            ],
            packs: vec![(PACK.to_owned(), reaching(&["probe", "cat", "curl"], &egress))],
            others: vec![policy(&egress)],
            ..Scenario::commands(&[], &[])
        };
        let run = home.run(&scenario);
        run.assert_succeeded();
        let results = run.results();
        let mapped = (results[0].lines())
            .any(|line| line.split_ascii_whitespace().collect::<Vec<_>>() == ["127.1.0.1", "db.nowhere.invalid"]);
        assert!(mapped, "{}", results[0]);
        let findings = run.findings(1);
        findings.assert_possible(["tcp-connect=127.1.0.1:5432"]);
        findings.assert_refused(["tcp-connect=127.1.0.1:5433", "tcp-connect=127.1.0.2:5432"]);
        // There is no server: the program's connection is closed.
        assert!(!results[2].contains(" code 0"), "{}", results[2]);
    });
}
