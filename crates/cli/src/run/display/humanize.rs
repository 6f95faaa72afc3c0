//! Durations and numbers as text.

use sympozium_ipc::run_api::Usage;

pub fn format_duration(milliseconds: u64) -> String {
    let seconds = milliseconds / 1000;
    match milliseconds {
        ..1_000 => format!("{milliseconds} ms"),
        1_000..60_000 => format!("{seconds}.{} s", milliseconds % 1000 / 100),
        60_000..3_600_000 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        _ => format!("{} h {:02} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// The duration of something in progress: with nothing that changes faster than it can be read.
pub fn format_elapsed(milliseconds: u64) -> String {
    match milliseconds {
        ..60_000 => format!("{} s", milliseconds / 1000),
        _ => format_duration(milliseconds),
    }
}

/// A number with thousands separators.
pub fn format_number(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number with the singular or plural of what is counted.
pub fn format_count(how_many: u64, one: &str, more: &str) -> String {
    match how_many {
        1 => format!("1 {one}"),
        _ => format!("{} {more}", format_number(how_many)),
    }
}

pub fn format_usage(usage: &Usage) -> String {
    let Usage { model_requests, input_tokens, output_tokens, estimated, tool_calls } = usage;
    let about = if *estimated { "about " } else { "" };
    format!(
        "{}, {about}{} in, {about}{} out, {}",
        format_count(*model_requests, "model request", "model requests"),
        format_count(*input_tokens, "token", "tokens"),
        format_number(*output_tokens),
        format_count(*tool_calls, "tool call", "tool calls"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_unit_that_suits_them() {
        let times = [0, 999, 1_000, 12_345, 59_999, 60_000, 3_599_999, 3_600_000, 90_061_000];
        assert_eq!(
            times.map(format_duration),
            ["0 ms", "999 ms", "1.0 s", "12.3 s", "59.9 s", "1 min 00 s", "59 min 59 s", "1 h 00 min", "25 h 01 min"]
        );
        assert_eq!([999, 12_345, 61_000].map(format_elapsed), ["0 s", "12 s", "1 min 01 s"]);
    }

    #[test]
    fn numbers_have_their_thousands_apart() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(format_number), ["0", "999", "1,000", "1,234,567"]);
        let used = Usage { model_requests: 1, input_tokens: 1200, output_tokens: 1, estimated: true, tool_calls: 0 };
        assert_eq!(format_usage(&used), "1 model request, about 1,200 tokens in, about 1 out, 0 tool calls");
    }
}
