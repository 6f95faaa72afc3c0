//! Runs from their creation to the proof that nothing is left.

mod ends;
mod gates;
mod hindered;
mod kernel;
mod planned_only;
mod waits;
mod world;
