//! `images`: the container images of the project, put together from static binaries without a container engine.
//!
//! [`IMAGES`] says what there is; `base` is what all stand on; `tools` brings programs of others; `oci` writes archives;
//! `tree` is a layer's files.

mod base;
mod elf;
pub mod oci;
mod tools;
pub mod tree;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;
use serde_json::json;

use self::base::Parts;
pub use self::base::busybox;
use self::oci::{Archive, Image};
use self::tools::Tool;
use self::tree::Tree;
use crate::output::{hinted, line, note, table};
use crate::process::{build_directory, output, plain_cargo, target_directory, workspace_root};

/// An image of the project.
#[derive(Debug)]
struct Definition {
    name: &'static str,
    title: &'static str,
    description: &'static str,
    binaries: &'static [Binary],
    /// Programs of others that its commands call.
    tools: &'static [Tool],
    /// Other files of this repository, and where they go.
    files: &'static [(&'static str, &'static str)],
    entrypoint: &'static [&'static str],
}

/// A program of ours in an image.
#[derive(Debug)]
struct Binary {
    package: &'static str,
    name: &'static str,
    /// Without the leading slash. Not in `usr/local/bin`: whatever is there can be called as a skill.
    path: &'static str,
}

const LICENSE: (&str, &str) = ("LICENSE", "opt/sympozium/LICENSE");

const SIDECAR: Binary =
    Binary { package: "sympozium-sidecar", name: "skill-sidecar", path: "opt/sympozium/bin/skill-sidecar" };

/// The image of a built-in pack: the base image of skills with the tools that the pack's skills call.
const fn skill(name: &'static str, description: &'static str, tools: &'static [Tool]) -> Definition {
    Definition {
        name,
        title: name,
        description,
        binaries: &[SIDECAR],
        tools,
        files: &[LICENSE],
        entrypoint: &["/opt/sympozium/bin/skill-sidecar"],
    }
}

const IMAGES: &[Definition] = &[
    Definition {
        name: "skill-sidecar",
        title: "skill-sidecar",
        description: "Runs the programs that you put into /usr/local/bin for an agent, over HTTP or over files",
        binaries: &[SIDECAR],
        tools: &[],
        files: &[LICENSE],
        entrypoint: &["/opt/sympozium/bin/skill-sidecar"],
    },
    Definition {
        name: "agent-runner",
        title: "agent-runner",
        description: "The agent of a run: asks the model and makes its calls, without a credential and without a network",
        binaries: &[Binary {
            package: "sympozium-agent",
            name: "agent-runner",
            path: "opt/sympozium/bin/agent-runner",
        }],
        tools: &[],
        files: &[LICENSE],
        // The root is the image's own: the agent may read what is in it.
        entrypoint: &["/opt/sympozium/bin/agent-runner", "--image=/"],
    },
    Definition {
        name: "ipc-bridge",
        title: "ipc-bridge",
        description: "The reference monitor of a run: gates, dispatches and records every call of a tool",
        binaries: &[Binary { package: "sympozium-bridge", name: "ipc-bridge", path: "opt/sympozium/bin/ipc-bridge" }],
        tools: &[],
        files: &[LICENSE],
        entrypoint: &["/opt/sympozium/bin/ipc-bridge"],
    },
    Definition {
        name: "sympozium-gateway",
        title: "sympozium-gateway",
        description: "The only way out of a run: lets each part reach what its plan lists, and takes what runs report",
        binaries: &[Binary {
            package: "sympozium-gateway",
            name: "sympozium-gateway",
            path: "opt/sympozium/bin/sympozium-gateway",
        }],
        tools: &[],
        files: &[LICENSE],
        entrypoint: &["/opt/sympozium/bin/sympozium-gateway"],
    },
    Definition {
        name: "sympozium-controller",
        title: "sympozium-controller",
        description: "Realises runs on Kubernetes: plans them once, gives each skill its rights, and takes everything back",
        binaries: &[Binary {
            package: "sympozium-controller",
            name: "sympozium-controller",
            path: "opt/sympozium/bin/sympozium-controller",
        }],
        tools: &[],
        files: &[LICENSE],
        entrypoint: &["/opt/sympozium/bin/sympozium-controller"],
    },
    skill(
        "skill-k8s-ops",
        "The sidecar of the pack k8s-ops: looks at a namespace and scales what is in it",
        &[Tool::Jq, Tool::Kubectl],
    ),
    skill(
        "skill-sre-observability",
        "The sidecar of the pack sre-observability: asks Prometheus, Loki and the cluster how things are",
        &[Tool::Curl, Tool::Jq, Tool::Kubectl],
    ),
    skill(
        "skill-incident-response",
        "The sidecar of the pack incident-response: saves what is gone soonest and finds what changed",
        &[Tool::Jq, Tool::Kubectl],
    ),
];

