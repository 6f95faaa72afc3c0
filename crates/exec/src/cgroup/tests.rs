//! v2 logic on a tree in a temporary directory; limits and killing on the machine's own cgroups.

mod fake;
mod real;
