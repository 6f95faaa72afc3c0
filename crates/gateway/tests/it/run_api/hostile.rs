//! Clients that violate HTTP/2. Whatever they do, memory is bounded, and others are served.

use std::time::Duration;

use sympozium_gateway::run_api::{BODY_TIMEOUT, MAX_BODIES_OF_RUN, MAX_HEAD, MAX_STREAMS};
use sympozium_harness::credential::sign;
use sympozium_ipc::run_api::{MAX_REQUESTS, MAX_TOKEN};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::harness::{self, authorization};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Kinds of frames.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
/// Flags of frames.
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// Memory that an attack may cost, the attacker's own share in this process included.
const MAX_BYTES: u64 = 16 << 20;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
    [&head[..], payload].concat()
}

/// A header that is not to be remembered, with its name from the table that every peer has.
fn header(index: u8, value: &str) -> Vec<u8> {
    let mut bytes = match index {
        0..15 => vec![index],
        _ => vec![15, index - 15],
    };
    let mut length = value.len();
    if length < 127 {
        bytes.push(u8::try_from(length).expect("short"));
    } else {
        bytes.push(127);
        length -= 127;
        while length >= 128 {
            bytes.push(u8::try_from(length % 128).expect("short") | 128);
            length /= 128;
        }
        bytes.push(u8::try_from(length).expect("short"));
    }
    bytes.extend(value.as_bytes());
    bytes
}

/// The head of a report.
fn head(token: &str) -> Vec<u8> {
    [
        // POST, http; then path, authority and authorization by their places in the table.
        vec![0x83, 0x86],
        header(4, path::REPORTS),
        header(1, "gateway"),
        header(23, &format!("Bearer {token}")),
    ]
    .concat()
}

/// A connection on which anything can be said; what comes back is read and thrown away.
struct Raw {
    writer: tokio::net::unix::OwnedWriteHalf,
    reading: tokio::task::JoinHandle<Vec<u8>>,
}

impl Raw {
    async fn new(path: &std::path::Path) -> Self {
        let stream = UnixStream::connect(path).await.expect("it listens");
        let (mut reader, mut writer) = stream.into_split();
        let reading = tokio::spawn(async move {
            let mut first = Vec::new();
            let mut bytes = vec![0; 1 << 16];
            while let Ok(count @ 1..) = reader.read(&mut bytes).await {
                if first.len() < 1 << 20 {
                    first.extend_from_slice(&bytes[..count]);
                }
            }
            first
        });
        writer.write_all(PREFACE).await.expect("it reads");
        Self { writer, reading }
    }

    /// Whether it could be sent.
    async fn send(&mut self, bytes: &[u8]) -> bool {
        let sent = tokio::time::timeout(TIMEOUT, self.writer.write_all(bytes)).await;
        sent.is_ok_and(|it| it.is_ok())
    }

    /// What came until the gateway ended the connection.
    async fn ended(self) -> Vec<u8> {
        let Self { writer, reading } = self;
        let ended = tokio::time::timeout(TIMEOUT, reading).await;
        drop(writer);
        ended.expect("the gateway ends it").expect("bytes")
    }
}

fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = text.split(' ').nth(1).expect("a number");
    pages.parse::<u64>().expect("a number") * 4096
}

/// That other clients are served: a run on a connection of its own, and a part at the proxy.
async fn others_are_served(harness: &RunApiHarness, path: &std::path::Path, reports: &mut Reporting) {
    let client = harness.unix_client(path).await;
    client.report(&reports.next(1)).await.expect("taken");
    let mut proxy = UnixStream::connect(path).await.expect("it listens");
    let credential = authorization(&sign(UID, "skill-tickets", now() + 600));
    let head = format!("CONNECT tickets.example.com:443 HTTP/1.1\r\nHost: tickets.example.com:443\r\n{credential}\r\n");
    proxy.write_all(head.as_bytes()).await.expect("it reads");
    let mut answer = String::new();
    proxy.read_to_string(&mut answer).await.expect("text");
    // Allowed by the plan, and then nowhere to be found.
    assert!(answer.contains("Sympozium-Reason: name-not-found"), "{answer}");
}

/// In a process of its own, so that memory is the attack's.
async fn under(attack: impl AsyncFnOnce(&RunApiHarness, &std::path::Path)) {
    let harness = RunApiHarness::new(|_| {});
    let path = harness.socket();
    let mut reports = harness.reports();
    others_are_served(&harness, &path, &mut reports).await;
    let before = resident();
    attack(&harness, &path).await;
    let more = resident().saturating_sub(before);
    assert!(more < MAX_BYTES, "{more} bytes more");
    others_are_served(&harness, &path, &mut reports).await;
}

