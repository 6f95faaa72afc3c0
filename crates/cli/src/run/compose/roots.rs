//! Finds what each pack and hook is run from: the root of its image if this machine has it, otherwise programs of this
//! machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use sympozium_api::RunPlan;
use sympozium_api::run_plan::{Acts, Part, Role, Start};
use sympozium_api::skill_pack::Skill;

use super::{Surroundings, image_directory};
use crate::failure::Failure;
use crate::local::binaries::{Binary, is_name};
use crate::local::prepared::{PackRoot, root_key};
use crate::manifests::problem::quoted;

/// The program that runs every command line.
const SHELL: &str = "sh";

/// Finds the roots of all parts that are not our own. The error lists every declared program that is missing.
pub fn find(
    plan: &RunPlan,
    texts: &BTreeMap<String, Vec<Skill>>,
    surroundings: &Surroundings<'_>,
    warnings: &mut Vec<String>,
) -> Result<BTreeMap<String, PackRoot>, Failure> {
    let search = (surroundings.environment)("PATH").unwrap_or_default();
    let mut roots = BTreeMap::new();
    let mut missing = Missing::default();
    for part in &plan.parts {
        let Some(key) = root_key(part) else {
            continue;
        };
        let data = surroundings.data.as_deref();
        let image = image_directory::of(data, part.image.as_str());
        if let Some(directory) = image.as_ref().filter(|it| it.is_dir()) {
            roots.insert(key, PackRoot::Directory(directory.clone()));
            continue;
        }
        image_directory::check_old_name(data, part.image.as_str())?;
        let wanted = wanted(part, texts);
        if let (Role::PreRun { hook } | Role::PostRun { hook, .. }, Start::Image { command, .. }) =
            (&part.role, &part.start)
            && command.is_empty()
        {
            return Err(no_entrypoint(hook.as_str(), part, image.as_deref()));
        }
        let mut binaries = Vec::new();
        for name in &wanted {
            match Binary::find(name, &search) {
                Some(binary) => binaries.push(binary),
                None => missing.add(part, name, image.as_deref()),
            }
        }
        warnings.extend(undeclared(plan, part, &wanted));
        roots.insert(key, PackRoot::Host(binaries));
    }
    missing.result().map(|()| roots)
}

/// The programs that a part declares.
fn wanted(part: &Part, texts: &BTreeMap<String, Vec<Skill>>) -> BTreeSet<String> {
    let mut wanted = BTreeSet::from([SHELL.to_owned()]);
    match (&part.role, &part.start) {
        (Role::Skill { pack }, _) => {
            let skills = texts.get(pack.as_str()).into_iter().flatten();
            let requires = skills.filter_map(|it| it.requires.as_ref());
            wanted.extend(requires.flat_map(|it| it.bins.iter().cloned()));
        }
        // A hook declares only the program that it starts.
        (Role::PreRun { .. } | Role::PostRun { .. }, Start::Image { command, .. }) => {
            wanted.extend(command.first().filter(|it| !it.contains('/')).cloned());
        }
        _ => {}
    }
    wanted
}

/// Warnings for tools whose program no skill of the pack declares: it would not be found.
fn undeclared(plan: &RunPlan, part: &Part, wanted: &BTreeSet<String>) -> Vec<String> {
    let tools = plan.tools.iter().filter_map(|tool| match &tool.acts {
        Acts::Program { part: of, exec, .. } if *of == part.name => Some((tool, exec.first()?)),
        _ => None,
    });
    let unknown = tools.filter(|(_, program)| is_name(program) && !wanted.contains(*program));
    let told = unknown.map(|(tool, program)| {
        format!(
            "tool {} starts {}, which no skill of its pack lists in `requires.bins`: it is not there on this machine",
            quoted(&tool.name),
            quoted(program)
        )
    });
    told.collect()
}

fn no_entrypoint(hook: &str, part: &Part, image: Option<&Path>) -> Failure {
    let error = anyhow!(
        "hook {} has no `command`, and the image {} is not on this machine",
        quoted(hook),
        quoted(part.image.as_str())
    );
    Failure::new(error, format!("give it a `command`{}", or_unpack(image)))
}

fn or_unpack(image: Option<&Path>) -> String {
    image.map_or_else(String::new, |image| format!(", or unpack the root of its image into {}", image.display()))
}

/// Missing programs, by the pack or hook that declares them.
#[derive(Default)]
struct Missing {
    by: BTreeMap<String, Vec<String>>,
    image: Option<PathBuf>,
}

impl Missing {
    fn add(&mut self, part: &Part, name: &str, image: Option<&Path>) {
        let whose = match &part.role {
            Role::Skill { pack } => format!("pack {}", quoted(pack.as_str())),
            Role::PreRun { hook } | Role::PostRun { hook, .. } => {
                format!("hook {}", quoted(hook.as_str()))
            }
            _ => format!("part {}", quoted(&part.name.0)),
        };
        self.by.entry(whose).or_default().push(quoted(name));
        if self.image.is_none() {
            self.image = image.map(Path::to_owned);
        }
    }

    fn result(self) -> Result<(), Failure> {
        if self.by.is_empty() {
            return Ok(());
        }
        let all = self
            .by
            .iter()
            .map(|(whose, names)| format!("{whose} needs {}, not in any directory of PATH", names.join(", ")));
        let all: Vec<String> = all.collect();
        let hint = format!("install what is missing{}", or_unpack(self.image.as_deref()));
        Err(Failure::new(anyhow!("{}", all.join("; ")), hint))
    }
}
