//! Whether the rules that a user holds cover a requested rule: the check that Kubernetes makes before a user may write
//! a Role.

use super::{Rule, resource_covers, word_covers};

/// Maximum number of single permissions (one group, resource, verb and name) that one rule is expanded into. A rule
/// that is written to be read has a few hundred.
pub const MAX_RULE_PERMISSIONS: usize = 4096;
/// Maximum number of single permissions that one pack, or the hooks of one run, may request. Admission expands all of
/// them.
pub const MAX_GRANT_PERMISSIONS: usize = 4 * MAX_RULE_PERMISSIONS;

/// A rule has more than [`MAX_COMBINATIONS`] single permissions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the rule means {0} single rights, at most {MAX_RULE_PERMISSIONS} are looked at")]
pub struct TooManyPermissions(pub usize);

/// The first single permission of `asked` that `held` does not cover; `None` when all are covered.
///
/// Permissions that several held rules give only together count, as in Kubernetes: the rule is expanded into single
/// permissions, each of which must be covered by one held rule.
///
/// # Errors
///
/// When the rule has too many single permissions.
pub fn find_uncovered(held: &[Rule], asked: &Rule) -> Result<Option<Rule>, TooManyPermissions> {
    if held.iter().any(|held| rule_covers(held, asked)) {
        return Ok(None);
    }
    check_rule_size(asked)?;
    Ok(single_permissions(asked).find(|right| !held.iter().any(|held| rule_covers(held, right))))
}

/// Checks that a rule is small enough to be expanded.
///
/// # Errors
///
/// When it has too many single permissions.
pub fn check_rule_size(rule: &Rule) -> Result<(), TooManyPermissions> {
    match count_permissions(rule) {
        count if count > MAX_RULE_PERMISSIONS => Err(TooManyPermissions(count)),
        _ => Ok(()),
    }
}

/// The number of single permissions of a rule.
pub fn count_permissions(rule: &Rule) -> usize {
    [&rule.api_groups, &rule.resources, &rule.verbs]
        .iter()
        .map(|words| words.len())
        .chain([rule.resource_names.len().max(1)])
        .fold(rule.non_resource_urls.len().max(1), usize::saturating_mul)
}

/// Whether one held rule covers a whole rule.
fn rule_covers(held: &Rule, asked: &Rule) -> bool {
    let all = |held: &[String], asked: &[String], is: fn(&str, &str) -> bool| {
        asked.iter().all(|asked| held.iter().any(|held| is(held, asked)))
    };
    let names = held.resource_names.is_empty()
        || (!asked.resource_names.is_empty()
            && all(&held.resource_names, &asked.resource_names, |held, asked| held == asked));
    all(&held.verbs, &asked.verbs, word_covers)
        && all(&held.api_groups, &asked.api_groups, word_covers)
        && all(&held.resources, &asked.resources, resource_covers)
        && all(&held.non_resource_urls, &asked.non_resource_urls, path_covers)
        && (asked.resources.is_empty() || names)
}

/// Whether a path, or a prefix that ends in `*`, covers the requested path.
fn path_covers(held: &str, asked: &str) -> bool {
    word_covers(held, asked) || held.strip_suffix('*').is_some_and(|start| asked.starts_with(start))
}

/// Every single permission of a rule, on resources and on paths.
fn single_permissions(rule: &Rule) -> impl Iterator<Item = Rule> + '_ {
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
