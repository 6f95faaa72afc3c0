use proptest::prelude::*;

use super::fuzzing::command_output;
use super::terminal::strip_terminal_codes;
use super::{CommandOutput, render};

const FINE: CommandOutput<'_> =
    CommandOutput { exit_code: 0, stdout: "", stderr: "", timed_out: false, truncated: false };

#[test]
fn exit_codes_and_timeouts_are_noted() {
    for (command, expected) in [
        (FINE, "(no output)"),
        (CommandOutput { stdout: "one\ntwo\n\n", ..FINE }, "one\ntwo"),
        (CommandOutput { stdout: "\n  aligned\n", stderr: "careful\n", ..FINE }, "  aligned\nSTDERR: careful"),
        (CommandOutput { stderr: "no such file\n", exit_code: 2, ..FINE }, "STDERR: no such file\n(exit code: 2)"),
        (
            CommandOutput { stdout: "half", timed_out: true, exit_code: -1, ..FINE },
            "half\n(command timed out)\n(exit code: -1)",
        ),
        (
            CommandOutput { stdout: "much", truncated: true, ..FINE },
            "much\n(the command wrote more than its skill passes on; narrow it, or write its output to a file)",
        ),
        (CommandOutput { stdout: " \r\n\x1b[0m", ..FINE }, "(no output)"),
    ] {
        assert_eq!(render(&command, 1_000), expected);
    }
}

#[test]
fn a_long_output_keeps_its_start_and_its_end() {
    let stdout: String = (1..=1_000).map(|line| format!("line {line}\n")).collect();
    let rendered = render(&CommandOutput { stdout: &stdout, exit_code: 1, ..FINE }, 300);
    insta::assert_snapshot!(rendered, @r"
    line 1
    line 2
    line 3
    line 4
    line 5
    line 6
    line 7
    line 8
    … 8783 bytes left out …
    line 995
    line 996
    line 997
    line 998
    line 999
    line 1000
    (exit code: 1)
    (output cut: narrow the command, or write its output to a file below /workspace and read it in pieces)
    ");
}

#[test]
fn errors_have_their_share_of_the_room() {
    let (stdout, stderr) = ("o".repeat(60_000), "e".repeat(60_000));
    let rendered = render(&CommandOutput { stdout: &stdout, stderr: &stderr, ..FINE }, 4_000);
    let count = |letter| rendered.matches(letter).count();
    assert!(rendered.len() <= 4_000, "{}", rendered.len());
    assert!(count('e') > 1_000 && count('o') > 2_000, "{rendered}");

    let rendered = render(&CommandOutput { stdout: &stdout, stderr: "the reason", ..FINE }, 1_000);
    assert!(rendered.contains("\nSTDERR: the reason\n"), "{rendered}");
    let rendered = render(&CommandOutput { stdout: "the result", stderr: &stderr, ..FINE }, 1_000);
    assert!(rendered.starts_with("the result\nSTDERR: eee"), "{rendered}");
}

#[test]
fn characters_are_never_split() {
    let stdout = "äöü€漢🦀\n".repeat(100);
    for max_bytes in 0..700 {
        let rendered = render(
            &CommandOutput { stdout: &stdout, stderr: &stdout, exit_code: 3, timed_out: true, truncated: true },
            max_bytes,
        );
        assert!(rendered.len() <= max_bytes, "{max_bytes}: {}", rendered.len());
    }
}

#[test]
fn terminal_sequences_are_removed() {
    for (written, expected) in [
        ("a\r\nb\r\r\nc", "a\nb\nc"),
        ("10%\r50%\r100%\ndone", "100%\ndone"),
        ("100%\r", "100%"),
        ("100%\r\n", "100%\n"),
        ("x\rlonger\rab", "ab"),
        ("\x1b[1;31mred\x1b[0m and \x1b[38;5;12mblue\x1b[m", "red and blue"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;https://a.b\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]0;never ended\nnext line", "\nnext line"),
        ("\x1b(Bplain\x1b=\x1b>", "plain"),
        ("\u{9b}31mred", "red"),
        ("spin|\x08/\x08-", "spin-"),
        ("\x08\x08a\n\x08b", "a\nb"),
        ("a\0b\x07c\x7f", "abc"),
        ("keep\ttabs\u{202e}", "keep\ttabs"),
        ("\x1b", ""),
        ("\x1b[", ""),
        ("\x1b[\nstays", "\nstays"),
    ] {
        assert_eq!(strip_terminal_codes(written), expected, "{written:?}");
    }
}

proptest! {
    #[test]
    fn any_output_fits_its_limit(
        room in any::<u16>(),
        parts in proptest::collection::vec(
            prop_oneof![
                Just("\r"), Just("\n"), Just("\x1b["), Just("31m"), Just("\x1b]"), Just("\x07"), Just("\x08"), Just("é"),
                Just("word "), Just("\0"), Just("\u{9b}"), Just("\x1b\\"), Just("a longer line of a log\n"),
            ],
            0..80,
        ),
    ) {
        let streams = parts.concat();
        command_output(&[&(room % 2_000).to_le_bytes(), streams.as_bytes()].concat());
    }
}
