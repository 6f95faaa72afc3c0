//! Fuzz targets for bytes that a client chose, before any of them is trusted.
//!
//! They are used by coverage-guided fuzzing (`make fuzz`), by the replay of the corpora on stable in `make test`, and
//! for debugging a crash. Each target states a property and panics if it does not hold.

use std::net::IpAddr;

use sympozium_api::digest::digest_canonical;
use sympozium_api::run_plan::{AllowedHosts, GatewayCredential, PartName};
use sympozium_api::text::is_visible;
use sympozium_ipc::receipt::verify;
use sympozium_ipc::run_api::{MAX_SUBRUNS, path};
use sympozium_ipc::strict_head::{Scanner, TargetForm, read_request};
use sympozium_plan::host::Host;

use crate::egress::client_hello::{Hello, MAX_WIRE_BYTES, may_be_tls, parse_hello};
use crate::egress::inspector::{Inspector, TLS_PORT};
use crate::egress::target::{Target, TargetKind};
use crate::egress::tls_records::RecordWalker;
use crate::egress::tls_records::examples::{example_hello, example_retry_request};
use crate::events::Reason;
use crate::plans::AllowList;
use crate::run_api::reports::{ReportStep, check_report};
use crate::run_api::{ReportCursor, RunRequest};
use crate::settings::Loopback;

/// Returns if every property holds for `data`, and panics otherwise.
pub type FuzzTarget = fn(data: &[u8]);

/// Every target by its name, which is also the name of its corpus and of its program in `fuzz/`.
pub const TARGETS: &[(&str, FuzzTarget)] =
    &[("client_hello", client_hello), ("connect_head", connect_head), ("run_api", run_api)];

/// A head that names a host has one notation of it: the host is in the head as it is parsed, and parsing it again gives
/// the same.
pub fn connect_head(data: &[u8]) {
    let Ok(Some(end)) = Scanner::default().find_end(data) else {
        return;
    };
    let Ok(head) = read_request(&data[..end], TargetForm::Proxy) else {
        return;
    };
    let Ok(target) = Target::parse(&head) else {
        return;
    };
    assert_ne!(target.port, 0);
    let host = target.host.to_string();
    assert_eq!(Host::parse(&host).as_ref(), Ok(&target.host));
    if let Host::Name(name) = &target.host {
        assert!(head.target.to_ascii_lowercase().contains(name.as_str()));
        // No resolver takes it for an address.
        let last = name.rsplit('.').next().unwrap_or_default();
        assert!(!last.bytes().all(|byte| byte.is_ascii_digit()), "{name}");
    }
    match &target.kind {
        TargetKind::Tunnel => assert!(head.target.ends_with(&format!(":{}", target.port))),
        TargetKind::Request { path, .. } => {
            assert!(path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic()));
            let after = head.target.strip_prefix("http://").unwrap_or_default();
            let authority = after.split(['/', '?']).next().unwrap_or_default();
            assert!(!authority.is_empty() && !authority.contains(['@', '\\', '#']), "{authority}");
        }
    }
    check_allow_list(&target);
    let again = format!("{} {} HTTP/1.1\r\nHost: {}\r\n\r\n", head.method, head.target, target.authority());
    if matches!(target.kind, TargetKind::Request { .. }) {
        let again = read_request(again.as_bytes(), TargetForm::Proxy);
        assert!(again.is_ok_and(|head| Target::parse(&head) == Ok(target)));
    }
}

/// A plan without hosts allows none, and a plan for all public hosts allows no other: not by a name of one machine or
/// site, and not by an address that is in another range or embeds one.
fn check_allow_list(target: &Target) {
    let rules = |public| {
        let credential = GatewayCredential {
            name: "fuzz".to_owned(),
            part: PartName("fuzz".to_owned()),
            reach: AllowedHosts { public, destinations: Vec::new() },
        };
        AllowList::from_credential(&credential).ok()
    };
    let permitted = |public| {
        let rules = rules(public)?;
        let permission = rules.check_target(&target.host, target.port).ok()?;
        let Host::Address(address) = target.host else {
            return Some(());
        };
        let loopback = Loopback::AsPlanned;
        let checked = rules.check_addresses(permission.scope, target.port, &[address], loopback);
        checked.ok()
    };
    assert_eq!(permitted(false), None);
    if permitted(true).is_some() {
        match &target.host {
            Host::Name(name) => {
                // By whole labels: `a.elocalhost` is a name that can be registered.
                let last = name.rsplit('.').next().unwrap_or_default();
                let is_local = ["internal", "lan", "local", "localhost", "svc"].contains(&last);
                assert!(name.contains('.') && !is_local, "{name}");
            }
            Host::Address(address) => {
                let plain = address.to_canonical();
                assert!(!plain.is_loopback() && !plain.is_unspecified() && !plain.is_multicast());
                if let IpAddr::V4(plain) = plain {
                    assert!(!plain.is_private() && !plain.is_link_local(), "{plain}");
                }
            }
        }
    }
}

