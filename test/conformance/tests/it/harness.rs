//! Runs tests a few at a time and says what came of each, in the words of cargo's own harness.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

/// Cases at a time: each has a handful of processes.
const AT_A_TIME: usize = 4;

/// One test: its body says everything that is wrong.
pub struct Test {
    name: String,
    body: Box<Body>,
}

type Body = dyn Fn() -> anyhow::Result<Vec<String>> + Send + Sync;

/// What may be typed behind `--`, as far as it makes sense here.
pub struct Arguments {
    filters: Vec<String>,
    skipped: Vec<String>,
    exact: bool,
    list: bool,
    at_a_time: usize,
}

impl Test {
    pub fn new(
        name: impl Into<String>,
        body: impl Fn() -> anyhow::Result<Vec<String>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            body: Box::new(body),
        }
    }

    /// Runs it on a thread of its name: that is how a skip knows whose it is.
    fn problems(&self) -> Vec<String> {
        thread::scope(|scope| {
            let named = thread::Builder::new().name(self.name.clone());
            let running = match named.spawn_scoped(scope, || (self.body)()) {
                Ok(running) => running,
                Err(error) => return vec![format!("no thread for the test: {error}")],
            };
            match running.join() {
                Ok(Ok(problems)) => problems,
                Ok(Err(error)) => vec![format!("{error:#}")],
                Err(_) => vec!["the test itself broke".to_owned()],
            }
        })
    }
}

impl Arguments {
    pub fn read() -> Self {
        let mut read = Self {
            filters: Vec::new(),
            skipped: Vec::new(),
            exact: false,
            list: false,
            at_a_time: AT_A_TIME,
        };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let (flag, value) = match word.split_once('=') {
                Some((flag, value)) if flag.starts_with("--") => {
                    (flag.to_owned(), Some(value.to_owned()))
                }
                _ => (word, None),
            };
            let mut value = || value.clone().or_else(|| words.next()).unwrap_or_default();
            match flag.as_str() {
                "--exact" => read.exact = true,
                "--list" => read.list = true,
                "--skip" => read.skipped.push(value()),
                "--test-threads" => read.at_a_time = value().parse().unwrap_or(AT_A_TIME).max(1),
                "--format" | "--color" => drop(value()),
                flag if flag.starts_with('-') => {}
                filter => read.filters.push(filter.to_owned()),
            }
        }
        read
    }

    /// Whether a filter asks for tests whose names begin so, or have its text in it.
    pub fn ask_for(&self, beginning: &str) -> bool {
        let word = beginning.trim_end_matches(':');
        let asks = |filter: &String| {
            filter.starts_with(beginning) || word.starts_with(filter.as_str()) && !self.exact
        };
        self.filters.iter().any(asks)
    }

    fn wants(&self, name: &str) -> bool {
        let fits = |wanted: &String| match self.exact {
            true => name == wanted,
            false => name.contains(wanted.as_str()),
        };
        (self.filters.is_empty() || self.filters.iter().any(fits)) && !self.skipped.iter().any(fits)
    }
}

/// Runs what is wanted, and says whether all of it passed.
pub fn run(tests: Vec<Test>, arguments: &Arguments) -> anyhow::Result<bool> {
    let all = tests.len();
    let tests: VecDeque<Test> = (tests.into_iter())
        .filter(|test| arguments.wants(&test.name))
        .collect();
    if arguments.list {
        for test in &tests {
            println!("{}: test", test.name);
        }
        return Ok(true);
    }
    let (count, begin) = (tests.len(), Instant::now());
    println!("\nrunning {count} tests");
    let (waiting, failed) = (Mutex::new(tests), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..arguments.at_a_time.min(count) {
            scope.spawn(|| {
                loop {
                    let next = lock(&waiting).pop_front();
                    let Some(test) = next else { break };
                    let since = Instant::now();
                    let problems = test.problems();
                    let word = if problems.is_empty() { "ok" } else { "FAILED" };
                    println!(
                        "test {} ... {word} <{:.2}s>",
                        test.name,
                        since.elapsed().as_secs_f64()
                    );
                    if !problems.is_empty() {
                        lock(&failed).push((test.name.clone(), problems));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    for (name, problems) in &failed {
        println!("\n---- {name} ----");
        for problem in problems {
            println!("* {problem}");
        }
    }
    let word = if failed.is_empty() { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {word}. {} passed; {} failed; 0 ignored; 0 measured; {} filtered out; finished in {:.2}s\n",
        count - failed.len(),
        failed.len(),
        all - count,
        begin.elapsed().as_secs_f64()
    );
    Ok(failed.is_empty())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A test that panics is caught before it could leave anything half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
