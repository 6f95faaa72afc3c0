//! Where servers send us instead, and what goes along.

use std::net::IpAddr;

use serde_json::json;
use sympozium_bridge::fetch::MAX_REDIRECTS;
use sympozium_harness::plan::{Public, credential};
use sympozium_harness::{Response, WebServer};
use sympozium_ipc::door::RefusalCode;

use super::{fetch, get, open_web, page, refused};
use crate::support::GatewayHarness;

/// The path of a request.
fn path(head: &str) -> &str {
    head.split(' ').nth(1).unwrap_or_default()
}

#[tokio::test]
async fn each_hop_is_a_tunnel_of_its_own() {
    let harness = open_web().await;
    let config = harness.authority.server(&["b.example"], &[]);
    let last = WebServer::encrypted(config, |_| Response::page("here")).await;
    let first = WebServer::plain(|head| match path(head) {
        "/start" => Response::redirect("next?token=secret#top"),
        _ => Response::redirect("https://b.example/end?signature=secret"),
    })
    .await;
    harness.internet.host("a.example", 80, &first);
    harness.internet.host("b.example", 443, &last);
    // The signature is the server's, and stays out of what the agent is told.
    let answer = get(&harness, "http://a.example/start").await;
    assert_eq!(answer, Ok(page(200, "https://b.example/end", "here")));
    let paths: Vec<_> = first.requests().iter().map(|it| path(it).to_owned()).collect();
    assert_eq!(paths, ["/start", "/next?token=secret"]);
    assert_eq!(path(&last.requests()[0]), "/end?signature=secret");
    assert_eq!(harness.internet.resolved(), ["a.example", "a.example", "b.example"]);
}

#[tokio::test]
async fn loops_end() {
    let harness = open_web().await;
    let site = WebServer::plain(|head| match path(head).trim_start_matches('/').parse() {
        Ok(0) => Response::page("there"),
        Ok(left) => Response::redirect(&format!("/{}", left - 1_usize)),
        Err(_) => Response::redirect(path(head)),
    })
    .await;
    harness.internet.host("a.example", 80, &site);
    let answer = get(&harness, &format!("http://a.example/{MAX_REDIRECTS}")).await;
    assert_eq!(answer, Ok(page(200, "http://a.example/0", "there")));
    for url in [format!("http://a.example/{}", MAX_REDIRECTS + 1), "http://a.example/loop".to_owned()] {
        let before = site.requests().len();
        let (code, message) = refused(get(&harness, &url).await);
        assert_eq!(code, RefusalCode::Unavailable);
        assert_eq!(message, "more than 5 redirects, the last by `a.example`");
        assert_eq!(site.requests().len() - before, MAX_REDIRECTS + 1);
    }
}

#[tokio::test]
async fn what_is_sent_instead_of_a_page_is_one_when_it_leads_nowhere() {
    let harness = open_web().await;
    let site = WebServer::plain(|head| match path(head) {
        "/choices" => Response::with(300, "Content-Type: text/plain\r\nLocation: /x\r\n", "choose"),
        _ => Response::with(302, "Content-Type: text/plain\r\n", "nowhere"),
    })
    .await;
    harness.internet.host("a.example", 80, &site);
    for (url, status, body) in
        [("http://a.example/choices", 300, "choose"), ("http://a.example/nowhere", 302, "nowhere")]
    {
        assert_eq!(get(&harness, url).await, Ok(page(status, url, body)));
    }
}

