//! Commands about stored runs: `sympozium runs`, `show`, `logs`, `audit`, `rm`, `prune`.
//!
//! All but `prune`, which is about the files of this machine, use a [`RunStore`](sympozium_runs::RunStore) and print what
//! it returns.

pub mod arguments;
pub mod audit;
pub mod duration;
mod list;
pub mod logs;
mod prune;
mod remove;
pub mod show;
pub mod table;
pub mod transcript;
pub mod view;

pub use audit::audit;
pub use list::list;
pub use logs::logs;
pub use prune::prune;
pub use remove::rm;
pub use show::show;
