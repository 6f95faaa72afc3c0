#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sympozium_ipc::fuzzing::proxy_credential(data));
