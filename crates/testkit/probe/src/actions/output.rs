//! Input and output in amounts and shapes that a reader must survive.

use std::io::{self, Read as _, Write};

pub fn echo() -> i32 {
    let copied = (|| {
        let mut buffer = [0; 1 << 16];
        loop {
            match io::stdin().read(&mut buffer)? {
                0 => return io::stdout().flush(),
                count => io::stdout().write_all(&buffer[..count])?,
            }
        }
    })();
    i32::from(copied.is_err())
}

/// Lines of 64 bytes, so that what was kept can be recognised.
pub fn flood(where_to: &str, bytes: u64) -> i32 {
    let mut block = Vec::with_capacity(1 << 16);
    while block.len() < 1 << 16 {
        block.extend_from_slice(b"the quick brown fox jumps over the lazy dog, again and again...\n");
    }
    let mut left = bytes;
    while left > 0 {
        let length = block.len().min(left as usize);
        let written = match where_to {
            "stderr" => io::stderr().write_all(&block[..length]),
            "both" => io::stdout().write_all(&block[..length]).and_then(|()| io::stderr().write_all(&block[..length])),
            _ => io::stdout().write_all(&block[..length]),
        };
        if written.is_err() {
            return 1;
        }
        left -= length as u64;
    }
    i32::from(io::stdout().flush().is_err())
}

pub fn invalid_utf8() -> i32 {
    // A lone continuation, an overlong slash, a surrogate, a start without its end, and NUL, between plain text.
    let bytes = b"before \x80 \xc0\xaf \xed\xa0\x80 \xf0\x9f\x92 \0 after\n";
    let written = io::stdout().write_all(bytes).and_then(|()| io::stdout().flush());
    i32::from(written.is_err())
}
