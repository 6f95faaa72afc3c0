//! `sympozium skill import`: prints the SkillPack of a directory.
//!
//! The pack is validated before it is printed, by the code of `validate`: the output can be applied.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use sympozium_api::SkillPack;
use sympozium_manifests::agent_skill::directory::{self, Allowance, FoundSkill};
use sympozium_manifests::agent_skill::pack::{self, PackOptions};
use sympozium_manifests::agent_skill::skill::Skill;
use sympozium_manifests::agent_skill::{self, FILE_NAME};
use sympozium_manifests::limits::{MAX_DIRECTORY_ENTRIES, MAX_TOTAL_BYTES};
use sympozium_manifests::load::{Budget, LoadedFile};
use sympozium_manifests::problem::{Problem, Problems};
use sympozium_manifests::sources::{directory_name, display_path};
use sympozium_manifests::tree::Mark;
use sympozium_manifests::validate::{Completeness, Conclusion, Report, Schemas, Session};

use super::arguments::ImportArguments;
use crate::arguments::ObjectFormat;
use crate::failure::{DENIED, FAILED, Failure};
use crate::output::{print_stderr, print_stdout, to_json, to_yaml};

/// The namespace of a pack that names none, for the findings.
const DEFAULT_NAMESPACE: &str = "default";

/// Prints the pack, or the findings that prevent it.
pub fn run(arguments: &ImportArguments) -> Result<ExitCode, Failure> {
    let (pack, report) = import(arguments);
    let findings = report.text();
    if !findings.is_empty() {
        print_stderr(findings.trim_end());
    }
    let (Some(pack), Conclusion::Passed) = (pack, report.conclusion()) else {
        print_stderr(&report.summary());
        return Ok(match report.conclusion() {
            Conclusion::Denied => ExitCode::from(DENIED),
            // There is no pack, although there are no errors.
            Conclusion::Passed | Conclusion::Invalid => ExitCode::from(FAILED),
        });
    };
    print_stdout(&match arguments.output {
        ObjectFormat::Yaml => to_yaml(&pack)?,
        ObjectFormat::Json => to_json(&pack)?,
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The pack, if there is one, and all findings.
fn import(arguments: &ImportArguments) -> (Option<SkillPack>, Report) {
    let namespace = arguments.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE);
    let mut session = Session::new(namespace);
    let pack = match find(&arguments.path) {
        Ok((root, found)) => read(arguments, &root, found, &mut session),
        Err(problem) => {
            session.add_text(display_path(&arguments.path), Err(problem));
            None
        }
    };
    let report = session.finish(&mut Schemas::default(), Completeness::Partial);
    (pack, report)
}

/// The directory, and the skills in it: at least one.
fn find(path: &Path) -> Result<(PathBuf, Vec<FoundSkill>), Problem> {
    let metadata = fs::metadata(path).map_err(|error| directory::read_problem(&error))?;
    let root = match (metadata.is_dir(), path.parent()) {
        (true, _) => path,
        (false, Some(parent)) if path.file_name() == Some(FILE_NAME.as_ref()) => match parent.as_os_str().is_empty() {
            true => Path::new("."),
            false => parent,
        },
        (false, _) => {
            let problem = Problem::error("skill", Mark::START, "not a skill");
            return Err(problem.with_hint("name a directory with `SKILL.md`, or that file"));
        }
    };
    let opened = directory::open(root).map_err(|error| directory::read_problem(&error))?;
    let found = directory::search(opened)?;
    if found.is_empty() {
        let problem = Problem::error("skill", Mark::START, "the directory contains no skill");
        return Err(problem.with_hint(
            "a skill is a directory with a file `SKILL.md` (the case matters); `sympozium skill new` creates one",
        ));
    }
    Ok((root.to_owned(), found))
}

/// Reads the skills, and adds their problems and the pack to the session.
fn read(
    arguments: &ImportArguments,
    root: &Path,
    found: Vec<FoundSkill>,
    session: &mut Session<'_>,
) -> Option<SkillPack> {
    let mut options = PackOptions {
        name: arguments.name.clone(),
        namespace: arguments.namespace.clone(),
        image: arguments.image.clone(),
        category: arguments.category.clone(),
    };
    let is_single = matches!(found.as_slice(), [only] if only.path == Path::new(""));
    let mut allowance = Allowance { bytes: MAX_TOTAL_BYTES, entries: MAX_DIRECTORY_ENTRIES };
    let mut budget = Budget::default();
    let mut skills = Vec::new();
    let mut is_broken = false;
    let mut only = LoadedFile::default();
    for FoundSkill { path, directory } in found {
        let path = root.join(path);
        let (skill, problems) = read_one(&path, &directory, &options, &mut allowance, &mut budget);
        is_broken |= skill.is_none();
        skills.extend(skill);
        match is_single {
            true => only.problems = problems,
            false => {
                session.add_loaded(display_path(&path.join(FILE_NAME)), LoadedFile { documents: Vec::new(), problems })
            }
        }
    }
    if !is_single && options.name.is_none() {
        options.name = directory_name(root).and_then(|name| agent_skill::fitted_name(&name));
    }
    let marks = skills.first().filter(|_| is_single).map(|skill| skill.marks);
    let pack = (!is_broken).then(|| pack::build(skills, &options));
    if let Some(pack) = &pack {
        match pack::to_document(pack, marks) {
            Ok(document) => only.documents.push(document),
            Err(error) => only.problems.add(pack::serialize_problem(&error)),
        }
    }
    let name = match is_single {
        true => display_path(&root.join(FILE_NAME)),
        false => display_path(root),
    };
    session.add_loaded(name, only);
    pack
}

fn read_one(
    path: &Path,
    directory: &std::os::fd::OwnedFd,
    options: &PackOptions,
    allowance: &mut Allowance,
    budget: &mut Budget,
) -> (Option<Skill>, Problems) {
    let read = agent_skill::read(directory, directory_name(path), allowance, budget);
    let (skill, mut problems) = read.unwrap_or_else(|problem| {
        let problems = LoadedFile::from_problem(problem).problems;
        (None, problems)
    });
    for warning in skill.iter().flat_map(|it| pack::warnings(it, options)) {
        problems.add(warning);
    }
    (skill, problems)
}
