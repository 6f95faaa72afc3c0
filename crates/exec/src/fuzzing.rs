//! The bodies of the fuzz targets: one function per parser of bytes that another process or a person chose.
//!
//! They are here and not in `fuzz/` because most parsers are private to the crate, and because they have three callers:
//! coverage-guided fuzzing (`make fuzz`), the replay of the corpora on stable in `make test`, and a debugging session
//! for a finding. Each one states a property and panics when it does not hold; a body that could only find panics would
//! find little in safe Rust.

#![expect(clippy::expect_used, reason = "a broken property panics, as in a test")]

mod limits;
mod messages;
mod paths;
mod scratch;
mod text;

/// A body: it returns when every property holds for `data`, and panics otherwise.
pub type Target = fn(data: &[u8]);

macro_rules! targets {
    ($($module:ident::$name:ident,)*) => {
        $(pub use $module::$name;)*

        /// Every target by its name, which is also the name of its corpus and of its program in `fuzz/`.
        pub const TARGETS: &[(&str, Target)] = &[$((stringify!($name), $name),)*];
    };
}

targets! {
    limits::cgroup_events,
    limits::cgroup_layout,
    limits::cgroup_name,
    limits::cgroup_procs,
    messages::answer,
    messages::control_message,
    messages::control_stream,
    messages::job,
    messages::job_stream,
    paths::beneath,
    paths::program,
    text::captured,
    text::environment,
    text::kernel_log,
    text::process_stat,
    text::skill_name,
}

#[cfg(test)]
mod tests;
