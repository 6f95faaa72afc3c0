//! How long a skill has its rights when its agent has ended, by what its own token is answered.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::ListParams;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use sympozium_api::labels;
use sympozium_plan::render::key::IDENTITY_TOKEN;
use sympozium_testkit::bench::{Samples, Suite, Target};
use sympozium_testkit::cluster::played::Play;
use sympozium_testkit::cluster::samples::plain;
use tokio::task::JoinSet;

use crate::harness::{Harness, TIMEOUT};
use crate::run_observer::Milestone;
use crate::size;

/// Runs whose agent ends, one after the other.
const FINISHED_RUNS: usize = 100;
/// Runs whose bridge is killed, one after the other.
const KILLED_RUNS: usize = 25;
/// Runs at a time whose tokens are waited for.
const TOKENS: usize = 5;
/// Between two questions to the API server.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The three rows about rights that end.
pub async fn end(suite: &mut Suite, harness: &Harness) {
    for (label, count, play, name, most) in [
        (
            "ended",
            size("ENDED", FINISHED_RUNS),
            Play::Answers,
            "an agent's end until its skill's own token is answered 403, idle, p99",
            1.0,
        ),
        (
            "killed",
            size("KILLED", KILLED_RUNS),
            Play::LosesBridge,
            "a bridge killed until its skill's own token is answered 403, idle, p99",
            5.0,
        ),
    ] {
        let mut samples = Samples::default();
        for round in 0..count {
            let run = HeldRun::start(harness, &format!("{label}-{round}")).await;
            let ended = run.go_on(harness, play);
            samples.add(run.answered(FORBIDDEN).await.duration_since(ended));
            run.settle(harness).await;
        }
        let taken = samples.percentiles();
        println!("{name}: {taken} ({count} runs)");
        suite.row(name, taken.p99 / 1e6, "s", Target::AtMost(most));
    }
    tokens(suite, harness).await;
}

/// The API server believes a token that it has seen for a while: so several at a time, and the longest counts.
async fn tokens(suite: &mut Suite, harness: &Harness) {
    let mut waiting = JoinSet::new();
    let mut uids = Vec::new();
    for round in 0..size("TOKENS", TOKENS) {
        let run = HeldRun::start(harness, &format!("token-{round}")).await;
        let ended = run.go_on(harness, Play::Answers);
        uids.push(run.uid.clone());
        let secrets: Api<Secret> = Api::namespaced(harness.client.clone(), harness.namespace.name());
        waiting.spawn(async move {
            let gone = until("its Secret to go", || async {
                let found = secrets.get_opt(&run.secret).await.expect("an answer");
                found.is_none()
            });
            let gone = gone.await;
            let refused = run.answered(UNAUTHORIZED).await;
            (gone.duration_since(ended), refused.duration_since(ended))
        });
    }
    let times = waiting.join_all().await;
    for (gone, refused) in &times {
        println!(
            "a token's Secret was gone {:.3} s after the agent's end, and the token was answered 401 after {:.3} s",
            gone.as_secs_f64(),
            refused.as_secs_f64()
        );
    }
    let longest = times.iter().map(|(_, refused)| *refused).max();
    suite.row(
        "an agent's end until its skill's token is answered 401, longest",
        longest.map_or(f64::NAN, |it| it.as_secs_f64()),
        "s",
        Target::AtMost(15.0),
    );
    harness.sight.wait_all(Milestone::TornDown, &uids).await;
}

const ALLOWED: u16 = 200;
const UNAUTHORIZED: u16 = 401;
const FORBIDDEN: u16 = 403;

/// A run that works, and the API server as its skill sees it.
struct HeldRun {
    uid: String,
    /// The Secret with the skill's token.
    secret: String,
    pods: Api<Pod>,
}

impl HeldRun {
    /// A run whose skill may list pods, and does.
    async fn start(harness: &Harness, name: &str) -> Self {
        harness.played.play(name, Play::Waits);
        let uid = harness.create(plain(name)).await;
        harness.played.ran(&uid).await;
        let selector = ListParams::default().labels(&format!("{}={uid}", labels::RUN_UID));
        let secrets: Api<Secret> = Api::namespaced(harness.client.clone(), harness.namespace.name());
        let secrets = secrets.list(&selector).await.expect("listed");
        let of_skill = secrets.iter().find_map(|secret| {
            let token = secret.data.as_ref()?.get(IDENTITY_TOKEN)?;
            Some((secret.metadata.name.clone()?, token.0.clone()))
        });
        let (secret, token) = of_skill.expect("a skill has a token");
        let token = String::from_utf8(token).expect("text");
        let client = with_token(harness, token).await;
        let held = Self { uid, secret, pods: Api::namespaced(client, harness.namespace.name()) };
        held.answered(ALLOWED).await;
        held
    }

    /// Has its pod go on, and says when.
    fn go_on(&self, harness: &Harness, play: Play) -> Instant {
        let now = Instant::now();
        harness.played.cue(&self.uid, play);
        now
    }

    /// When the API server first answered its skill with this status.
    async fn answered(&self, status: u16) -> Instant {
        let list = ListParams::default().limit(1);
        until(&format!("the answer {status}"), || async {
            let answer = match self.pods.list(&list).await {
                Ok(_) => ALLOWED,
                Err(kube::Error::Api(error)) => error.code,
                Err(error) => panic!("the API server does not answer: {error}"),
            };
            // One that is not believed any more has no rights either.
            answer == status || (status == FORBIDDEN && answer == UNAUTHORIZED)
        })
        .await
    }

    async fn settle(&self, harness: &Harness) {
        let uids = std::slice::from_ref(&self.uid);
        harness.sight.wait_all(Milestone::TornDown, uids).await;
    }
}

/// Asks until it holds, and says when it did.
async fn until<F: Future<Output = bool>>(what: &str, mut ask: impl FnMut() -> F) -> Instant {
    let begin = Instant::now();
    while !ask().await {
        assert!(begin.elapsed() < TIMEOUT, "waited in vain for {what}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Instant::now()
}

/// A client that is nobody but the holder of this token.
async fn with_token(harness: &Harness, token: String) -> Client {
    let kubeconfig = Kubeconfig::read_from(harness.cluster.kubeconfig()).expect("a kubeconfig");
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    let mut config = config.expect("a configuration");
    config.auth_info = AuthInfo { token: Some(token.into()), ..AuthInfo::default() };
    Client::try_from(config).expect("a client")
}
