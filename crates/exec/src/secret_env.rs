//! Secrets that are passed in the environment, because Kubernetes does it that way: taken out once, and removed from
//! there.
//!
//! An environment stays readable for as long as the process lives (`/proc/PID/environ`), for every library in it and
//! for every program that it starts. A secret that was taken is in one place, which is overwritten when it is dropped.

use std::ffi::CString;
use std::io;

use zeroize::Zeroizing;

use crate::lockdown::count_threads;
use crate::sys;

/// Limit for a secret, in bytes. The key of a provider has a few hundred.
pub const MAX_SECRET_BYTES: usize = 64 * 1024;

/// Why a variable could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The name is not valid for a variable.
    #[error("`{0}` cannot be the name of a variable")]
    Name(String),
    /// Another thread may be reading the environment.
    #[error("secrets must be taken before the first thread, and this process has {0}")]
    Threads(usize),
    /// The threads could not be counted.
    #[error("cannot count the threads of this process")]
    Uncountable(#[source] io::Error),
    /// The value is too long. It is overwritten nevertheless.
    #[error("the value of {name} has {bytes} bytes, and a secret has {MAX_SECRET_BYTES} at most")]
    TooLong {
        /// The variable's name.
        name: String,
        /// The length of its value.
        bytes: usize,
    },
}

/// Takes a variable out of this process's environment: returns its value, overwrites every byte of it in place, and
/// removes the variable. `None` if it is not set; an empty variable counts as set.
///
/// Call it before the first thread and, because it reads `/proc`, before [`Lockdown`](crate::lockdown::Lockdown). No
/// code of this process may have changed the variable before: `setenv` leaves old values behind.
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
    match count_threads().map_err(SecretError::Uncountable)? {
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
