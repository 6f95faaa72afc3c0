//! `load_skill`: the text of a skill and the list of its files. The system prompt has only names and descriptions.
//!
//! The text is instructions to the model, so a pack's skill must match the digest in the plan: a user who recreates the
//! ConfigMap between plan and mount cannot change it. A ConfigMap that is a skill by itself is used as it is.

use std::borrow::Cow;
use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::{Map, Value};
use sympozium_api::builtin_tool::{EXECUTE_COMMAND, READ_FILE};
use sympozium_api::names::Digest;
use sympozium_api::run_plan::{FindSkillError, SkillContents, SkillPlan, SkillSource};

use crate::tools::ToolError;
use crate::tools::files::{
    Commands, FilePage, LineRange, ResolvedPath, Roots, list_entries, page_from_bytes, parse_arguments, prefix,
    printable_path, read_exact, read_page, regular_size,
};

const MAX_FILES: usize = 200;
/// Most bytes of a skill's text and files: the limit of a ConfigMap, which holds them.
const MAX_SKILL_BYTES: u64 = 1 << 20;
const MAX_NAMED: usize = 64;
/// At least `1 / TEXT_SHARE` of the result is for the text, however many files and tools there are.
const TEXT_SHARE: usize = 2;
/// Most bytes of the heading of one of several files.
const MAX_HEADING: usize = 600;

#[derive(Deserialize)]
struct Arguments<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
}

/// `load_skill`: the text, the files with their paths, and the tools that the skill is for, in at most `max_bytes`.
pub fn load_skill(
    skills: &[SkillPlan],
    roots: &Roots,
    arguments: &Map<String, Value>,
    max_bytes: usize,
) -> Result<String, ToolError> {
    let requested: Arguments<'_> = parse_arguments(arguments)?;
    let skill = find(skills, &requested.name)?;
    let (files, text) = match &skill.source {
        SkillSource::Pack { pack, digest, bytes, .. } => {
            let files = FileList { lines: pack_files(skill, pack, roots.commands()), more: 0 };
            let appendix = render_appendix(&files, skill, max_bytes);
            let planned = verified_text(skill, roots, digest, *bytes)?;
            let path = text_path(skill);
            let room = max_bytes.saturating_sub(appendix.len() + 2);
            let text = page_with(roots, &path, room, |path, requested| page_from_bytes(path, &planned, requested))?;
            (appendix, text)
        }
        SkillSource::ConfigMap { .. } => {
            let (paths, files) = config_map_files(skill, roots)?;
            let appendix = render_appendix(&files, skill, max_bytes);
            let text = config_map_text(roots, &paths, max_bytes.saturating_sub(appendix.len() + 2))?;
            (appendix, text)
        }
    };
    if files.is_empty() {
        return Ok(text);
    }
    Ok(format!("{}\n\n{files}", text.trim_end_matches('\n')))
}

fn find<'s>(skills: &'s [SkillPlan], name: &str) -> Result<&'s SkillPlan, ToolError> {
    match SkillPlan::find(skills, name) {
        Ok(index) => Ok(&skills[index]),
        Err(FindSkillError::Missing) if skills.is_empty() => Err(ToolError("you have no skills".to_owned())),
        Err(FindSkillError::Missing) => Err(ToolError(format!(
            "there is no skill {}; there are: {}",
            printable_path(name.trim()),
            names(skills.iter())
        ))),
        Err(FindSkillError::Ambiguous) => Err(ToolError(format!(
            "several skills are called {}; say which: {}",
            printable_path(name.trim()),
            names((skills.iter()).filter(|skill| skill.short_name() == name.trim()))
        ))),
    }
}

fn names<'s>(skills: impl Iterator<Item = &'s SkillPlan>) -> String {
    let mut names: Vec<String> = skills.map(|skill| printable_path(&skill.full_name())).collect();
    let more = names.len().saturating_sub(MAX_NAMED);
    names.truncate(MAX_NAMED);
    if more > 0 {
        names.push(format!("and {more} more"));
    }
    names.join(", ")
}

