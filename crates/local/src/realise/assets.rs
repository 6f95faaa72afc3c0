//! What the sandboxes of a run are built from.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Context as _;
use sympozium_api::run_plan::Part;
use zeroize::Zeroizing;

use super::gateway;
use super::inputs::PartInputs;
use crate::prepared_run::PreparedRun;
use crate::sandbox_spec::{PartSpec, SandboxInputs};
use crate::state::{RunDirectory, StateDirectory};
use crate::volumes::{VolumeInputs, Volumes, WORKSPACE, make_claim, make_directory};

/// Stored until the first sandboxes are built, because the fallback builds them again.
pub struct RunAssets {
    pub prepared: PreparedRun,
    pub volumes: Volumes,
    pub live: PathBuf,
    pub gateway: PathBuf,
    pub program: PathBuf,
    pub proxies: BTreeMap<String, Zeroizing<String>>,
    /// `None` if no part may see files.
    pub workspace: Option<PathBuf>,
}

impl RunAssets {
    /// Creates the volumes of the run, with the input files of its parts.
    pub fn create(
        prepared: PreparedRun,
        inputs: PartInputs,
        directory: &RunDirectory,
        state: &StateDirectory,
    ) -> anyhow::Result<Self> {
        let (files, proxies) = inputs;
        let plan = &prepared.plan;
        let live = directory.live_directory();
        let workspace = make_workspace(&prepared, directory)?;
        let claims = |claim: &str| make_claim(state, plan.run.namespace.as_str(), claim);
        let inputs = VolumeInputs { live: &live, workspace: &workspace, claims: &claims, inputs: &files };
        let volumes = Volumes::create(&prepared, &inputs)?;
        let program = std::env::current_exe().context("cannot find the path of this program")?;
        let mut mounts = plan.parts.iter().flat_map(|part| &part.mounts);
        let workspace = mounts.any(|it| it.volume.0 == WORKSPACE).then_some(workspace);
        let gateway = live.join(gateway::DIRECTORY_NAME);
        Ok(Self { prepared, volumes, live, gateway, program, proxies, workspace })
    }

    pub fn part_specs(&self) -> anyhow::Result<Vec<(Part, PartSpec)>> {
        self.build_specs(|inputs, part| inputs.part_spec(part))
    }

    pub fn unprivileged_specs(&self) -> anyhow::Result<Vec<(Part, PartSpec)>> {
        self.build_specs(|inputs, part| inputs.unprivileged_spec(part))
    }

    fn build_specs(
        &self,
        build: impl Fn(&SandboxInputs<'_>, &Part) -> anyhow::Result<PartSpec>,
    ) -> anyhow::Result<Vec<(Part, PartSpec)>> {
        let inputs = SandboxInputs {
            prepared: &self.prepared,
            volumes: &self.volumes,
            live: &self.live,
            gateway: &self.gateway,
            program: &self.program,
            proxies: &self.proxies,
        };
        let mut specs = Vec::new();
        for part in &self.prepared.plan.parts {
            let spec = build(&inputs, part).with_context(|| format!("cannot prepare part {}", part.name))?;
            specs.push((part.clone(), spec));
        }
        Ok(specs)
    }
}

/// The workspace: the user's directory, or a new one, which stays after the run.
fn make_workspace(prepared: &PreparedRun, directory: &RunDirectory) -> anyhow::Result<PathBuf> {
    if let Some(workspace) = &prepared.workspace {
        return Ok(workspace.clone());
    }
    let workspace = directory.join("workspace");
    make_directory(&workspace)?;
    Ok(workspace)
}
