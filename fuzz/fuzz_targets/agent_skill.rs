#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sympozium::fuzzing::agent_skill(data));
