//! The output of the packs' tools for given output of a cluster.

use serde_json::{Value, json};
use sympozium_testkit::skip;

use crate::packs::{all, tools};
use crate::scripts::Harness;
use crate::{stderr, stdout};

/// The output of a tool for given output of `kubectl` and `curl`; `None` if this machine lacks a program.
fn answer(tool: &str, arguments: &[&str], env: &[(&str, &str)]) -> Option<String> {
    let packs = all();
    let harness = Harness::new(&packs)?;
    let mut declared = packs.values().flat_map(tools);
    let tool = declared.find(|it| it.name == tool).unwrap();
    let arguments: Vec<String> = arguments.iter().map(|it| (*it).to_owned()).collect();
    let (output, _) = harness.call(&["/bin/sh"], tool, &arguments, env);
    assert!(output.status.success(), "{}", stderr(&output));
    Some(stdout(&output).to_owned())
}

#[test]
fn healthy_pods_are_omitted() {
    let everywhere = "shop web-1 0/1 CrashLoopBackOff 5 (3m ago) 10m\n\
        shop web-2 1/1 Running 0 10m\n\
        shop web-3 1/2 Running 0 10m\n\
        shop migrate 0/1 Completed 0 1d\n\
        infra * 0/1 Pending 0 1m\n";
    let Some(told) = answer("list_unhealthy_pods", &["*"], &[("ANSWER", everywhere)]) else {
        skip!("no jq");
    };
    insta::assert_snapshot!("pods-everywhere", told);
    let of_one = "web-1 0/1 ImagePullBackOff 0 1m\nweb-2 1/1 Running 0 1m\n";
    let told = answer("list_unhealthy_pods", &["shop"], &[("ANSWER", of_one)]).unwrap();
    insta::assert_snapshot!("pods-of-one-namespace", told);
    let told = answer("list_unhealthy_pods", &["shop"], &[]).unwrap();
    assert_eq!(told, "0 of 0 pods need a look\n");
    let many: String = (0..150).map(|number| format!("p{number} 0/1 Pending 0 1m\n")).collect();
    let told = answer("list_unhealthy_pods", &["shop"], &[("ANSWER", &many)]).unwrap();
    assert!(told.starts_with("150 of 150 pods need a look\n"));
    assert!(told.ends_with("\nand 50 more: ask for one namespace\n"));
    assert_eq!(told.lines().count(), 103);
}

