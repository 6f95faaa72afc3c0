//! The arguments of `sympozium secret`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::arguments::{OutputFormat, parse_namespace};

/// The arguments of `secret`.
#[derive(Debug, Args)]
pub struct SecretArguments {
    /// The command.
    #[command(subcommand)]
    pub command: SecretCommand,
}

/// The commands about secrets.
#[derive(Debug, Subcommand)]
pub enum SecretCommand {
    /// Set one key of a Secret.
    ///
    /// The value is read from a prompt on a terminal, and otherwise from standard input. It is stored in a file with mode 600
    /// below the state directory. Only the skill, hook or model that names the Secret gets it.
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
  Type the value at a prompt without echo:
    sympozium secret set openai-key OPENAI_API_KEY

  Read the value from another program:
    pass show github/token | sympozium secret set github GITHUB_TOKEN

  Read the value from a file, or from a variable:
    sympozium secret set registry config.json --from-file ~/registry.json
    sympozium secret set github GITHUB_TOKEN --from-env GITHUB_TOKEN

Exit codes:
  0  the key is set
  1  the stored Secret cannot be used, or the command failed
  2  the command line is invalid")]
pub struct SetArguments {
    /// The name of the Secret in manifests.
    pub name: String,

    /// The key: the name of the file or variable that the skill reads.
    pub key: String,

    /// Accepts a value by mistake, so that no error message of clap repeats it.
    #[arg(hide = true)]
    pub typed: Vec<OsString>,

    /// Read the value from this file, without changes.
    #[arg(long, value_name = "FILE", conflicts_with = "from_env")]
    pub from_file: Option<PathBuf>,

    /// Read the value from this environment variable.
    #[arg(long, value_name = "VARIABLE")]
    pub from_env: Option<String>,

    /// The namespace of the runs that can use the Secret.
    #[arg(short, long, default_value = "default", value_parser = parse_namespace)]
    pub namespace: String,
}

/// The arguments of `secret list`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  Check in a script whether a key is set:
    sympozium secret list -o json | jq -e '.secrets[] | select(.name == \"github\") | .keys | index(\"GITHUB_TOKEN\")'

Exit codes:
  0  the Secrets are listed
  1  a Secret cannot be used, or the command failed
  2  the command line is invalid")]
pub struct ListArguments {
    /// The namespace of the runs that can use the Secrets.
    #[arg(short, long, default_value = "default", value_parser = parse_namespace)]
    pub namespace: String,

    /// The output format.
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Text)]
    pub output: OutputFormat,
}

/// The arguments of `secret rm`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Exit codes:
  0  removed
  1  there is no such Secret or key, or the command failed
  2  the command line is invalid")]
pub struct RmArguments {
    /// The name of the Secret.
    pub name: String,

    /// Remove only this key.
    pub key: Option<String>,

    /// The namespace of the runs that can use the Secret.
    #[arg(short, long, default_value = "default", value_parser = parse_namespace)]
    pub namespace: String,
}
