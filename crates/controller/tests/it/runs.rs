//! Runs from their creation to the proof that nothing is left.

mod dry_run;
mod ends;
mod gates;
mod harness;
mod kernel;
mod start_faults;
mod waits;
