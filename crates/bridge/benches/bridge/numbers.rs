//! Times that were taken, and what is told of them.

use std::fmt;
use std::time::Duration;

/// Microseconds of one thing, done many times.
#[derive(Debug, Default)]
pub struct Samples(Vec<f64>);

/// What most took no longer than, in microseconds.
#[derive(Debug, Clone, Copy)]
pub struct Percentiles {
    pub p50: f64,
    pub p99: f64,
}

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

impl Samples {
    pub fn add(&mut self, took: Duration) {
        self.0.push(took.as_secs_f64() * 1e6);
    }

    pub fn percentiles(&self) -> Percentiles {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |percent: usize| {
            let place = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
            sorted.get(place).copied().unwrap_or(f64::NAN)
        };
        Percentiles {
            p50: at(50),
            p99: at(99),
        }
    }
}

impl Compared {
    /// How much longer it takes through bridge and gateway.
    pub fn added(&self) -> Percentiles {
        let (through, direct) = (self.through.percentiles(), self.direct.percentiles());
        Percentiles {
            p50: through.p50 - direct.p50,
            p99: through.p99 - direct.p99,
        }
    }
}

impl fmt::Display for Percentiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p50 {:.0} µs, p99 {:.0} µs", self.p50, self.p99)
    }
}

impl fmt::Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [direct, tunnel, through] =
            [&self.direct, &self.tunnel, &self.through].map(Samples::percentiles);
        let added = self.added();
        write!(
            f,
            "direct {direct}; by a tunnel {tunnel}; through bridge and gateway {through}; added {added}"
        )
    }
}
