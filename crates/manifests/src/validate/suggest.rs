//! "Did you mean": the known name that is closest to a misspelt one.

/// Longer words are not compared: they are rarely typed by hand, and the comparison costs the product of the lengths.
const MAX_LENGTH: usize = 48;

/// The one of `names` that is closest to `typed`, if it is close enough.
pub fn closest<'a>(typed: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let mut best: Option<(usize, &str)> = None;
    for name in names {
        let Some(distance) = distance(typed, name) else {
            continue;
        };
        if best.is_none_or(|(shortest, _)| distance < shortest) {
            best = Some((distance, name));
        }
    }
    best.map(|(_, name)| name)
}

/// The number of different letters, if it is small enough: one in three. Case, dashes and underscores are ignored.
fn distance(typed: &str, name: &str) -> Option<usize> {
    let letters = |word: &str| -> String {
        word.chars().filter(|letter| !matches!(letter, '-' | '_')).flat_map(char::to_lowercase).collect()
    };
    if typed.len() > MAX_LENGTH || name.len() > MAX_LENGTH {
        return None;
    }
    let (typed, name) = (letters(typed), letters(name));
    let (typed_length, name_length) = (typed.chars().count(), name.chars().count());
    let most = typed_length.max(name_length) / 3;
    // The difference of the lengths is a lower bound, which excludes most names.
    if typed_length.abs_diff(name_length) > most {
        return None;
    }
    // Letters added, removed, replaced, or swapped with their neighbour.
    let distance = strsim::osa_distance(&typed, &name);
    (distance <= most).then_some(distance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_errors_are_recognized() {
        let names = ["skills", "skillPackRef", "sidecar", "policyRef", "env"];
        for (typed, meant) in [
            ("skils", Some("skills")),
            ("sklils", Some("skills")),
            ("Skills", Some("skills")),
            ("skill_pack_ref", Some("skillPackRef")),
            ("skillpackref", Some("skillPackRef")),
            ("side-car", Some("sidecar")),
            ("policyReff", Some("policyRef")),
            ("emv", Some("env")),
            ("x", None),
            ("", None),
            ("completelyDifferent", None),
        ] {
            assert_eq!(closest(typed, names), meant, "{typed}");
        }
        assert_eq!(closest(&"s".repeat(49), ["s"]), None);
    }
}
