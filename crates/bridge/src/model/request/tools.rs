//! Checks the tools that a request offers, and the choice among them.

use std::collections::BTreeSet;

use serde_json::value::RawValue;
use sympozium_api::run_plan::WireFormat;

use super::object::{Fields, Kind, NoObject, each_item, text};
use super::{MAX_FIELDS, MAX_TOOLS, listed, shown};

/// A field of a tool: its name, the allowed kinds of value, and whether it is required.
type Field = (&'static str, &'static [Kind], Need);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    Must,
    May,
}

/// The fields of `function` in OpenAI's format.
const FUNCTION: &[Field] = &[
    ("name", &[Kind::Text], Need::Must),
    ("description", &[Kind::Text, Kind::Null], Need::May),
    ("parameters", &[Kind::Object, Kind::Null], Need::May),
    ("strict", &[Kind::Bool, Kind::Null], Need::May),
];
/// The fields around it.
const OPEN_AI: &[Field] = &[("type", &[Kind::Text], Need::Must), ("function", &[Kind::Object], Need::Must)];
/// The fields of a tool in Anthropic's format.
const ANTHROPIC: &[Field] = &[
    ("name", &[Kind::Text], Need::Must),
    ("description", &[Kind::Text], Need::May),
    ("input_schema", &[Kind::Object], Need::Must),
    ("cache_control", &[Kind::Object, Kind::Null], Need::May),
    ("strict", &[Kind::Bool], Need::May),
    ("type", &[Kind::Text, Kind::Null], Need::May),
];

/// Checks that all tools are functions that the run has.
pub fn check(wire: WireFormat, open: &BTreeSet<String>, tools: &RawValue, problems: &mut Vec<String>) {
    let mut list = Vec::new();
    let all = each_item(tools, &mut |tool| {
        list.push(tool);
        list.len() <= MAX_TOOLS
    });
    if !all {
        problems.push(match list.len() > MAX_TOOLS {
            true => format!("`tools` has more than {MAX_TOOLS} entries"),
            false => "`tools` must be a list".to_owned(),
        });
        return;
    }
    let mut names = BTreeSet::new();
    for (index, tool) in list.into_iter().enumerate() {
        let place = format!("tools[{index}]");
        let name = match wire {
            WireFormat::OpenAi => open_ai(&place, tool),
            WireFormat::Anthropic => anthropic(&place, tool),
        };
        match name {
            Ok(name) if !names.insert(name.clone()) => {
                problems.push(format!("the tool `{}` is offered twice", shown(&name)));
            }
            Ok(_) => {}
            Err(problem) => problems.push(problem),
        }
    }
    let closed: Vec<&str> = names.iter().filter(|name| !open.contains(*name)).map(String::as_str).collect();
    if !closed.is_empty() {
        problems.push(format!("the run has no such tools: {}", listed(&closed)));
    }
}

fn open_ai(place: &str, tool: &RawValue) -> Result<String, String> {
    let fields = read(place, tool)?;
    check_type(place, &fields, "function")?;
    check_fields(place, &fields, OPEN_AI)?;
    let Some(function) = fields.get("function") else {
        unreachable!("a field that must be there was found");
    };
    let place = format!("{place}.function");
    let fields = read(&place, function)?;
    check_fields(&place, &fields, FUNCTION)?;
    name_of(&place, &fields)
}

fn anthropic(place: &str, tool: &RawValue) -> Result<String, String> {
    let fields = read(place, tool)?;
    check_type(place, &fields, "custom")?;
    check_fields(place, &fields, ANTHROPIC)?;
    name_of(place, &fields)
}

/// Checks the type first, because it is what identifies tools that the provider executes: the clearest error.
fn check_type(place: &str, fields: &Fields<'_>, expected: &str) -> Result<(), String> {
    match fields.get("type").filter(|it| Kind::of(it) != Kind::Null) {
        None => Ok(()),
        Some(is) => match text(is) {
            Some(is) if is == expected => Ok(()),
            Some(is) => Err(format!(
                "`{place}` is of type `{}`: only functions that the run has can be offered, nothing that the provider acts on",
                shown(&is)
            )),
            None => Err(format!("`{place}.type` must be a text")),
        },
    }
}

fn check_fields(place: &str, fields: &Fields<'_>, known: &[Field]) -> Result<(), String> {
    for (name, value) in fields.iter() {
        let Some((_, kinds, _)) = known.iter().find(|(it, ..)| *it == name) else {
            return Err(format!("`{place}` cannot have `{}`", shown(name)));
        };
        if !kinds.contains(&Kind::of(value)) {
            return Err(format!("`{place}.{name}` is not what it must be"));
        }
    }
    let missing = known.iter().find(|(name, _, need)| *need == Need::Must && fields.get(name).is_none());
    match missing {
        Some((name, ..)) => Err(format!("`{place}` has no `{name}`")),
        None => Ok(()),
    }
}

fn name_of(place: &str, fields: &Fields<'_>) -> Result<String, String> {
    let name = fields.get("name").and_then(text);
    name.ok_or_else(|| format!("`{place}.name` must be a text"))
}

fn read<'a>(place: &str, value: &'a RawValue) -> Result<Fields<'a>, String> {
    Fields::read(value.get().as_bytes()).map_err(|error| match error {
        NoObject::Twice(name) => format!("`{place}` has `{}` twice", shown(&name)),
        NoObject::TooMany => format!("`{place}` has more than {MAX_FIELDS} fields"),
        NoObject::Json(_) => format!("`{place}` must be an object"),
    })
}

/// Checks that the choice is one of the run's tools.
pub fn check_choice(wire: WireFormat, open: &BTreeSet<String>, choice: &RawValue, problems: &mut Vec<String>) {
    let chosen = match wire {
        WireFormat::OpenAi => open_ai_choice(choice),
        WireFormat::Anthropic => anthropic_choice(choice),
    };
    match chosen {
        Ok(Some(name)) if !open.contains(&name) => {
            problems.push(format!("the run has no tool `{}` to choose", shown(&name)));
        }
        Ok(_) => {}
        Err(problem) => problems.push(problem),
    }
}

fn open_ai_choice(choice: &RawValue) -> Result<Option<String>, String> {
    if let Some(word) = text(choice) {
        return match word.as_str() {
            "none" | "auto" | "required" => Ok(None),
            _ => Err(format!("`tool_choice` cannot be `{}`", shown(&word))),
        };
    }
    let place = "tool_choice";
    let fields = read(place, choice)?;
    check_type(place, &fields, "function")?;
    check_fields(place, &fields, OPEN_AI)?;
    let place = "tool_choice.function";
    let function = fields.get("function").map(|it| read(place, it));
    let Some(function) = function.transpose()? else {
        unreachable!("a field that must be there was found");
    };
    check_fields(place, &function, &FUNCTION[..1])?;
    name_of(place, &function).map(Some)
}

fn anthropic_choice(choice: &RawValue) -> Result<Option<String>, String> {
    const CHOICE: &[Field] = &[
        ("type", &[Kind::Text], Need::Must),
        ("name", &[Kind::Text], Need::May),
        ("disable_parallel_tool_use", &[Kind::Bool], Need::May),
    ];
    let place = "tool_choice";
    let fields = read(place, choice)?;
    check_fields(place, &fields, CHOICE)?;
    let word = fields.get("type").and_then(text).unwrap_or_default();
    match (word.as_str(), fields.get("name")) {
        ("auto" | "any" | "none", None) => Ok(None),
        ("tool", Some(_)) => name_of(place, &fields).map(Some),
        _ => Err(format!("`tool_choice` cannot be of type `{}`", shown(&word))),
    }
}
