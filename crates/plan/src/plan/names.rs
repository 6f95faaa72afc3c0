//! Names of containers: readable where possible, and unique whatever packs and hooks are called.

/// Maximum length of the name of a container.
const MAX_NAME_LEN: usize = 63;

/// A container name for each of `names`, which must be distinct: `start` and the name where that is a valid container
/// name, and otherwise a prefix of it and its number.
///
/// No two are equal: names with a number end in `-x` and that number, and a name that already ends so gets a number
/// too.
pub fn part_names<'a>(start: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let named = |(number, name): (usize, &str)| {
        let plain = format!("{start}-{name}");
        if plain.len() <= MAX_NAME_LEN && !name.contains('.') && !ends_in_number(name) {
            return plain;
        }
        let end = format!("-x{number}");
        let readable: String = name.replace('.', "-");
        let room = MAX_NAME_LEN.saturating_sub(start.len() + 1 + end.len());
        let readable: String = readable.chars().take(room).collect();
        let readable = readable.trim_end_matches('-');
        format!("{start}-{readable}{end}")
    };
    names.into_iter().enumerate().map(named).collect()
}

fn ends_in_number(name: &str) -> bool {
    name.rsplit_once("-x")
        .is_some_and(|(_, number)| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_kept_where_they_can_be() {
        let long = format!("{}.b", "a".repeat(200));
        let names = ["k8s-ops", "a.b", "a-b", "a-b-x1", "x1", &long];
        let expected = [
            "skill-k8s-ops".to_owned(),
            "skill-a-b-x1".to_owned(),
            "skill-a-b".to_owned(),
            "skill-a-b-x1-x3".to_owned(),
            "skill-x1".to_owned(),
            format!("skill-{}-x5", "a".repeat(54)),
        ];
        assert_eq!(part_names("skill", names), expected);
    }

    proptest! {
        #[test]
        fn no_two_are_alike_and_all_are_labels(
            names in proptest::collection::btree_set("[ab]([-.]?[abx01]){0,40}", 1..32),
        ) {
            let made = part_names("skill", names.iter().map(String::as_str));
            let different: BTreeSet<_> = made.iter().collect();
            prop_assert_eq!(different.len(), names.len());
            for name in &made {
                prop_assert_eq!(sympozium_api::names::LabelName::new(name.clone()).check(), Ok(()));
            }
        }
    }
}
