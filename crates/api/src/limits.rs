//! All limits of the schemas, by name.
//!
//! Each list, map and text that a CEL rule reads has a limit, or the API server rejects the rule as too expensive. The
//! others have one because all input is bounded.

/// Characters of a description, a display name, a message: short text for people.
pub const SHORT_TEXT: usize = 1024;
/// Characters of the text of a skill, a system prompt, an answer.
pub const LONG_TEXT: usize = 262_144;
/// Characters of a single word: a provider, a version, a category.
pub const WORD: usize = 128;
/// Characters of a URL.
pub const URL: usize = 2048;
/// Characters of an argument of a command.
pub const ARGUMENT: usize = 8192;
/// Characters of the value of an environment variable, a header or a parameter.
pub const VALUE: usize = 32_768;
/// Characters of a cron expression.
pub const CRON: usize = 128;

/// Skills of an agent or a run.
pub const SKILLS: usize = 32;
/// Skill texts in one pack.
pub const SKILL_TEXTS: usize = 64;
/// Files beside the text of a skill.
pub const SKILL_FILES: usize = 64;
/// Tools that a pack may declare.
pub const TOOLS: usize = 64;
/// Characters of the description of a tool.
pub const TOOL_DESCRIPTION: usize = 2048;
/// Words of a command line.
pub const ARGUMENTS: usize = 128;
/// Environment variables of a container.
pub const ENVIRONMENT: usize = 128;
/// Volumes, and mounts of them.
pub const VOLUMES: usize = 32;
/// RBAC rules of a skill, a hook or a policy.
pub const RBAC_RULES: usize = 64;
/// Groups, resources, verbs or names in an RBAC rule.
pub const RBAC_WORDS: usize = 64;
/// Hooks before or after a run.
pub const HOOKS: usize = 16;
/// Names in an ordinary list.
pub const NAMES: usize = 128;
/// Entries of an ordinary map.
pub const ENTRIES: usize = 64;
/// Chat connections of an agent.
pub const CHANNELS: usize = 16;
/// MCP servers of an agent.
pub const MCP_SERVERS: usize = 32;
/// Credentials of an agent.
pub const CREDENTIALS: usize = 16;
/// Hosts that a pack or a policy may list.
pub const EGRESS: usize = 128;
/// Rules about tools in a policy.
pub const TOOL_RULES: usize = 256;
/// Ports of a container.
pub const PORTS: usize = 16;
/// Conditions of an object.
pub const CONDITIONS: usize = 32;
/// Users and groups that may approve, and votes on one question.
pub const APPROVERS: usize = 64;
/// Groups of the user who votes.
pub const APPROVER_GROUPS: usize = 16;
/// Approvals that a policy may require.
pub const APPROVALS: i32 = 10;
/// The shortest lifetime of a question, in seconds.
pub const MIN_APPROVAL_SECONDS: i32 = 10;
/// The longest lifetime of a question, in seconds.
pub const MAX_APPROVAL_SECONDS: i32 = 86_400;
/// Characters of the summary that an approver reads.
pub const APPROVAL_SUMMARY: usize = 4096;
/// Lines in one segment of a record.
pub const RECORD_LINES: usize = 256;
/// Characters of such a line. One line fits into an etcd value, however it is escaped; the writer of a segment must
/// ensure that all of its lines do.
pub const RECORD_LINE: usize = 128 << 10;
/// Characters of a receipt, which is a line of a record.
pub const RECEIPT_LINE: usize = 4096;
/// Characters of the log tail of a failed container in the status.
pub const LOG_TAIL: usize = 4096;
/// Objects of a run in its status that must be deleted with it.
pub const GRANTS: usize = 256;
/// Containers of a run.
pub const CONTAINERS: usize = 64;
/// Runs that a run has started, in its status.
pub const DELEGATES: usize = 128;
/// Levels of sub-agents.
pub const DEPTH: i32 = 32;
/// Concurrent sub-agents.
pub const CONCURRENCY: i32 = 1000;
/// Warm sandboxes of an agent.
pub const WARM_SANDBOXES: i32 = 100;
