//! The examples of docs/tool-authoring.md, each in a whole run: manifests, plan, bridge, gateway, agent.

mod bridge_tool;
mod native_tool;
mod page;
mod run;
mod sidecar_tool;
