//! Corpora after a search: minimised to what adds coverage, and the best of it checked in.

use std::collections::{BinaryHeap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use sha2::{Digest as _, Sha256};
use sympozium_api::hex;

use super::engine::{Engine, seeds};

/// How the name of an input begins that a search found. The replay in `crates/testkit` knows it too.
const FOUND: &str = "found-";
/// Most inputs in the repository for each target, besides the seeds that people wrote.
const MAX_FOUND: usize = 24;
/// Most bytes of them together, for each target.
const MAX_FOUND_BYTES: usize = 16 << 10;
/// By how many hundredths a new selection must cover more, or each search would change hundreds of files.
const MIN_GAIN_PERCENT: usize = 5;

/// A corpus before and after.
#[derive(Debug, PartialEq, Eq)]
pub struct Minimised {
    pub before: usize,
    pub after: usize,
    /// Those of them that are in the repository, with the seeds.
    pub checked_in: usize,
}

/// Minimises the corpus of a target: seeds that people wrote stay, then comes what adds most. All of that is retained on
/// this machine for the next search; the first of it, within the bounds, goes into the repository.
pub fn minimise(engine: &Engine, target: &str) -> anyhow::Result<Minimised> {
    let scratch = tempfile::tempdir()?;
    let control = scratch.path().join("control");
    engine.measure(target, &control)?;
    let inputs = parse(&fs::read_to_string(&control)?).context("reading libFuzzer's features")?;
    let seeds = seeds(target);
    let (found, written): (Vec<Input>, Vec<Input>) =
        inputs.into_iter().partition(|input| !input.path.starts_with(&seeds) || is_found(&input.path));
    let before = found.len() + written.len();
    let chosen = choose(&written, &found);
    let checked_in = within_bounds(&chosen);
    let now: Vec<&Input> = found.iter().filter(|input| input.path.starts_with(&seeds)).collect();
    let reached = |inputs: &[&Input]| {
        let inputs = written.iter().chain(inputs.iter().copied());
        inputs.flat_map(|input| &input.features).collect::<HashSet<_>>().len()
    };
    let enough = reached(&now) * (100 + MIN_GAIN_PERCENT) / 100;
    let checked_in = if now.is_empty() || reached(&checked_in) > enough { checked_in } else { now };
    let others = chosen.iter().filter(|input| !checked_in.contains(input));
    let others: Vec<&Input> = others.copied().collect();
    exchange((&seeds, &checked_in), (&engine.work_corpus(target), &others))?;
    Ok(Minimised { before, after: written.len() + chosen.len(), checked_in: written.len() + checked_in.len() })
}

/// An input, and the features that it reaches; none if it crashes.
#[derive(Debug, PartialEq, Eq)]
struct Input {
    path: PathBuf,
    bytes: usize,
    features: Vec<u32>,
}

/// By its name; a name that is a hash is what cargo-fuzz, started by hand, left there.
fn is_found(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_hash = name.len() == 40 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hash || name.starts_with(FOUND)
}

/// Reads libFuzzer's control file of a merge: how many files, how many of them in the first directory, their names, and for
/// each a line `STARTED number bytes` and, unless it crashed, `FT number feature…`.
fn parse(control: &str) -> Option<Vec<Input>> {
    let mut lines = control.lines();
    let count: usize = lines.next()?.parse().ok()?;
    lines.next()?;
    let mut inputs: Vec<Input> = (0..count)
        .map(|_| {
            let path = lines.next()?.into();
            Some(Input { path, bytes: 0, features: Vec::new() })
        })
        .collect::<Option<_>>()?;
    for line in lines {
        let mut words = line.split_ascii_whitespace();
        let (kind, number) = (words.next()?, words.next()?.parse::<usize>().ok()?);
        let input = inputs.get_mut(number)?;
        match kind {
            "STARTED" => input.bytes = words.next()?.parse().ok()?,
            "FT" => input.features = words.map(|word| word.parse().ok()).collect::<Option<_>>()?,
            _ => {}
        }
    }
    Some(inputs)
}

/// Those that together reach all that is reached, each in its turn the one that adds most, the smaller one of two that
/// add the same.
fn choose<'a>(written: &[Input], found: &'a [Input]) -> Vec<&'a Input> {
    let mut reached: HashSet<u32> = written.iter().flat_map(|input| &input.features).copied().collect();
    let gain = |input: &Input, reached: &HashSet<u32>| {
        let new = input.features.iter().filter(|feature| !reached.contains(feature));
        new.count()
    };
    let rank = |gain: usize, index: usize| (gain, std::cmp::Reverse((found[index].bytes, index)));
    let mut heap: BinaryHeap<_> = (0..found.len()).map(|index| rank(gain(&found[index], &reached), index)).collect();
    let mut chosen = Vec::new();
    // What an input adds only ever falls: one that still adds what it did when it was ranked is the best.
    while let Some((ranked, std::cmp::Reverse((_, index)))) = heap.pop() {
        let input = &found[index];
        match gain(input, &reached) {
            0 => {}
            now if now == ranked => {
                reached.extend(&input.features);
                chosen.push(input);
            }
            now => heap.push(rank(now, index)),
        }
    }
    chosen
}

fn within_bounds<'a>(chosen: &[&'a Input]) -> Vec<&'a Input> {
    let mut bytes = 0;
    let mut fits = |input: &&&Input| {
        let all = bytes + input.bytes;
        let fits = all <= MAX_FOUND_BYTES;
        bytes = if fits { all } else { bytes };
        fits
    };
    chosen.iter().filter(|input| fits(input)).take(MAX_FOUND).copied().collect()
}

/// Makes the inputs those of the repository and of the machine. All are read before any is removed: one may go from one
/// directory to the other.
fn exchange(repository: (&Path, &[&Input]), machine: (&Path, &[&Input])) -> anyhow::Result<()> {
    let (ours, others) = (read(repository.1, FOUND)?, read(machine.1, "")?);
    replace(repository.0, &ours, is_found)?;
    replace(machine.0, &others, |_| true)
}

/// A file's name, which says what it holds, and its contents.
type Named = (String, Vec<u8>);

fn read(inputs: &[&Input], prefix: &str) -> anyhow::Result<Vec<Named>> {
    let named = inputs.iter().map(|input| {
        let path = &input.path;
        let contents = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
        let hash = hex::encode(&Sha256::digest(&contents)[..8]);
        Ok((format!("{prefix}{hash}"), contents))
    });
    named.collect()
}

/// Replaces the files of `directory` that `ours` accepts by `inputs`.
fn replace(directory: &Path, inputs: &[Named], ours: impl Fn(&Path) -> bool) -> anyhow::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if ours(&path) && !inputs.iter().any(|(name, _)| path.ends_with(name)) {
            fs::remove_file(&path)?;
        }
    }
    for (name, contents) in inputs {
        let path = directory.join(name);
        if !path.exists() {
            fs::write(&path, contents).with_context(|| format!("writing {}", path.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
