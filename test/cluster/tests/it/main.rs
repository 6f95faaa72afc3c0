//! The smoke suite of the test cluster: what other suites rely on, each line of it tried for real. And our kinds and
//! packs, and what `explain` says about rights, on a real API server.

mod agent_sandbox;
mod bridge;
mod control_plane;
mod cycles;
mod explain;
mod given;
mod gvisor;
mod install;
mod install_admission;
mod kinds;
mod lifecycle;
mod names;
mod network;
mod node;
mod own;
mod packs;
mod pods;
mod processes;
mod refusals;
mod render;
mod rights;
mod runs;
mod shipped;
mod sidecar;
