//! Runs tests several at a time, with the options and the output of cargo's own harness.

use std::collections::VecDeque;
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, bail};
use parking_lot::Mutex;

/// What libtest exits with when a test fails or an option is wrong.
pub const EXIT_FAILURE: u8 = 101;
/// The variable by which libtest takes `--test-threads`.
const THREADS_VARIABLE: &str = "RUST_TEST_THREADS";

/// One test: its body lists everything that is wrong.
pub struct Test {
    name: String,
    body: Box<Body>,
    /// How to run the same test again, where its name is not enough for that.
    repeat: Option<String>,
}

type Body = dyn Fn() -> anyhow::Result<Vec<String>> + Send + Sync;

/// The options of libtest, as far as they mean something here.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    filters: Vec<String>,
    skipped: Vec<String>,
    exact: bool,
    ignored: bool,
    pub list: bool,
    report_time: bool,
    threads: Option<usize>,
}

impl Test {
    pub fn new(
        name: impl Into<String>,
        body: impl Fn() -> anyhow::Result<Vec<String>> + Send + Sync + 'static,
    ) -> Self {
        Self { name: name.into(), body: Box::new(body), repeat: None }
    }

    /// The same with a command that is printed when it fails.
    #[must_use]
    pub fn repeated_by(mut self, command: Option<String>) -> Self {
        self.repeat = command;
        self
    }

    /// Runs it on a thread of its name: that is how a skip is attributed to it.
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
                Err(_) => vec!["the test panicked".to_owned()],
            }
        })
    }
}

impl Arguments {
    /// Those of this process.
    ///
    /// # Errors
    ///
    /// When libtest would not know one.
    pub fn read() -> anyhow::Result<Self> {
        let mut read = Self::parse(std::env::args().skip(1))?;
        if let (None, Ok(threads)) = (read.threads, std::env::var(THREADS_VARIABLE)) {
            read.threads = Some(count(THREADS_VARIABLE, &threads)?);
        }
        Ok(read)
    }

    fn parse(words: impl IntoIterator<Item = String>) -> anyhow::Result<Self> {
        let mut read = Self::default();
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            if !word.starts_with('-') {
                read.filters.push(word);
                continue;
            }
            let (flag, given) = match word.split_once('=') {
                Some((flag, value)) => (flag, Some(value.to_owned())),
                None => (word.as_str(), None),
            };
            let mut value = || {
                let value = given.clone().or_else(|| words.next());
                value.with_context(|| format!("the option {flag} needs a value"))
            };
            match flag {
                "--exact" => read.exact = true,
                "--list" => read.list = true,
                "--ignored" => read.ignored = true,
                "--report-time" => read.report_time = true,
                "--skip" => read.skipped.push(value()?),
                "--test-threads" => read.threads = Some(count(flag, &value()?)?),
                // Nothing is captured, ignored or coloured here.
                "--format" | "--color" | "--logfile" | "-Z" => drop(value()?),
                "--include-ignored" | "--nocapture" | "--no-capture" | "--show-output" | "--quiet" | "-q"
                | "--test" => {}
                _ => bail!("unknown option {flag}"),
            }
        }
        Ok(read)
    }

    /// Whether a filter asks for tests whose names begin so, or has its text in it.
    pub fn ask_for(&self, beginning: &str) -> bool {
        let word = beginning.trim_end_matches(':');
        let asks = |filter: &String| filter.starts_with(beginning) || word.starts_with(filter.as_str()) && !self.exact;
        self.filters.iter().any(asks)
    }

    fn wants(&self, name: &str) -> bool {
        let fits = |wanted: &String| if self.exact { name == wanted } else { name.contains(wanted.as_str()) };
        // No test is marked as ignored.
        !self.ignored && (self.filters.is_empty() || self.filters.iter().any(fits)) && !self.skipped.iter().any(fits)
    }
}

fn count(option: &str, value: &str) -> anyhow::Result<usize> {
    let count = value.parse().ok().filter(|it| *it > 0);
    count.with_context(|| format!("{option} must be a number greater than 0, and is {value:?}"))
}