#[test]
fn garbage_after_the_preface() {
    harness::run(garbage_after_the_preface, async || {
        under(async |_, path| {
            for garbage in [
                vec![0xff; 1 << 16],
                b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
                // A frame longer than any may be; one that needs a stream, and has none; data of a stream that is not open.
                frame(SETTINGS, 0, 0, &[0; 1 << 15]),
                frame(HEADERS, END_HEADERS, 0, &head("x")),
                [frame(SETTINGS, 0, 0, &[]), frame(DATA, 0, 1, b"x")].concat(),
                // Headers that are none.
                [frame(SETTINGS, 0, 0, &[]), frame(HEADERS, END_HEADERS, 1, &[0xff; 64])].concat(),
            ] {
                let mut raw = Raw::new(path).await;
                raw.send(&garbage).await;
                raw.ended().await;
            }
        })
        .await;
    });
}

#[test]
fn streams_that_are_reset_at_once() {
    harness::run(streams_that_are_reset_at_once, async || {
        under(async |_, path| {
            for token in ["nobody".to_owned(), token(UID, RUN_CREDENTIAL)] {
                let mut raw = Raw::new(path).await;
                raw.send(&frame(SETTINGS, 0, 0, &[])).await;
                let head = head(&token);
                let pair = |stream: u32| {
                    let open = frame(HEADERS, END_HEADERS | END_STREAM, stream, &head);
                    let reset = frame(RESET, 0, stream, &8_u32.to_be_bytes());
                    [open, reset].concat()
                };
                for hundred in (1..200_000).step_by(200) {
                    let many: Vec<u8> = (hundred..hundred + 200).step_by(2).flat_map(pair).collect();
                    if !raw.send(&many).await {
                        break;
                    }
                }
                let said = raw.ended().await;
                assert!(said.ends_with(b"too_many_resets"), "{:?}", said.escape_ascii().to_string());
            }
        })
        .await;
    });
}

#[test]
fn more_streams_than_there_may_be() {
    harness::run(more_streams_than_there_may_be, async || {
        under(async |_, path| {
            for token in ["nobody".to_owned(), token(UID, RUN_CREDENTIAL)] {
                let mut raw = Raw::new(path).await;
                raw.send(&frame(SETTINGS, 0, 0, &[])).await;
                let head = head(&token);
                for stream in (1..200_000).step_by(2) {
                    // Their bodies never come.
                    let open = frame(HEADERS, END_HEADERS, stream, &head);
                    if !raw.send(&open).await {
                        break;
                    }
                }
                let _ = raw.writer.shutdown().await;
                raw.ended().await;
            }
        })
        .await;
    });
}

#[test]
fn heads_that_do_not_end() {
    harness::run(heads_that_do_not_end, async || {
        under(async |_, path| {
            // Up to 64 MiB in one head.
            let mut raw = Raw::new(path).await;
            raw.send(&frame(SETTINGS, 0, 0, &[])).await;
            raw.send(&frame(HEADERS, 0, 1, &head("x"))).await;
            let more = header(23, &"x".repeat(8000));
            for _ in 0..8192 {
                if !raw.send(&frame(CONTINUATION, 0, 1, &more)).await {
                    break;
                }
            }
            raw.ended().await;
        })
        .await;
    });
}

#[test]
fn pings_and_settings_without_end() {
    harness::run(pings_and_settings_without_end, async || {
        under(async |_, path| {
            for flood in [frame(PING, 0, 0, &[0; 8]), frame(SETTINGS, 0, 0, &[])] {
                let mut raw = Raw::new(path).await;
                raw.send(&frame(SETTINGS, 0, 0, &[])).await;
                let many = flood.repeat(1000);
                for _ in 0..100 {
                    if !raw.send(&many).await {
                        break;
                    }
                }
                let _ = raw.writer.shutdown().await;
                raw.ended().await;
            }
        })
        .await;
    });
}

#[test]
fn unread_answers() {
    harness::run(unread_answers, async || {
        under(async |_, path| {
            let stream = UnixStream::connect(path).await.expect("it listens");
            let (_reader, mut writer) = stream.into_split();
            writer.write_all(PREFACE).await.expect("it reads");
            // No window: no answer can be sent at all.
            let settings = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
            writer.write_all(&settings).await.expect("it reads");
            let head = head(&token(UID, RUN_CREDENTIAL));
            for stream in (1..20_000).step_by(2) {
                let open = frame(HEADERS, END_HEADERS | END_STREAM, stream, &head);
                let sent = writer.write_all(&open);
                let sent = tokio::time::timeout(Duration::from_secs(1), sent).await;
                if !sent.is_ok_and(|it| it.is_ok()) {
                    break;
                }
            }
        })
        .await;
    });
}

