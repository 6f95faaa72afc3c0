//! An agent with an additional native tool, `count_words`, which docs/tool-authoring.md explains.

use std::io::{self, Read as _};
use std::process::ExitCode;

use serde_json::{Map, Value};
use sympozium_agent::program;
use sympozium_agent::tools::ToolError;
use sympozium_agent::tools::native::{NativeTool, TOOLS, ToolContext};

/// A permit expires after 30 s, and a disk may be slow.
const MAX_COUNTED: u64 = 64 << 20;

const COUNT_WORDS: NativeTool = NativeTool { name: "count_words", run: count_words };

fn count_words(context: &ToolContext, arguments: &Map<String, Value>) -> Result<String, ToolError> {
    let path = arguments.get("path").and_then(Value::as_str);
    let path = path.ok_or_else(|| ToolError("name a file in `path`".to_owned()))?;
    // Opened beneath the descriptor of its root, and only if it is a regular file.
    let file = context.roots.open_file(path)?;
    let unreadable = |error: io::Error| ToolError(format!("the file cannot be read: {error}"));
    if file.metadata().map_err(unreadable)?.len() > MAX_COUNTED {
        let max_mib = MAX_COUNTED >> 20;
        return Err(ToolError(format!(
            "the file has more than {max_mib} MiB; count a part of it with a command of a skill"
        )));
    }
    // The file may grow meanwhile.
    let mut file = file.take(MAX_COUNTED);
    let (mut lines, mut words, mut bytes, mut in_word) = (0_u64, 0_u64, 0, false);
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = file.read(&mut buffer).map_err(unreadable)?;
        if read == 0 {
            return Ok(format!("{lines} lines, {words} words, {bytes} bytes"));
        }
        for byte in &buffer[..read] {
            let is_space = byte.is_ascii_whitespace();
            lines += u64::from(*byte == b'\n');
            words += u64::from(!is_space && !in_word);
            in_word = !is_space;
        }
        bytes += read;
    }
}

fn main() -> ExitCode {
    let tools = [TOOLS, &[COUNT_WORDS]].concat();
    program::main_with(std::env::args_os(), tools.leak())
}
