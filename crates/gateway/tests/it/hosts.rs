//! Hosts that are never reached, in every notation.

use sympozium_gateway::Settings;
use sympozium_gateway::settings::Loopback;
use sympozium_harness::plan::Public;

use crate::dns::{Answer, addresses, everybody};
use crate::harness::{Behavior, Catcher, NetworkHarness, echoes, run};

/// With a plan that opens all that is public.
const NEVER: &[&str] = &[
    "127.0.0.1",
    "127.8.8.8",
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.0.1",
    "100.64.0.1",
    "100.100.100.200",
    "168.63.129.16",
    "169.254.169.254",
    "169.254.170.2",
    "198.18.0.1",
    "192.0.0.192",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "[::]",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:169.254.169.254]",
    "[::ffff:7f00:1]",
    "[::127.0.0.1]",
    "[::ffff:0:10.0.0.1]",
    "[64:ff9b::a9fe:a9fe]",
    "[64:ff9b::10.0.0.1]",
    "[2002:7f00:1::]",
    "[2002:a9fe:a9fe::1]",
    "[2001:0:808:808::f5ff:fffe]",
    "[fe80::1]",
    "[fe80::1%lo]",
    "[fe80::1%25lo]",
    "[fc00::1]",
    "[fd00:ec2::254]",
    "[fec0::1]",
    "[ff02::1]",
    "[2001:db8::1]",
    "localhost",
    "LOCALHOST",
    "x.localhost",
    "localhost.",
    "ip6-localhost",
    "metadata",
    "metadata.google.internal",
    "instance-data",
    "kubernetes.default.svc",
    "2130706433",
    "0x7f000001",
    "0x7f.1",
    "0177.0.0.1",
    "017700000001",
    "127.1",
    "127.0.1",
    "1.1",
    "127.0.0.1.",
    "127.0.0.01",
    "①②⑦.0.0.1",
];

#[test]
fn e52_no_notation_of_a_private_or_special_address_gets_out() {
    run(e52_no_notation_of_a_private_or_special_address_gets_out, async || {
        let harness = NetworkHarness::new(Public::Open, &[], everybody).await;
        let catchers = [80, 8080].map(|port| Catcher::at(port, &Behavior::Echo));
        for host in NEVER {
            for (line, host_header) in [
                (format!("CONNECT {host}:8080"), format!("{host}:8080")),
                (format!("GET http://{host}/"), (*host).to_owned()),
            ] {
                let (_, answer) = harness.ask(&line, &host_header).await;
                let status = answer.get(9..12).unwrap_or_default();
                assert!(["400", "403"].contains(&status), "{line}: {answer}");
            }
        }
        for catcher in &catchers {
            assert_eq!(catcher.caught().await, Vec::<String>::new());
        }
        assert_eq!(harness.dns.asked(), Vec::<String>::new());
        // And what is public does: the catchers catch.
        for (host, at) in [("8.8.8.8", "8.8.8.8"), ("[2606:4700::1]", "2606:4700::1"), ("[::ffff:9.9.9.9]", "9.9.9.9")]
        {
            let mut stream = harness.tunnel(&format!("{host}:8080")).await.expect(host);
            assert!(echoes(&mut stream, b"hello").await);
            assert_eq!(catchers[1].caught().await.last().map(String::as_str), Some(at));
        }
    });
}

#[test]
fn a_plan_that_names_a_private_host_opens_exactly_that_one() {
    run(a_plan_that_names_a_private_host_opens_exactly_that_one, async || {
        fn answers(name: &str, _: usize) -> Answer {
            match name {
                "db.team.svc.cluster.local" => addresses(&["10.1.2.3"]),
                "git.example.com" => addresses(&["10.9.9.9"]),
                "loop.team.svc.cluster.local" => addresses(&["127.0.0.1"]),
                "meta.team.svc.cluster.local" => addresses(&["169.254.169.254"]),
                _ => addresses(&["10.5.5.5"]),
            }
        }
        let hosts = [
            "10.0.0.7 5432",
            "db.team.svc 5432",
            "loop.team.svc",
            "meta.team.svc",
            "169.254.169.254",
            "*.internal",
            "git.example.com 22",
            "10.9.9.9 22",
        ];
        let harness = NetworkHarness::new(Public::Open, &hosts, answers).await;
        let catcher = Catcher::at(5432, &Behavior::Echo);
        let ssh = Catcher::at(22, &Behavior::Echo);
        for (target, expected) in [
            ("10.0.0.7:5432", "ok"),
            ("10.0.0.7:5433", "not-in-plan"),
            ("10.0.0.8:5432", "not-in-plan"),
            ("[::ffff:10.0.0.7]:5432", "not-in-plan"),
            ("db.team.svc:5432", "ok"),
            ("loop.team.svc:5432", "address-not-allowed"),
            ("meta.team.svc:5432", "metadata"),
            ("169.254.169.254:5432", "metadata"),
            // A domain opens no private address, and a public name none that the plan does not list itself.
            ("db.internal:5432", "address-not-allowed"),
            ("www.example.org:5432", "address-not-allowed"),
            ("git.example.com:22", "ok"),
            ("git.example.com:5432", "address-not-allowed"),
        ] {
            let got = harness.tunnel(target).await;
            assert_eq!(got.map_or_else(|it| it, |_| "ok".into()), expected, "{target}");
        }
        assert_eq!(catcher.caught().await, ["10.0.0.7", "10.1.2.3"]);
        assert_eq!(ssh.caught().await, ["10.9.9.9"]);
    });
}

#[test]
fn this_machine_is_reached_where_that_is_set_and_planned() {
    run(this_machine_is_reached_where_that_is_set_and_planned, async || {
        let catcher = Catcher::at(11434, &Behavior::Echo);
        let hosts = ["localhost 11434"];
        let closed = NetworkHarness::new(Public::Open, &hosts, everybody).await;
        let refused = closed.tunnel("localhost:11434").await.expect_err("refused");
        assert_eq!(refused, "address-not-allowed");
        let settings = Settings { loopback: Loopback::AsPlanned, ..Settings::default() };
        let open = NetworkHarness::with(settings, Public::Open, &hosts, everybody).await;
        assert!(open.tunnel("localhost:11434").await.is_ok());
        for target in ["localhost:80", "127.0.0.1:11434", "[::1]:11434", "a.localhost:11434"] {
            assert_eq!(open.tunnel(target).await.expect_err(target), "not-in-plan");
        }
        assert_eq!(catcher.caught().await, ["127.0.0.1"]);
        assert_eq!(open.dns.asked(), Vec::<String>::new());
    });
}
