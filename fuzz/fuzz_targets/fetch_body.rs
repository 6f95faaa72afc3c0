#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sympozium_bridge::fuzzing::fetch_body(data));
