//! `sympozium secret`: the local store of the secrets that skills and models need.
//!
//! A value is read from a pipe, a file, a variable or a terminal without echo, never from the command line: other users
//! of the machine can read that. No command prints a value.

mod arguments;
mod value;

pub use arguments::SecretArguments;

use std::process::ExitCode;

use anyhow::anyhow;
use serde::Serialize;
use sympozium_api::text::quote;

use crate::arguments::OutputFormat;
use crate::failure::Failure;
use crate::output::{print_stderr, print_stdout, to_json};
use arguments::{ListArguments, RmArguments, SecretCommand, SetArguments};
use sympozium_local::secrets::{MAX_NAME_BYTES, SecretStore, is_valid_key, is_valid_name};
use sympozium_local::state::StateDirectory;

pub fn run(arguments: &SecretArguments) -> Result<ExitCode, Failure> {
    match &arguments.command {
        SecretCommand::Set(arguments) => set(arguments),
        SecretCommand::List(arguments) => list(arguments),
        SecretCommand::Rm(arguments) => rm(arguments),
    }
}

fn set(arguments: &SetArguments) -> Result<ExitCode, Failure> {
    let SetArguments { name, key, .. } = arguments;
    check_name(name)?;
    check_key(key)?;
    if !arguments.typed.is_empty() {
        return Err(typed_value_failure());
    }
    let store = open_store(&arguments.namespace)?;
    // Fail before the user types a value that could not be stored.
    store.get(name).map_err(store_failure)?;
    let value = value::read(arguments)?;
    store.set(name, key, value).map_err(store_failure)?;
    print_stderr(&format!("set key {key} of Secret {name}"));
    Ok(ExitCode::SUCCESS)
}

fn rm(arguments: &RmArguments) -> Result<ExitCode, Failure> {
    let RmArguments { name, key, .. } = arguments;
    check_name(name)?;
    key.as_deref().map_or(Ok(()), check_key)?;
    let store = open_store(&arguments.namespace)?;
    let removed = store.remove(name, key.as_deref()).map_err(store_failure)?;
    let what = match key {
        Some(key) => format!("key {key} of Secret {name}"),
        None => format!("Secret {name}"),
    };
    if !removed {
        let error = anyhow!("there is no {what} in namespace {}", arguments.namespace);
        return Err(Failure::new(error, "`sympozium secret list` lists the Secrets"));
    }
    print_stderr(&format!("removed {what}"));
    Ok(ExitCode::SUCCESS)
}

/// The JSON output. Fields may be added; none changes its meaning.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SecretList {
    namespace: String,
    secrets: Vec<ListedSecret>,
}

/// One Secret, without its values.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ListedSecret {
    name: String,
    keys: Vec<String>,
    /// Why the Secret cannot be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

fn list(arguments: &ListArguments) -> Result<ExitCode, Failure> {
    let store = open_store(&arguments.namespace)?;
    let mut secrets = Vec::new();
    for name in store.names().map_err(store_failure)? {
        let (keys, problem) = match store.get(&name) {
            Ok(secret) => (secret.unwrap_or_default().0.into_keys().collect(), None),
            Err(error) => (Vec::new(), Some(format!("{error:#}"))),
        };
        secrets.push(ListedSecret { name, keys, problem });
    }
    let unusable = secrets.iter().any(|it| it.problem.is_some());
    match arguments.output {
        OutputFormat::Text => print_text(&secrets)?,
        OutputFormat::Json => print_stdout(&to_json(&SecretList { namespace: arguments.namespace.clone(), secrets })?)?,
    }
    Ok(match unusable {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}

fn print_text(secrets: &[ListedSecret]) -> Result<(), Failure> {
    if secrets.is_empty() {
        print_stderr("there are no Secrets; set one with `sympozium secret set NAME KEY`");
        return Ok(());
    }
    let names = secrets.iter().map(|it| it.name.len());
    let width = names.max().unwrap_or_default().max(4);
    let mut text = format!("{:width$}  KEYS\n", "NAME");
    for secret in secrets.iter().filter(|it| it.problem.is_none()) {
        text.push_str(&format!("{:width$}  {}\n", secret.name, secret.keys.join(", ")));
    }
    print_stdout(&text)?;
    for (secret, problem) in secrets.iter().filter_map(|it| Some((it, it.problem.as_ref()?))) {
        print_stderr(&format!("error: Secret {} cannot be used: {problem}", secret.name));
        print_stderr(&format!("hint: remove it with `sympozium secret rm {}`, then set it again", secret.name));
    }
    Ok(())
}

fn open_store(namespace: &str) -> Result<SecretStore, Failure> {
    let state = StateDirectory::open()?;
    SecretStore::open(&state, namespace).map_err(store_failure)
}

fn store_failure(error: anyhow::Error) -> Failure {
    Failure::new(
        error,
        "directories must belong to you with mode 700, and files with mode 600; remove a Secret that other users could read, and set it again",
    )
}

fn check_name(name: &str) -> Result<(), Failure> {
    match is_valid_name(name) {
        true => Ok(()),
        false => Err(Failure::usage(
            anyhow!("{} is not a valid name of a Secret", quote(name)),
            format!("use lower-case letters, digits, `-` and `.`, at most {MAX_NAME_BYTES} characters"),
        )),
    }
}

fn check_key(key: &str) -> Result<(), Failure> {
    if key.contains('=') {
        return Err(typed_value_failure());
    }
    match is_valid_key(key) {
        true => Ok(()),
        false => Err(Failure::usage(
            anyhow!("the key is not a valid key of a Secret"),
            "use letters, digits, `-`, `_` and `.`, at most 253 characters",
        )),
    }
}

/// Does not repeat what was typed: it may contain a value.
fn typed_value_failure() -> Failure {
    Failure::usage(
        anyhow!("a value on the command line is not accepted: other users of this machine could read it"),
        "type the value at the prompt, pipe it in, or use --from-file or --from-env",
    )
}
