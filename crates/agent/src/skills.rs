//! `load_skill`: the text of a skill, and the list of its files. Until then the model knows its name and what it is good for.
//!
//! A text is instructions. So what is mounted for a skill of a pack must be what the run was planned with, which the plan has a
//! digest of; who makes a ConfigMap again between plan and mount cannot put other words there. A ConfigMap that is a skill by
//! itself is whatever it holds.

use std::borrow::Cow;
use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::{Map, Value};
use sympozium_api::builtin_tool::{EXECUTE_COMMAND, READ_FILE};
use sympozium_api::names::Digest;
use sympozium_api::run_plan::{FindSkillError, SkillContents, SkillPlan, SkillSource};

use crate::tools::ToolError;
use crate::tools::files::{
    Commands, Page, Place, Roots, Wanted, arguments, entries, exactly, page_of_bytes, read_page, regular_size, shown,
    start,
};

/// Most files of a skill that are listed.
const MOST_FILES: usize = 200;
/// Most bytes of text and files of a skill of a pack together: a ConfigMap, which is how they come, holds no more.
const MOST_BYTES: u64 = 1 << 20;
/// Most skills that an error names.
const MOST_NAMED: usize = 64;
/// Least bytes of an answer that are for the text, however many files and tools there are: one of so many parts.
const TEXT_PART: usize = 2;
/// Most bytes that stand before the text of one of several files.
const HEADING: usize = 600;

#[derive(Deserialize)]
struct Arguments<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
}

/// `load_skill`: text, files with their places, and the tools that the skill is for, in at most `most` bytes.
///
/// # Errors
/// For a name that no skill has, or several have; when its text is not there, and when text or files are not the planned ones.
pub fn load_skill(
    skills: &[SkillPlan],
    roots: &Roots,
    given: &Map<String, Value>,
    most: usize,
) -> Result<String, ToolError> {
    let wanted: Arguments<'_> = arguments(given)?;
    let skill = find(skills, &wanted.name)?;
    let (files, text) = match &skill.source {
        SkillSource::Pack { pack, digest, bytes, .. } => {
            let files = Files { lines: pack_files(skill, pack, roots.commands()), more: 0 };
            let about = about(&files, skill, most);
            let planned = planned_text(skill, roots, digest, *bytes)?;
            let path = text_path(skill);
            let room = most.saturating_sub(about.len() + 2);
            let text = one_page(roots, &path, room, |place, wanted| page_of_bytes(place, &planned, wanted))?;
            (about, text)
        }
        SkillSource::ConfigMap { .. } => {
            let (paths, files) = plain_files(skill, roots)?;
            let about = about(&files, skill, most);
            let text = all_files(roots, &paths, most.saturating_sub(about.len() + 2))?;
            (about, text)
        }
    };
    if files.is_empty() {
        return Ok(text);
    }
    Ok(format!("{}\n\n{files}", text.trim_end_matches('\n')))
}

/// The skill that a name means.
fn find<'s>(skills: &'s [SkillPlan], name: &str) -> Result<&'s SkillPlan, ToolError> {
    match SkillPlan::find(skills, name) {
        Ok(index) => Ok(&skills[index]),
        Err(FindSkillError::Missing) if skills.is_empty() => Err(ToolError("you have no skills".to_owned())),
        Err(FindSkillError::Missing) => {
            Err(ToolError(format!("there is no skill {}; there are: {}", shown(name.trim()), names(skills.iter()))))
        }
        Err(FindSkillError::Ambiguous) => Err(ToolError(format!(
            "several skills are called {}; say which: {}",
            shown(name.trim()),
            names((skills.iter()).filter(|skill| skill.short_name() == name.trim()))
        ))),
    }
}

fn names<'s>(skills: impl Iterator<Item = &'s SkillPlan>) -> String {
    let mut names: Vec<String> = skills.map(|skill| shown(&skill.full_name())).collect();
    let more = names.len().saturating_sub(MOST_NAMED);
    names.truncate(MOST_NAMED);
    if more > 0 {
        names.push(format!("and {more} more"));
    }
    names.join(", ")
}

/// The text of a skill of a pack, when it and all files beside it are what the run was planned with. The text is read once:
/// what is shown is what was compared.
fn planned_text(skill: &SkillPlan, roots: &Roots, digest: &Digest, bytes: u64) -> Result<Vec<u8>, ToolError> {
    let other = |path: &str| {
        ToolError(format!(
            "the skill {} is not what this run was planned with: {} changed since; work without this skill, and say so in your answer",
            shown(&skill.full_name()),
            shown(path)
        ))
    };
    let mut left = MOST_BYTES;
    let mut content = |path: &str, bytes: u64| {
        left = left.checked_sub(bytes).ok_or_else(|| other(path))?;
        exactly(&roots.find(path)?, bytes)?.ok_or_else(|| other(path))
    };
    let text = content(&text_path(skill), bytes)?;
    let mut contents = SkillContents::new(&text);
    for file in &skill.files {
        let path = format!("{}/{}", skill.directory, file.path.as_str());
        // Whether it is a program is not to be seen here: it is one in the sidecar alone. The plan says which are.
        contents.add(&file.path, file.executable, &content(&path, file.bytes)?);
    }
    match contents.digest() {
        Ok(found) if found == *digest => Ok(text),
        Ok(_) | Err(_) => Err(other("its text or one of its files")),
    }
}