/// e54: from a host that is allowed to one that is not.
#[tokio::test]
async fn e54_a_redirect_to_a_host_that_is_not_in_the_plan_is_denied() {
    let harness = GatewayHarness::unix(&[credential("web", Public::Closed, &["a.example 80"])]).await;
    let secret = WebServer::plain(|_| Response::page("secret")).await;
    let first = WebServer::plain(|head| Response::redirect(&path(head)[1..])).await;
    harness.internet.host("a.example", 80, &first);
    harness.internet.host("b.example", 80, &secret);
    for (location, host) in [
        ("http://b.example/?leak=secret", "`b.example`"),
        ("//b.example/", "`b.example`"),
        ("http://a.example:81/", "`a.example:81`"),
        ("http://sub.a.example/", "`sub.a.example`"),
        ("https://a.example/", "`a.example`"),
    ] {
        let (code, message) = refused(get(&harness, &format!("http://a.example/{location}")).await);
        assert_eq!(code, RefusalCode::Denied);
        let words = format!("{host} cannot be reached: the plan of this run does not let");
        assert!(message.starts_with(&words), "{message}");
        assert!(!message.contains("leak"), "{message}");
    }
    assert_eq!(secret.requests(), [""; 0]);
    assert!(harness.internet.resolved().iter().all(|it| it == "a.example"));
}

/// e52: to where machines have their credentials, and to the machine itself, in every notation.
#[tokio::test]
async fn e52_a_redirect_to_an_address_inside_is_denied() {
    let harness = open_web().await;
    let inside = WebServer::plain(|_| Response::page("credentials of the machine")).await;
    let first = WebServer::plain(|head| Response::redirect(&path(head)[1..])).await;
    harness.internet.host("a.example", 80, &first);
    for address in [
        "169.254.169.254:80",
        "127.0.0.1:80",
        "10.0.0.1:80",
        "100.64.0.1:80",
        "0.0.0.0:80",
        "[::1]:80",
        "[fd00:ec2::254]:80",
        "[::ffff:169.254.169.254]:80",
        "[64:ff9b::a9fe:a9fe]:80",
    ] {
        let address = address.parse().expect("an address");
        harness.internet.route(address, &inside);
    }
    harness.internet.name("localhost", &[&["127.0.0.1".parse().expect("an address")]]);
    let hosts = [
        "169.254.169.254",
        "2852039166",
        "0xa9fea9fe",
        "0xA9.0xFE.0xA9.0xFE",
        "0251.0376.0251.0376",
        "169.254.43518",
        "169.254.169.254.",
        "[::ffff:169.254.169.254]",
        "[::ffff:a9fe:a9fe]",
        "[64:ff9b::a9fe:a9fe]",
        "[fd00:ec2::254]",
        "metadata.google.internal",
        "127.0.0.1",
        "2130706433",
        "0x7f.1",
        "017700000001",
        "localhost",
        "[::1]",
        "0",
        "10.1",
        "100.64.0.1",
    ];
    for host in hosts {
        let (code, message) = refused(get(&harness, &format!("http://a.example/http://{host}/")).await);
        assert_eq!(code, RefusalCode::Denied, "{host}: {message}");
        // And it is not reached without a redirect.
        let (code, message) = refused(get(&harness, &format!("http://{host}/")).await);
        assert_eq!(code, RefusalCode::Denied, "{host}: {message}");
    }
    assert_eq!(inside.requests(), [""; 0]);
    assert_eq!(first.requests().len(), hosts.len());
    assert_eq!(harness.internet.connected().len(), hosts.len());
}

/// e53: a name that had a public address a moment ago.
#[tokio::test]
async fn e53_a_name_that_changes_its_address_between_hops_is_judged_anew() {
    let harness = open_web().await;
    let inside = WebServer::plain(|_| Response::page("inside")).await;
    let first = WebServer::plain(|_| Response::redirect("/again")).await;
    let address = |text: &str| -> IpAddr { text.parse().expect("an address") };
    let (public, private) = (address("1.2.3.4"), address("10.0.0.1"));
    harness.internet.route((public, 80).into(), &first);
    harness.internet.route((private, 80).into(), &inside);
    harness.internet.name("a.example", &[&[public], &[private]]);
    // One of several is enough to spoil them all.
    harness.internet.name("b.example", &[&[public], &[public, private]]);
    for host in ["a.example", "b.example"] {
        let (code, message) = refused(get(&harness, &format!("http://{host}/")).await);
        assert_eq!(code, RefusalCode::Denied);
        let words = format!("`{host}` cannot be reached: the host has an address that this part may not reach");
        assert!(message.starts_with(&words), "{message}");
    }
    assert_eq!(inside.requests(), [""; 0]);
    assert_eq!(harness.internet.connected(), [(public, 80).into(); 2]);
}

