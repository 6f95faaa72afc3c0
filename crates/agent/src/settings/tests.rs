use serde_json::json;

use super::*;

fn view() -> AgentView {
    let view = json!({
        "format": "sympozium.ai/run-plan/v1", "run": "r", "agent": "a",
        "task": { "task": "t", "useContext": true, "mode": "task" },
        "wire": "openAi", "model": "m", "tools": [], "skills": [], "roots": [],
        "limits": {
            "iterations": 50, "modelRequests": 200, "modelRequestsPerMinute": 60, "modelRequestBytes": 1, "modelAnswerBytes": 1,
            "toolCalls": 500, "concurrentToolCalls": 8, "resultBytes": 1, "transcriptBytes": 1,
        },
        "runSeconds": 60,
    });
    serde_json::from_value(view).expect("a view")
}

fn read(variables: &[(&str, &str)]) -> Result<Settings, InvalidVariable> {
    Settings::from_env(&view(), |name| {
        let set = variables.iter().find(|(variable, _)| *variable == name);
        set.map(|(_, value)| (*value).to_owned())
    })
}

fn defaults() -> Settings {
    Settings {
        iterations: 50,
        result_bytes: RESULT_BYTES,
        history_bytes: HISTORY_BYTES,
        history_low_bytes: HISTORY_BYTES / 2,
        kept_results: KEPT_RESULTS,
        retries: RETRIES,
        request_timeout: REQUEST_TIMEOUT,
    }
}

#[test]
fn unset_variables_have_defaults() {
    assert_eq!(read(&[]), Ok(defaults()));
    let unset = [
        (variable::ITERATIONS, ""),
        (variable::RESULT_BYTES, "0"),
        (variable::HISTORY_BYTES, " 0 "),
        (variable::RETRIES, ""),
        (variable::REQUEST_TIMEOUT, "0s"),
    ];
    assert_eq!(read(&unset), Ok(defaults()));
}

#[test]
fn every_variable_counts_and_none_widens_the_plan() {
    let set = [
        (variable::ITERATIONS, "7"),
        (variable::RESULT_BYTES, "8000"),
        (variable::HISTORY_BYTES, "100000"),
        (variable::HISTORY_LOW_BYTES, "60000"),
        (variable::KEPT_RESULTS, "5"),
        (variable::RETRIES, "0"),
        (variable::REQUEST_TIMEOUT, "1m30s"),
    ];
    let expected = Settings {
        iterations: 7,
        result_bytes: 8000,
        history_bytes: 100_000,
        history_low_bytes: 60_000,
        kept_results: 5,
        retries: 0,
        request_timeout: Duration::from_secs(90),
    };
    assert_eq!(read(&set), Ok(expected));
    let wide = [
        (variable::ITERATIONS, "5000"),
        (variable::RESULT_BYTES, "1"),
        (variable::HISTORY_BYTES, "10"),
        (variable::HISTORY_LOW_BYTES, "20"),
    ];
    let read = read(&wide).expect("settings");
    assert_eq!(read.iterations, 50);
    assert_eq!(read.result_bytes, MIN_RESULT_BYTES);
    assert_eq!(read.history_low_bytes, 10);
}

#[test]
fn invalid_variables_are_named() {
    for (variable, value, expected) in [
        (variable::ITERATIONS, "many", NUMBER),
        (variable::RESULT_BYTES, "-1", NUMBER),
        (variable::HISTORY_BYTES, "1e9", NUMBER),
        (variable::RETRIES, "99999999999", NUMBER),
        (variable::REQUEST_TIMEOUT, "soon", DURATION),
    ] {
        let expected = InvalidVariable { variable, value: value.to_owned(), expected };
        assert_eq!(read(&[(variable, value)]), Err(expected));
    }
}
