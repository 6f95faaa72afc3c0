//! Names as the standard defines them: lower case, digits and single hyphens.

use sympozium_api::names::SkillName;

/// `name` with invalid characters replaced; `None` if nothing is left of it.
pub fn normalize(name: &str) -> Option<String> {
    let mut fitted = String::new();
    for character in name.chars().flat_map(char::to_lowercase) {
        if character.is_ascii_lowercase() || character.is_ascii_digit() {
            fitted.push(character);
        } else if !fitted.is_empty() && !fitted.ends_with('-') {
            fitted.push('-');
        }
        if fitted.len() == SkillName::MOST {
            break;
        }
    }
    while fitted.ends_with('-') {
        fitted.pop();
    }
    (!fitted.is_empty()).then_some(fitted)
}

pub fn is_normalized(name: &str) -> bool {
    normalize(name).as_deref() == Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_normalized() {
        for (name, expected) in [
            ("pdf-tools", Some("pdf-tools")),
            ("PDF Tools", Some("pdf-tools")),
            ("--a__b--", Some("a-b")),
            ("Größe 2", Some("gr-e-2")),
            ("../../etc", Some("etc")),
            ("日本", None),
            ("", None),
            ("-", None),
        ] {
            assert_eq!(normalize(name).as_deref(), expected, "{name}");
            assert_eq!(is_normalized(name), expected == Some(name), "{name}");
        }
        assert_eq!(normalize(&"a".repeat(64)), Some("a".repeat(63)));
        let cut = format!("{}-b", "a".repeat(62));
        assert_eq!(normalize(&cut), Some("a".repeat(62)));
    }
}
