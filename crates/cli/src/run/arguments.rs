//! The arguments of `run`.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::{Args, ColorChoice, ValueEnum};
use sympozium_api::duration::DurationText;
use sympozium_api::names::{AgentName, PolicyName, RunName};

use crate::cluster::ClusterArguments;
use sympozium_runs::ApprovalMode;

/// The arguments of `run`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  Ask a model something, with no skill. The key is in ANTHROPIC_API_KEY or OPENAI_API_KEY:
    sympozium run \"What is in the workspace?\" --workspace .

  With a model on this machine, and no key:
    sympozium run --model ollama/qwen3 \"Write a haiku about namespaces into poem.txt\"
    sympozium run --model local/any --base-url http://127.0.0.1:8080/v1 \"Hello\"

  With a skill of your own, which is a directory with SKILL.md:
    sympozium run --skill ./count-lines --workspace . \"Which file is the longest?\"

  From manifests, as a cluster would run it:
    sympozium run agent.yaml run.yaml
    sympozium run deploy/ --agent reviewer \"Review the last change\"

  The same in a cluster, where objects of the manifests are created if they do not exist:
    sympozium run agent.yaml run.yaml --cluster -n team-a
    sympozium run --context staging -n team-a --agent reviewer \"Review the last change\" --detach

  In a script: only the answer, or every event as it happens
    sympozium run agent.yaml --task \"$TASK\" -o json | jq -r .answer
    sympozium run agent.yaml --task \"$TASK\" -o jsonl --approve none

Sources, in this order:
  model    --model, the manifest, `model` in CONFIG/config.yaml, or the one provider whose key is set
  key      --key-file, --key-command, a Secret of the files or of `sympozium secret`, the provider's variable
           (such as OPENAI_API_KEY) or the file that the variable with the suffix _FILE names. A variable is used
           only for the provider's own address and for servers on this machine
  Secrets  the files, then `sympozium secret set`
  policy   --policy, `policyRef` of the agent; `default` for a run without an agent among the files. The names of policies and
           packs that are shipped with this program mean those: others of the same name among the files are refused
  floor    CONFIG/floor.yaml, or --floor, or the one that is shipped with this program
  prices   CONFIG/prices.json, from which the cost of a run is estimated; without it there is no cost
  CONFIG   $SYMPOZIUM_CONFIG, $XDG_CONFIG_HOME/sympozium or ~/.config/sympozium

In a cluster:
  Agents, packs, policies, ConfigMaps and Secrets of the files are created if they do not exist. One that exists and differs
  is not changed, and nothing is run. Keys are Secrets of the cluster; floor, policy and workspace are the cluster's own:
  --key-file, --key-command, --floor, --policy, --workspace and --skill DIRECTORY are refused. Ctrl-C cancels
  the run and waits for its end; a second Ctrl-C leaves it to the cluster.

Exit codes:
  0    the run has an answer
  1    the command failed: a file cannot be read, something is missing here or in the cluster, isolation is below the floor
  2    the command line was not understood
  3    the run is denied by a policy
  4    the run failed
  5    its deadline passed
  130  a user ended it")]
pub struct RunArguments {
    /// Files and directories with manifests or skills, `-` for standard input; and the task.
    ///
    /// An argument that exists as a file, ends in .yaml, .yml or .json, or is `-`, is a file. One other argument is the task.
    #[arg(value_name = "FILE|TASK")]
    pub inputs: Vec<OsString>,

    /// The task, if it could be mistaken for a file.
    #[arg(long, value_name = "TEXT")]
    pub task: Option<String>,

    /// The agent among the files, if there are several.
    #[arg(long, value_name = "NAME", value_parser = parse_agent)]
    pub agent: Option<String>,

    /// The AgentRun among the files, if there are several.
    #[arg(long, value_name = "NAME", value_parser = parse_run)]
    pub run: Option<String>,

    /// A skill pack: one that is shipped with this program, one among the files, or a directory with SKILL.md. May be given
    /// several times, and replaces the skills of the manifest.
    #[arg(long = "skill", value_name = "SKILL")]
    pub skills: Vec<String>,

    /// The model, as provider/model.
    #[arg(long, value_name = "PROVIDER/MODEL", value_parser = parse_model)]
    pub model: Option<String>,

    /// The address of the model's provider, such as http://127.0.0.1:8080/v1.
    #[arg(long, value_name = "URL")]
    pub base_url: Option<String>,

    /// A file with the key of the model's provider, which no other user may read.
    #[arg(long, value_name = "FILE", conflicts_with = "key_command")]
    pub key_file: Option<PathBuf>,

    /// A command that prints the key of the model's provider, such as `pass show openai`.
    #[arg(long, value_name = "COMMAND")]
    pub key_command: Option<String>,

    /// The policy of the agent: one that is shipped with this program (default, restrictive, permissive, hardened), one among
    /// the files, or the one in a file of its own (./policy.yaml). The name of a shipped policy means that one, even if the
    /// files have another of that name.
    #[arg(long, value_name = "NAME|FILE", value_parser = parse_policy)]
    pub policy: Option<PolicyChoice>,

    /// A file with the policy that bounds every run, if CONFIG/floor.yaml does not exist.
    #[arg(long, value_name = "FILE")]
    pub floor: Option<PathBuf>,

