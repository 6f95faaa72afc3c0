//! The reference monitor of a run: it decides about every tool call, and there is no way around it.
//!
//! * `table` looks a call up: the tool, its gate, its schema, and who acts.
//! * `command` builds the request to a sidecar from a call.
//! * `rate` limits concurrent calls, calls per minute, and calls in total.
//! * `program` is the process: it reads `inputs` and `key`, and restricts itself before it serves.
//! * `check_network` runs first in a pod: is the run confined by its NetworkPolicy?
//! * `egress_client` opens connections to the gateway, and tunnels through it.
//! * `session` is the state of one run. `door` serves its agent, `calls` has the order of a call, `ask` asks an
//!   approver, `permits` lets the agent act itself, `active_skill` restricts the tools, `invocation` performs the call,
//!   and `skill` is the bridge's end of a skill's volume.
//! * `records` stores receipts until `reporter` has sent them by `run_api_client`; `clock` measures the run's time.
//! * `model` and `scripted` are the model as the agent sees it; `fetch` fetches web pages.
//! * `bridge` connects all of them, and shuts down.
//!
//! Start reading at `table::ToolTable::look_up`, and at [`program::main`] for the start of the process.

mod active_skill;
pub mod arguments;
pub mod ask;
pub mod bridge;
pub mod calls;
pub mod check_network;
pub mod clock;
pub mod command;
pub mod door;
pub mod egress_client;
pub mod fetch;
pub mod floor;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod inputs;
pub mod invocation;
pub mod key;
pub mod model;
mod notices;
pub mod permits;
pub mod program;
pub mod rate;
pub mod records;
pub mod reporter;
pub mod run_api_client;
pub mod scripted;
pub mod session;
pub mod skill;
pub mod table;
