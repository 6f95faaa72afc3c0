//! The arguments of `sympozium secret`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::arguments::{OutputFormat, parse_namespace};

/// The arguments of `secret`.
#[derive(Debug, Args)]
pub struct SecretArguments {
    /// What to do.
    #[command(subcommand)]
    pub command: SecretCommand,
}

/// The commands about secrets.
#[derive(Debug, Subcommand)]
pub enum SecretCommand {
    /// Set one key of a Secret.
    ///
    /// The value is asked for where there is a terminal, and otherwise read from standard input. It is kept in a file of mode 600
    /// below the state directory, and only the skill, hook or model that names the Secret ever has it.
    Set(SetArguments),

    /// List Secrets and their keys, never their values.
    List(ListArguments),

    /// Remove a Secret, or one key of it.
    Rm(RmArguments),
}

/// The arguments of `secret set`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  Type it, without it being shown:
    sympozium secret set openai-key OPENAI_API_KEY

  From another program:
    pass show github/token | sympozium secret set github GITHUB_TOKEN

  A file as it is, and a variable:
    sympozium secret set registry config.json --from-file ~/registry.json
    sympozium secret set github GITHUB_TOKEN --from-env GITHUB_TOKEN

Exit codes:
  0  it is set
  1  the command failed, or what is there cannot be used
  2  the command line was not understood")]
pub struct SetArguments {
    /// The Secret, by the name that manifests call it.
    pub name: String,

    /// The key in it: the name of a file or variable that the skill finds it by.
    pub key: String,

    /// Here so that a value that somebody typed is not repeated by what refuses it.
    #[arg(hide = true)]
    pub typed: Vec<OsString>,

    /// Take the value from this file, as it is.
    #[arg(long, value_name = "FILE", conflicts_with = "from_env")]
    pub from_file: Option<PathBuf>,

    /// Take the value from this environment variable.
    #[arg(long, value_name = "VARIABLE")]
    pub from_env: Option<String>,

    /// The namespace of the runs that it is for.
    #[arg(short, long, default_value = "default", value_parser = parse_namespace)]
    pub namespace: String,
}

/// The arguments of `secret list`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  In a script: is a key set?
    sympozium secret list -o json | jq -e '.secrets[] | select(.name == \"github\") | .keys | index(\"GITHUB_TOKEN\")'

Exit codes:
  0  listed
  1  the command failed, or one of them cannot be used
  2  the command line was not understood")]
pub struct ListArguments {
    /// The namespace of the runs that they are for.
    #[arg(short, long, default_value = "default", value_parser = parse_namespace)]
    pub namespace: String,

    /// How to print them.
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Text)]
    pub output: OutputFormat,
}

/// The arguments of `secret rm`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Exit codes:
  0  it is removed
  1  the command failed, or there is no such Secret or key
  2  the command line was not understood")]
pub struct RmArguments {
    /// The Secret.
    pub name: String,

    /// Only this key of it.
    pub key: Option<String>,

    /// The namespace of the runs that it is for.
    #[arg(short, long, default_value = "default", value_parser = parse_namespace)]
    pub namespace: String,
}