#[tokio::test(start_paused = true)]
async fn bodies_that_do_not_come_end_and_keep_others_waiting_no_longer() {
    let harness = RunApiHarness::new(|_| {});
    let (mut ours, theirs) = tokio::io::duplex(1 << 16);
    let gateway = Arc::clone(&harness.gateway);
    tokio::spawn(async move { gateway.serve(theirs).await });
    let head = head(&token(UID, RUN_CREDENTIAL));
    let mut all = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    for stream in (1..).step_by(2).take(MAX_BODIES_OF_RUN) {
        all.extend(frame(HEADERS, END_HEADERS, stream, &head));
        all.extend(frame(DATA, 0, stream, b"{"));
    }
    ours.write_all(&all).await.expect("it reads");
    // Until they were looked at: the gateway has answered our settings.
    let mut byte = [0];
    ours.read_exact(&mut byte).await.expect("settings");
    let client = harness.client().await;
    let started = tokio::time::Instant::now();
    let report = harness.reports().next(1);
    assert_eq!(client.report(&report).await, Ok(1));
    assert!(started.elapsed() <= BODY_TIMEOUT);
    let refused = || {
        let outcomes = harness.outcomes();
        outcomes.iter().filter(|it| *it == "request-refused").count()
    };
    while refused() < MAX_BODIES_OF_RUN {
        assert!(started.elapsed() <= 2 * BODY_TIMEOUT, "{:?}", harness.outcomes());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Runs of one namespace begin as many bodies without a length as they may, and never end them.
#[tokio::test(start_paused = true)]
async fn bodies_of_one_namespace_leave_room_for_another() {
    let harness = RunApiHarness::new(|_| {});
    let mut held = Vec::new();
    for number in 0..4 {
        let uid = format!("{number:08}-77f4-4c62-9f0e-0123456789ab");
        let plan = plan(&uid, |it| it.run.namespace = NamespaceName::new("greedy"));
        harness.gateway.plans().add(&plan).expect("a plan");
        let (mut ours, theirs) = tokio::io::duplex(1 << 16);
        let gateway = Arc::clone(&harness.gateway);
        tokio::spawn(async move { gateway.serve(theirs).await });
        let head = head(&token(&uid, RUN_CREDENTIAL));
        let mut all = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
        for stream in (1..).step_by(2).take(MAX_BODIES_OF_RUN) {
            all.extend(frame(HEADERS, END_HEADERS, stream, &head));
            all.extend(frame(DATA, 0, stream, b"{"));
        }
        ours.write_all(&all).await.expect("it reads");
        held.push(ours);
    }
    // Time passes when nothing else happens: all of them were looked at.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let client = harness.client().await;
    let started = tokio::time::Instant::now();
    let asking = tokio::spawn(async move {
        let mut question = question("q");
        question["waitSeconds"] = 5.into();
        client.post(path::APPROVALS, &question).await
    });
    harness.pending(1).await;
    let (status, answer) = asking.await.expect("an answer");
    assert_eq!((status, &answer["decision"]), (200, &json!("expired")));
    assert!(started.elapsed() < BODY_TIMEOUT / 2, "{:?}", started.elapsed());
    drop(held);
}

#[tokio::test]
async fn heads_have_so_many_bytes() {
    let harness = RunApiHarness::new(|_| {});
    let client = harness.client().await;
    let status = async |bytes: usize| {
        let request = http::Request::post(format!("http://gateway{}", path::REPORTS))
            .header("authorization", format!("Bearer {}", "x".repeat(bytes)))
            .body(Full::default())
            .expect("a request");
        let answer = client.sender.clone().send_request(request).await;
        answer.expect("an answer").status().as_u16()
    };
    assert_eq!(status(MAX_TOKEN).await, 401);
    assert_eq!(status(MAX_HEAD as usize).await, 431);
    // The connection goes on.
    assert_eq!(client.report(&harness.reports().next(1)).await, Ok(1));
}

#[tokio::test]
async fn a_connection_has_room_for_the_requests_of_a_run_and_some() {
    const { assert!(MAX_STREAMS > MAX_REQUESTS) };
    let harness = RunApiHarness::new(|_| {});
    let client = harness.client().await;
    let asking: Vec<_> = (0..MAX_REQUESTS)
        .map(|number| {
            let client = client.clone();
            let question = question(&number.to_string());
            tokio::spawn(async move { client.post(path::APPROVALS, &question).await })
        })
        .collect();
    harness.pending(MAX_REQUESTS as usize).await;
    let (status, _) = client.post(path::REPORTS, &harness.reports().next(0)).await;
    assert_eq!(status, 429);
    assert!(harness.gateway.plans().end(UID));
    for asking in asking {
        assert_eq!(asking.await.expect("an answer").0, 401);
    }
}
