//! The cost of a run by the price table of its user.

use std::fs;

use serde_json::Value;

use super::{Home, Scenario, for_each_user};

fn write_prices(home: &Home, text: &str) {
    let path = home.at("config/prices.json");
    fs::write(&path, text).unwrap();
    home.give(&path);
}

/// The output of `sympozium show` about the newest run, as text and as JSON.
fn show(home: &Home, uid: &str) -> (String, Value) {
    let text = home.sympozium(&["show", uid]).output().unwrap();
    let json = home.sympozium(&["show", uid, "-o", "json"]).output();
    (String::from_utf8_lossy(&text.stdout).into_owned(), serde_json::from_slice(&json.unwrap().stdout).unwrap())
}

#[test]
fn a_run_has_a_cost_where_its_model_has_a_price() {
    for_each_user(|home| {
        let mut scenario = Scenario::commands(&[], &[]);
        let mut run = |name: &str| {
            name.clone_into(&mut scenario.name);
            let run = home.run(&scenario);
            run.assert_succeeded();
            let record = run.record();
            let uid = record["uid"].as_str().unwrap().to_owned();
            (record, show(home, &uid))
        };
        let (record, (text, json)) = run("without");
        assert_eq!((&record["cost"], &json["cost"]), (&Value::Null, &Value::Null));
        assert!(!text.contains("\ncost "), "{text}");

        write_prices(home, r#"{"currency": "USD", "models": {"other": {"input": 1, "output": 1}}}"#);
        let (record, _) = run("other");
        assert_eq!(record["cost"], Value::Null);

        // A price in dollars per million tokens is a price in millionths of a dollar per token.
        write_prices(home, r#"{"currency": "USD", "models": {"scripted/*": {"input": 2, "output": 3}}}"#);
        let (record, (text, json)) = run("with");
        let tokens = |kind: &str| record["usage"][kind].as_i64().unwrap();
        let (input, output) = (2 * tokens("inputTokens"), 3 * tokens("outputTokens"));
        assert!(input > 0 && output > 0, "{record}");
        let cost = &record["cost"];
        assert_eq!(cost["amountMicro"], input + output);
        assert_eq!(cost["inputAmountMicro"], input);
        assert_eq!(cost["outputAmountMicro"], output);
        assert_eq!((&cost["currency"], &cost["priceKey"]), (&"USD".into(), &"scripted/*".into()));
        assert_eq!(json["cost"], *cost);
        let about = match record["usage"]["estimated"].as_bool() {
            Some(true) => "about ",
            _ => "",
        };
        let shown = format!("\ncost       {about}0.{:06} USD by scripted/*\n", input + output);
        assert!(text.contains(&shown), "no {shown:?} in {text}");
    });
}

#[test]
fn an_invalid_price_table_is_an_error_before_the_run() {
    for_each_user(|home| {
        let scenario = Scenario::commands(&[], &[]);
        let assert_refused = |why: &str| {
            let run = home.run(&scenario);
            let said = String::from_utf8_lossy(&run.output.stderr).into_owned();
            assert_eq!(run.output.status.code(), Some(1), "{said}");
            for words in
                ["the prices in ", "config/prices.json cannot be used", why, "\nhint: correct it, or remove it"]
            {
                assert!(said.contains(words), "no {words:?} in {said}");
            }
            let runs = fs::read_dir(home.at("state/runs")).into_iter().flatten();
            assert_eq!(runs.count(), 0);
        };
        for broken in ["", "{", r#"{"currency": "USD"}"#, r#"{"currency": "USD", "models": {"m": {"input": 1}}}"#] {
            write_prices(home, broken);
            assert_refused("the table is not `{\"currency\": …");
        }
        write_prices(home, r#"{"currency": "USD", "models": {"m": {"input": -1, "output": 1}}}"#);
        assert_refused("cannot cost less than nothing");
        let path = home.at("config/prices.json");
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(home.at("nowhere"), &path).unwrap();
        assert_refused("No such file or directory");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert_refused("it is not a file");
    });
}
