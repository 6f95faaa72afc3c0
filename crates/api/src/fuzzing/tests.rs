//! The replay of the corpora on stable.

use sympozium_testkit::replay;

use super::TARGETS;

#[test]
fn every_target_has_a_program_and_a_corpus_and_every_corpus_a_target() {
    replay::check_layout("sympozium_api", TARGETS);
}

#[test]
fn every_seed_and_its_mutations_keep_the_properties() {
    replay::replay(TARGETS);
}
