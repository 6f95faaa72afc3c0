//! The gateway's key, and what is signed with it.

use std::time::{SystemTime, UNIX_EPOCH};

use sympozium_ipc::credential::{Claims, Credential, KeyRing};

/// The key file of a gateway.
pub const KEY_FILE: &str = "k1 5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a\n";
/// Seconds for which a token is valid: longer than any deadline that a test lets pass.
const VALIDITY_SECONDS: u64 = 3600;

/// The keys of [`KEY_FILE`].
pub fn keys() -> KeyRing {
    KeyRing::parse(KEY_FILE).expect("a key file")
}

/// Now, in seconds of Unix time.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

/// A credential of a run.
pub fn sign(run: &str, name: &str, expires: u64) -> Credential {
    keys().sign(&Claims { run: run.to_owned(), name: name.to_owned(), expires }).expect("claims that fit")
}

/// A credential as files and headers have it.
pub fn token_until(run: &str, name: &str, expires: u64) -> String {
    let credential = sign(run, name, expires);
    format!("{}:{}", credential.user, *credential.password)
}

/// As [`token_until`], for longer than a test takes.
pub fn token(run: &str, name: &str) -> String {
    token_until(run, name, now() + VALIDITY_SECONDS)
}