fn event(reason: &str, more: Value) -> Value {
    let mut event = json!({
        "metadata": {"namespace": "shop", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "type": "Warning",
        "reason": reason,
        "involvedObject": {"kind": "Pod", "name": "web-1"},
    });
    event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    event
}

#[test]
fn events_are_sorted_by_last_occurrence() {
    let events = json!({"items": [
        event("BackOff", json!({"count": 4, "lastTimestamp": "2026-01-01T00:02:00Z", "message": "two\nlines\u{1b}[2J"})),
        event("New", json!({"eventTime": "2026-01-01T00:01:00.000000Z"})),
        event("Series", json!({"series": {"count": 9, "lastObservedTime": "2026-01-01T00:03:00.000000Z"}})),
        event("Old", json!({})),
    ]})
    .to_string();
    let Some(told) = answer("recent_events", &["shop", "all"], &[("ANSWER", &events)]) else {
        skip!("no jq");
    };
    insta::assert_snapshot!("events", told);
}

#[test]
fn usage_is_listed_with_limits() {
    let pods = json!({"items": [{
        "metadata": {"name": "web-1"},
        "spec": {"containers": [
            {"name": "small", "resources": {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}},
            {"name": "full", "resources": {"limits": {"cpu": "500m", "memory": "128Mi"}, "requests": {"memory": "100M"}}},
            {"name": "free"},
        ]},
        "status": {"containerStatuses": [
            {"name": "full", "restartCount": 3, "lastState": {"terminated": {"reason": "OOMKilled"}}},
        ]},
    }]})
    .to_string();
    let metrics = json!({"items": [{
        "metadata": {"name": "web-1"},
        "containers": [
            {"name": "full", "usage": {"cpu": "499123456n", "memory": "125Mi"}},
            {"name": "small", "usage": {"cpu": "10000u", "memory": "65536Ki"}},
        ],
    }]})
    .to_string();
    let env = [("ANSWER", pods.as_str()), ("METRICS", &metrics)];
    let Some(told) = answer("container_usage", &[], &env) else {
        skip!("no jq");
    };
    insta::assert_snapshot!("usage", told);
}

#[test]
fn similar_errors_are_grouped() {
    let lines = "[pod/web-1/app] 2026-01-01T00:00:00Z error: dial 10.0.0.1:5432 timeout\n\
        [pod/web-2/app] 2026-01-01T00:00:01Z error: dial 10.0.0.2:5432 timeout\n\
        [pod/web-2/app] 2026-01-01T00:00:02Z Panic in request deadbeefcafe0001\n\
        [pod/web-2/app] 2026-01-01T00:00:03Z all is well\n";
    let Some(told) = answer("error_lines", &["app=web", "15"], &[("ANSWER", lines)]) else {
        skip!("no jq");
    };
    insta::assert_snapshot!("error-lines", told);
}

#[test]
fn changes_are_listed_with_their_authors() {
    let field = |manager: &str, time: &str, subresource: Option<&str>| json!({"manager": manager, "operation": "Update", "time": time, "subresource": subresource});
    let objects = json!({"items": [
        {
            "kind": "Deployment",
            "metadata": {
                "name": "web",
                "creationTimestamp": "2020-01-01T00:00:00Z",
                "managedFields": [
                    field("kubectl-edit", "2126-01-01T00:00:00Z", None),
                    field("kube-controller-manager", "2126-01-02T00:00:00Z", Some("status")),
                    field("helm", "2020-01-01T00:00:00Z", None),
                ],
            },
            "spec": {"template": {"spec": {"containers": [{"image": "web:2"}, {"image": "proxy:1"}]}}},
        },
        {
            "kind": "ConfigMap",
            "metadata": {
                "name": "settings",
                "creationTimestamp": "2126-01-03T00:00:00Z",
                "managedFields": [field("argocd", "2126-01-03T00:00:00Z", None)],
            },
        },
    ]})
    .to_string();
    let Some(told) = answer("recent_changes", &["24"], &[("ANSWER", &objects)]) else {
        skip!("no jq");
    };
    insta::assert_snapshot!("changes", told);
}

#[test]
fn a_model_is_compared_with_every_node() {
    let node = |name: &str, labels: Value, allocatable: Value, spec: Value| json!({"metadata": {"name": name, "labels": labels}, "spec": spec, "status": {"allocatable": allocatable}});
    let nodes = json!({"items": [
        node("nvidia", json!({"nvidia.com/gpu.memory": "24576"}), json!({"memory": "128Gi", "nvidia.com/gpu": "2"}), json!({"taints": [{"key": "gpu", "effect": "NoSchedule"}]})),
        node("amd", json!({"amd.com/gpu.vram": "64G"}), json!({"memory": "64Gi", "amd.com/gpu": "1"}), json!({})),
        node("unlabelled", json!({}), json!({"memory": "64Gi", "nvidia.com/gpu": "1"}), json!({})),
        node("plain", json!({}), json!({"memory": "32780464Ki"}), json!({"unschedulable": true})),
        node("small", json!({}), json!({"memory": "4Gi"}), json!({})),
    ]})
    .to_string();
    let env = [("ANSWER", nodes.as_str())];
    let Some(told) = answer("model_fit", &["8", "4", "8192", "1"], &env) else {
        skip!("no jq");
    };
    insta::assert_snapshot!("fit-8b-4bit", told);
    let told = answer("model_fit", &["32", "8", "16384", "2"], &env).unwrap();
    insta::assert_snapshot!("fit-32b-8bit", told);
    let told = answer("model_fit", &["34", "8", "16384", "3"], &env).unwrap();
    insta::assert_snapshot!("fit-34b-8bit-more-context", told);
    let told = answer("model_fit", &["0.5", "16", "2048", "1"], &env).unwrap();
    insta::assert_snapshot!("fit-half-b", told);
}

#[test]
fn a_snapshot_is_a_new_directory_with_the_logs_of_unhealthy_pods() {
    let packs = all();
    let Some(harness) = Harness::new(&packs) else {
        skip!("no jq");
    };
    let pods = json!({"items": [
        {"metadata": {"name": "sick"}, "status": {"phase": "Running", "containerStatuses": [{"ready": false, "restartCount": 0}]}},
        {"metadata": {"name": "restarts"}, "status": {"phase": "Running", "containerStatuses": [{"ready": true, "restartCount": 2}]}},
        {"metadata": {"name": "well"}, "status": {"phase": "Running", "containerStatuses": [{"ready": true, "restartCount": 0}]}},
        {"metadata": {"name": "done"}, "status": {"phase": "Succeeded", "containerStatuses": [{"ready": false, "restartCount": 0}]}},
    ]})
    .to_string();
    let tool = tools(&packs["incident-response"]).iter().find(|it| it.name == "incident_snapshot").unwrap();
    let (output, called) = harness.call(&["/bin/sh"], tool, &["slow".to_owned()], &[("ANSWER", &pods)]);
    let told = stdout(&output);
    assert!(told.ends_with("-slow; logs of: sick\nrestarts\n"), "{told}");
    let logs = called.lines().filter(|it| it.contains("[logs]"));
    let logs: Vec<&str> = logs.map(|it| it.rsplit_once(' ').unwrap().1).collect();
    assert_eq!(logs, ["[pod/sick]", "[pod/sick]", "[pod/restarts]", "[pod/restarts]"]);
    let saved = std::fs::read_dir(harness.path("workspace/incidents")).unwrap();
    let directory = saved.map(|it| it.unwrap().path()).next().unwrap();
    let mut files: Vec<String> =
        std::fs::read_dir(directory).unwrap().map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
    files.sort();
    assert_eq!(
        files,
        [
            "errors.txt",
            "events.json",
            "logs-restarts-previous.txt",
            "logs-restarts.txt",
            "logs-sick-previous.txt",
            "logs-sick.txt",
            "pods.json",
            "pods.txt",
            "services.txt",
            "use.txt",
            "workloads.txt",
        ]
    );
}

#[test]
fn answers_of_prometheus_and_loki_are_short() {
    let packs = all();
    let Some(_) = Harness::new(&packs) else {
        skip!("no jq");
    };
    let address = ("SKILL_PROMETHEUS_URL", "http://prometheus.test");
    let vector =
        r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{"pod":"a"},"value":[1,"0.5"]}]}}"#;
    let told = answer("prometheus_query", &["up"], &[address, ("CURL", vector)]).unwrap();
    insta::assert_snapshot!("prometheus-now", told);
    let scalar = r#"{"status":"success","data":{"resultType":"scalar","result":[1,"42"]}}"#;
    let told = answer("prometheus_query", &["42"], &[address, ("CURL", scalar)]).unwrap();
    assert_eq!(told, "42\n");
    let matrix = r#"{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"pod":"a"},"values":[[1,"1"],[2,"5"],[3,"3"]]}]}}"#;
    let arguments = ["up", "60"];
    let told = answer("prometheus_range", &arguments, &[address, ("CURL", matrix)]).unwrap();
    insta::assert_snapshot!("prometheus-range", told);
    let streams = r#"{"status":"success","data":{"result":[{"stream":{"pod":"a"},"values":[["1767225600000000000","first"],["1767225601000000000","second"]]}]}}"#;
    let env = [("SKILL_LOKI_URL", "http://loki.test"), ("CURL", streams)];
    let told = answer("loki_query", &["{}", "5", "10"], &env).unwrap();
    insta::assert_snapshot!("loki", told);
}
