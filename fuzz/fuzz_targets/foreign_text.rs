#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sympozium_api::fuzzing::foreign_text(data));
