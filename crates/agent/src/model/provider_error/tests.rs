//! What providers answer when they do not answer, good, bad and hostile.

use serde_json::json;

use super::*;

#[test]
fn error_responses_have_a_message_and_a_remedy() {
    let long = "x".repeat(2000);
    let truncated = format!("{}…", "x".repeat(499));
    for (status, body, remedy, message) in [
        // OpenAI.
        (
            400,
            r#"{"error":{"message":"Too long.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#,
            Remedy::Shorten,
            "400: Too long.",
        ),
        (401, r#"{"error":{"message":"Bad key.","code":"invalid_api_key"}}"#, Remedy::None, "401: Bad key."),
        (429, r#"{"error":{"message":"Slow down.","code":"rate_limit_exceeded"}}"#, Remedy::Retry, "429: Slow down."),
        (
            429,
            r#"{"error":{"message":"Pay first.","type":"insufficient_quota","code":"insufficient_quota"}}"#,
            Remedy::None,
            "429: Pay first.",
        ),
        (
            429,
            r#"{"error":{"message":"Pay first.","code":"billing_hard_limit_reached"}}"#,
            Remedy::None,
            "429: Pay first.",
        ),
        (
            429,
            r#"{"error":{"message":"Request too large for m on tokens per min: Limit 10, Requested 20.","code":"rate_limit_exceeded"}}"#,
            Remedy::Shorten,
            "429: Request too large for m on tokens per min: Limit 10, Requested 20.",
        ),
        // vLLM, of now and before.
        (
            400,
            r#"{"error":{"message":"This model's maximum context length is 10 tokens.","type":"BadRequestError","param":null,"code":400}}"#,
            Remedy::Shorten,
            "400: This model's maximum context length is 10 tokens.",
        ),
        (
            400,
            r#"{"object":"error","message":"max_tokens must be at least 1, got -5.","type":"BadRequestError","code":400}"#,
            Remedy::Shorten,
            "400: max_tokens must be at least 1, got -5.",
        ),
        // llama.cpp, of now and before.
        (
            400,
            r#"{"error":{"code":400,"message":"It does not fit.","type":"exceed_context_size_error","n_prompt_tokens":9,"n_ctx":8}}"#,
            Remedy::Shorten,
            "400: It does not fit.",
        ),
        (
            500,
            r#"{"error":{"code":500,"message":"the request exceeds the available context size.","type":"server_error"}}"#,
            Remedy::Shorten,
            "500: the request exceeds the available context size.",
        ),
        (
            503,
            r#"{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}"#,
            Remedy::Retry,
            "503: Loading model",
        ),
        // Ollama.
        (
            400,
            r#"{"error":"input length exceeds the context length"}"#,
            Remedy::Shorten,
            "400: input length exceeds the context length",
        ),
        (
            404,
            r#"{"error":{"message":"model \"x\" not found","type":"not_found_error","param":null,"code":null}}"#,
            Remedy::None,
            "404: model \"x\" not found",
        ),
        // Google.
        (
            400,
            r#"[{"error":{"code":400,"message":"The input token count (9) exceeds the maximum number of tokens allowed (8).","status":"INVALID_ARGUMENT"}}]"#,
            Remedy::Shorten,
            "400: The input token count (9) exceeds the maximum number of tokens allowed (8).",
        ),
        // Mistral.
        (
            422,
            r#"{"object":"error","message":{"detail":[{"type":"extra_forbidden","loc":["body","x"],"msg":"Not permitted"}]},"type":"invalid_request_error"}"#,
            Remedy::None,
            "422: Not permitted at [\"body\",\"x\"]",
        ),
        (422, r#"{"detail":"No."}"#, Remedy::None, "422: No."),
        // OpenRouter.
        (
            400,
            r#"{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":"prompt is too long: 9 > 8","provider_name":"P"}}}"#,
            Remedy::Shorten,
            "400: Provider returned error: prompt is too long: 9 > 8",
        ),
        (402, r#"{"error":{"message":"No credits","code":402}}"#, Remedy::None, "402: No credits"),
        // The bridge.
        (429, r#"{"code":"budget","message":"All tokens are used"}"#, Remedy::None, "429: All tokens are used"),
        (429, r#"{"code":"rate","message":"Too often"}"#, Remedy::Retry, "429: Too often"),
        // Anthropic.
        (
            400,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 7 tokens > 5 maximum"}}"#,
            Remedy::Shorten,
            "400: prompt is too long: 7 tokens > 5 maximum",
        ),
        (
            400,
            r#"{"error":{"type":"invalid_request_error","message":"input length and `max_tokens` exceed context limit: 9 + 8 > 10"}}"#,
            Remedy::Shorten,
            "400: input length and `max_tokens` exceed context limit: 9 + 8 > 10",
        ),
        (
            400,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages: at least one"}}"#,
            Remedy::None,
            "400: messages: at least one",
        ),
        (
            403,
            r#"{"error":{"type":"permission_error","message":"prompt is too long"}}"#,
            Remedy::None,
            "403: prompt is too long",
        ),
        (
            413,
            r#"{"type":"error","error":{"type":"request_too_large","message":"Too large"}}"#,
            Remedy::Shorten,
            "413: Too large",
        ),
        (
            429,
            r#"{"type":"error","error":{"type":"billing_error","message":"Pay first."}}"#,
            Remedy::None,
            "429: Pay first.",
        ),
        (
            529,
            r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
            Remedy::Retry,
            "529: Overloaded",
        ),
        // Whatever is in between.
        (408, "", Remedy::Retry, "408: Request Timeout"),
        (409, "", Remedy::Retry, "409: Conflict"),
        (413, "", Remedy::Shorten, "413: Payload Too Large"),
        (425, "", Remedy::Retry, "425: Too Early"),
        (529, "", Remedy::Retry, "529"),
        (529, "{}", Remedy::Retry, "529"),
        (500, "null", Remedy::Retry, "500: Internal Server Error"),
        (429, r#"{"message":"slowly"}"#, Remedy::Retry, "429: slowly"),
        (302, r#"{"error":{"message":{}}}"#, Remedy::None, "302: Found"),
        (413, "<html>", Remedy::Shorten, "413: Payload Too Large"),
        (502, "<html>\n<head><TITLE>502 Bad\n Gateway</TITLE></head></html>", Remedy::Retry, "502: 502 Bad Gateway"),
        (504, "<html><title>ö", Remedy::Retry, "504: Gateway Timeout"),
        (500, "no\u{7} \u{1b}[1mhealthy\u{1b}[0m\r\nupstream", Remedy::Retry, "500: no [1mhealthy [0m upstream"),
        (400, &long, Remedy::None, &format!("400: {truncated}")),
        (418, "\u{0}\u{1}", Remedy::None, "418: I'm a teapot"),
    ] {
        let expected = ProviderError { remedy, message: format!("the model's endpoint answered {message}") };
        assert_eq!(from_response(status, body.as_bytes()), expected, "{body}");
    }
    let problem = from_response(500, b"\xff\xfe");
    assert_eq!(problem.message, "the model's endpoint answered 500: \u{fffd}\u{fffd}");
}

#[test]
fn error_events_have_a_message_and_a_remedy() {
    let cases = [
        ("overloaded_error", "Overloaded", Remedy::Retry),
        ("api_error", "Internal", Remedy::Retry),
        ("rate_limit_error", "Slowly", Remedy::Retry),
        ("timeout_error", "Too late", Remedy::Retry),
        ("a_new_error", "Who knows", Remedy::Retry),
        ("invalid_request_error", "No", Remedy::None),
        ("invalid_request_error", "Prompt is too long", Remedy::Shorten),
        ("authentication_error", "Who", Remedy::None),
        ("permission_error", "Not you", Remedy::None),
        ("not_found_error", "Nobody", Remedy::None),
        ("billing_error", "Pay first", Remedy::None),
        ("insufficient_quota", "Pay first", Remedy::None),
        ("request_too_large", "Too large", Remedy::Shorten),
    ];
    let stream_error = |remedy, text: &str| ProviderError {
        remedy,
        message: format!("the model's endpoint aborted its answer: {text}"),
    };
    for (kind, message, remedy) in cases {
        let error = json!({"type": "error", "error": {"type": kind, "message": message}});
        assert_eq!(from_event(&error), stream_error(remedy, message), "{kind}");
    }
    let nothing = stream_error(Remedy::Retry, "no reason given");
    assert_eq!(from_event(&json!({"error": {}})), nothing);
    assert_eq!(from_event(&json!(null)), nothing);
    let silent = json!({"error": {"type": "overloaded_error"}});
    let expected = stream_error(Remedy::Retry, "overloaded_error");
    assert_eq!(from_event(&silent), expected);
}

#[test]
fn a_line_is_cut_at_a_character() {
    assert_eq!(one_line(&"ü".repeat(4000), Chars(500)), format!("{}…", "ü".repeat(499)));
    let exact = "x".repeat(500);
    assert_eq!(one_line(&exact, Chars(500)), exact);
    assert_eq!(one_line(" a\r\n\tb\u{7} ", Chars(500)), "a b");
}

#[test]
fn an_oversized_error_body_is_truncated() {
    let body = format!(r#"{{"error":{{"message":"{}"}}}}"#, "x".repeat(MAX_BODY));
    let expected = format!(r#"the model's endpoint answered 500: {{"error":{{"message":"{}…"#, "x".repeat(478));
    assert_eq!(from_response(500, body.as_bytes()).message, expected);
}
