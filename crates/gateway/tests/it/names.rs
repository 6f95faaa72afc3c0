//! Names, and the resolvers that answer for them.

use std::time::Duration;

use sympozium_gateway::Settings;
use sympozium_harness::plan::Public;

use crate::dns::{Answer, Answers, addresses, everybody};
use crate::harness::{Behavior, Catcher, NetworkHarness, TIMEOUT, echoes, run};

async fn outcome_of(answers: Answers) -> (String, Vec<String>) {
    let harness = NetworkHarness::new(Public::Closed, &["api.example.com 8080"], answers).await;
    let catcher = Catcher::at(8080, &Behavior::Echo);
    let got = harness.tunnel("api.example.com:8080").await;
    (got.map_or_else(|it| it, |_| "ok".into()), catcher.caught().await)
}

fn refused(reason: &str) -> (String, Vec<String>) {
    (reason.to_owned(), Vec::new())
}

#[test]
fn e53_a_name_that_changes_between_two_questions_is_checked_each_time() {
    run(e53_a_name_that_changes_between_two_questions_is_checked_each_time, async || {
        fn answers(_: &str, asked_before: usize) -> Answer {
            match asked_before {
                0 => addresses(&["93.184.216.34"]),
                _ => addresses(&["169.254.169.254"]),
            }
        }
        let harness = NetworkHarness::new(Public::Closed, &["api.example.com 8080"], answers).await;
        let catcher = Catcher::at(8080, &Behavior::Echo);
        // One question for one decision: what was checked is what is connected to.
        let mut first = harness.tunnel("api.example.com:8080").await.expect("public");
        assert!(echoes(&mut first, b"one").await);
        let second = harness.tunnel("api.example.com:8080").await.expect_err("moved");
        assert_eq!(second, "metadata");
        // What was allowed goes on to where it was allowed to.
        assert!(echoes(&mut first, b"two").await);
        assert_eq!(catcher.caught().await, ["93.184.216.34"]);
    });
}

#[test]
fn e53_another_name_that_is_private_is_refused() {
    run(e53_another_name_that_is_private_is_refused, async || {
        let got = outcome_of(|_, _| Answer::Alias("internal.example.com", vec!["10.0.0.1"])).await;
        assert_eq!(got, refused("address-not-allowed"));
    });
}

#[test]
fn e53_another_name_that_is_public_is_fine() {
    run(e53_another_name_that_is_public_is_fine, async || {
        let got = outcome_of(|_, _| Answer::Alias("edge.example.net", vec!["1.2.3.4"])).await;
        assert_eq!(got, ("ok".into(), vec!["1.2.3.4".into()]));
    });
}

#[test]
fn e53_no_time_to_live_means_one_question_for_one_connection() {
    run(e53_no_time_to_live_means_one_question_for_one_connection, async || {
        // Every answer of the test's server lives for no time at all; a second question would give another address.
        fn answers(_: &str, asked_before: usize) -> Answer {
            match asked_before {
                0 => addresses(&["1.1.1.1"]),
                1 => addresses(&["2.2.2.2"]),
                _ => addresses(&["127.0.0.1"]),
            }
        }
        let harness = NetworkHarness::new(Public::Closed, &["api.example.com 8080"], answers).await;
        let catcher = Catcher::at(8080, &Behavior::Echo);
        assert!(harness.tunnel("api.example.com:8080").await.is_ok());
        assert!(harness.tunnel("api.example.com:8080").await.is_ok());
        assert!(harness.tunnel("api.example.com:8080").await.is_err());
        assert_eq!(catcher.caught().await, ["1.1.1.1", "2.2.2.2"]);
    });
}

#[test]
fn e53_an_answer_is_good_for_one_decision_however_long_it_may_be_kept() {
    run(e53_an_answer_is_good_for_one_decision_however_long_it_may_be_kept, async || {
        fn answers(_: &str, asked_before: usize) -> Answer {
            match asked_before {
                0 => Answer::Lasting(vec!["1.1.1.1"]),
                1 => Answer::Lasting(vec!["10.0.0.1"]),
                _ => Answer::Lasting(vec!["2.2.2.2"]),
            }
        }
        let harness = NetworkHarness::new(Public::Closed, &["api.example.com 8080"], answers).await;
        let catcher = Catcher::at(8080, &Behavior::Echo);
        assert!(harness.tunnel("api.example.com:8080").await.is_ok());
        assert!(harness.tunnel("api.example.com:8080").await.is_err());
        assert!(harness.tunnel("api.example.com:8080").await.is_ok());
        assert_eq!(catcher.caught().await, ["1.1.1.1", "2.2.2.2"]);
    });
}

#[test]
fn e53_one_private_address_among_many_spoils_them_all() {
    run(e53_one_private_address_among_many_spoils_them_all, async || {
        let got = outcome_of(|_, _| addresses(&["1.1.1.1", "2.2.2.2", "192.168.1.1", "3.3.3.3"])).await;
        assert_eq!(got, refused("address-not-allowed"));
    });
}

#[test]
fn e53_one_private_address_of_the_other_family_spoils_them_all() {
    run(e53_one_private_address_of_the_other_family_spoils_them_all, async || {
        let got = outcome_of(|_, _| addresses(&["1.1.1.1", "fd00::1"])).await;
        assert_eq!(got, refused("address-not-allowed"));
        let mapped = outcome_of_second(|_, _| addresses(&["1.1.1.1", "::ffff:10.0.0.1"])).await;
        assert_eq!(mapped, refused("address-not-allowed"));
    });
}

