#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sympozium_agent::fuzzing::neutral_text(data));
