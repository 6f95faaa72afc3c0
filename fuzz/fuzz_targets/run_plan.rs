#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sympozium_plan::fuzzing::run_plan(data));