/// At another port, for a second harness in one namespace.
async fn outcome_of_second(answers: Answers) -> (String, Vec<String>) {
    let harness = NetworkHarness::new(Public::Closed, &["api.example.com 8081"], answers).await;
    let catcher = Catcher::at(8081, &Behavior::Echo);
    let got = harness.tunnel("api.example.com:8081").await;
    (got.map_or_else(|it| it, |_| "ok".into()), catcher.caught().await)
}

#[test]
fn e53_more_addresses_than_can_be_checked_are_refused() {
    run(e53_more_addresses_than_can_be_checked_are_refused, async || {
        let got = outcome_of(|_, _| {
            Answer::Truncated(vec![
                "1.0.1.1", "1.0.1.2", "1.0.1.3", "1.0.1.4", "1.0.1.5", "1.0.1.6", "1.0.1.7", "1.0.1.8", "1.0.1.9",
                "1.0.1.10", "1.0.1.11", "1.0.1.12", "1.0.1.13", "1.0.1.14", "1.0.1.15", "1.0.1.16", "1.0.1.17",
                "1.0.1.18", "1.0.1.19", "1.0.1.20", "1.0.1.21", "1.0.1.22", "1.0.1.23", "1.0.1.24", "1.0.1.25",
                "1.0.1.26", "1.0.1.27", "1.0.1.28", "1.0.1.29", "1.0.1.30", "1.0.1.31", "1.0.1.32", "1.0.1.33",
            ])
        })
        .await;
        assert_eq!(got, refused("too-many-addresses"));
    });
}

#[test]
fn e53_names_that_no_plan_lists_are_never_asked_for() {
    run(e53_names_that_no_plan_lists_are_never_asked_for, async || {
        let harness =
            NetworkHarness::new(Public::Closed, &["api.example.com 443", "*.cdn.example.com 443"], everybody).await;
        let catcher = Catcher::at(443, &Behavior::Echo);
        for target in [
            // Secrets in names, and resolvers over HTTPS.
            "c2VjcmV0.evil.example:443",
            "c2VjcmV0.api.example.com:443",
            "dns.google:443",
            "cloudflare-dns.com:443",
            "8.8.8.8:443",
            "1.1.1.1:853",
            "8.8.8.8:53",
            "api.example.com:53",
            "cdn.example.com:443",
        ] {
            assert_eq!(harness.tunnel(target).await.expect_err(target), "not-in-plan");
            let url = format!("GET http://{target}/");
            let (_, answer) = harness.ask(&url, target).await;
            assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        }
        assert_eq!(harness.dns.asked(), Vec::<String>::new());
        assert!(harness.tunnel("api.example.com:443").await.is_ok());
        assert_eq!(harness.dns.asked(), ["api.example.com"]);
        assert_eq!(catcher.caught().await, ["93.184.216.34"]);
    });
}

#[test]
fn e53_an_answer_under_another_number_is_not_taken() {
    run(e53_an_answer_under_another_number_is_not_taken, async || {
        let got = outcome_of(|_, _| Answer::Spoofed(vec!["6.6.6.6"], vec!["1.2.3.4"])).await;
        assert_eq!(got, ("ok".into(), vec!["1.2.3.4".into()]));
    });
}

#[test]
fn e53_answers_that_do_not_come_or_do_not_fit() {
    run(e53_answers_that_do_not_come_or_do_not_fit, async || {
        fn answers(name: &str, _: usize) -> Answer {
            match name {
                "none.example.com" => Answer::None,
                "failure.example.com" => Answer::Failure,
                "empty.example.com" => addresses(&[]),
                "large.example.com" => Answer::Truncated(vec!["1.2.3.4"]),
                _ => Answer::Silence,
            }
        }
        // A resolver that answers has enough time; the silent one is not waited for.
        let settings = |resolve_deadline| Settings { resolve_timeout: resolve_deadline, ..Settings::default() };
        let listed = &["*.example.com 8080"];
        let patient = NetworkHarness::with(settings(TIMEOUT), Public::Closed, listed, answers).await;
        let short = Duration::from_millis(300);
        let hasty = NetworkHarness::with(settings(short), Public::Closed, listed, answers).await;
        let catcher = Catcher::at(8080, &Behavior::Echo);
        for (harness, name, expected) in [
            (&patient, "none", "name-not-found"),
            (&patient, "empty", "name-not-found"),
            (&patient, "failure", "resolve-failed"),
            (&patient, "large", "ok"),
            (&hasty, "silent", "resolve-timeout"),
        ] {
            let got = harness.tunnel(&format!("{name}.example.com:8080")).await;
            assert_eq!(got.map_or_else(|it| it, |_| "ok".into()), expected, "{name}");
        }
        assert_eq!(catcher.caught().await, ["1.2.3.4"]);
    });
}

#[test]
fn names_of_services_are_completed_with_the_clusters_domain_and_no_others() {
    run(names_of_services_are_completed_with_the_clusters_domain_and_no_others, async || {
        let harness = NetworkHarness::new(
            Public::Closed,
            &["db.team.svc 8080", "api.example.com 8080", "intranet 8080"],
            |_, _| addresses(&["10.0.0.1"]),
        )
        .await;
        let _catcher = Catcher::at(8080, &Behavior::Echo);
        for target in ["db.team.svc:8080", "intranet:8080", "api.example.com:8080"] {
            let _ = harness.tunnel(target).await;
        }
        let asked = ["api.example.com", "db.team.svc.cluster.local", "intranet"];
        assert_eq!(harness.dns.asked(), asked);
    });
}
