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
    let letters = |word: &str| -> Vec<char> {
        let kept = word.chars().filter(|it| *it != '-' && *it != '_');
        kept.flat_map(char::to_lowercase).collect()
    };
    if typed.len() > MAX_LENGTH || name.len() > MAX_LENGTH {
        return None;
    }
    let (typed, name) = (letters(typed), letters(name));
    let most = typed.len().max(name.len()) / 3;
    // The difference of the lengths is a lower bound, which excludes most names.
    if typed.len().abs_diff(name.len()) > most {
        return None;
    }
    let distance = edit_distance(&typed, &name);
    (distance <= most).then_some(distance)
}

/// Damerau-Levenshtein distance: letters added, removed, replaced, or swapped with their neighbour.
fn edit_distance(one: &[char], other: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=other.len()).collect();
    for (row, left) in one.iter().enumerate() {
        let mut current = vec![row + 1];
        for (column, right) in other.iter().enumerate() {
            let replaced = above[column] + usize::from(left != right);
            let mut least = replaced.min(above[column + 1] + 1).min(current[column] + 1);
            let is_swap = row > 0 && column > 0 && one[row - 1] == *right && *left == other[column - 1];
            if is_swap {
                least = least.min(before[column - 1] + 1);
            }
            current.push(least);
        }
        before = std::mem::replace(&mut above, current);
    }
    above[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_of_the_finger_are_understood() {
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

    #[test]
    fn edits_are_counted() {
        let edits = |one: &str, other: &str| {
            let letters = |word: &str| word.chars().collect::<Vec<_>>();
            super::edit_distance(&letters(one), &letters(other))
        };
        for (one, other, count) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("abc", "abc", 0),
            ("abc", "acb", 1),
            ("abc", "axc", 1),
            ("ca", "abc", 3),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(edits(one, other), count, "{one} {other}");
        }
    }
}
