//! The commands of `cargo xtask kube`.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};

use super::image::Image;
use super::parts::{self, Part, Tier};
use super::paths::Root;
use super::state::{Instance, Record};
use super::up::{Lifetime, Wish};
use super::{build, cache, end, init, inspect, keeper, leaks, up};

/// The cluster of a person who names none.
const DEFAULT_NAME: &str = "dev";
const TIER_HELP: &str = "control-plane, or node with +gvisor and +agent-sandbox added";

#[derive(Subcommand)]
pub enum Command {
    /// Build the parts that a tier needs, once, into the cache
    Build {
        #[arg(long, default_value = "node+gvisor+agent-sandbox", help = TIER_HELP)]
        tier: Tier,
        /// Build this part only
        #[arg(long, conflicts_with = "tier")]
        part: Option<String>,
        /// Also build Helm
        #[arg(long)]
        helm: bool,
    },
    /// Start a cluster (or find the one of that name) and print how to reach it
    Up {
        #[command(flatten)]
        name: Name,
        #[arg(long, default_value = "node", help = TIER_HELP)]
        tier: Tier,
        /// Do not build Helm
        #[arg(long)]
        no_helm: bool,
    },
    /// End a cluster and remove everything of it
    Down {
        #[command(flatten)]
        name: Name,
        /// End every cluster of this user instead
        #[arg(long)]
        all: bool,
    },
    /// List the clusters
    Status,
    /// List what is left of clusters without a holder; fails when there is something
    Leaks,
    /// Run a command in the cluster's namespaces, with its programs on the path
    Exec {
        #[command(flatten)]
        name: Name,
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Print the log of a component; without one, the names of all
    Logs {
        #[command(flatten)]
        name: Name,
        component: Option<String>,
        #[arg(long, short)]
        follow: bool,
    },
    /// Load an image archive (docker-archive or OCI layout) into the cluster
    Import {
        #[command(flatten)]
        name: Name,
        image: PathBuf,
    },
    /// Write an image archive from static binaries
    Image(ImageArguments),
    /// Remove the parts that were built, of every checkout of this user
    CleanCache,
    /// Start or find a cluster that ends by itself when its lease is free; prints its record as JSON
    #[command(hide = true)]
    Lease {
        #[command(flatten)]
        name: Name,
        #[arg(long)]
        tier: Tier,
        #[arg(long, default_value_t = 20)]
        idle_seconds: u64,
    },
    /// The process that a cluster hangs on
    #[command(hide = true)]
    Keep,
    /// The first process of a cluster
    #[command(hide = true)]
    Init { state: PathBuf },
}

#[derive(Args)]
pub struct Name {
    /// Name of the cluster
    #[arg(long, default_value = DEFAULT_NAME)]
    name: String,
}

#[derive(Args)]
pub struct ImageArguments {
    /// Name and tag of the image
    name: String,
    /// The archive to write
    #[arg(long)]
    out: PathBuf,
    /// A file to copy, as PATH-IN-IMAGE=FILE
    #[arg(long = "add", value_parser = pair)]
    files: Vec<(String, PathBuf)>,
    /// Add a shell and the usual tools
    #[arg(long)]
    shell: bool,
    /// What the image starts; one word per use
    #[arg(long)]
    entrypoint: Vec<String>,
}

fn pair(text: &str) -> Result<(String, PathBuf)> {
    let (inside, file) = text.split_once('=').context("expected PATH-IN-IMAGE=FILE")?;
    Ok((inside.trim_start_matches('/').to_owned(), PathBuf::from(file)))
}

pub fn run(command: Command) -> Result<ExitCode> {
    let root = Root::find()?;
    match command {
        Command::Build { tier, part, helm } => {
            let mut wanted = match part {
                Some(name) => vec![parts::find(&name)?],
                None => tier.parts(),
            };
            wanted.extend(helm.then_some(&parts::HELM));
            build(&root, &wanted)?;
        }
        Command::Up { name, tier, no_helm } => {
            let record = up::up(&root, &Wish { name: name.name, tier, lifetime: Lifetime::UntilDown })?;
            let helm = if no_helm { None } else { Some(up::helm(&root)?.folder) };
            introduce(&record, helm)?;
        }
        Command::Down { name, all } => down(&root, &name.name, all)?,
        Command::CleanCache => cache::clear(&root)?,
        Command::Leaks => return leaks(&root),
        Command::Status => inspect::status(&root)?,
        Command::Exec { name, command } => return inspect::exec(&root, &name.name, &command),
        Command::Logs { name, component, follow } => {
            return inspect::logs(&root, &name.name, component.as_deref(), follow);
        }
        Command::Import { name, image } => inspect::import(&root, &name.name, &image)?,
        Command::Image(arguments) => write_image(arguments)?,
        Command::Lease { name, tier, idle_seconds } => {
            let lifetime = Lifetime::Leased { idle: Duration::from_secs(idle_seconds) };
            let record = up::up(&root, &Wish { name: name.name, tier, lifetime })?;
            let text = serde_json::to_string(&record).context("cannot write the record")?;
            writeln!(std::io::stdout(), "{text}").context("cannot print")?;
        }
        Command::Keep => keeper::run(&root)?,
        Command::Init { state } => init::run(&state)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn build(root: &Root, wanted: &[&'static Part]) -> Result<()> {
    for built in build::build(root, wanted)? {
        let took = built.took.map_or_else(|| "cached".to_owned(), |took| format!("{:.0} s", took.as_secs_f64()));
        eprintln!("{:<18}{:<44}{took}", built.part.name, built.version);
    }
    Ok(())
}

fn down(root: &Root, name: &str, all: bool) -> Result<()> {
    if !all {
        return end::down(root, &Instance::new(root, name)?);
    }
    for instance in Instance::all(root)? {
        end::down(root, &instance)?;
    }
    end::sweep(root)
}

fn leaks(root: &Root) -> Result<ExitCode> {
    let left = leaks::list(root)?;
    let mut out = std::io::stdout().lock();
    for thing in &left {
        writeln!(out, "{thing}").context("cannot print")?;
    }
    Ok(if left.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints two lines for a shell; everything else of `up` went to standard error.
fn introduce(record: &Record, helm: Option<PathBuf>) -> Result<()> {
    let folders: Vec<_> = record.programs.iter().chain(&helm).map(|folder| folder.display().to_string()).collect();
    let mut out = std::io::stdout().lock();
    writeln!(out, "export KUBECONFIG={}", record.kubeconfig.display()).context("cannot print")?;
    writeln!(out, "export PATH={}:$PATH", folders.join(":")).context("cannot print")?;
    eprintln!(
        "hint: eval the two lines above, then use kubectl and helm; `cargo xtask kube down --name {}` ends it",
        record.name
    );
    Ok(())
}

fn write_image(arguments: ImageArguments) -> Result<()> {
    let ImageArguments { name, out, files, shell, entrypoint } = arguments;
    let mut image = Image { name, files, entrypoint, ..Image::default() };
    if shell {
        image.add_shell()?;
    }
    image.write(&out)
}
