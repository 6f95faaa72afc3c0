//! Whether the rules that a user holds cover a requested rule: the check that Kubernetes makes before a user may write
//! a Role.

use super::{Rule, resource_stands_for, stands_for};

/// Maximum number of single permissions (one group, resource, verb and name) that one rule is expanded into. A rule
/// that is written to be read has a few hundred.
pub const MAX_COMBINATIONS: usize = 4096;
/// Maximum number of single permissions that one pack, or the hooks of one run, may request. Admission expands all of
/// them.
pub const MAX_GRANT: usize = 4 * MAX_COMBINATIONS;

/// A rule has more than [`MAX_COMBINATIONS`] single permissions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the rule means {0} single rights, at most {MAX_COMBINATIONS} are looked at")]
pub struct TooMany(pub usize);

/// The first single permission of `asked` that `held` does not cover; `None` when all are covered.
///
/// Permissions that several held rules give only together count, as in Kubernetes: the rule is expanded into single
/// permissions, each of which must be covered by one held rule.
///
/// # Errors
///
/// When the rule has too many single permissions.
pub fn covers(held: &[Rule], asked: &Rule) -> Result<Option<Rule>, TooMany> {
    if held.iter().any(|held| covers_whole(held, asked)) {
        return Ok(None);
    }
    look_at(asked)?;
    Ok(single_rights(asked).find(|right| !held.iter().any(|held| covers_whole(held, right))))
}

/// Checks that a rule is small enough to be expanded.
///
/// # Errors
///
/// When it has too many single permissions.
pub fn look_at(rule: &Rule) -> Result<(), TooMany> {
    match combinations(rule) {
        count if count > MAX_COMBINATIONS => Err(TooMany(count)),
        _ => Ok(()),
    }
}

/// The number of single permissions of a rule.
pub fn combinations(rule: &Rule) -> usize {
    [&rule.api_groups, &rule.resources, &rule.verbs]
        .iter()
        .map(|words| words.len())
        .chain([rule.resource_names.len().max(1)])
        .fold(rule.non_resource_urls.len().max(1), usize::saturating_mul)
}

/// Whether one held rule covers a whole rule.
fn covers_whole(held: &Rule, asked: &Rule) -> bool {
    let all = |held: &[String], asked: &[String], is: fn(&str, &str) -> bool| {
        asked.iter().all(|asked| held.iter().any(|held| is(held, asked)))
    };
    let names = held.resource_names.is_empty()
        || (!asked.resource_names.is_empty()
            && all(&held.resource_names, &asked.resource_names, |held, asked| held == asked));
    all(&held.verbs, &asked.verbs, stands_for)
        && all(&held.api_groups, &asked.api_groups, stands_for)
        && all(&held.resources, &asked.resources, resource_stands_for)
        && all(&held.non_resource_urls, &asked.non_resource_urls, path_stands_for)
        && (asked.resources.is_empty() || names)
}

/// Whether a path, or a prefix that ends in `*`, covers the requested path.
fn path_stands_for(held: &str, asked: &str) -> bool {
    stands_for(held, asked) || held.strip_suffix('*').is_some_and(|start| asked.starts_with(start))
}

/// Every single permission of a rule, on resources and on paths.
fn single_rights(rule: &Rule) -> impl Iterator<Item = Rule> + '_ {
    let names = || rule.resource_names.iter().map(Some).chain(rule.resource_names.is_empty().then_some(None));
    let one = |word: &String| vec![word.clone()];
    let resources = rule.verbs.iter().flat_map(move |verb| {
        rule.api_groups.iter().flat_map(move |group| {
            rule.resources.iter().flat_map(move |resource| {
                names().map(move |name| Rule {
                    api_groups: one(group),
                    resources: one(resource),
                    verbs: one(verb),
                    resource_names: name.map(one).unwrap_or_default(),
                    non_resource_urls: Vec::new(),
                })
            })
        })
    });
    let paths = rule.verbs.iter().flat_map(move |verb| {
        rule.non_resource_urls.iter().map(move |path| Rule {
            verbs: one(verb),
            non_resource_urls: one(path),
            ..Rule::default()
        })
    });
    resources.chain(paths)
}
