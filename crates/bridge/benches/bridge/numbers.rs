//! Times of one thing, done in three ways.

use std::fmt;

use sympozium_testkit::bench::{Percentiles, Samples};

/// The same, done in three ways.
#[derive(Debug, Default)]
pub struct Compared {
    /// From the agent through bridge and gateway.
    pub through: Samples,
    /// Through a tunnel of the gateway, without a bridge.
    pub tunnel: Samples,
    /// To the server itself.
    pub direct: Samples,
}

impl Compared {
    /// How much longer it takes through bridge and gateway.
    pub fn added(&self) -> Percentiles {
        let (through, direct) = (self.through.percentiles(), self.direct.percentiles());
        Percentiles { p50: through.p50 - direct.p50, p99: through.p99 - direct.p99 }
    }
}

impl fmt::Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [direct, tunnel, through] = [&self.direct, &self.tunnel, &self.through].map(Samples::percentiles);
        let added = self.added();
        write!(f, "direct {direct}; by a tunnel {tunnel}; through bridge and gateway {through}; added {added}")
    }
}