const ENVIRONMENT: &[&str] = &["PATH=/usr/local/bin:/usr/bin:/bin", "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"];
const WORKING_DIRECTORY: &str = "/workspace";
/// Ours, busybox's, the C library's that is linked into both, and the certificates'.
const LICENSES: &str = "Apache-2.0 AND GPL-2.0-only AND LGPL-2.1-or-later AND MPL-2.0";
/// Those of tools that come from the build machine, with their libraries.
const LICENSES_OF_TOOLS: &str = " AND MIT AND curl AND LicenseRef-Debian";

#[derive(clap::Args)]
pub struct Arguments {
    /// The images to make; all when none is named
    names: Vec<String>,
    /// Where the archives go [default: target/images]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// What comes before an image's name, such as `registry.example.com/team/`
    #[arg(long, default_value = "")]
    prefix: String,
    /// The images' tag
    #[arg(long, default_value = env!("CARGO_PKG_VERSION"))]
    tag: String,
    /// Use this program instead of building it, or instead of this machine's, as NAME=FILE
    #[arg(long = "binary", value_name = "NAME=FILE", value_parser = given)]
    binaries: Vec<(String, PathBuf)>,
    /// How to show what was made
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    Text,
    Json,
}

fn given(text: &str) -> Result<(String, PathBuf)> {
    let (name, file) = text.split_once('=').context("expected NAME=FILE")?;
    Ok((name.to_owned(), file.into()))
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let wanted = select(&arguments.names)?;
    check_reference("prefix", &arguments.prefix, "/.-_:")?;
    check_reference("tag", &arguments.tag, ".-_")?;
    ensure!(!arguments.tag.is_empty(), "the tag is empty");
    let out = match &arguments.out {
        Some(directory) => directory.clone(),
        None => target_directory().join("images"),
    };
    fs::create_dir_all(&out).with_context(|| format!("making {}", out.display()))?;
    let mut made = Vec::new();
    for definition in wanted {
        made.push(make(definition, arguments, &out)?);
    }
    match arguments.output {
        Output::Text => {
            let mut rows = vec![["image", "digest", "bytes", "archive"].map(str::to_owned).to_vec()];
            for (image, archive, path) in &made {
                rows.push(vec![
                    image.reference.clone(),
                    archive.digest.clone(),
                    archive.bytes.len().to_string(),
                    path.display().to_string(),
                ]);
            }
            line(table(&rows).trim_end());
        }
        Output::Json => {
            let images: Vec<_> = made
                .iter()
                .map(|(image, archive, path)| {
                    json!({
                        "architecture": image.architecture,
                        "archive": path,
                        "bytes": archive.bytes.len(),
                        "digest": archive.digest,
                        "reference": image.reference,
                    })
                })
                .collect();
            line(&json!({ "images": images }).to_string());
        }
    }
    Ok(())
}

/// What comes before the names of images in test clusters, and their tag: one that is never pulled. As in the testkit.
const TEST_PREFIX: &str = "sympozium.test/";
const TEST_TAG: &str = "test";

/// Writes every image for the clusters of tests, made of the programs in a directory. What an earlier run left there goes first.
pub fn write_for_tests(out: &Path, programs: &Path) -> Result<()> {
    if out.exists() {
        fs::remove_dir_all(out).with_context(|| format!("removing {}", out.display()))?;
    }
    fs::create_dir_all(out).with_context(|| format!("making {}", out.display()))?;
    let binaries = IMAGES.iter().flat_map(|definition| definition.binaries);
    let arguments = Arguments {
        names: Vec::new(),
        out: None,
        prefix: TEST_PREFIX.to_owned(),
        tag: TEST_TAG.to_owned(),
        binaries: binaries.map(|binary| (binary.name.to_owned(), programs.join(binary.name))).collect(),
        output: Output::Text,
    };
    for definition in IMAGES {
        let (image, archive, _) = make(definition, &arguments, out)?;
        note(&format!("{}: {} bytes", image.reference, archive.bytes.len()));
    }
    Ok(())
}

/// Puts an image together and writes its archive.
fn make(definition: &Definition, arguments: &Arguments, out: &Path) -> Result<(Image, Archive, PathBuf)> {
    let reference = format!("{}{}:{}", arguments.prefix, definition.name, arguments.tag);
    let own = Own {
        programs: programs(definition, &arguments.binaries)?,
        tools: tools::files(definition.tools, &arguments.binaries)?,
    };
    let image = assemble(definition, reference, Parts::find()?, own)
        .with_context(|| format!("putting {} together", definition.name))?;
    let archive = image.to_archive()?;
    let path = out.join(format!("{}.tar", definition.name));
    write(&path, &archive)?;
    Ok((image, archive, path))
}

