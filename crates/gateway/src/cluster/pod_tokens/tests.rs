use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use k8s_openapi::api::authentication::v1::UserInfo;
use serde_json::{Value, json};

use super::*;
use crate::cluster::fake_api::{self, FakeResponse, RequestCount};

/// A service account of an unknown run.
const STRANGE: &str = "a-3f2c1a9077f44c629f0e0123456789ab-pod";

fn token(payload: &Value, signature: &str) -> String {
    let payload = URL_SAFE_NO_PAD.encode(payload.to_string());
    format!("e30.{payload}.{signature}")
}

/// The claims of a token of this pod, for our audience.
fn says(account: &str, pod: &str) -> Value {
    json!({
        "aud": [AUDIENCE],
        "kubernetes.io": {
            "namespace": "team", "pod": { "name": "p", "uid": pod },
            "serviceaccount": { "name": account, "uid": "u" },
        },
    })
}

/// Tokens with one known run, which has the pod `known`.
async fn tokens(review: impl Fn(&str) -> FakeResponse + Send + Sync + 'static) -> (Arc<PodTokens>, RequestCount) {
    let (client, count) = fake_api::serve(move |asked| match asked.body["spec"]["token"].as_str() {
        Some(token) => review(token),
        None => fake_api::not_found(),
    })
    .await;
    let runs = RunCache::new(client.clone(), Arc::default());
    runs.sees("uid", json!({ "phase": "Running", "podUID": "known" }));
    runs.listed();
    let tokens = PodTokens::new(client, runs, Arc::default());
    (Arc::new(tokens), count)
}

fn unknown_to_the_api_server() -> FakeResponse {
    let review = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {},
        "status": { "authenticated": false },
    });
    Some((201, review))
}

#[tokio::test]
async fn what_is_no_runs_by_its_own_words_is_not_asked_about() {
    let (tokens, count) = tokens(|_| unknown_to_the_api_server()).await;
    let mut other_audience = says("default", "known");
    other_audience["aud"] = json!(["https://kubernetes.default.svc"]);
    let mut no_pod = says("default", "known");
    no_pod["kubernetes.io"]["pod"] = Value::Null;
    for token in [
        "nothing".to_owned(),
        "a.b.c".to_owned(),
        "..".to_owned(),
        token(&json!({}), "x"),
        token(&other_audience, "x"),
        token(&no_pod, "x"),
        token(&says("default", "unknown"), "x"),
        format!("{}.x", token(&says("default", "known"), "x")),
    ] {
        let answer = tokens.authenticate(&token).await;
        assert!(matches!(answer, Err(AuthenticateError::Invalid(_))), "{token}");
    }
    assert_eq!(count.get(), 0);
    // An invalid token is reviewed once.
    let mut one_audience = says("default", "known");
    one_audience["aud"] = json!(AUDIENCE);
    for _ in 0..3 {
        let answer = tokens.authenticate(&token(&one_audience, "x")).await;
        assert!(matches!(answer, Err(AuthenticateError::Invalid(_))), "{answer:?}");
    }
    assert_eq!(count.get(), 1);
}

/// One early rejection would end the run.
#[tokio::test]
async fn a_pod_that_the_watch_does_not_know_is_looked_for_before_it_is_refused() {
    let run = json!({
        "apiVersion": "sympozium.ai/v1alpha1", "kind": "AgentRun", "spec": {},
        "metadata": {
            "name": "a", "namespace": "team", "uid": "3f2c1a90-77f4-4c62-9f0e-0123456789ab",
        },
    });
    let plan = json!({ "data": { "plan.json": "{\"run\":{\"name\":\"a\"}}" } });
    let review = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {},
        "status": {
            "authenticated": true, "audiences": [AUDIENCE],
            "user": {
                "username": format!("{SERVICE_ACCOUNT_PREFIX}team:{STRANGE}"), "extra": { POD_UID_EXTRA: ["pod"] },
            },
        },
    });
    let (client, _) = fake_api::serve(move |asked| match asked.path.as_str() {
        path if path.contains("/tokenreviews") => Some((201, review.clone())),
        path if path.contains("/configmaps/") => Some((200, plan.clone())),
        _ => Some((200, run.clone())),
    })
    .await;
    let runs = RunCache::new(client.clone(), Arc::default());
    runs.listed();
    let tokens = PodTokens::new(client, Arc::clone(&runs), Arc::default());
    let token = token(&says(STRANGE, "pod"), "x");
    let why = "the run waits for its pod, and this may be it (pod pod)".to_owned();
    assert_eq!(tokens.authenticate(&token).await, Err(AuthenticateError::Unavailable(why)));
    // The run has ended: the token is still cached as valid, and the rejection is immediate.
    let uid = "3f2c1a90-77f4-4c62-9f0e-0123456789ab";
    runs.sees(uid, json!({ "phase": "Failed" }));
    let answer = tokens.authenticate(&token).await;
    assert!(matches!(answer, Err(AuthenticateError::Invalid(_))), "{answer:?}");
}

