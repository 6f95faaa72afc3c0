#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sympozium_ipc::fuzzing::ipc_start(data));
