//! Records for tests and fuzzing.

use super::{HANDSHAKE, RETRY_RANDOM, SERVER_HELLO};

/// A ClientHello for a server of this name, in one record.
pub(crate) fn example_hello(name: &str) -> Vec<u8> {
    let long = |bytes: &[u8]| {
        let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        [&length.to_be_bytes()[..], bytes].concat()
    };
    let listed = [&[0][..], &long(name.as_bytes())].concat();
    let extensions = [&[0, 0][..], &long(&long(&listed))].concat();
    let random = [7; 32];
    let parts: [&[u8]; 6] = [&[3, 3], &random, &[0], &long(&[0x13, 1]), &[1, 0], &long(&extensions)];
    wrap_record(&[&[1, 0][..], &long(&parts.concat())].concat())
}

/// The beginning of a HelloRetryRequest.
pub(crate) fn example_retry_request() -> Vec<u8> {
    let head = [SERVER_HELLO, 0, 0, 40, 3, 3];
    wrap_record(&[&head[..], &RETRY_RANDOM, &[0; 6]].concat())
}

fn wrap_record(message: &[u8]) -> Vec<u8> {
    let length = u16::try_from(message.len()).unwrap_or(u16::MAX);
    [&[HANDSHAKE, 3, 3][..], &length.to_be_bytes(), message].concat()
}