#[tokio::test]
async fn tokens_that_are_made_up_keep_no_known_pod_waiting() {
    // The API server is slow with each of them.
    let (tokens, count) =
        tokens(|token| if token.ends_with(".good") { unknown_to_the_api_server() } else { None }).await;
    let ask = |account: &str, pod: String, number: usize| {
        let tokens = Arc::clone(&tokens);
        let token = token(&says(account, &pod), &format!("x{number}"));
        tokio::spawn(async move { tokens.authenticate(&token).await })
    };
    let strange: Vec<_> = (0..2 * MAX_REVIEWS).map(|number| ask(STRANGE, format!("pod-{number}"), number)).collect();
    let of_one_pod: Vec<_> = (0..2 * MAX_REVIEWS).map(|number| ask("default", "other".to_owned(), number)).collect();
    tokens.runs.sees("other", json!({ "phase": "Running", "podUID": "other" }));
    let asked = MAX_REVIEWS_OF_UNKNOWN + MAX_REVIEWS_OF_POD;
    while count.get() < asked {
        tokio::task::yield_now().await;
    }
    let good = token(&says("default", "known"), "good");
    let answer = timeout(REQUEST_TIMEOUT / 2, tokens.authenticate(&good)).await;
    assert!(matches!(answer, Ok(Err(AuthenticateError::Invalid(_)))), "{answer:?}");
    assert_eq!(count.get(), asked + 1);
    for waiting in strange.into_iter().chain(of_one_pod) {
        waiting.abort();
    }
}

fn good() -> TokenReviewStatus {
    TokenReviewStatus {
        audiences: Some(vec![AUDIENCE.to_owned()]),
        authenticated: Some(true),
        error: None,
        user: Some(UserInfo {
            extra: Some(BTreeMap::from([(POD_UID_EXTRA.to_owned(), vec!["pod".to_owned()])])),
            username: Some("system:serviceaccount:team:name".to_owned()),
            ..UserInfo::default()
        }),
    }
}

fn without(change: impl FnOnce(&mut TokenReviewStatus)) -> Result<Bearer, String> {
    let mut status = good();
    change(&mut status);
    parse_review(status)
}

#[test]
fn a_review_names_one_pod_for_our_audience_or_nothing() {
    let bearer = Bearer { namespace: "team".to_owned(), account: "name".to_owned(), pod: "pod".to_owned() };
    assert_eq!(without(|_| {}), Ok(bearer));
    for change in [
        (|status: &mut TokenReviewStatus| status.authenticated = None) as fn(&mut TokenReviewStatus),
        |status| status.authenticated = Some(false),
        |status| status.audiences = None,
        |status| status.audiences = Some(vec!["https://kubernetes.default.svc".to_owned()]),
        |status| status.user = None,
    ] {
        assert!(without(change).is_err());
    }
    for name in [
        "",
        "admin",
        "system:node:a",
        "system:serviceaccount:team",
        "system:serviceaccount::a",
        "system:serviceaccount:a:",
        "system:serviceaccount:a:b:c",
    ] {
        let named = without(|status| {
            if let Some(user) = &mut status.user {
                user.username = Some(name.to_owned());
            }
        });
        assert!(named.is_err(), "{name}");
    }
    for pods in [&[][..], &["a", "b"]] {
        let bound = without(|status| {
            if let Some(user) = &mut status.user {
                let pods = pods.iter().map(|pod| (*pod).to_owned()).collect();
                user.extra = Some(BTreeMap::from([(POD_UID_EXTRA.to_owned(), pods)]));
            }
        });
        assert_eq!(bound, Err("the token is bound to no pod".to_owned()));
    }
}
