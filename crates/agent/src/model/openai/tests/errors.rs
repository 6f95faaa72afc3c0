//! What servers say went wrong where an answer was promised.

use super::*;
use crate::model::Remedy;

#[test]
fn stream_errors_have_a_remedy() {
    for (body, remedy, words) in [
        (r#"{"error":{"message":"Overloaded","type":"overloaded_error"}}"#, Remedy::Retry, "Overloaded"),
        (r#"{"error":"it broke"}"#, Remedy::Retry, "it broke"),
        (r#"{"error":{}}"#, Remedy::Retry, "no reason given"),
        (r#"[{"error":{"code":503,"message":"Busy"}}]"#, Remedy::Retry, "Busy"),
        (r#"{"error":{"message":"No such model","code":404}}"#, Remedy::None, "No such model"),
        (r#"{"error":{"message":"Wrong","type":"invalid_request_error"}}"#, Remedy::None, "Wrong"),
        (
            r#"{"error":{"message":"maximum context length is 5","code":"x"}}"#,
            Remedy::Shorten,
            "maximum context length is 5",
        ),
        (
            r#"{"object":"error","message":"Out of memory","type":"InternalServerError","code":500}"#,
            Remedy::Retry,
            "Out of memory",
        ),
        (r#"{"message":"Late","type":"timeout"}"#, Remedy::Retry, "Late"),
        (
            r#"{"choices":[{"index":0,"error":{"code":502,"message":"Gone"},"finish_reason":"error"}]}"#,
            Remedy::Retry,
            "Gone",
        ),
        (r#"{"choices":[{"index":0,"delta":{},"finish_reason":"error"}]}"#, Remedy::Retry, "no reason given"),
    ] {
        let message = format!("the model's endpoint aborted its answer: {words}");
        let expected = Err(ResponseError::Provider(ProviderError { remedy, message }));
        let stream = format!("event: error\ndata: {body}\n\n");
        assert_eq!(read(BodyFormat::EventStream, &stream), expected, "{body}");
        assert_eq!(read(BodyFormat::Json, body), expected, "{body}");
    }
    for none in ["null", "false"] {
        let choice = r#"{"message":{"content":"Hi"},"finish_reason":"stop"}"#;
        let fine = format!(r#"{{"error":{none},"choices":[{choice}]}}"#);
        let text = read(BodyFormat::Json, &fine).map(|response| response.text);
        assert_eq!(text, Ok("Hi".to_owned()));
    }
}
