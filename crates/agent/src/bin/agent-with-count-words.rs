//! An agent with one more tool of its own, `count_words`. docs/tool-authoring.md goes through it.

use std::io::{self, Read as _};
use std::process::ExitCode;

use serde_json::{Map, Value};
use sympozium_agent::program;
use sympozium_agent::tools::ToolError;
use sympozium_agent::tools::native::{NativeTool, Own, TOOLS};

/// Most bytes that are counted. A permit lapses after 30 s, and a disk may be slow.
const MOST_COUNTED: u64 = 64 << 20;

const COUNT_WORDS: NativeTool = NativeTool { name: "count_words", act: count_words };

fn count_words(own: &Own, arguments: &Map<String, Value>) -> Result<String, ToolError> {
    let path = arguments.get("path").and_then(Value::as_str);
    let path = path.ok_or_else(|| ToolError("name a file in `path`".to_owned()))?;
    // Beneath a descriptor of the root that the path is in, and only if it is a regular file.
    let file = own.roots.open_file(path)?;
    let unreadable = |error: io::Error| ToolError(format!("the file cannot be read: {error}"));
    if file.metadata().map_err(unreadable)?.len() > MOST_COUNTED {
        let most = MOST_COUNTED >> 20;
        return Err(ToolError(format!(
            "the file has more than {most} MiB; count a part of it with a command of a skill"
        )));
    }
    // It may grow meanwhile.
    let mut file = file.take(MOST_COUNTED);
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
