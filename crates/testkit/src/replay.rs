//! The fuzz targets of a crate on stable: every input of every corpus, and mutations of the seeds that people wrote, which a
//! fixed number decides.
//!
//! `make fuzz` searches with coverage; this holds what it found, and notices in every `make test` when a property
//! breaks. A target belongs to the crate that its program in `fuzz/fuzz_targets` calls.

#![expect(clippy::expect_used, reason = "only tests call this, and a missing file is told by a panic as there")]

use std::collections::BTreeSet;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use crate::cases;

/// A body: it returns when every property holds for the data, and panics otherwise.
pub type Target = fn(data: &[u8]);

/// Mutations of each seed in `make test`; `make test-full` has [`ALL`].
const SAMPLE: u64 = 200;
const ALL: u64 = 2_000;
/// How the name of an input begins that `make fuzz` found and checked in; see `xtask/src/fuzz/corpus.rs`.
const FOUND: &str = "found-";

fn fuzz_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

/// That every target has a program and a corpus, and every program of `library` a target.
///
/// # Panics
///
/// When one is missing.
pub fn check_layout(library: &str, targets: &[(&str, Target)]) {
    let names = |directory: &str| -> BTreeSet<String> {
        let entries = fs::read_dir(fuzz_directory().join(directory)).expect("it is checked in");
        let names = entries.map(|entry| entry.expect("it is readable").path());
        names.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned())).collect()
    };
    let program = |name: &str| {
        let path = fuzz_directory().join(format!("fuzz_targets/{name}.rs"));
        fs::read_to_string(path).expect("it was listed")
    };
    let targets: BTreeSet<String> = targets.iter().map(|(name, _)| (*name).to_owned()).collect();
    let all = names("fuzz_targets");
    assert_eq!(names("corpus"), all);
    let calls = |name: &&String| program(name).contains(&format!("{library}::fuzzing::"));
    let ours: BTreeSet<String> = all.iter().filter(calls).cloned().collect();
    assert_eq!(ours, targets);
    let manifest = fs::read_to_string(fuzz_directory().join("Cargo.toml")).expect("it is there");
    let programs =
        manifest.lines().filter_map(|line| line.strip_prefix("path = \"fuzz_targets/")?.strip_suffix(".rs\""));
    assert_eq!(programs.map(str::to_owned).collect::<BTreeSet<_>>(), all);
    for name in &targets {
        let program = program(name);
        assert!(program.contains(&format!("fuzzing::{name}(")), "{program}");
        assert!(corpus(name).0.len() >= 3, "too few seeds for {name}");
    }
}

/// That the properties hold for every input, and for the mutations of every seed.
///
/// # Panics
///
/// With the first find of each target.
pub fn replay(targets: &[(&str, Target)]) {
    let broken: Vec<_> = targets.iter().filter_map(first_find).collect();
    let seed = mutation_seed();
    assert!(broken.is_empty(), "seed {seed}:\n{}", broken.join("\n"));
}

/// The same mutations in every `make test`, so that a change is to blame for a failure; `make test-full` and `make fuzz` search.
fn mutation_seed() -> u64 {
    if cases::is_full() { cases::seed() } else { 1 }
}

/// One find per target is enough to look at.
fn first_find(&(name, target): &(&str, Target)) -> Option<String> {
    let count = if cases::is_full() { ALL } else { SAMPLE };
    let (seeds, found) = corpus(name);
    // What was found is many mutations of a seed already.
    let seeded = seeds.iter().map(|input| (input, count));
    for ((seed, bytes), count) in seeded.chain(found.iter().map(|input| (input, 0))) {
        let mut dice = Dice::new(name, seed);
        for mutation in 0..=count {
            let input = match mutation {
                0 => bytes.clone(),
                _ => mutate(bytes, &seeds, &mut dice),
            };
            if let Err(why) = holds(target, &input) {
                let input = input.escape_ascii();
                return Some(format!("{name}: {seed}, mutation {mutation}: {why}\n  input: b\"{input}\""));
            }
        }
    }
    None
}

fn holds(target: Target, input: &[u8]) -> Result<(), String> {
    catch_unwind(|| target(input)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
        text.unwrap_or_default()
    })
}

/// An input by its name.
type Input = (String, Vec<u8>);

/// The seeds of a target that people wrote, and what `make fuzz` found and checked in. What cargo-fuzz, started by hand, left
/// there is named by its hash and ignored by git; it is left out, or the same commit would be tested in another way on each
/// machine.
fn corpus(target: &str) -> (Vec<Input>, Vec<Input>) {
    let directory = fuzz_directory().join("corpus").join(target);
    let mut inputs: Vec<Input> = fs::read_dir(&directory)
        .into_iter()
        .flatten()
        .map(|entry| entry.expect("it is readable").path())
        .filter_map(|path| Some((path.file_name()?.to_str()?.to_owned(), path)))
        .filter(|(name, _)| name.len() != 40 || !name.bytes().all(|it| it.is_ascii_hexdigit()))
        .map(|(name, path)| (name, fs::read(path).expect("it is readable")))
        .collect();
    inputs.sort();
    inputs.into_iter().partition(|(name, _)| !name.starts_with(FOUND))
}

/// SplitMix64, as in the probe.
struct Dice(u64);

impl Dice {
    /// The names are part of it, so that a new seed changes nothing for the others.
    fn new(target: &str, seed: &str) -> Self {
        let names = target.bytes().chain(seed.bytes());
        Self(names.fold(mutation_seed(), |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte))))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, or 0.
    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % (end.max(1) as u64)).expect("it is below a usize")
    }

    fn byte(&mut self) -> u8 {
        // Bytes that mean something to one of the parsers come more often than others.
        const TELLING: &[u8] = b"\0\n\r\t /.:,-_=()[]{}\"\\+#09azAZCD\x7f\x80\xbf\xc3\xe2\xf0\xff";
        let any = self.next().to_le_bytes()[0];
        *TELLING.get(self.below(2 * TELLING.len())).unwrap_or(&any)
    }
}

/// One to four changes.
fn mutate(seed: &[u8], others: &[(String, Vec<u8>)], dice: &mut Dice) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=dice.below(4) {
        let at = dice.below(bytes.len());
        let end = (at + 1 + dice.below(16)).min(bytes.len());
        match dice.below(9) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << dice.below(8),
            1 if !bytes.is_empty() => bytes[at] = dice.byte(),
            2 => bytes.insert(at, dice.byte()),
            3 if !bytes.is_empty() => drop(bytes.drain(at..end)),
            4 => bytes.truncate(at),
            5 if !bytes.is_empty() => {
                let again = bytes[at..end].to_vec();
                bytes.splice(at..at, again);
            }
            6 => {
                let edge = [0, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX][dice.below(5)];
                let edge = u32::to_le_bytes(edge);
                let end = (at + 4).min(bytes.len());
                bytes.splice(at..end, edge);
            }
            7 => {
                // The end of another seed in place of this one's.
                let (_, other) = &others[dice.below(others.len())];
                let from = dice.below(other.len());
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
            _ => {
                let (_, other) = &others[dice.below(others.len())];
                let from = dice.below(other.len());
                let to = (from + 1 + dice.below(24)).min(other.len());
                bytes.splice(at..at, other[from..to].iter().copied());
            }
        }
    }
    bytes
}
