//! The bridge as a run's pod has it: our images, the rendered containers, the real gateway behind a Service, on both kernels.

mod agent;
mod harness;
mod network_check;
mod serving;
mod whole;
