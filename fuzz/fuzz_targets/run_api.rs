#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sympozium_gateway::fuzzing::run_api(data));
