//! `allOf`, `anyOf`, `oneOf` and `not`: conditions on a value whose fields other parts of the schema describe.

use super::{Schema, Sink, check as check_all, messages};
use crate::problem::Problem;
use crate::tree::{Node, Path};

pub fn check(node: &Node, schema: &Schema, path: Path<'_>, sink: &mut Sink<'_>) {
    for part in schema.all_of.iter().flatten() {
        check_all(node, part, path, sink);
    }
    if let Some(branches) = &schema.any_of
        && count_matches(node, branches) == 0
    {
        let message = match required_fields(branches) {
            Some(fields) => format!("needs at least one of {}", messages::join_names(&fields, "and")),
            None => "matches none of the allowed forms".to_owned(),
        };
        let problem = Problem::error("form", node.at, message);
        sink(path, problem.with_hint(branch_hint(branches)));
    }
    if let Some(branches) = &schema.one_of {
        let matches = count_matches(node, branches);
        if matches != 1 {
            let message = match required_fields(branches) {
                Some(fields) => format!(
                    "needs exactly one of {}, and has {}",
                    messages::join_names(&fields, "and"),
                    if matches == 0 { "none" } else { "several" }
                ),
                None if matches == 0 => "matches none of the allowed forms".to_owned(),
                None => "matches several forms, but must match exactly one".to_owned(),
            };
            let hint = match (matches, required_fields(branches)) {
                (0, _) => branch_hint(branches),
                (_, Some(_)) => "keep one of these, and remove the others".to_owned(),
                (_, None) => CRDS_HINT.to_owned(),
            };
            sink(path, Problem::error("form", node.at, message).with_hint(hint));
        }
    }
    if let Some(refused) = &schema.not
        && is_match(node, refused)
    {
        let message = match required_fields(std::slice::from_ref(&**refused)) {
            Some(fields) => format!("must not have {}", messages::join_names(&fields, "and")),
            None => "has a form that is not allowed".to_owned(),
        };
        let hint = "remove it, or choose another value";
        sink(path, Problem::error("form", node.at, message).with_hint(hint));
    }
}

/// The hint where there is no shorter one.
const CRDS_HINT: &str = "`sympozium crds` prints what each field takes";

/// The hint for a value that no branch accepts.
fn branch_hint(branches: &[Schema]) -> String {
    if required_fields(branches).is_some() {
        return "set one of these".to_owned();
    }
    let types: Option<Vec<&str>> = branches.iter().map(|branch| branch.type_.map(messages::describe_type)).collect();
    match types {
        Some(types) => format!("write {}", types.join(" or ")),
        None => CRDS_HINT.to_owned(),
    }
}

fn count_matches(node: &Node, branches: &[Schema]) -> usize {
    branches.iter().filter(|branch| is_match(node, branch)).count()
}

fn is_match(node: &Node, schema: &Schema) -> bool {
    let mut fits = true;
    check_all(node, schema, Path::Root, &mut |_, _| fits = false);
    fits
}

/// The fields that distinguish the branches, if the branches require one field each and nothing else.
fn required_fields(branches: &[Schema]) -> Option<Vec<&str>> {
    let mut fields = Vec::new();
    for branch in branches {
        let required = branch.required.as_deref().unwrap_or_default();
        let says_no_more = branch.type_.is_none() && branch.properties.is_none();
        match required {
            [one] if says_no_more => fields.push(one.as_str()),
            _ => return None,
        }
    }
    Some(fields)
}
