//! How much a user may write: every bound of the schemas, by name.
//!
//! Each list, map and text that a rule looks at has a bound, or the API server refuses the rule as too dear. The rest
//! has one because everything that comes from outside is bounded.

/// Characters of a description, a display name, a message: what people read at a glance.
pub const SHORT_TEXT: usize = 1024;
/// Characters of the text of a skill, a system prompt, an answer.
pub const LONG_TEXT: usize = 262_144;
/// Characters of a word with a meaning of its own: a provider, a version, a category.
pub const WORD: usize = 128;
/// Characters of an address.
pub const URL: usize = 2048;
/// Characters of an argument of a command.
pub const ARGUMENT: usize = 8192;
/// Characters of the value of an environment variable, a header or a parameter.
pub const VALUE: usize = 32_768;
/// Characters of a cron line.
pub const CRON: usize = 128;

/// Skills that an agent or a run may have.
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
/// Rules of access to the Kubernetes API.
pub const RBAC_RULES: usize = 64;
/// Groups, resources, verbs or names in such a rule.
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
/// Hosts that a pack or a policy may open.
pub const EGRESS: usize = 128;
/// Rules about tools in a policy.
pub const TOOL_RULES: usize = 256;
/// Ports of a container.
pub const PORTS: usize = 16;
/// Conditions of an object.
pub const CONDITIONS: usize = 32;
/// People and groups that may approve, and votes on one request.
pub const APPROVERS: usize = 64;
/// Groups that one vote is given in the name of.
pub const APPROVER_GROUPS: usize = 16;
/// Approvals that a policy may ask for.
pub const APPROVALS: i32 = 10;
/// The shortest life of a request for approval, in seconds.
pub const APPROVAL_SECONDS_LEAST: i32 = 10;
/// The longest life of a request for approval, in seconds.
pub const APPROVAL_SECONDS_MOST: i32 = 86_400;
/// Characters of what a person reads before deciding.
pub const APPROVAL_SUMMARY: usize = 4096;
/// Lines in one segment of a record.
pub const RECORD_LINES: usize = 256;
/// Characters of such a line. One of them fits into what etcd takes, however it is escaped; who writes a segment sees to it that
/// all of them do.
pub const RECORD_LINE: usize = 128 << 10;
/// Characters of a receipt, which is a line of a record.
pub const RECEIPT_LINE: usize = 4096;
/// Characters of the log tail that a failed container leaves in the status.
pub const LOG_TAIL: usize = 4096;
/// Objects that a run made and that must go with it, as the status records them.
pub const GRANTS: usize = 256;
/// Containers of a run.
pub const CONTAINERS: usize = 64;
/// Runs that a run may have started, as the status records them.
pub const DELEGATES: usize = 128;
/// Levels of sub-agents.
pub const DEPTH: i32 = 32;
/// Sub-agents at a time.
pub const CONCURRENCY: i32 = 1000;
/// Sandboxes kept warm for an agent.
pub const WARM_SANDBOXES: i32 = 100;
