//! How many tests ran, from what cargo's harness prints.

/// Tests that passed and failed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub passed: u64,
    pub failed: u64,
}

impl Totals {
    pub fn add(&mut self, other: &Self) {
        self.passed += other.passed;
        self.failed += other.failed;
    }

    /// Sums up lines such as `test result: ok. 21 passed; 0 failed; …`, and the plain closing line
    /// `3 passed, 0 failed` of runners that are not cargo's.
    pub fn parse(lines: &[String]) -> Self {
        let mut totals = Self::default();
        for text in lines {
            let counts = match text.strip_prefix("test result: ") {
                Some(rest) => rest.split_once(". ").map_or(rest, |(_, counts)| counts),
                None if is_plain(text) => text,
                None => continue,
            };
            for part in counts.split([';', ',']) {
                let mut words = part.split_whitespace();
                let (Some(number), Some(what)) = (words.next(), words.next()) else {
                    continue;
                };
                let number = number.parse::<u64>().unwrap_or(0);
                match what {
                    "passed" => totals.passed += number,
                    "failed" => totals.failed += number,
                    _ => {}
                }
            }
        }
        totals
    }
}

fn is_plain(text: &str) -> bool {
    let words: Vec<&str> = text.split_whitespace().collect();
    matches!(words[..], [passed, "passed,", failed, "failed" | "failed,", ..]
        if passed.parse::<u64>().is_ok() && failed.parse::<u64>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_summed_up() {
        let lines = [
            "running 21 tests",
            "test a ... ok",
            "test result: ok. 21 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.2s",
            "4 passed, 1 failed, 7 skipped",
            "2 passed the salt",
        ];
        assert_eq!(Totals::parse(&lines.map(str::to_owned)), Totals { passed: 28, failed: 3 });
    }
}
