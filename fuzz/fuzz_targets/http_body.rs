#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sympozium_sidecar::fuzzing::http_body(data));