/// The result does not depend on how the bytes arrive: every prefix of a complete message is incomplete, and nothing
/// that is refused becomes valid with more bytes.
pub fn client_hello(data: &[u8]) {
    let whole = parse_hello(data);
    assert!(data.len() < MAX_WIRE_BYTES || whole != Ok(Hello::Incomplete));
    if let Ok(Hello::Complete { name, length }) = &whole {
        assert!(data.starts_with(&[22, 3]) && may_be_tls(data));
        let mut records = &data[..*length];
        while let [_, _, _, high, low, rest @ ..] = records {
            let record = usize::from(u16::from_be_bytes([*high, *low]));
            assert!(record > 0, "an empty record");
            records = &rest[record..];
        }
        if let Some(name) = name {
            assert!(name.bytes().all(|byte| byte.is_ascii_graphic() && !byte.is_ascii_uppercase()));
            // In one record the name is contiguous; the headers of several records could split it.
            let record = usize::from(u16::from_be_bytes([data[3], data[4]]));
            let message = usize::from(data[6]) << 16 | usize::from(data[7]) << 8 | usize::from(data[8]);
            if record == message + 4 {
                let lower = data.to_ascii_lowercase();
                assert!(lower.windows(name.len()).any(|window| window == name.as_bytes()));
            }
        }
    }
    let mut ended = None;
    for cut in (0..data.len()).step_by(data.len() / 64 + 1) {
        let part = parse_hello(&data[..cut]);
        match (&ended, &part) {
            (None, Ok(Hello::Incomplete)) => {}
            (None, _) => ended = Some(part),
            (Some(before), _) => assert_eq!(before, &part, "at {cut}"),
        }
    }
    if let Some(before) = ended {
        assert_eq!(before, whole);
    }
    check_after_retry(data);
}

/// The same for the bytes after a HelloRetryRequest: however they arrive, the same bytes pass, and a ClientHello in
/// them is for the server of the tunnel.
fn check_after_retry(data: &[u8]) {
    const SERVER: &str = "a.example";
    let Ok(host) = Host::parse(SERVER) else {
        unreachable!("it is a host");
    };
    let inspect = |piece: usize| {
        let mut inspector = Inspector::new(host.clone(), TLS_PORT);
        inspector.push(&example_hello(SERVER))?;
        inspector.observe(&example_retry_request());
        let mut passed = Vec::new();
        for bytes in data.chunks(piece) {
            passed.extend(inspector.push(bytes)?);
        }
        Ok::<_, Reason>((passed, inspector.is_done()))
    };
    let whole = inspect(data.len().max(1));
    assert_eq!(inspect(1), whole);
    if let Ok((passed, done)) = whole {
        assert!(data.starts_with(&passed));
        let second = RecordWalker::default().skip_to_handshake(&passed);
        assert_eq!(second.is_ok_and(|at| at.is_some()), done);
        if let (Ok(Some(at)), true) = (second, done) {
            let hello = parse_hello(&passed[at..]);
            let is_same = |name: &Option<String>| name.as_deref() == Some(SERVER);
            assert!(matches!(hello, Ok(Hello::Complete { name, .. }) if is_same(&name)));
        }
    }
}

/// A request is a letter for its path, and a body. An accepted request is within its bounds. A report that follows from
/// a plan has receipts that verify and lead to its head, and it is accepted once.
pub fn run_api(data: &[u8]) {
    let Some((letter, body)) = data.split_first() else {
        return;
    };
    let target = match letter {
        b'r' => path::REPORTS,
        b'a' => path::APPROVALS,
        b's' => path::SCHEDULES,
        b'm' => path::MESSAGES,
        b't' => path::SUBRUNS,
        _ => return,
    };
    let Ok(kind) = crate::run_api::RequestKind::from_path(&http::Method::POST, target) else {
        unreachable!("each of them is a path");
    };
    match kind.parse_body(body) {
        Err(refusal) => {
            assert!((400..=413).contains(&refusal.code.status()));
            assert!(refusal.message.chars().count() < 512, "{refusal}");
        }
        Ok(RunRequest::Report(report)) => {
            assert_eq!(report.check(), Ok(()));
            let plan = digest_canonical("fuzz", b"plan");
            let nothing = ReportCursor::start(plan.clone());
            if let Ok(ReportStep::Next { cursor, receipts }) = check_report(&nothing, &report) {
                let lines = report.receipts.iter().map(String::as_str);
                let verified = verify(lines, &plan, Some(&report.head));
                assert!(verified.is_ok_and(|verified| verified.receipts == receipts));
                assert_eq!((cursor.reports, cursor.receipts), (1, receipts.len() as u64));
                assert_eq!(check_report(&cursor, &report), Ok(ReportStep::Duplicate));
                assert!(check_report(&nothing, &report) != Ok(ReportStep::Duplicate));
            }
        }
        Ok(RunRequest::Approval(request)) => {
            assert!(request.action.check().is_ok());
            let harmless = |character: char| character == '\n' || is_visible(character);
            assert!(request.shown.chars().all(harmless), "{:?}", request.shown);
            assert!(!request.approval.is_empty() && !request.tool.is_empty());
        }
        Ok(RunRequest::Subruns(request)) => assert!((1..=MAX_SUBRUNS).contains(&request.tasks.len())),
        Ok(RunRequest::Schedule(request)) => assert!(!request.name.is_empty()),
        Ok(RunRequest::Message(request)) => assert!(!request.text.is_empty()),
    }
}

#[cfg(test)]
mod tests;