/// The text of a pack's skill, verified together with all files beside it against the plan's digest. The text is read
/// once: what is shown is what was verified.
fn verified_text(skill: &SkillPlan, roots: &Roots, digest: &Digest, bytes: u64) -> Result<Vec<u8>, ToolError> {
    let changed_error = |path: &str| {
        ToolError(format!(
            "the skill {} is not what this run was planned with: {} changed since; work without this skill, and say so in your answer",
            printable_path(&skill.full_name()),
            printable_path(path)
        ))
    };
    let mut remaining = MAX_SKILL_BYTES;
    let mut content = |path: &str, bytes: u64| {
        remaining = remaining.checked_sub(bytes).ok_or_else(|| changed_error(path))?;
        read_exact(&roots.resolve_str(path)?, bytes)?.ok_or_else(|| changed_error(path))
    };
    let text = content(&text_path(skill), bytes)?;
    let mut contents = SkillContents::new(&text);
    for file in &skill.files {
        let path = format!("{}/{}", skill.directory, file.path.as_str());
        // The executable bit is visible in the sidecar only; the plan has it.
        contents.add(&file.path, file.executable, &content(&path, file.bytes)?);
    }
    match contents.digest() {
        Ok(actual) if actual == *digest => Ok(text),
        Ok(_) | Err(_) => Err(changed_error("its text or one of its files")),
    }
}

fn text_path(skill: &SkillPlan) -> String {
    format!("{}/{}", skill.directory, SkillPlan::TEXT_FILE)
}

struct FileList {
    lines: Vec<String>,
    /// Files that cannot be listed.
    more: usize,
}

fn pack_files(skill: &SkillPlan, pack: &str, commands: Commands) -> Vec<String> {
    let line = |file: &sympozium_api::run_plan::SkillFilePlan| {
        let path = format!("{}/{}", skill.directory, file.path.as_str());
        let path = printable_path(&path);
        if file.executable && commands == Commands::Offered {
            format!("{path} ({} bytes; a program: run it by {EXECUTE_COMMAND} with target={pack})", file.bytes)
        } else {
            format!("{path} ({} bytes)", file.bytes)
        }
    };
    skill.files.iter().map(line).collect()
}

fn render_appendix(files: &FileList, skill: &SkillPlan, max_bytes: usize) -> String {
    let room = max_bytes - max_bytes / TEXT_SHARE;
    let mut text = String::new();
    if let Some(tools) = &skill.allowed_tools {
        let tools: Vec<&str> = tools.iter().map(|tool| tool.as_str()).collect();
        let tools = if tools.is_empty() { "none".to_owned() } else { tools.join(", ") };
        let line = format!("Tools that this skill is for: {tools}\n");
        text.push_str(prefix(&line, room / 2));
    }
    let mut count = 0;
    for file in files.lines.iter().take(MAX_FILES) {
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
        let _ = writeln!(text, "… and {more} more files");
    }
    text.truncate(text.trim_end().len());
    text
}

fn file_page(roots: &Roots, path: &str, max_bytes: usize) -> Result<String, ToolError> {
    page_with(roots, path, max_bytes, read_page)
}

fn page_with(
    roots: &Roots,
    path: &str,
    max_bytes: usize,
    page: impl FnOnce(&ResolvedPath<'_>, LineRange) -> Result<FilePage, ToolError>,
) -> Result<String, ToolError> {
    let path = roots.resolve_str(path)?;
    let continue_hint = format!("continue with {READ_FILE} path={} and", path.shown);
    let page = page(
        &path,
        LineRange {
            offset: 1,
            limit: u64::MAX,
            max_bytes: max_bytes.saturating_sub(continue_hint.len()).max(max_bytes / 2),
        },
    )?;
    Ok(page.into_text(&continue_hint))
}

/// The paths of a ConfigMap's files in the order of their names, and how each is listed. Names that start with `..` are
/// the kubelet's: the files are links to there. A name that is not UTF-8 cannot be shown or requested; it is counted.
fn config_map_files(skill: &SkillPlan, roots: &Roots) -> Result<(Vec<String>, FileList), ToolError> {
    let listing = list_entries(&roots.resolve_str(&skill.directory)?)?;
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
        let bytes = regular_size(&roots.resolve_str(&path).ok()?)?;
        let line = format!("{} ({bytes} bytes)", printable_path(&path));
        Some((path, line))
    });
    let (paths, lines) = listed.unzip();
    Ok((paths, FileList { lines, more }))
}

/// The texts of all files, as far as there is room. Files that are not text are only listed.
fn config_map_text(roots: &Roots, paths: &[String], max_bytes: usize) -> Result<String, ToolError> {
    if let [path] = paths {
        return file_page(roots, path, max_bytes);
    }
    let mut text = String::new();
    for path in paths.iter().take(MAX_FILES) {
        let room = max_bytes.saturating_sub(text.len() + MAX_HEADING);
        if room < MAX_HEADING {
            let _ = write!(text, "(the other files of this skill are read with {READ_FILE})");
            break;
        }
        let Ok(file) = file_page(roots, path, room) else {
            continue;
        };
        let _ = write!(text, "## {}\n\n{}\n\n", printable_path(path), file.trim_end());
    }
    if text.is_empty() {
        return Err(ToolError("this skill has no text".to_owned()));
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
