use proptest::prelude::*;

use super::fuzzing::command_output;
use super::terminal::plain;
use super::{Ended, shown};

const FINE: Ended<'_> = Ended { exit_code: 0, stdout: "", stderr: "", timed_out: false, truncated: false };

#[test]
fn an_end_is_told_in_a_few_lines() {
    for (command, expected) in [
        (FINE, "(no output)"),
        (Ended { stdout: "one\ntwo\n\n", ..FINE }, "one\ntwo"),
        (Ended { stdout: "\n  aligned\n", stderr: "careful\n", ..FINE }, "  aligned\nSTDERR: careful"),
        (Ended { stderr: "no such file\n", exit_code: 2, ..FINE }, "STDERR: no such file\n(exit code: 2)"),
        (
            Ended { stdout: "half", timed_out: true, exit_code: -1, ..FINE },
            "half\n(command timed out)\n(exit code: -1)",
        ),
        (
            Ended { stdout: "much", truncated: true, ..FINE },
            "much\n(the command wrote more than its skill passes on; narrow it, or write its output to a file)",
        ),
        (Ended { stdout: " \r\n\x1b[0m", ..FINE }, "(no output)"),
    ] {
        assert_eq!(shown(&command, 1_000), expected);
    }
}

#[test]
fn a_long_output_keeps_its_start_and_its_end() {
    let stdout: String = (1..=1_000).map(|line| format!("line {line}\n")).collect();
    let told = shown(&Ended { stdout: &stdout, exit_code: 1, ..FINE }, 300);
    insta::assert_snapshot!(told, @r"
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
    let told = shown(&Ended { stdout: &stdout, stderr: &stderr, ..FINE }, 4_000);
    let count = |letter| told.matches(letter).count();
    assert!(told.len() <= 4_000, "{}", told.len());
    assert!(count('e') > 1_000 && count('o') > 2_000, "{told}");

    let told = shown(&Ended { stdout: &stdout, stderr: "the reason", ..FINE }, 1_000);
    assert!(told.contains("\nSTDERR: the reason\n"), "{told}");
    let told = shown(&Ended { stdout: "the result", stderr: &stderr, ..FINE }, 1_000);
    assert!(told.starts_with("the result\nSTDERR: eee"), "{told}");
}

#[test]
fn no_room_is_small_enough_to_break_a_character() {
    let stdout = "äöü€漢🦀\n".repeat(100);
    for most in 0..700 {
        let told =
            shown(&Ended { stdout: &stdout, stderr: &stdout, exit_code: 3, timed_out: true, truncated: true }, most);
        assert!(told.len() <= most, "{most}: {}", told.len());
    }
}

#[test]
fn what_steers_a_terminal_is_left_out() {
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
        assert_eq!(plain(written), expected, "{written:?}");
    }
}

proptest! {
    #[test]
    fn any_output_is_told_in_its_room(
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
