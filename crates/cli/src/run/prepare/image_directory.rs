//! The directory with the root file system of an image on this machine.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use sympozium_api::text::quote;

use crate::failure::Failure;

/// The limit of Linux file systems.
const MAX_NAME_BYTES: usize = 255;

/// The directory for the root of an image, which need not exist; `None` if the reference cannot be a directory name.
pub fn image_directory(data: Option<&Path>, image: &str) -> Option<PathBuf> {
    let name = directory_name(image)?;
    Some(data?.join("images").join(name))
}

/// Refuses an image whose root exists under the name that earlier releases gave it. They replaced every special
/// character by `_`, so that `a/b:1` and `a/b_1` shared a directory: only the user knows which image it is. No name of
/// this release contains a `_`. The hint has the command that renames it.
pub fn check_old_name(data: Option<&Path>, image: &str) -> Result<(), Failure> {
    let Some((data, new)) = data.zip(image_directory(data, image)) else {
        return Ok(());
    };
    let replace = |it: char| if is_plain(it) { it } else { '_' };
    let old: String = image.chars().map(replace).collect();
    let old = data.join("images").join(old);
    if old == new || new.is_dir() || !old.is_dir() {
        return Ok(());
    }
    let error = anyhow!(
        "the directory {} has the name that an earlier release gave to the root of the image {}, and other images could have it, too",
        old.display(),
        quote(image)
    );
    let hint =
        format!("if it is this image's, rename it: mv '{}' '{}'; otherwise remove it", old.display(), new.display());
    Err(Failure::new(error, hint))
}

/// The name of an image's directory: its reference with every special character percent-encoded, so that no two images
/// share one.
fn directory_name(image: &str) -> Option<String> {
    let mut name = String::with_capacity(image.len());
    for character in image.chars() {
        if is_plain(character) {
            name.push(character);
            continue;
        }
        let mut bytes = [0; 4];
        for byte in character.encode_utf8(&mut bytes).bytes() {
            // Writing to a String cannot fail.
            let _ = write!(name, "%{byte:02X}");
        }
    }
    // `.` and `..` are other directories.
    (!name.is_empty() && !name.starts_with('.') && name.len() <= MAX_NAME_BYTES).then_some(name)
}

const fn is_plain(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '.' | '-')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn images_have_directories_that_are_nowhere_else() {
        let data = Path::new("/data");
        let directory = |image: &str| image_directory(Some(data), image);
        for (image, name) in [
            ("ghcr.io/org/gh_skill:1.2@sha256:ab", "ghcr.io%2Forg%2Fgh%5Fskill%3A1.2%40sha256%3Aab"),
            ("a/../../b", "a%2F..%2F..%2Fb"),
            ("alpine", "alpine"),
            ("ä\0", "%C3%A4%00"),
        ] {
            assert_eq!(directory(image), Some(data.join("images").join(name)));
        }
        let long = "a".repeat(MAX_NAME_BYTES + 1);
        for image in ["", ".", "..", "../x", ".hidden", &long] {
            assert_eq!(directory(image), None, "{image}");
        }
        assert_eq!(image_directory(None, "x"), None);
    }

    /// Decodes the name of a directory.
    fn decoded(name: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut rest = name.as_bytes();
        while let [first, after @ ..] = rest {
            rest = match first {
                b'%' => {
                    let digits = std::str::from_utf8(&after[..2]).unwrap();
                    bytes.push(u8::from_str_radix(digits, 16).unwrap());
                    &after[2..]
                }
                plain => {
                    bytes.push(*plain);
                    after
                }
            };
        }
        bytes
    }

    proptest! {
        #[test]
        fn no_two_images_share_a_directory(image in prop_oneof!["[a-c_./:@%F2-]{1,12}", ".{0,12}"]) {
            if let Some(name) = directory_name(&image) {
                // It is reversible, so no other image has it; it is one component, and not a name of an earlier
                // release.
                prop_assert_eq!(decoded(&name), image.as_bytes());
                prop_assert_eq!(Path::new(&name).components().count(), 1);
                prop_assert!(!name.contains(['/', '_', '\0']) && name != "..");
            }
        }
    }

    #[test]
    fn a_directory_of_an_earlier_release_is_not_taken_for_the_images_own() {
        let data = tempfile::tempdir().unwrap();
        let data = data.path();
        let images = data.join("images");
        std::fs::create_dir_all(images.join("a_b_1")).unwrap();
        std::fs::create_dir_all(images.join("plain")).unwrap();
        for image in ["a/b:1", "a/b_1", "a_b:1"] {
            assert!(!image_directory(Some(data), image).unwrap().is_dir());
            let refused = check_old_name(Some(data), image).unwrap_err();
            let text = refused.text();
            assert!(text.contains(&directory_name(image).unwrap()), "{text}");
        }
        for image in ["a/b:2", "plain", "..", ""] {
            assert!(check_old_name(Some(data), image).is_ok(), "{image}");
        }
        assert!(check_old_name(None, "a/b:1").is_ok());
        // The command of the hint.
        let new = image_directory(Some(data), "a/b:1").unwrap();
        std::fs::rename(images.join("a_b_1"), &new).unwrap();
        assert!(check_old_name(Some(data), "a/b:1").is_ok() && new.is_dir());
    }
}
