//! What the tests of every crate share.
