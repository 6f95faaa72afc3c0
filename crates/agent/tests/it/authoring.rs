//! The examples of docs/tool-authoring.md, each in a complete run: manifests, plan, bridge, gateway, agent.

mod bridge_tool;
mod native_tool;
mod page;
mod run;
mod sidecar_tool;
