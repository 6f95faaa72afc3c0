//! The kinds as a user sees them: manifests, schemas, rules.

#![expect(clippy::expect_used, reason = "a test that cannot go on says so and fails")]

mod cases;
mod defaults;
mod generated;
mod manifests;
mod schemas;
mod support;
