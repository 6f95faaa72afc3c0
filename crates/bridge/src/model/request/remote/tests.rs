use super::*;

fn checked(messages: &str) -> Result<(), RemoteContent> {
    let messages: &RawValue = serde_json::from_str(messages).expect("JSON");
    check_messages(messages)
}

#[test]
fn what_is_in_the_request_passes() {
    for messages in [
        r#"[]"#,
        r#""just a text""#,
        r#"[{"role":"user","content":"see https://example.com, \ud800 1e999"}]"#,
        r#"[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA","detail":"low"}}]}]"#,
        r#"[{"role":"user","content":[{"type":"image_url","image_url":"data:image/png;base64,AAAA"}]}]"#,
        r#"[{"role":"user","content":[{"type":"file","file":{"filename":"a.pdf","file_data":"AAAA"}}]}]"#,
        r#"[{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}]}]"#,
        r#"[{"role":"user","content":[{"type":"text","text":"x","cache_control":{"type":"ephemeral"},"n":1e999}]}]"#,
        // Arguments of tool calls.
        r#"[{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"fetch_url","input":{"url":"https://example.com","file_id":1}}]}]"#,
        r#"[{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"fetch_url","arguments":"{\"url\":\"https://example.com\"}"}}]}]"#,
        r#"[{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":[{"type":"text","text":"url"}]}]}]"#,
    ] {
        assert_eq!(checked(messages), Ok(()), "{messages}");
    }
}

#[test]
fn what_a_provider_would_fetch_or_has_kept_does_not() {
    for (messages, field) in [
        (r#"[{"content":[{"type":"image_url","image_url":{"url":"https://evil.example/?secret"}}]}]"#, "url"),
        (r#"[{"content":[{"type":"image_url","image_url":"http://169.254.169.254/"}]}]"#, "image_url"),
        (r#"[{"content":[{"image_url":{"u\u0072l":"file:///etc/passwd"}}]}]"#, "url"),
        (r#"[{"content":[{"Image_URL":{"URL":"//x"}}]}]"#, "url"),
        (r#"[{"content":[{"type":"video_url","video_url":{"url":""}}]}]"#, "url"),
        (r#"[{"content":[{"image_url":{"url":"data:x","url":"https://x"}}]}]"#, "url"),
        (r#"[{"content":[{"image_url":{"url":"\u0064ata:x"}}]}]"#, "url"),
        (r#"[{"content":[{"image_url":{"url":" data:x"}}]}]"#, "url"),
        (r#"[{"content":[{"image_url":["https://x"]}]}]"#, "image_url"),
        (r#"[{"content":{"image_url":"https://x"}}]"#, "image_url"),
        (r#"[{"image_url":"https://x"}]"#, "image_url"),
        (r#"[{"content":[{"type":"image","source":{"type":"url","url":"https://x"}}]}]"#, "url"),
        (r#"[{"content":[{"type":"document","source":{"type":"file","file_id":"f"}}]}]"#, "file_id"),
        (r#"[{"content":[{"type":"container_upload","file_id":"f"}]}]"#, "file_id"),
        (r#"[{"content":[{"type":"file","file":{"\u017f":1,"FILE_ID":"f"}}]}]"#, "file_id"),
        (
            r#"[{"content":[{"type":"tool_result","content":[{"type":"image","source":{"type":"url","url":"https://x"}}]}]}]"#,
            "url",
        ),
        (r#"[{"content":[{"x":1e999,"image_url":"https://x"}]}]"#, "image_url"),
        (r#"[{"content":[{"type":"text","text":"\ud800"},{"image_url":"https://x"}]}]"#, "image_url"),
    ] {
        assert_eq!(checked(messages), Err(RemoteContent::Reference(field)), "{messages}");
    }
}

#[test]
fn what_cannot_be_looked_into_does_not_pass() {
    for (levels, expected) in [(14, Ok(())), (15, Err(RemoteContent::TooDeep))] {
        let messages = format!(r#"[{{"content":{}1{}}}]"#, "[".repeat(levels), "]".repeat(levels));
        assert_eq!(checked(&messages), expected, "{levels}");
    }
    assert_eq!(checked(r#"[{"content":[{"\ud800":1,"image_url":"https://x"}]}]"#), Err(RemoteContent::Unreadable));
    let refused = checked(r#"[{"content":[{"url":"x"}]}]"#).map_err(|error| error.to_string());
    assert_eq!(refused, Err("must not have content elsewhere, as in `url`: send it inline, as `data:`".to_owned()));
}
