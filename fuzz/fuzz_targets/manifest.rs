#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sympozium_manifests::fuzzing::manifest(data));