fn text_path(skill: &SkillPlan) -> String {
    format!("{}/{}", skill.directory, SkillPlan::TEXT_FILE)
}

/// Files of a skill, as they are listed.
struct Files {
    lines: Vec<String>,
    /// Those that cannot be listed.
    more: usize,
}

/// The files beside the text, as the plan has them.
fn pack_files(skill: &SkillPlan, pack: &str, commands: Commands) -> Vec<String> {
    let line = |file: &sympozium_api::run_plan::SkillFilePlan| {
        let path = format!("{}/{}", skill.directory, file.path.as_str());
        let path = shown(&path);
        if file.executable && commands == Commands::Offered {
            format!("{path} ({} bytes; a program: run it by {EXECUTE_COMMAND} with target={pack})", file.bytes)
        } else {
            format!("{path} ({} bytes)", file.bytes)
        }
    };
    skill.files.iter().map(line).collect()
}

/// What stands after the text: files and tools. At most its part of `most`.
fn about(files: &Files, skill: &SkillPlan, most: usize) -> String {
    let room = most - most / TEXT_PART;
    let mut text = String::new();
    if let Some(tools) = &skill.allowed_tools {
        let tools: Vec<&str> = tools.iter().map(|tool| tool.as_str()).collect();
        let tools = match tools.is_empty() {
            true => "none".to_owned(),
            false => tools.join(", "),
        };
        let line = format!("Tools that this skill is for: {tools}\n");
        text.push_str(start(&line, room / 2));
    }
    let mut count = 0;
    for file in files.lines.iter().take(MOST_FILES) {
        if text.len() + file.len() + 32 > room {
            break;
        }
        if count == 0 {
            text.push_str("Files of this skill:\n");
        }
        text.push_str(file);
        text.push('\n');
        count += 1;
    }
    let more = files.lines.len() - count + files.more;
    if more > 0 {
        // Writing to a string does not fail.
        let _ = writeln!(text, "… and {more} more files");
    }
    text.truncate(text.trim_end().len());
    text
}

/// A page of one file, which says how to read on.
fn one_file(roots: &Roots, path: &str, most: usize) -> Result<String, ToolError> {
    one_page(roots, path, most, read_page)
}

/// The same, of what `page` makes of it.
fn one_page(
    roots: &Roots,
    path: &str,
    most: usize,
    page: impl FnOnce(&Place<'_>, Wanted) -> Result<Page, ToolError>,
) -> Result<String, ToolError> {
    let place = roots.find(path)?;
    let go_on = format!("continue with {READ_FILE} path={} and", place.shown);
    let page =
        page(&place, Wanted { offset: 1, limit: u64::MAX, most: most.saturating_sub(go_on.len()).max(most / 2) })?;
    Ok(page.into_text(&go_on))
}

/// The paths of a ConfigMap's files in the order of their names, and how each is listed. What starts with `..` is the
/// kubelet's own: the files are links to there. A name that is no text cannot be told, or asked for: it is counted.
fn plain_files(skill: &SkillPlan, roots: &Roots) -> Result<(Vec<String>, Files), ToolError> {
    let listing = entries(&roots.find(&skill.directory)?)?;
    let mut more = listing.more;
    let mut names: Vec<&str> = Vec::new();
    for entry in &listing.entries {
        match std::str::from_utf8(&entry.name) {
            Ok(name) if name.starts_with("..") => {}
            Ok(name) => names.push(name),
            Err(_) => more += 1,
        }
    }
    names.sort_unstable();
    let listed = names.into_iter().filter_map(|name| {
        let path = format!("{}/{name}", skill.directory);
        let bytes = regular_size(&roots.find(&path).ok()?)?;
        let line = format!("{} ({bytes} bytes)", shown(&path));
        Some((path, line))
    });
    let (paths, lines) = listed.unzip();
    Ok((paths, Files { lines, more }))
}

/// The texts of all files, as far as there is room. What is no text is in the list of files only.
fn all_files(roots: &Roots, paths: &[String], most: usize) -> Result<String, ToolError> {
    if let [path] = paths {
        return one_file(roots, path, most);
    }
    let mut text = String::new();
    for path in paths.iter().take(MOST_FILES) {
        let room = most.saturating_sub(text.len() + HEADING);
        if room < HEADING {
            let _ = write!(text, "(the other files of this skill are read with {READ_FILE})");
            break;
        }
        let Ok(file) = one_file(roots, path, room) else {
            continue;
        };
        let _ = write!(text, "## {}\n\n{}\n\n", shown(path), file.trim_end());
    }
    if text.is_empty() {
        return Err(ToolError("this skill has no text".to_owned()));
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
