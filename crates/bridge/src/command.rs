//! Builds the request to a sidecar from a call.

use serde_json::{Map, Value};
use sympozium_api::run_plan::{ToolHandler, ToolPlan};
use sympozium_api::skill_pack::InputMode;
use sympozium_ipc::RequestId;
use sympozium_ipc::message::{ExecRequest, MAX_WORD_BYTES, shell_word};

/// Default timeout of a command line, in seconds.
const DEFAULT_SECONDS: u32 = 30;
/// The command line of a request whose words do not fit into one. An executor that knows `argv` never runs it. One that
/// does not reports a failure, instead of a success without having run anything.
const ARGV_REQUIRED_COMMAND: &str =
    "echo 'the arguments are too long for an executor that runs only `command`' >&2; exit 125";

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    #[error("the tool is not for a sidecar")]
    NoSidecar,
    #[error("`{0}` is too long for an argument, or has a NUL character in it")]
    InvalidArgument(String),
}

/// Builds the request of a call whose arguments match the tool's schema. `target` is the pack's name: existing sidecars
/// compare it.
///
/// # Errors
///
/// Returns an error if the arguments cannot be passed to a program.
pub fn build_request(
    id: RequestId,
    tool: &ToolPlan,
    target: &str,
    arguments: &Value,
) -> Result<ExecRequest, CommandError> {
    let nothing = Map::new();
    let arguments = arguments.as_object().unwrap_or(&nothing);
    let text = |name: &str| arguments.get(name).and_then(Value::as_str);
    let mut request = match &tool.acts {
        ToolHandler::Shell { .. } => {
            let mut request = ExecRequest::new(id, text("command").unwrap_or_default());
            request.work_dir = text("workdir").map(str::to_owned);
            request
        }
        ToolHandler::Program { exec, input_mode, positional_args, .. } => {
            let mut request = ExecRequest::new(id, "");
            request.argv = argv(exec, positional_args, arguments)?;
            if *input_mode == InputMode::Stdin {
                let rest = arguments.iter().filter(|(name, _)| !positional_args.contains(name));
                let rest: Map<String, Value> = rest.map(|(name, value)| (name.clone(), value.clone())).collect();
                request.stdin = Some(Value::Object(rest).to_string());
            }
            request.command = command_line(&request);
            request
        }
        ToolHandler::Agent | ToolHandler::Bridge => return Err(CommandError::NoSidecar),
    };
    let most = tool.limits.timeout_seconds;
    let asked = arguments.get("timeout").and_then(Value::as_u64);
    let seconds = match (&tool.acts, asked) {
        (ToolHandler::Shell { .. }, Some(asked)) => u32::try_from(asked).unwrap_or(most).min(most),
        (ToolHandler::Shell { .. }, None) => DEFAULT_SECONDS.min(most),
        // A declared tool gets all of its time: `timeout` may be one of its own parameters.
        _ => most,
    };
    request.timeout = Some(i64::from(seconds));
    request.target = Some(target.to_owned());
    Ok(request)
}

/// The program, its fixed arguments, and the positional arguments after `--`, so that none of them is parsed as an
/// option.
fn argv(exec: &[String], positional: &[String], arguments: &Map<String, Value>) -> Result<Vec<String>, CommandError> {
    let mut words = exec.to_vec();
    if !positional.is_empty() {
        words.push("--".to_owned());
    }
    for name in positional {
        let word = match arguments.get(name) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        if word.contains('\0') || word.len() > MAX_WORD_BYTES {
            return Err(CommandError::InvalidArgument(name.clone()));
        }
        words.push(word);
    }
    Ok(words)
}

/// The same program as a shell command line. The protocol in the guide for sidecars has `command` only: its script
/// would run an empty line instead of `argv` and report success.
fn command_line(request: &ExecRequest) -> String {
    let words: Vec<String> = request.argv.iter().map(|word| shell_word(word)).collect();
    let program = words.join(" ");
    let line = match &request.stdin {
        Some(stdin) => format!("printf '%s' {} | {program}", shell_word(stdin)),
        None => program,
    };
    let with_line = ExecRequest { command: line, ..request.clone() };
    if with_line.command.len() <= MAX_WORD_BYTES && with_line.to_json().is_ok() {
        with_line.command
    } else {
        ARGV_REQUIRED_COMMAND.to_owned()
    }
}

#[cfg(test)]
mod tests;
