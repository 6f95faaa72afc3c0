//! Which crate may depend on which: dependencies point down, and what reaches outside lives in few places.
//!
//! Dev-dependencies are free, except that they are the only place for the testkit and the harness.

use std::collections::BTreeSet;

use serde::Deserialize;

use crate::output::hinted;
use crate::process::{cargo, output};

/// What each crate of ours may use of ours. A crate that is not here fails the check: its place is to be decided.
const LAYERS: &[(&str, &[&str])] = &[
    ("sympozium-api", &[]),
    ("sympozium-plan", &["sympozium-api"]),
    ("sympozium-manifests", &["sympozium-api", "sympozium-plan"]),
    ("sympozium-ipc", &["sympozium-api"]),
    ("sympozium-exec", &["sympozium-api"]),
    ("sympozium-program", &[]),
    ("sympozium-sidecar", &["sympozium-api", "sympozium-ipc", "sympozium-exec", "sympozium-program"]),
    ("sympozium-agent", &["sympozium-api", "sympozium-ipc", "sympozium-exec", "sympozium-program"]),
    ("sympozium-bridge", &["sympozium-api", "sympozium-ipc", "sympozium-exec", "sympozium-program"]),
    ("sympozium-gateway", &["sympozium-api", "sympozium-plan", "sympozium-ipc", "sympozium-program"]),
    ("sympozium-controller", &["sympozium-api", "sympozium-plan", "sympozium-ipc", "sympozium-program"]),
    ("sympozium-runs", &["sympozium-api", "sympozium-ipc", "sympozium-exec"]),
    (
        "sympozium-local",
        &[
            "sympozium-runs",
            "sympozium-api",
            "sympozium-plan",
            "sympozium-ipc",
            "sympozium-exec",
            "sympozium-program",
            "sympozium-agent",
            "sympozium-bridge",
            "sympozium-gateway",
            "sympozium-sidecar",
        ],
    ),
    ("sympozium-server", &["sympozium-api", "sympozium-plan", "sympozium-program"]),
    ("sympozium", ANY),
    ("sympozium-cluster-tests", &[]),
    ("sympozium-conformance", ANY),
    ("sympozium-agent-programs", &["sympozium-agent", "sympozium-api", "sympozium-program"]),
    ("sympozium-probe", &[]),
    ("sympozium-testkit", ANY),
    ("sympozium-harness", ANY),
    ("xtask", ANY),
];
/// May use every crate but those for tests. No crate may use these in turn.
const ANY: &[&str] = &["*"];

/// Crates of others that only some of ours may use, tooling and tests apart.
const RESTRICTED: &[(&[&str], &[&str])] = &[
    (
        &["kube", "kube-client", "kube-core", "kube-runtime"],
        &["sympozium-controller", "sympozium-gateway", "sympozium-server", "sympozium"],
    ),
    (
        &["k8s-openapi"],
        &[
            "sympozium-api",
            "sympozium-plan",
            "sympozium-program",
            "sympozium-controller",
            "sympozium-gateway",
            "sympozium-local",
            "sympozium-server",
            "sympozium",
        ],
    ),
];
/// May use `kube` all the same, for the derive that makes kinds of types: without its default features and with none but
/// [`WITHOUT_CLIENT`], so that no client comes with it.
const KINDS: &[&str] = &["sympozium-api"];
const WITHOUT_CLIENT: &[&str] = &["derive"];
/// Crates of others that exactly one of ours may use.
const IN_ONE_CRATE: &[&str] = &["rmcp", "async-nats", "reqwest"];
/// These do no I/O, read no clock and draw no randomness.
const PURE: &[&str] = &["sympozium-api", "sympozium-plan"];
const IMPURE: &[&str] =
    &["tokio", "async-std", "rand", "fastrand", "getrandom", "reqwest", "hyper", "ureq", "rustix", "nix", "libc"];
/// Must not come with the pure crates by way of others either.
const IMPURE_BY_WAY: &[&str] = &["kube-client", "tokio", "hyper", "reqwest", "rustls"];
const TOOLING: &[&str] = &["sympozium-testkit", "sympozium-harness", "xtask"];
/// For dev-dependencies, and for each other.
const FOR_TESTS: &[&str] = &["sympozium-testkit", "sympozium-harness"];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// `null` for ordinary ones, else `dev` or `build`.
    kind: Option<String>,
    #[serde(default)]
    features: Vec<String>,
    #[serde(default)]
    uses_default_features: bool,
}

pub fn check() -> anyhow::Result<Vec<String>> {
    let metadata = output(&mut cargo(&["metadata", "--format-version=1", "--no-deps", "--locked"]))
        .map_err(|error| hinted(format!("{error:#}"), "is Cargo.lock up to date? `cargo build` updates it"))?;
    let metadata: Metadata = serde_json::from_str(&metadata)?;
    let mut problems = problems(&metadata.packages);
    for name in PURE {
        if metadata.packages.iter().any(|package| package.name == *name) {
            problems.extend(by_way(name, &everything_below(name)?));
        }
    }
    Ok(problems)
}

/// The names of all crates that a crate is built from, when it is built alone.
fn everything_below(name: &str) -> anyhow::Result<String> {
    output(&mut cargo(&["tree", "--package", name, "--edges=normal", "--prefix=none", "--format={p}", "--locked"]))
}

fn by_way(package: &str, tree: &str) -> Vec<String> {
    let below: BTreeSet<_> = tree.lines().filter_map(|line| line.split_whitespace().next()).collect();
    IMPURE_BY_WAY
        .iter()
        .filter(|name| below.contains(*name))
        .map(|name| format!("{package} must not be built from {name}, by way of others either"))
        .collect()
}

