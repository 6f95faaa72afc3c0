//! Heads of requests: one way to read them, and no connection for any that the plan does not list.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use sympozium_gateway::resolve::ResolveError;
use sympozium_gateway::{Gateway, NetworkAccess, Settings};
use sympozium_harness::credential::{keys, now, sign};
use sympozium_harness::plan::{Public, credential};
use sympozium_testkit::cases;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

use crate::harness::{RUN, authorization};

/// Records which names were resolved and connected to, and connects to none.
#[derive(Clone, Default)]
struct Recorder {
    resolved: Arc<Mutex<Vec<String>>>,
    connected: Arc<Mutex<Vec<SocketAddr>>>,
}

impl NetworkAccess for Recorder {
    type Stream = DuplexStream;

    async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, ResolveError> {
        self.resolved.lock().expect("not poisoned").push(name.to_owned());
        Ok(vec![IpAddr::from([1, 2, 3, 4])])
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<DuplexStream> {
        self.connected.lock().expect("not poisoned").push(address);
        // The other end is dropped: an end of file.
        Ok(duplex(64).0)
    }
}

/// What a client that sends this gets back, and what it made the gateway do.
async fn sent(bytes: &[u8]) -> (String, Recorder) {
    let outside = Recorder::default();
    let gateway = Gateway::new(keys(), Settings::default(), outside.clone());
    let planned =
        [credential("c", Public::Closed, &["api.example.com 443", "*.cdn.example.com 8080", "10.0.0.7 5432"])];
    gateway.plans().add_credentials(RUN, &planned).expect("a plan");
    let (mut client, ours) = duplex(1 << 20);
    client.write_all(bytes).await.expect("room for it");
    client.shutdown().await.expect("it can be closed");
    gateway.serve(ours).await;
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).await.expect("it was closed");
    (String::from_utf8_lossy(&answer).into_owned(), outside)
}

impl Recorder {
    fn did(&self) -> (Vec<String>, Vec<String>) {
        let resolved = self.resolved.lock().expect("not poisoned").clone();
        let connected = self.connected.lock().expect("not poisoned");
        (resolved, connected.iter().map(ToString::to_string).collect())
    }
}

fn good() -> String {
    authorization(&sign(RUN, "c", now() + 600))
}

