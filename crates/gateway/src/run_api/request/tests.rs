use http::HeaderValue;
use serde_json::{Value, json};

use super::*;

fn read(kind: RequestKind, body: &Value) -> Result<RunRequest, ApiRefusalCode> {
    let read = kind.parse_body(body.to_string().as_bytes());
    read.map_err(|refusal| refusal.code)
}

fn with(mut value: Value, key: &str, to: Value) -> Value {
    value[key] = to;
    value
}

const BAD: Result<RunRequest, ApiRefusalCode> = Err(ApiRefusalCode::Request);

#[test]
fn paths_are_whole_and_the_method_is_post() {
    let kind = |method: &Method, target| RequestKind::from_path(method, target).map_err(|refusal| refusal.code);
    assert_eq!(kind(&Method::POST, path::REPORTS), Ok(RequestKind::Report));
    assert_eq!(kind(&Method::POST, path::APPROVALS), Ok(RequestKind::Approval));
    assert_eq!(kind(&Method::POST, path::SCHEDULES), Ok(RequestKind::Schedule));
    assert_eq!(kind(&Method::POST, path::MESSAGES), Ok(RequestKind::Message));
    assert_eq!(kind(&Method::POST, path::SUBRUNS), Ok(RequestKind::Subruns));
    for (method, target) in [
        (Method::GET, path::REPORTS),
        (Method::CONNECT, path::REPORTS),
        (Method::POST, "/v1/run/reports/"),
        (Method::POST, "/v2/run/reports"),
        (Method::POST, "/"),
    ] {
        assert_eq!(kind(&method, target), Err(ApiRefusalCode::Request), "{target}");
    }
}

#[test]
fn one_token_and_no_other_scheme() {
    let sent = |values: &[&[u8]]| {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, HeaderValue::from_bytes(value).unwrap());
        }
        bearer_token(&headers).map(str::to_owned)
    };
    assert_eq!(sent(&[b"Bearer a.b:c"]), Some("a.b:c".to_owned()));
    assert_eq!(sent(&[b"bEARER x"]), Some("x".to_owned()));
    let longest = [&b"Bearer "[..], &vec![b'x'; MAX_TOKEN]].concat();
    assert!(sent(&[&longest]).is_some());
    let longer = [&longest[..], b"x"].concat();
    for wrong in [&b""[..], b"Bearer", b"Bearer ", b"Bearer  x", b"Bearer a b", b"Bearer \xff", b"Basic eDp5", &longer]
    {
        assert_eq!(sent(&[wrong]), None, "{:?}", wrong.escape_ascii().to_string());
    }
    assert_eq!(sent(&[]), None);
    assert_eq!(sent(&[b"Bearer x", b"Bearer x"]), None);
}

#[test]
fn questions_have_bounds_on_each_side() {
    let hash = format!("sha256:{}", "0".repeat(64));
    let good = json!({
        "approval": "a", "tool": "t", "pack": "p", "action": hash, "shown": "shell: ls\nx \\u{202e}", "waitSeconds": 0,
    });
    let asked = |key: &str, to: Value| read(RequestKind::Approval, &with(good.clone(), key, to));
    assert!(read(RequestKind::Approval, &good).is_ok());
    for (key, most) in
        [("approval", MAX_APPROVAL_NAME), ("tool", MAX_TOOL_NAME), ("pack", MAX_TOOL_NAME), ("shown", MAX_SUMMARY)]
    {
        assert!(asked(key, "x".repeat(most).into()).is_ok(), "{key}");
        assert_eq!(asked(key, "x".repeat(most + 1).into()), BAD, "{key}");
        assert_eq!(asked(key, "".into()), BAD, "{key}");
    }
    for moving in ["é", "a\u{1b}[2J", "a\u{202e}b", "a\rb", "a\u{200b}b", "a\tb", "a\u{3164}"] {
        assert_eq!(asked("shown", moving.into()), BAD, "{moving:?}");
    }
    assert_eq!(asked("action", "sha256:00".into()), BAD);
    assert_eq!(asked("approval", "a b".into()), BAD);
    assert_eq!(asked("more", 1.into()), BAD);
    assert_eq!(asked("waitSeconds", (-1).into()), BAD);
}

#[test]
fn schedules_messages_and_tasks_have_bounds() {
    let schedule = json!({ "name": "n", "action": "create", "schedule": "* * * * *", "task": "t" });
    let message = json!({ "channel": "slack", "text": "t", "chatId": "c", "threadId": "d" });
    for (kind, good, key, most) in [
        (RequestKind::Schedule, &schedule, "name", MAX_TASK_NAME),
        (RequestKind::Schedule, &schedule, "schedule", limits::CRON),
        (RequestKind::Schedule, &schedule, "task", MAX_TASK),
        (RequestKind::Message, &message, "channel", MAX_CHANNEL_NAME),
        (RequestKind::Message, &message, "chatId", MAX_CHANNEL_NAME),
        (RequestKind::Message, &message, "threadId", MAX_CHANNEL_NAME),
        (RequestKind::Message, &message, "text", MAX_MESSAGE),
    ] {
        let of = |length: usize| read(kind, &with(good.clone(), key, "x".repeat(length).into()));
        assert!(of(1).is_ok() && of(most).is_ok(), "{key}");
        assert_eq!(of(most + 1), BAD, "{key}");
        assert_eq!(of(0), BAD, "{key}");
    }
    assert_eq!(read(RequestKind::Schedule, &with(schedule, "action", "run".into())), BAD);

    let task = |id: &str| json!({ "id": id, "task": "t", "systemPrompt": "s", "timeout": "5m" });
    let tasks = |tasks: Vec<Value>| read(RequestKind::Subruns, &json!({ "tasks": tasks }));
    let many = |count: usize| (0..count).map(|number| task(&number.to_string())).collect();
    assert!(tasks(many(1)).is_ok() && tasks(many(MAX_SUBRUNS)).is_ok());
    assert_eq!(tasks(many(MAX_SUBRUNS + 1)), BAD);
    assert_eq!(tasks(Vec::new()), BAD);
    assert_eq!(tasks(vec![task("a"), task("a")]), BAD);
    for (key, most) in [("id", MAX_TASK_NAME), ("task", MAX_TASK), ("systemPrompt", MAX_TASK), ("timeout", MAX_TIMEOUT)]
    {
        let of = |length: usize| tasks(vec![with(task("a"), key, "x".repeat(length).into())]);
        assert!(of(most).is_ok(), "{key}");
        assert_eq!(of(most + 1), BAD, "{key}");
    }
}

#[test]
fn the_refusal_of_an_invalid_body_is_short_and_plain() {
    let field = format!("{{\"{}\u{1b}\": 1}}", "x".repeat(10_000));
    let refusal = RequestKind::Message.parse_body(field.as_bytes()).unwrap_err();
    assert!(refusal.message.chars().count() < 400, "{refusal}");
    assert!(refusal.message.chars().all(|character| !character.is_control()), "{refusal}");
    let size = RequestKind::Message.parse_body(&vec![b' '; MAX_REQUEST + 1]).unwrap_err();
    assert_eq!(size.code, ApiRefusalCode::Size);
}