/// The images with these names, in the order of the table.
fn select(names: &[String]) -> Result<Vec<&'static Definition>> {
    let known: Vec<&str> = IMAGES.iter().map(|definition| definition.name).collect();
    if let Some(unknown) = names.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(hinted(format!("no image is called `{unknown}`"), format!("there are: {}", known.join(", "))));
    }
    let is_wanted = |definition: &&Definition| names.is_empty() || names.iter().any(|name| name == definition.name);
    Ok(IMAGES.iter().filter(is_wanted).collect())
}

fn check_reference(what: &str, text: &str, signs: &str) -> Result<()> {
    let is_fine = text.chars().all(|letter| letter.is_ascii_alphanumeric() || signs.contains(letter));
    ensure!(is_fine, "the {what} `{text}` has a character that no reference may have");
    Ok(())
}

/// Fails for a program that needs libraries.
pub fn check_static(program: &[u8]) -> Result<()> {
    elf::static_architecture(program).map(drop)
}

/// The programs of an image with their paths in it, given or built.
fn programs(definition: &Definition, given: &[(String, PathBuf)]) -> Result<Vec<(&'static str, Vec<u8>)>> {
    let mut programs = Vec::new();
    for binary in definition.binaries {
        let file = match given.iter().find(|(name, _)| name == binary.name) {
            Some((_, file)) => file.clone(),
            None => build(binary)?,
        };
        let content = fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
        programs.push((binary.path, content));
    }
    Ok(programs)
}

/// Builds a program as it ships.
fn build(binary: &Binary) -> Result<PathBuf> {
    note(&format!("building {} of {}", binary.name, binary.package));
    let mut build = plain_cargo(&["build", "--quiet", "--locked", "--profile", "dist"]);
    build.args(["--package", binary.package, "--bin", binary.name]);
    output(&mut build).with_context(|| format!("building {}", binary.name))?;
    Ok(build_directory("dist")?.join(binary.name))
}

/// What an image does not have from the base.
#[derive(Default)]
struct Own {
    /// Ours, with their paths.
    programs: Vec<(&'static str, Vec<u8>)>,
    /// Those of others and their libraries, with their paths.
    tools: BTreeMap<String, Vec<u8>>,
}

/// Layers from what changes seldom to what changes often: the base, which images share, tools, and what is ours.
fn assemble(definition: &Definition, reference: String, parts: Parts, contents: Own) -> Result<Image> {
    let architecture = elf::static_architecture(&parts.busybox).context("busybox")?;
    let mut layers = vec![parts.layer()?];
    if !contents.tools.is_empty() {
        let mut tools = Tree::default();
        for (path, content) in contents.tools {
            let (of_tool, _) = elf::examine(&content).with_context(|| path.clone())?;
            ensure!(of_tool == architecture, "{path} is for {of_tool}, busybox for {architecture}");
            tools.add_file(&path, 0o755, content)?;
        }
        layers.push(tools);
    }
    let mut own = Tree::default();
    for (path, content) in contents.programs {
        let of_program = elf::static_architecture(&content).with_context(|| path.to_owned())?;
        ensure!(of_program == architecture, "{path} is for {of_program}, busybox for {architecture}");
        own.add_file(path, 0o755, content)?;
    }
    for (source, path) in definition.files {
        let source = workspace_root().join(source);
        let content = fs::read(&source).with_context(|| format!("reading {}", source.display()))?;
        own.add_file(path, 0o644, content)?;
    }
    layers.push(own);
    let mut licenses = LICENSES.to_owned();
    if !definition.tools.is_empty() {
        licenses.push_str(LICENSES_OF_TOOLS);
    }
    let annotation = |name: &str, value: &str| (format!("org.opencontainers.image.{name}"), value.to_owned());
    let words = |list: &[&str]| list.iter().map(|&word| word.to_owned()).collect();
    Ok(Image {
        reference,
        architecture,
        user: format!("{0}:{0}", base::USER),
        working_directory: WORKING_DIRECTORY.to_owned(),
        entrypoint: words(definition.entrypoint),
        environment: words(ENVIRONMENT),
        annotations: vec![
            annotation("title", definition.title),
            annotation("description", definition.description),
            annotation("version", env!("CARGO_PKG_VERSION")),
            annotation("licenses", &licenses),
        ],
        layers,
    })
}

/// Under another name first: an archive that is there is whole.
fn write(path: &Path, archive: &Archive) -> Result<()> {
    let part = path.with_extension("tar.part");
    fs::write(&part, &archive.bytes)
        .and_then(|()| fs::rename(&part, path))
        .with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests;
