//! Grants of permissions that are not known to be harmless: they need the floor's consent.

use sympozium_api::rbac::RbacRule;
use sympozium_api::text::{MAX_NAME, printable, truncate};

use super::grants::READ_ONLY_HINT;
use super::violation::{Findings, violation};
use super::{RuleContext, Subject};
use crate::policy::EffectivePolicy;
use crate::policy::grants::can_be_excepted;
use crate::rbac::{
    MAX_GRANT_PERMISSIONS, Rule, Scope, check_rule_size, count_permissions, escalations, unlisted_rules,
};

/// Number of permissions of one rule that a denial names; for the rest it gives their number.
const MAX_NAMED: usize = 4;
/// Number of words of each list of a rule that it repeats. Kubernetes has eight verbs.
const MAX_WORDS: usize = 8;

/// Checks all permissions that packs and hooks request.
pub fn check(case: &RuleContext<'_, '_>, findings: &mut Findings) {
    for pack in &case.packs {
        let Some(sidecar) = pack.sidecar() else {
            continue;
        };
        let lists = [
            ("spec.sidecar.rbac", sidecar.rbac.as_slice(), Scope::Namespace),
            ("spec.sidecar.clusterRBAC", &sidecar.cluster_rbac, Scope::Cluster),
        ];
        check_lists(&pack.subject(), &lists, case.policy, findings);
    }
    if let Some(hooks) = &case.run.spec.lifecycle {
        let lists = [("spec.lifecycle.rbac", hooks.rbac.as_slice(), Scope::Namespace)];
        check_lists(&case.subject, &lists, case.policy, findings);
    }
}

fn check_lists(
    subject: &Subject,
    lists: &[(&str, &[RbacRule], Scope)],
    policy: &EffectivePolicy,
    findings: &mut Findings,
) {
    let rules = lists.iter().flat_map(|(field, rules, scope)| {
        let rules = rules.iter().enumerate();
        rules.map(move |(index, rule)| (format!("{field}[{index}]"), Rule::from(rule), *scope))
    });
    let rules: Vec<_> = rules.collect();
    let sizes = rules.iter().map(|(_, rule, _)| count_permissions(rule));
    let total = sizes.fold(0, usize::saturating_add);
    // Rules that are too large to be expanded are denied for that.
    if total > MAX_GRANT_PERMISSIONS || rules.iter().any(|(_, rule, _)| check_rule_size(rule).is_err()) {
        return;
    }
    for (field, rule, scope) in rules {
        let mut rights = unlisted_rules(&rule, scope);
        // Rights from which more follow are on no list of harmless ones. Those that no policy excepts are denied for what they are.
        let excepted = escalations(&rule).into_iter().filter(|(_, right)| policy.grants.excepts(right, scope));
        rights.extend(excepted.map(|(_, right)| right));
        rights.retain(|right| !policy.grants.consents_to(right, scope));
        if rights.is_empty() {
            continue;
        }
        let more = rights.len().saturating_sub(MAX_NAMED);
        let rights = &rights[..rights.len() - more];
        let named = rights.iter().map(|right| format!("`{right}`"));
        let mut named = named.collect::<Vec<_>>().join(", ");
        if more > 0 {
            named += &format!(" and {more} more");
        }
        let (because, remedy) = if rights.iter().all(|right| can_be_excepted(right, scope)) {
            let listed = rights.iter().map(to_yaml).collect::<Vec<_>>().join(", ");
            (
                "so the floor must consent",
                format!(
                    "ask for less, or add to `rbacPolicy.exceptions` of the policy `floor` in the system namespace: {listed}"
                ),
            )
        } else {
            ("and nothing consents to writes in the whole cluster", READ_ONLY_HINT.to_owned())
        };
        let message = format!("{named}: not among the rights that are known to be harmless, {because}");
        findings.deny(subject, violation(field, "rbac-unlisted", message, remedy));
    }
}

/// A rule in YAML, as it is written in a policy.
fn to_yaml(rule: &Rule) -> String {
    let words = |words: &[String]| {
        let is_plain = |word: &str| {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-./".contains(&byte);
            !word.is_empty() && word.bytes().all(plain)
        };
        let listed = words.iter().take(MAX_WORDS).map(|word| {
            if is_plain(word) {
                printable(truncate(word, MAX_NAME)).into_owned()
            } else {
                format!("\"{}\"", printable(truncate(word, MAX_NAME)))
            }
        });
        let more = (words.len() > MAX_WORDS).then(|| "…".to_owned());
        listed.chain(more).collect::<Vec<_>>().join(", ")
    };
    let names = match rule.resource_names.as_slice() {
        [] => String::new(),
        names => format!(", resourceNames: [{}]", words(names)),
    };
    format!(
        "{{apiGroups: [{}], resources: [{}], verbs: [{}]{names}}}",
        words(&rule.api_groups),
        words(&rule.resources),
        words(&rule.verbs)
    )
}