#[tokio::test]
async fn ambiguous_heads_open_no_connection() {
    let auth = good();
    let target = "CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\n";
    let page = "GET http://x.cdn.example.com:8080/ HTTP/1.1\r\nHost: x.cdn.example.com:8080\r\n";
    for (what, head, status) in [
        ("bare line feed", format!("{target}{auth}").replace("\r\n", "\n") + "\n", "400"),
        ("folded line", format!("{target}{auth}X: a\r\n b\r\n\r\n"), "400"),
        ("NUL", format!("{target}{auth}X: \0\r\n\r\n"), "400"),
        ("space before colon", format!("{target}{auth}X : y\r\n\r\n"), "400"),
        ("two hosts", format!("{target}{auth}Host: other\r\n\r\n"), "400"),
        ("another host", format!("{}{auth}\r\n", target.replace("Host: api", "Host: xpi")), "400"),
        ("both lengths", format!("{page}{auth}Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"), "400"),
        ("two lengths", format!("{page}{auth}Content-Length: 1\r\nContent-Length: 1\r\n\r\n"), "400"),
        ("odd encoding", format!("{page}{auth}Transfer-Encoding: gzip, chunked\r\n\r\n"), "400"),
        ("a tunnel with a body", format!("{target}{auth}Content-Length: 3\r\n\r\nabc"), "400"),
        ("a path", format!("GET / HTTP/1.1\r\nHost: api.example.com\r\n{auth}\r\n"), "400"),
        ("https", format!("GET https://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n{auth}\r\n"), "400"),
        (
            "a user",
            format!(
                "GET http://api.example.com@x.cdn.example.com:8080/ HTTP/1.1\r\nHost: x.cdn.example.com:8080\r\n{auth}\r\n"
            ),
            "400",
        ),
        ("two credentials", format!("{target}{auth}{auth}\r\n"), "407"),
        ("too many headers", format!("{target}{auth}{}\r\n", "X: y\r\n".repeat(64)), "431"),
        ("too long", format!("{target}{auth}X: {}\r\n\r\n", "y".repeat(16 * 1024)), "431"),
        ("another port", format!("{}{auth}\r\n", target.replace("443", "80")), "403"),
        ("another host", format!("{}{auth}\r\n", target.replace("api", "apo")), "403"),
    ] {
        let (answer, outside) = sent(head.as_bytes()).await;
        assert_eq!(answer.get(9..12), Some(status), "{what}: {answer}");
        assert_eq!(outside.did(), (vec![], vec![]), "{what}");
    }
    let (answer, outside) = sent(format!("{target}{auth}\r\n").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(outside.did(), (vec!["api.example.com".into()], vec!["1.2.3.4:443".into()]));
}

#[tokio::test]
async fn nothing_is_looked_at_before_the_credential() {
    for line in ["CONNECT api.example.com:443", "CONNECT nonsense", "GET /", "GET http://169.254.169.254/"] {
        let head = format!("{line} HTTP/1.1\r\nHost: x\r\n\r\n");
        let (answer, outside) = sent(head.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 407 "), "{line}: {answer}");
        assert_eq!(outside.did(), (vec![], vec![]));
    }
}

/// Hosts that look like the listed ones.
fn host() -> impl Strategy<Value = String> {
    prop_oneof![
        "([a-c]\\.)?(api|cdn|x\\.cdn)\\.example\\.(com|org)",
        "(api\\.example\\.com|x\\.cdn\\.example\\.com)[.@%:/\\\\#?a]{0,2}(evil\\.example)?",
        "[0-9.x]{1,12}",
        "10\\.0\\.0\\.[78]",
        "\\[[0-9a-f:.%]{2,20}\\]",
        "[ -~]{0,20}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cases::is_full() { 20_000 } else { 1_000 }))]
    #[test]
    fn no_head_outside_the_list_ever_causes_a_connection(
        host in host(), port in prop_oneof![Just("443"), Just("8080"), Just("5432"), Just("80"), Just("0443"), Just("")],
        other in prop::option::of(host()), tunnel: bool, extra in "([A-Za-z-]{1,10}: [ -~]{0,20}\r\n){0,2}",
        version in prop_oneof![Just("HTTP/1.1"), Just("HTTP/1.0"), Just("HTTP/2")],
    ) {
        let authority = if port.is_empty() { host.clone() } else { format!("{host}:{port}") };
        let line = if tunnel { format!("CONNECT {authority}") } else { format!("GET http://{authority}/") };
        let host_header = other.unwrap_or_else(|| authority.clone());
        let head = format!("{line} {version}\r\nHost: {host_header}\r\n{}{extra}\r\n", good());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (answer, outside) = runtime.block_on(sent(head.as_bytes()));
        let (resolved, connected) = outside.did();
        let lower = authority.to_ascii_lowercase();
        let listed = lower == "api.example.com:443"
            || lower == "10.0.0.7:5432"
            || (lower.ends_with(".cdn.example.com:8080") && lower.bytes().all(|it| it.is_ascii_alphanumeric() || b".:-".contains(&it)));
        if !listed {
            prop_assert_eq!((resolved, connected), (vec![], vec![]), "{} {}", head, answer);
        } else if !connected.is_empty() {
            prop_assert_eq!(connected.len(), 1);
            let expected = if lower.starts_with("10.") { "10.0.0.7:5432".to_owned() } else { format!("1.2.3.4:{port}") };
            prop_assert_eq!(&connected[0], &expected);
        }
    }
}
