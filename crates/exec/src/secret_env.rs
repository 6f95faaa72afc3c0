//! Secrets that come in the environment, because Kubernetes gives them that way: taken out once, and gone from there.
//!
//! An environment stays readable for as long as the process lives (`/proc/PID/environ`), for every library in it and
//! for every program that it starts. What was taken lies in one place, which is overwritten when it is dropped.

use std::ffi::CString;
use std::io;

use zeroize::Zeroizing;

use crate::lockdown::threads;
use crate::sys;

/// Bytes of a secret. A key of a provider has a few hundred.
pub const MAX_SECRET_BYTES: usize = 64 * 1024;

/// Why a variable could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// No variable can be called that.
    #[error("`{0}` cannot be the name of a variable")]
    Name(String),
    /// Another thread may be reading the environment.
    #[error("secrets must be taken before the first thread, and this process has {0}")]
    Threads(usize),
    /// The threads could not be counted.
    #[error("cannot count the threads of this process")]
    Uncountable(#[source] io::Error),
    /// It is overwritten nevertheless.
    #[error("the value of {name} has {bytes} bytes, and a secret has {MAX_SECRET_BYTES} at most")]
    TooLong {
        /// The variable.
        name: String,
        /// How long its value was.
        bytes: usize,
    },
}

/// Takes a variable out of this process's environment: gives its value, overwrites every byte of that where it was, and
/// removes the variable. `None` if there is none; a variable that is empty is there.
///
/// Call it before the first thread and, because it looks into `/proc`, before [`Lockdown`](crate::lockdown::Lockdown).
/// Nobody in this process may have changed the variable before: `setenv` leaves old values behind.
///
/// # Errors
///
/// When there are other threads, or the value is too long to be a secret.
pub fn take(name: &str) -> Result<Option<Zeroizing<Vec<u8>>>, SecretError> {
    let unusable = || SecretError::Name(name.to_owned());
    if name.is_empty() || name.contains('=') {
        return Err(unusable());
    }
    let c_name = CString::new(name).map_err(|_| unusable())?;
    match threads().map_err(SecretError::Uncountable)? {
        1 => {}
        threads => return Err(SecretError::Threads(threads)),
    }
    let taken = sys::take_variable(&c_name, |bytes| bytes <= MAX_SECRET_BYTES);
    taken.transpose().map_err(|bytes| SecretError::TooLong { name: name.to_owned(), bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_no_variable_has() {
        for name in ["", "A=", "A=B", "A\0"] {
            assert!(matches!(take(name), Err(SecretError::Name(_))), "{name:?}");
        }
    }
}