fn problems(packages: &[Package]) -> Vec<String> {
    let mut problems = Vec::new();
    for package in packages {
        let Some((_, allowed)) = LAYERS.iter().find(|(name, _)| *name == package.name) else {
            problems.push(format!("{}: a new crate; give it a place in xtask/src/check/edges.rs", package.name));
            continue;
        };
        for dependency in &package.dependencies {
            if dependency.kind.as_deref() != Some("dev")
                && let Some(why) = forbidden(&package.name, allowed, dependency)
            {
                problems.push(format!("{} must not depend on {}: {why}", package.name, dependency.name));
            }
        }
    }
    for single in IN_ONE_CRATE {
        let users: Vec<_> = packages
            .iter()
            .filter(|package| !TOOLING.contains(&package.name.as_str()))
            .filter(|package| package.dependencies.iter().any(|found| found.kind.is_none() && found.name == *single))
            .map(|package| package.name.as_str())
            .collect();
        if users.len() > 1 {
            problems.push(format!("{single} is used by {}; one crate should wrap it", users.join(" and ")));
        }
    }
    problems
}

/// Why `package` may not use `dependency`, if it may not.
fn forbidden(package: &str, allowed: &[&str], used: &Dependency) -> Option<&'static str> {
    let dependency = used.name.as_str();
    let is_ours = LAYERS.iter().any(|(name, _)| *name == dependency);
    if FOR_TESTS.contains(&dependency) && !FOR_TESTS.contains(&package) {
        return Some("it is for dev-dependencies");
    }
    if is_ours && allowed != ANY && !allowed.contains(&dependency) {
        return Some("dependencies point down (STYLE, 1 to 5)");
    }
    if PURE.contains(&package) && IMPURE.contains(&dependency) {
        return Some("this crate does no I/O, reads no clock and draws no randomness");
    }
    if dependency == "kube" && KINDS.contains(&package) {
        let clientless = !used.uses_default_features
            && used.features.iter().all(|feature| WITHOUT_CLIENT.contains(&feature.as_str()));
        return (!clientless).then_some("for the derive only: no default features, no client");
    }
    let restricted = RESTRICTED.iter().find(|(names, _)| names.contains(&dependency));
    if let Some((_, users)) = restricted
        && !users.contains(&package)
        && !TOOLING.contains(&package)
    {
        return Some("only the crates that talk to a cluster may");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, dependencies: &[(&str, Option<&str>)]) -> Package {
        Package {
            name: name.into(),
            dependencies: dependencies
                .iter()
                .map(|(name, kind)| Dependency {
                    name: (*name).into(),
                    kind: kind.map(Into::into),
                    features: Vec::new(),
                    uses_default_features: true,
                })
                .collect(),
        }
    }

    #[test]
    fn edges_that_point_down_are_fine() {
        let packages = [
            package("sympozium-api", &[("serde", None), ("k8s-openapi", None)]),
            package("sympozium-plan", &[("sympozium-api", None), ("sympozium-testkit", Some("dev"))]),
            package("sympozium-agent", &[("sympozium-ipc", None), ("tokio", None)]),
            package("sympozium", &[("sympozium-agent", None), ("kube", None), ("reqwest", None)]),
            package("sympozium-testkit", &[("kube", None), ("reqwest", None)]),
            package("sympozium-harness", &[("sympozium-gateway", None), ("sympozium-testkit", None)]),
        ];
        assert_eq!(problems(&packages), Vec::<String>::new());
    }

    #[test]
    fn kinds_are_made_without_a_client() {
        let with = |defaults, features: &[&str]| {
            let mut api = package("sympozium-api", &[("kube", None)]);
            api.dependencies[0].uses_default_features = defaults;
            api.dependencies[0].features = features.iter().map(|name| (*name).into()).collect();
            problems(&[api])
        };
        assert_eq!(with(false, &["derive"]), Vec::<String>::new());
        let refused = ["sympozium-api must not depend on kube: for the derive only: no default features, no client"];
        assert_eq!(with(true, &["derive"]), refused);
        assert_eq!(with(false, &["derive", "client"]), refused);
        assert_eq!(
            by_way("sympozium-api", "sympozium-api v0.1.0\nkube v5.0.0\ntokio v1.0.0 (*)\n"),
            ["sympozium-api must not be built from tokio, by way of others either"]
        );
    }

    #[test]
    fn each_rule_is_held() {
        for (name, dependency) in [
            ("sympozium-api", "sympozium-plan"),
            ("sympozium-exec", "sympozium-ipc"),
            ("sympozium-agent", "sympozium-bridge"),
            ("sympozium-bridge", "kube"),
            ("sympozium-ipc", "k8s-openapi"),
            ("sympozium-manifests", "kube"),
            ("sympozium-manifests", "sympozium-exec"),
            ("sympozium-plan", "tokio"),
            ("sympozium", "sympozium-testkit"),
            ("sympozium", "sympozium-harness"),
        ] {
            assert_eq!(problems(&[package(name, &[(dependency, None)])]).len(), 1, "{name} -> {dependency}");
        }
        assert_eq!(problems(&[package("sympozium-new", &[])]).len(), 1);
        let both = ["sympozium-agent", "sympozium-gateway"].map(|name| package(name, &[("reqwest", None)]));
        assert_eq!(
            problems(&both),
            ["reqwest is used by sympozium-agent and sympozium-gateway; one crate should wrap it"]
        );
    }
}
