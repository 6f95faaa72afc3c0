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

  What manifests say, as a cluster would run it:
    sympozium run agent.yaml run.yaml
    sympozium run deploy/ --agent reviewer \"Review the last change\"

  The same in a cluster, where what the manifests name is created if it is not there:
    sympozium run agent.yaml run.yaml --cluster -n team-a
    sympozium run --context staging -n team-a --agent reviewer \"Review the last change\" --detach

  In a script: only the answer, or every event as it happens
    sympozium run agent.yaml --task \"$TASK\" -o json | jq -r .answer
    sympozium run agent.yaml --task \"$TASK\" -o jsonl --approve none

Where things come from:
  model    --model, the manifest, `model` in CONFIG/config.yaml, or the one provider whose key is set
  key      --key-file, --key-command, a Secret of the files or of `sympozium secret`, the provider's variable
           (such as OPENAI_API_KEY) or the file that the variable with _FILE at its end names. A variable is used
           for the provider's own address and for this machine only
  Secrets  the files, then `sympozium secret set`
  policy   --policy, `policyRef` of the agent; `default` for a run without an agent among the files. The names of policies and
           packs that come with this program mean those: others of the same name among the files are refused
  floor    CONFIG/floor.yaml, or --floor, or the one that comes with this program
  prices   CONFIG/prices.json, by which the cost of a run is shown; none without it
  CONFIG   $SYMPOZIUM_CONFIG, $XDG_CONFIG_HOME/sympozium or ~/.config/sympozium

In a cluster:
  Agents, packs, policies, ConfigMaps and Secrets of the files are created where there are none. One that is there and is
  another is left alone, and nothing is run. Keys are Secrets there, and the floor, the policy and the workspace are the
  cluster's: --key-file, --key-command, --floor, --policy, --workspace and --skill DIRECTORY are refused. Ctrl-C cancels
  the run and waits for its end; a second one leaves it to the cluster.

Exit codes:
  0    the run has an answer
  1    the command failed: a file cannot be read, something is missing here or in the cluster, isolation is below the floor
  2    the command line was not understood
  3    the run is denied by a policy
  4    the run failed
  5    its time was up
  130  a person ended it")]
pub struct RunArguments {
    /// Files and directories with manifests or skills, `-` for standard input; and the task.
    ///
    /// What is there, ends in .yaml, .yml or .json, or is `-`, is a file. One argument may be something else: it is the task.
    #[arg(value_name = "FILE|TASK")]
    pub inputs: Vec<OsString>,

    /// The task, where it could be taken for a file.
    #[arg(long, value_name = "TEXT")]
    pub task: Option<String>,

    /// The agent among the files, where there are several.
    #[arg(long, value_name = "NAME", value_parser = parse_agent)]
    pub agent: Option<String>,

    /// The AgentRun among the files, where there are several.
    #[arg(long, value_name = "NAME", value_parser = parse_run)]
    pub run: Option<String>,

    /// A skill pack: one that comes with this program, one among the files, or a directory with SKILL.md. May be given
    /// several times; the manifest's skills do not count then.
    #[arg(long = "skill", value_name = "SKILL")]
    pub skills: Vec<String>,

    /// The model, as provider/model.
    #[arg(long, value_name = "PROVIDER/MODEL", value_parser = parse_model)]
    pub model: Option<String>,

    /// The address of the model's provider, such as http://127.0.0.1:8080/v1.
    #[arg(long, value_name = "URL")]
    pub base_url: Option<String>,

    /// A file with the key of the model's provider, which nobody else may read.
    #[arg(long, value_name = "FILE", conflicts_with = "key_command")]
    pub key_file: Option<PathBuf>,

    /// A command that prints the key of the model's provider, such as `pass show openai`.
    #[arg(long, value_name = "COMMAND")]
    pub key_command: Option<String>,

    /// The policy that the agent is held to: one that comes with this program (default, restrictive, permissive, hardened), one
    /// among the files, or the one in a file of its own (./policy.yaml). A name that comes with this program means that one,
    /// whatever the files have.
    #[arg(long, value_name = "NAME|FILE", value_parser = parse_policy)]
    pub policy: Option<PolicyChoice>,

    /// A file with the policy that bounds every run, where there is no CONFIG/floor.yaml.
    #[arg(long, value_name = "FILE")]
    pub floor: Option<PathBuf>,

    /// How long the agent may work, such as 90s or 10m. Waiting for a person does not count.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub timeout: Option<String>,

    /// A directory that the run reads and writes as /workspace; a fresh one when absent, which is kept.
    #[arg(long, value_name = "DIR")]
    pub workspace: Option<PathBuf>,

    /// What becomes of the run's questions.
    #[arg(long, value_enum, default_value_t = ApprovalMode::Ask)]
    pub approve: ApprovalMode,

    /// In a cluster: create the run, print its name, and do not follow it.
    #[arg(long, help_heading = "In a cluster")]
    pub detach: bool,

    /// Where.
    #[command(flatten)]
    pub cluster: ClusterArguments,

    /// How to print what happens.
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

/// How to print what happens in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RunFormat {
    /// For people, as it happens.
    Text,
    /// One object, when the run is over.
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
        _ => Err("it is not a span of time\n  hint: write it as 90s, 10m or 1h30m"),
    }
}

const INVALID_NAME: &str =
    "it cannot be such a name\n  hint: use lower-case letters, digits, `-` and `.`, at most 253 of them";

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
            (&["--timeout", "ten"], "a span of time"),
            (&["--timeout", "0s"], "a span of time"),
            (&["--agent", "A b"], "such a name"),
            (&["--run", "../x"], "such a name"),
            (&["--policy", ""], "such a name"),
            (&["--policy", "A b"], "such a name"),
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
