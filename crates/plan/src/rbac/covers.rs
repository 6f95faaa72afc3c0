//! Whether rules that somebody holds cover a rule that is asked for: the question that Kubernetes asks before it lets
//! somebody write a Role.

use super::{Rule, resource_stands_for, stands_for};

/// Most single rights (one group, resource, verb and name) that one rule is taken apart into. A rule that somebody wrote to be
/// read has a few hundred.
pub const MAX_COMBINATIONS: usize = 4096;
/// Most single rights of everything that one pack, or the hooks of one run, ask for. Who admits takes all of them apart.
pub const MAX_GRANT: usize = 4 * MAX_COMBINATIONS;

/// A rule that has more than [`MAX_COMBINATIONS`] single rights.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the rule means {0} single rights, at most {MAX_COMBINATIONS} are looked at")]
pub struct TooMany(pub usize);

/// What of `asked` is not covered by `held`, as a single right; nothing when all of it is.
///
/// Rights that several held rules give only together count, as in Kubernetes: the rule is taken apart into single
/// rights, each of which must be in one held rule.
///
/// # Errors
///
/// When the rule has too many single rights to look at.
pub fn covers(held: &[Rule], asked: &Rule) -> Result<Option<Rule>, TooMany> {
    if held.iter().any(|held| covers_whole(held, asked)) {
        return Ok(None);
    }
    look_at(asked)?;
    Ok(single_rights(asked).find(|right| !held.iter().any(|held| covers_whole(held, right))))
}

/// That a rule can be taken apart.
///
/// # Errors
///
/// When it has too many single rights to look at.
pub fn look_at(rule: &Rule) -> Result<(), TooMany> {
    match combinations(rule) {
        count if count > MAX_COMBINATIONS => Err(TooMany(count)),
        _ => Ok(()),
    }
}

/// How many single rights a rule has.
pub fn combinations(rule: &Rule) -> usize {
    [&rule.api_groups, &rule.resources, &rule.verbs]
        .iter()
        .map(|words| words.len())
        .chain([rule.resource_names.len().max(1)])
        .fold(rule.non_resource_urls.len().max(1), usize::saturating_mul)
}

/// Whether one held rule has everything of a rule.
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

/// A path, or a beginning of paths that ends in `*`.
fn path_stands_for(held: &str, asked: &str) -> bool {
    stands_for(held, asked) || held.strip_suffix('*').is_some_and(|start| asked.starts_with(start))
}

/// Every single right of a rule: on a resource, and on a path.
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
