//! The catalogue: every attempt, under the guarantee that should stop it.

mod devices;
mod files;
mod inspection;
mod limits;
mod modes;
mod namespaces;
mod network;
mod privileges;
mod programs;
mod shared;
mod signals;
mod syscalls;

use crate::attempt::Attempt;

pub use limits::touch;
pub use programs::{RELOCATED, relocate};

/// Guarantee and rows, in the order they are listed. A guarantee may have several tables.
pub const CATALOGUE: &[(&str, &[Attempt])] = &[
    ("filesystem", files::ATTEMPTS),
    ("filesystem", programs::ATTEMPTS),
    ("filesystem", devices::ATTEMPTS),
    ("filesystem", modes::ATTEMPTS),
    ("network", network::ATTEMPTS),
    ("processes", signals::ATTEMPTS),
    ("processes", inspection::ATTEMPTS),
    ("filesystem", privileges::ATTEMPTS),
    ("syscalls", namespaces::ATTEMPTS),
    ("syscalls", syscalls::ATTEMPTS),
    ("syscalls", shared::ATTEMPTS),
    ("memory", limits::MEMORY),
    ("pids", limits::PIDS),
    ("cpu", limits::CPU),
    ("filesystem", limits::STORAGE),
    ("processes", limits::RESOURCES),
];

/// The attempt called `name`, and its guarantee.
pub fn find(name: &str) -> Option<(&'static str, &'static Attempt)> {
    CATALOGUE.iter().find_map(|(guarantee, rows)| rows.iter().find(|row| row.name == name).map(|row| (*guarantee, row)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_can_be_typed() {
        let mut names: Vec<_> = CATALOGUE.iter().flat_map(|(_, rows)| rows.iter()).map(|row| row.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        for name in names {
            assert!(
                name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'),
                "{name}"
            );
        }
    }
}