/// Runs what is wanted, `threads` at a time unless the arguments have another number, and returns whether all of it passed.
pub fn run(tests: Vec<Test>, arguments: &Arguments, threads: usize) -> bool {
    let all = tests.len();
    let tests: VecDeque<Test> = (tests.into_iter()).filter(|test| arguments.wants(&test.name)).collect();
    let count = tests.len();
    if arguments.list {
        for test in &tests {
            println!("{}: test", test.name);
        }
        println!("\n{count} tests, 0 benchmarks");
        return true;
    }
    let begin = Instant::now();
    println!("\nrunning {count} tests");
    let (waiting, failed) = (Mutex::new(tests), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..arguments.threads.unwrap_or(threads).min(count) {
            scope.spawn(|| {
                loop {
                    let next = waiting.lock().pop_front();
                    let Some(test) = next else { break };
                    let since = Instant::now();
                    let problems = test.problems();
                    println!("{}", result(&test, &problems, since, arguments));
                    if !problems.is_empty() {
                        failed.lock().push((test, problems));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner();
    if !failed.is_empty() {
        println!("\nfailures:");
    }
    for (test, problems) in &failed {
        println!("\n---- {} ----", test.name);
        for problem in problems {
            println!("* {problem}");
        }
        if let Some(command) = &test.repeat {
            println!("repeat it with: {command}");
        }
    }
    if !failed.is_empty() {
        println!("\nfailures:");
    }
    for (test, _) in &failed {
        println!("    {}", test.name);
    }
    let word = if failed.is_empty() { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {word}. {} passed; {} failed; 0 ignored; 0 measured; {} filtered out; finished in {:.2}s\n",
        count - failed.len(),
        failed.len(),
        all - count,
        begin.elapsed().as_secs_f64()
    );
    failed.is_empty()
}

/// One line, which is printed as a whole: other tests print theirs.
fn result(test: &Test, problems: &[String], since: Instant, arguments: &Arguments) -> String {
    let word = if problems.is_empty() { "ok" } else { "FAILED" };
    let time = if arguments.report_time { format!(" <{:.3}s>", since.elapsed().as_secs_f64()) } else { String::new() };
    format!("test {} ... {word}{time}", test.name)
}

/// That options are read as libtest reads them: this binary has no `#[test]`.
pub fn tests() -> Vec<Test> {
    fn parse(words: &str) -> anyhow::Result<Arguments> {
        Arguments::parse(words.split_whitespace().map(str::to_owned))
    }
    let read = |name: &str, words: &'static str, expected: fn(&mut Arguments)| {
        Test::new(format!("harness::{name}"), move || {
            let mut wanted = Arguments::default();
            expected(&mut wanted);
            let read = parse(words)?;
            Ok(if read == wanted { Vec::new() } else { vec![format!("{words:?} is read as {read:?}")] })
        })
    };
    vec![
        read("values", "--test-threads=3 --skip a --skip=b --exact c", |arguments| {
            arguments.threads = Some(3);
            arguments.skipped = vec!["a".to_owned(), "b".to_owned()];
            arguments.exact = true;
            arguments.filters = vec!["c".to_owned()];
        }),
        read("options-without-effect", "-q --format pretty -Z unstable-options --report-time", |arguments| {
            arguments.report_time = true;
        }),
        Test::new("harness::wrong-options", || {
            let wrong = ["--tset-threads=1", "--test-threads=0", "--skip", "-x"];
            let taken = wrong.iter().filter(|it| parse(it).is_ok());
            Ok(taken.map(|it| format!("{it} is taken")).collect())
        }),
        Test::new("harness::filters", || {
            let name = "local::root::gate-deny";
            let wanted = ["", "gate-deny", "other root", "--exact local::root::gate-deny"];
            let unwanted = ["other", "--skip gate", "--exact gate-deny", "--ignored"];
            let mut problems = Vec::new();
            for (words, expected) in
                (wanted.iter().map(|word| (word, true))).chain(unwanted.iter().map(|word| (word, false)))
            {
                if parse(words)?.wants(name) != expected {
                    problems.push(format!("{words:?}: {expected} is expected"));
                }
            }
            Ok(problems)
        }),
    ]
}