#[tokio::test]
async fn redirects_that_are_not_followed() {
    let harness = open_web().await;
    let config = harness.authority.server(&["a.example"], &[]);
    let site = WebServer::encrypted(config, |head| Response::redirect(&path(head)[1..])).await;
    let plain = WebServer::plain(|_| Response::page("in the clear")).await;
    harness.internet.host("a.example", 443, &site);
    harness.internet.host("b.example", 80, &plain);
    for (location, why) in [
        ("http://b.example/", "it leads from https to http"),
        ("ftp://b.example/", "it does not begin with `https://` or `http://`"),
        ("file:///etc/passwd", "it does not begin with `https://` or `http://`"),
        (
            "https://user:password@b.example/",
            "it has a user name or password in it; send an Authorization header instead",
        ),
    ] {
        let (code, message) = refused(get(&harness, &format!("https://a.example/{location}")).await);
        assert_eq!(code, RefusalCode::Denied);
        let words = "`a.example` sends a redirect that is not followed: ";
        assert_eq!(message, format!("{words}{why}"));
    }
    assert_eq!(plain.requests(), [""; 0]);
}

/// e54: what was meant for one server.
#[tokio::test]
async fn e54_headers_stay_with_the_server_that_they_were_meant_for() {
    let harness = open_web().await;
    let headers = json!({ "Authorization": "Bearer t0ken", "Cookie": "c00kie", "X-Key": "k3y", "User-Agent": "mine" });
    let config = harness.authority.server(&["a.example", "b.example"], &[]);
    let leads = |head: &str| match path(head) {
        "/same" => Response::redirect("/end"),
        "/host" => Response::redirect("https://b.example/end"),
        "/port" => Response::redirect("https://a.example:444/end"),
        "/round" => Response::redirect("https://b.example/back"),
        "/back" => Response::redirect("https://a.example/end"),
        _ => Response::page("end"),
    };
    let first = WebServer::encrypted(config.clone(), leads).await;
    let second = WebServer::encrypted(config.clone(), leads).await;
    let other_port = WebServer::encrypted(config, leads).await;
    let plain = WebServer::plain(|_| Response::redirect("https://a.example/end")).await;
    let address: IpAddr = "1.2.3.4".parse().expect("an address");
    harness.internet.name("a.example", &[&[address]]);
    harness.internet.route((address, 443).into(), &first);
    harness.internet.route((address, 444).into(), &other_port);
    harness.internet.route((address, 80).into(), &plain);
    harness.internet.host("b.example", 443, &second);
    // How many of them each request at each of the servers had.
    let sent = |request: &String| {
        let lower = request.to_ascii_lowercase();
        // Only the gateway sees the run's credential.
        assert!(!lower.contains("proxy-"), "{request}");
        let words = ["bearer t0ken", "c00kie", "k3y", "mine"];
        words.iter().filter(|it| lower.contains(**it)).count()
    };
    let (all, none) = (4, 0);
    for (url, expected) in [
        ("https://a.example/same", [vec![all, all], vec![], vec![], vec![]]),
        ("https://a.example/host", [vec![all], vec![none], vec![], vec![]]),
        ("https://a.example/port", [vec![all], vec![], vec![none], vec![]]),
        ("https://a.example/round", [vec![all, none], vec![none], vec![], vec![]]),
        ("http://a.example/scheme", [vec![none], vec![], vec![], vec![all]]),
    ] {
        let answer = fetch(&harness, json!({ "url": url, "headers": headers })).await;
        assert!(answer.is_ok(), "{url}: {answer:?}");
        let sites = [&first, &second, &other_port, &plain];
        let had = sites.map(|site| site.take_requests().iter().map(sent).collect::<Vec<_>>());
        assert_eq!(had, expected, "{url}");
    }
    // And each hop told the gateway the server that it asked for.
    let outcomes = harness.outcomes();
    assert!(outcomes.iter().all(|it| !it.contains("server-name")), "{outcomes:?}");
}
