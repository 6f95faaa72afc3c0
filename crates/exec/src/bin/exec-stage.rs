//! The helper stage as a program of its own, for processes whose `main` is not ours (test harnesses).

fn main() {}
