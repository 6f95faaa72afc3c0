//! One suite of runs that every backend must realise alike: manifests, a model whose answers are written down, and what must
//! come of it.
//!
//! The cases are data, in `cases/`; the README says how they are written. Here is what has nothing to do with any backend:
//! the format ([`case`]), what was seen of a run ([`seen`]), receipts in words ([`receipts`]), and the comparison of what was
//! seen with what was expected ([`judge`]). A backend is a [`Backend`]; that of one machine is in `tests/it`.
//!
//! Nothing here knows how a run is made, and no expectation differs by backend but the isolation that is live.

pub mod backend;
pub mod case;
pub mod grants;
pub mod judge;
pub mod observed;
pub mod receipts;
pub mod text;

pub use backend::Backend;
pub use case::{Case, load_all};
pub use judge::judge;
pub use observed::Observed;
