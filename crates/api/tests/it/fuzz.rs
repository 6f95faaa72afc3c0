//! The fuzz targets on stable; see the testkit's `replay`.

use sympozium_api::fuzzing::TARGETS;
use sympozium_testkit::replay;

#[test]
fn every_target_has_a_program_and_a_corpus_and_every_corpus_a_target() {
    replay::check_layout("sympozium_api", TARGETS);
}

#[test]
fn every_seed_and_its_mutations_keep_the_properties() {
    replay::replay(TARGETS);
}
