//! The run's side: a namespace with loopback only, and the forwarder in it.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto};
use sympozium_gateway::forward::{Forward, Forwarder, GatewayAddress};
use sympozium_harness::credential::{now, sign};
use sympozium_harness::plan::Public;
use sympozium_ipc::credential::Credential;
use sympozium_plan::host::Host;
use sympozium_testkit::command;
use tokio::net::UnixListener;

use crate::dns::everybody;
use crate::harness::{Behavior, Catcher, NetworkHarness, RUN, TIMEOUT, run};

/// Set for the test as a skill's command sees it: the socket's path, and the credential's two parts.
const PRISONER: &str = "SYMPOZIUM_TEST_PRISONER";

#[test]
fn e52_direct_ways_out_lead_nowhere_and_forwarders_where_the_plan_says() {
    if let Ok(given) = std::env::var(PRISONER) {
        return prisoner(&given);
    }
    run(e52_direct_ways_out_lead_nowhere_and_forwarders_where_the_plan_says, async || {
        let harness = NetworkHarness::new(Public::Closed, &["db.example.com 5432"], everybody).await;
        let catchers = [53, 80, 443, 5432].map(|port| Catcher::at(port, &Behavior::Greet(b"ready\n")));
        let udp = UdpSocket::bind("0.0.0.0:53").expect("a socket");
        udp.set_nonblocking(true).expect("it can be");
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("gateway");
        let listener = UnixListener::bind(&socket).expect("a listener");
        let gateway = Arc::clone(&harness.gateway);
        tokio::spawn(async move { gateway.serve_unix(listener).await });
        let credential = sign(RUN, "c", now() + 600);
        let given = format!("{} {} {}", socket.display(), credential.user, *credential.password);
        let name = "inside::e52_direct_ways_out_lead_nowhere_and_forwarders_where_the_plan_says";
        let output = tokio::task::spawn_blocking(move || {
            command("unshare")
                .args(["--net", "--map-root-user"])
                .arg(std::env::current_exe().expect("this program"))
                .args(["--exact", name, "--test-threads=1"])
                .env(PRISONER, given)
                .output()
        });
        let output = output.await.expect("it ran").expect("it starts");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        let mut caught = Vec::new();
        for catcher in &catchers {
            caught.push(catcher.caught().await);
        }
        let none = Vec::<String>::new;
        assert_eq!(caught, [none(), none(), none(), vec!["93.184.216.34".into()]]);
        assert!(udp.recv_from(&mut [0; 16]).is_err(), "a datagram got out");
        // The second forwarder's host is not in the plan.
        assert_eq!(
            harness.outcomes().iter().filter(|it| *it == "refused not-in-plan").count(),
            1,
            "{:?}",
            harness.outcomes()
        );
    });
}

/// What a command could try, and what it may do.
fn prisoner(given: &str) {
    let up = command("ip").args(["link", "set", "lo", "up"]).status();
    assert!(up.expect("ip starts").success());
    for target in [
        "8.8.8.8:443",
        "93.184.216.34:5432",
        "169.254.169.254:80",
        "10.0.0.1:80",
        "[2606:4700::1]:443",
        "[fd00:ec2::254]:80",
        "[::ffff:169.254.169.254]:80",
        "127.0.0.1:80",
        "[::1]:80",
    ] {
        let target: SocketAddr = target.parse().expect("an address");
        let direct = TcpStream::connect_timeout(&target, Duration::from_secs(5));
        assert!(direct.is_err(), "TCP to {target}");
        if !target.ip().is_loopback() {
            let own = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let datagram = UdpSocket::bind(own).expect("a socket");
            for port in [53, 443] {
                let target = SocketAddr::new(target.ip(), port);
                assert!(datagram.send_to(b"secret", target).is_err(), "UDP to {target}");
            }
        }
    }
    assert!(std::net::ToSocketAddrs::to_socket_addrs("secret.evil.example:80").is_err());
    for (protocol, kind) in
        [(ipproto::ICMP, SocketType::RAW), (ipproto::UDP, SocketType::RAW), (ipproto::ICMP, SocketType::DGRAM)]
    {
        let sent = rustix::net::socket(AddressFamily::INET, kind, Some(protocol)).and_then(|socket| {
            let target: SocketAddr = "8.8.8.8:0".parse().expect("an address");
            rustix::net::sendto(&socket, &[8, 0, 0xf7, 0xff, 0, 0, 0, 0], SendFlags::empty(), &target)
        });
        assert!(sent.is_err(), "{protocol:?} {kind:?}");
    }

    let words: Vec<&str> = given.split(' ').collect();
    let credential = Credential { user: words[1].to_owned(), password: words[2].to_owned().into() };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let to = |host: &str| Forward {
        local: ([127, 0, 0, 1], 0).into(),
        host: Host::parse(host).expect("a host"),
        port: 5432,
    };
    let forwards = [to("db.example.com"), to("other.example.com")];
    let gateway = GatewayAddress::Unix(words[0].into());
    let forwarder = runtime.block_on(Forwarder::bind(&forwards, gateway, &credential));
    let forwarder = forwarder.expect("it listens");
    let ports = forwarder.ports().expect("ports");
    runtime.spawn(forwarder.run());
    let open = |port: u16| {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        stream.set_read_timeout(Some(TIMEOUT)).expect("it can be");
        stream
    };
    // The other side speaks first, as databases and ssh do.
    let mut allowed = open(ports[0]);
    let mut greeting = [0; 6];
    allowed.read_exact(&mut greeting).expect("a greeting");
    assert_eq!(&greeting, b"ready\n");
    allowed.write_all(b"select 1").expect("it reads");
    let mut back = [0; 8];
    allowed.read_exact(&mut back).expect("an echo");
    assert_eq!(&back, b"select 1");
    let mut refused = Vec::new();
    let _ = open(ports[1]).read_to_end(&mut refused);
    assert_eq!(refused, b"");
}
