//! The fuzz targets on stable.

use sympozium_sidecar::fuzzing::TARGETS;
use sympozium_testkit::fuzz;

#[test]
fn every_target_has_a_program_and_a_corpus_and_every_program_a_target() {
    fuzz::assert_complete("sympozium_sidecar", TARGETS);
}

#[test]
fn every_seed_and_its_mutations_keep_the_properties() {
    fuzz::assert_properties(TARGETS);
}
