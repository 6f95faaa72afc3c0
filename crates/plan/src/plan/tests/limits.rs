//! `docs/limits.md` matches the code.

use sympozium_api::builtin_tool::*;
use sympozium_api::run_plan::{MAX_BYTES, ToolLimits};

use crate::admit::{MAX_TASK_BYTES, ResourceLimits, Settings};
use crate::plan::limits::*;
use crate::plan::parts::{
    AGENT_REQUESTS, BRIDGE_REQUESTS, DOOR_SIZE, HOOK_REQUESTS, IPC_SIZE, SANDBOX_REQUESTS, SHM_SIZE, TMP_SIZE,
    WORKSPACE_SIZE,
};
use crate::rbac::{MAX_GRANT_PERMISSIONS, MAX_RULE_PERMISSIONS};
use crate::render::{BRIDGE_TOKEN_SECONDS, EMPTY_DIR_SIZE, EXECUTOR_SIZE, INIT_CPU, INIT_MEMORY, TTL_SECONDS};

const DOCUMENT: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/limits.md"));

/// The rows of all tables: what is limited, how much, and the constant.
fn rows() -> Vec<String> {
    let mut rows = Vec::new();
    let mut row = |what: &str, value: String, constant: &str| {
        rows.push(format!("| {what} | {value} | `{constant}` |"));
    };
    let seconds = |count: u64| format!("{count} s");
    row("rounds of the agent's loop", ITERATIONS.to_string(), "plan::limits::ITERATIONS");
    row("requests to the model, including retries", MODEL_REQUESTS.to_string(), "plan::limits::MODEL_REQUESTS");
    row(
        "requests to the model per minute",
        MODEL_REQUESTS_PER_MINUTE.to_string(),
        "plan::limits::MODEL_REQUESTS_PER_MINUTE",
    );
    row("one request to the model", bytes(MODEL_REQUEST_BYTES), "plan::limits::MODEL_REQUEST_BYTES");
    row("one response of the model", bytes(MODEL_ANSWER_BYTES), "plan::limits::MODEL_ANSWER_BYTES");
    row("tool calls", TOOL_CALLS.to_string(), "plan::limits::TOOL_CALLS");
    row("concurrent tool calls", CONCURRENT_TOOL_CALLS.to_string(), "plan::limits::CONCURRENT_TOOL_CALLS");
    row("the answer", bytes(RESULT_BYTES), "plan::limits::RESULT_BYTES");
    row("the transcript", bytes(TRANSCRIPT_BYTES), "plan::limits::TRANSCRIPT_BYTES");
    row("the plan", bytes(MAX_BYTES as u64), "run_plan::MAX_BYTES");
    row("waiting for approvals, in total", seconds(WAITING_SECONDS), "plan::limits::WAITING_SECONDS");
    row("until the parts of a pod start", seconds(START_SECONDS), "plan::limits::START_SECONDS");
    row("until the agent connects to the door", seconds(CONNECT_SECONDS), "plan::limits::CONNECT_SECONDS");
    row("from a request to stop until the run ends", seconds(GRACE_SECONDS), "plan::limits::GRACE_SECONDS");
    row("default timeout of a hook", seconds(DEFAULT_HOOK_SECONDS), "plan::limits::DEFAULT_HOOK_SECONDS");
    row(
        "a token of a skill or hook, unless renewed",
        seconds(crate::plan::parts::TOKEN_SECONDS),
        "plan::parts::TOKEN_SECONDS",
    );
    row(
        "the bridge's own token, unless renewed",
        seconds(BRIDGE_TOKEN_SECONDS.unsigned_abs()),
        "render::volumes::TOKEN_SECONDS",
    );
    row(
        "until a finished Job is deleted",
        seconds(u64::from(TTL_SECONDS.unsigned_abs())),
        "render::settings::TTL_SECONDS",
    );
    for (what, limits, constant) in [
        ("commands and tools of packs", COMMAND_LIMITS, "COMMAND_LIMITS"),
        ("file tools, skills, `fetch_url`", NATIVE_LIMITS, "NATIVE_LIMITS"),
        ("messages, schedules, sub-runs", OUTBOUND_LIMITS, "OUTBOUND_LIMITS"),
    ] {
        row(what, of_tool(&limits), &format!("plan::limits::{constant}"));
    }
    row("a path", format!("{MAX_PATH_BYTES} bytes"), "builtin_tool::MAX_PATH_BYTES");
    row(
        "default timeout of a command",
        format!("{DEFAULT_COMMAND_SECONDS} s"),
        "builtin_tool::DEFAULT_COMMAND_SECONDS",
    );
    row("edits of a file in one call", MAX_EDITS.to_string(), "builtin_tool::MAX_EDITS");
    row(
        "characters of a page; default",
        format!("{PAGE_CHARACTERS}; {DEFAULT_PAGE_CHARACTERS}"),
        "builtin_tool::PAGE_CHARACTERS",
    );
    row(
        "headers of a request; characters of one",
        format!("{MAX_HEADERS}; {MAX_HEADER_CHARS}"),
        "builtin_tool::MAX_HEADERS",
    );
    row("characters of a message", MAX_MESSAGE_CHARS.to_string(), "builtin_tool::MAX_MESSAGE_CHARS");
    row("characters of a chat ID", MAX_CHAT_ID_CHARS.to_string(), "builtin_tool::MAX_CHAT_ID_CHARS");
    row("characters of a cron expression", MAX_CRON_CHARS.to_string(), "builtin_tool::MAX_CRON_CHARS");
    row("characters of the task of a sub-run", MAX_TASK_CHARS.to_string(), "builtin_tool::MAX_TASK_CHARS");
    row("characters of a duration", MAX_TIMEOUT_CHARS.to_string(), "builtin_tool::MAX_TIMEOUT_CHARS");
    row("the workspace", WORKSPACE_SIZE.to_owned(), "plan::parts::WORKSPACE_SIZE");
    row("`/tmp` of a part", TMP_SIZE.to_owned(), "plan::parts::TMP_SIZE");
    row("`/dev/shm` of a part", SHM_SIZE.to_owned(), "plan::parts::SHM_SIZE");
    row("`/ipc`, the files between bridge and skill", IPC_SIZE.to_owned(), "plan::parts::IPC_SIZE");
    row("the volume of the door", DOOR_SIZE.to_owned(), "plan::parts::DOOR_SIZE");
    row("the injected executor", EXECUTOR_SIZE.to_owned(), "render::volumes::EXECUTOR_SIZE");
    row("default of an `emptyDir` of a manifest", EMPTY_DIR_SIZE.to_owned(), "render::volumes::EMPTY_DIR_SIZE");
    row("single permissions of a rule", MAX_RULE_PERMISSIONS.to_string(), "rbac::MAX_RULE_PERMISSIONS");
    row(
        "single permissions of a pack, or of the hooks",
        MAX_GRANT_PERMISSIONS.to_string(),
        "rbac::MAX_GRANT_PERMISSIONS",
    );
    row("task and system prompt, as stored", bytes(MAX_TASK_BYTES as u64), "admit::MAX_TASK_BYTES");
    let most = Settings::default().default_limits;
    for (what, kept, most, constant) in [
        ("agent", AGENT_REQUESTS, most.agent, "plan::parts::AGENT_REQUESTS"),
        ("bridge", BRIDGE_REQUESTS, most.bridge, "plan::parts::BRIDGE_REQUESTS"),
        ("a pack's sidecar", most.sidecar, most.sidecar, "admit::Settings"),
        ("`sandbox`", SANDBOX_REQUESTS, most.sandbox, "plan::parts::SANDBOX_REQUESTS"),
        ("a hook", HOOK_REQUESTS, most.hook, "plan::parts::HOOK_REQUESTS"),
    ] {
        row(what, format!("{} of {}", amounts(kept), amounts(most)), constant);
    }
    let own = format!("{} and {} of {} and {}", INIT_CPU.0, INIT_MEMORY.0, INIT_CPU.1, INIT_MEMORY.1);
    row("`check-network`, `copy-executor`", own, "render::container::INIT_CPU");
    rows
}

fn bytes(bytes: u64) -> String {
    match bytes {
        bytes if bytes % (1 << 20) == 0 => format!("{} MiB", bytes >> 20),
        bytes => format!("{} KiB", bytes >> 10),
    }
}

fn amounts(amounts: ResourceLimits) -> String {
    format!("{} and {}", amounts.cpu, amounts.memory)
}

fn of_tool(limits: &ToolLimits) -> String {
    format!(
        "{} s; {} in, {} out; {} at a time; {} in a minute",
        limits.timeout_seconds,
        bytes(u64::from(limits.argument_bytes)),
        bytes(u64::from(limits.output_bytes)),
        limits.concurrent,
        limits.per_minute,
    )
}

#[test]
fn the_document_has_every_limit() {
    let written: Vec<&str> = DOCUMENT.lines().filter(|line| line.starts_with("| ") && line.ends_with("` |")).collect();
    assert_eq!(written.join("\n"), rows().join("\n"));
}