    /// How long the agent may work, such as 90s or 10m. Waiting for an answer to a question does not count.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub timeout: Option<String>,

    /// A directory that the run reads and writes as /workspace. By default a new one, which is not removed.
    #[arg(long, value_name = "DIR")]
    pub workspace: Option<PathBuf>,

    /// How the run's questions are answered.
    #[arg(long, value_enum, default_value_t = ApprovalMode::Ask)]
    pub approve: ApprovalMode,

    /// In a cluster: create the run, print its name, and do not follow it.
    #[arg(long, help_heading = "In a cluster")]
    pub detach: bool,

    /// The backend.
    #[command(flatten)]
    pub cluster: ClusterArguments,

    /// The format of the output.
    #[arg(short, long, value_enum, default_value_t = RunFormat::Text)]
    pub output: RunFormat,

    /// Whether to use colours.
    #[arg(long, value_enum, default_value_t = ColorChoice::Auto)]
    pub color: ColorChoice,
}

/// The value of `--policy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicyChoice {
    Named(String),
    InFile(PathBuf),
}

/// The format of the output of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RunFormat {
    /// Human-readable lines, as it happens.
    Text,
    /// One object, at the end of the run.
    Json,
    /// One object for each event, as it happens.
    Jsonl,
}

/// Parses `provider/model`. The model may contain slashes.
fn parse_model(typed: &str) -> Result<String, &'static str> {
    match typed.split_once('/') {
        Some((provider, model)) if !provider.is_empty() && !model.is_empty() => Ok(typed.to_owned()),
        _ => Err("it is not a provider and a model\n  hint: write both, such as openai/gpt-4o or ollama/qwen3"),
    }
}

fn parse_duration(typed: &str) -> Result<String, &'static str> {
    match DurationText::new(typed).to_duration() {
        Ok(span) if !span.is_zero() => Ok(typed.to_owned()),
        _ => Err("it is not a duration\n  hint: write it as 90s, 10m or 1h30m"),
    }
}

const INVALID_NAME: &str =
    "it is not a valid name\n  hint: use lower-case letters, digits, `-` and `.`, at most 253 of them";

fn parse_agent(typed: &str) -> Result<String, &'static str> {
    let checked = AgentName::from(typed).check();
    checked.map(|()| typed.to_owned()).map_err(|_| INVALID_NAME)
}

fn parse_run(typed: &str) -> Result<String, &'static str> {
    let checked = RunName::from(typed).check();
    checked.map(|()| typed.to_owned()).map_err(|_| INVALID_NAME)
}

fn parse_policy(typed: &str) -> Result<PolicyChoice, &'static str> {
    let extension = Path::new(typed).extension().and_then(OsStr::to_str);
    if typed.contains('/') || matches!(extension, Some("yaml" | "yml" | "json")) {
        return Ok(PolicyChoice::InFile(PathBuf::from(typed)));
    }
    let checked = PolicyName::from(typed).check();
    let name = || PolicyChoice::Named(typed.to_owned());
    checked.map(|()| name()).map_err(|_| INVALID_NAME)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::arguments::{Arguments, Command};

    fn read(arguments: &[&str]) -> Result<Box<RunArguments>, String> {
        let all = ["sympozium", "run"].into_iter().chain(arguments.to_vec());
        match Arguments::try_parse_from(all) {
            Ok(Arguments { command: Command::Run(arguments) }) => Ok(arguments),
            Ok(_) => Err("another command".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn everything_has_a_default() {
        let arguments = read(&[]).unwrap();
        assert_eq!(arguments.cluster.local_namespace(), "default");
        assert!(!arguments.detach);
        assert_eq!(arguments.approve, ApprovalMode::Ask);
        assert_eq!(arguments.output, RunFormat::Text);
        assert!(arguments.inputs.is_empty() && arguments.skills.is_empty());
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for (arguments, said) in [
            (&["--model", "gpt-4o"][..], "a provider and a model"),
            (&["--model", "openai/"], "a provider and a model"),
            (&["--timeout", "ten"], "a duration"),
            (&["--timeout", "0s"], "a duration"),
            (&["--agent", "A b"], "not a valid name"),
            (&["--run", "../x"], "not a valid name"),
            (&["--policy", ""], "not a valid name"),
            (&["--policy", "A b"], "not a valid name"),
            (&["--approve", "maybe"], "ask, all, none"),
            (&["--key-file", "a", "--key-command", "b"], "cannot be used"),
        ] {
            let error = read(arguments).unwrap_err();
            assert!(error.contains(said), "{arguments:?}: {error}");
        }
        for (typed, expected) in [
            ("default", PolicyChoice::Named("default".to_owned())),
            ("./default", PolicyChoice::InFile("./default".into())),
            ("a.yaml", PolicyChoice::InFile("a.yaml".into())),
            ("../x/a.json", PolicyChoice::InFile("../x/a.json".into())),
        ] {
            let arguments = read(&["--policy", typed]).unwrap();
            assert_eq!(arguments.policy, Some(expected));
        }
        let arguments = read(&["--model", "openrouter/meta/llama", "--timeout", "1h30m"]).unwrap();
        assert_eq!(arguments.model.as_deref(), Some("openrouter/meta/llama"));
    }
}
