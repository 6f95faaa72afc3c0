//! Finds what each pack and hook is run from: the root of its image if this machine has it, otherwise programs of this
//! machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use sympozium_api::RunPlan;
use sympozium_api::run_plan::{Part, Role, Start, ToolHandler};
use sympozium_api::skill_pack::Skill;
use sympozium_api::text::quote;

use super::{HostEnvironment, image_directory};
use crate::failure::Failure;
use sympozium_local::binaries::{Binary, is_program_name};
use sympozium_local::prepared_run::{PartRoot, root_key};

/// The program that runs every command line.
const SHELL: &str = "sh";

/// Finds the roots of all parts that are not our own. The error lists every declared program that is missing.
pub fn find_roots(
    plan: &RunPlan,
    texts: &BTreeMap<String, Vec<Skill>>,
    host: &HostEnvironment<'_>,
    warnings: &mut Vec<String>,
) -> Result<BTreeMap<String, PartRoot>, Failure> {
    let search = (host.environment)("PATH").unwrap_or_default();
    let mut roots = BTreeMap::new();
    let mut missing = MissingPrograms::default();
    for part in &plan.parts {
        let Some(key) = root_key(part) else {
            continue;
        };
        let data = host.data.as_deref();
        let image = image_directory::image_directory(data, part.image.as_str());
        if let Some(directory) = image.as_ref().filter(|it| it.is_dir()) {
            roots.insert(key, PartRoot::Directory(directory.clone()));
            continue;
        }
        image_directory::check_old_name(data, part.image.as_str())?;
        let programs = required_programs(part, texts);
        if let (Role::PreRun { hook } | Role::PostRun { hook, .. }, Start::Image { command, .. }) =
            (&part.role, &part.start)
            && command.is_empty()
        {
            return Err(missing_command(hook.as_str(), part, image.as_deref()));
        }
        let mut binaries = Vec::new();
        for name in &programs {
            match Binary::find(name, &search) {
                Some(binary) => binaries.push(binary),
                None => missing.add(part, name, image.as_deref()),
            }
        }
        warnings.extend(undeclared_tools(plan, part, &programs));
        roots.insert(key, PartRoot::Host(binaries));
    }
    missing.into_result().map(|()| roots)
}

/// The programs that a part declares.
fn required_programs(part: &Part, texts: &BTreeMap<String, Vec<Skill>>) -> BTreeSet<String> {
    let mut programs = BTreeSet::from([SHELL.to_owned()]);
    match (&part.role, &part.start) {
        (Role::Skill { pack }, _) => {
            let skills = texts.get(pack.as_str()).into_iter().flatten();
            let requires = skills.filter_map(|it| it.requires.as_ref());
            programs.extend(requires.flat_map(|it| it.bins.iter().cloned()));
        }
        // A hook declares only the program that it starts.
        (Role::PreRun { .. } | Role::PostRun { .. }, Start::Image { command, .. }) => {
            programs.extend(command.first().filter(|it| !it.contains('/')).cloned());
        }
        _ => {}
    }
    programs
}

/// Warnings for tools whose program no skill of the pack declares: it would not be found.
fn undeclared_tools(plan: &RunPlan, part: &Part, programs: &BTreeSet<String>) -> Vec<String> {
    let tools = plan.tools.iter().filter_map(|tool| match &tool.acts {
        ToolHandler::Program { part: of, exec, .. } if *of == part.name => Some((tool, exec.first()?)),
        _ => None,
    });
    let unknown = tools.filter(|(_, program)| is_program_name(program) && !programs.contains(*program));
    let warnings = unknown.map(|(tool, program)| {
        format!(
            "tool {} starts {}, which no skill of its pack lists in `requires.bins`: this machine does not provide it",
            quote(&tool.name),
            quote(program)
        )
    });
    warnings.collect()
}

fn missing_command(hook: &str, part: &Part, image: Option<&Path>) -> Failure {
    let error = anyhow!(
        "hook {} has no `command`, and the image {} is not on this machine",
        quote(hook),
        quote(part.image.as_str())
    );
    Failure::new(error, format!("give it a `command`{}", unpack_hint(image)))
}

fn unpack_hint(image: Option<&Path>) -> String {
    image.map_or_else(String::new, |image| format!(", or unpack the root of its image into {}", image.display()))
}

/// Missing programs, by the pack or hook that declares them.
#[derive(Default)]
struct MissingPrograms {
    by_owner: BTreeMap<String, Vec<String>>,
    image: Option<PathBuf>,
}

impl MissingPrograms {
    fn add(&mut self, part: &Part, name: &str, image: Option<&Path>) {
        let owner = match &part.role {
            Role::Skill { pack } => format!("pack {}", quote(pack.as_str())),
            Role::PreRun { hook } | Role::PostRun { hook, .. } => {
                format!("hook {}", quote(hook.as_str()))
            }
            _ => format!("part {}", quote(&part.name.0)),
        };
        self.by_owner.entry(owner).or_default().push(quote(name));
        if self.image.is_none() {
            self.image = image.map(Path::to_owned);
        }
    }

    fn into_result(self) -> Result<(), Failure> {
        if self.by_owner.is_empty() {
            return Ok(());
        }
        let all = self
            .by_owner
            .iter()
            .map(|(owner, names)| format!("{owner} needs {}, not in any directory of PATH", names.join(", ")));
        let all: Vec<String> = all.collect();
        let hint = format!("install what is missing{}", unpack_hint(self.image.as_deref()));
        Err(Failure::new(anyhow!("{}", all.join("; ")), hint))
    }
}
