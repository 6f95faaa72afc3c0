use kube::Config;

use super::*;

#[tokio::test]
async fn what_is_known_of_a_run_goes_with_it() {
    let config = Config::new(http::Uri::from_static("http://127.0.0.1:9"));
    let client = Client::try_from(config).unwrap();
    let runs = RunCache::new(client.clone(), Arc::default());
    let reports = ClusterReports::new(client, Arc::clone(&runs), Arc::default());
    let plan = sympozium_api::digest::digest_canonical("test", b"plan");
    let standing = || ReportState {
        report: None,
        started_at: None,
        calls: OpenCalls::default(),
        transcript_lines: 0,
        transcript_head: plan.clone(),
    };
    let known = || {
        let mut known: Vec<String> = reports.states.lock().keys().cloned().collect();
        known.sort();
        known
    };
    for uid in ["crashed", "goes-on"] {
        runs.sees(uid, json!({ "phase": "Running" }));
        reports.cache_state(uid, standing());
    }
    assert_eq!(known(), ["crashed", "goes-on"]);
    // Its bridge was killed, and the controller has ended it.
    runs.sees("crashed", json!({ "phase": "Failed" }));
    assert_eq!(known(), ["goes-on"]);
    // A report that was being stored meanwhile.
    reports.cache_state("crashed", standing());
    assert_eq!(known(), ["goes-on"]);
}
