//! What the cluster is made of: one entry per folder of `hack/kube`, and which tier needs which.
//!
//! The versions are not here: each part's `go.mod` pins them, and the build reads them from there.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, bail};

/// One upstream project, built from its released module.
#[derive(Debug, PartialEq, Eq)]
pub struct Part {
    /// The folder below `hack/kube`.
    pub name: &'static str,
    /// The upstream module whose version the part pins.
    pub module: &'static str,
    /// Package to build and the name of the binary it becomes.
    pub binaries: &'static [(&'static str, &'static str)],
    pub tags: &'static str,
    /// Whether the part is linked with C code, and so with the machine's C compiler and libraries.
    pub cgo: bool,
    /// Variables that get parts of the version at link time: (variable, which part).
    pub version_variables: &'static [(&'static str, VersionPiece)],
    /// One changed constant, applied to a vendored copy in the build folder.
    pub patch: Option<Patch>,
    /// A folder of the module that the cluster needs beside the binaries.
    pub data: Option<&'static str>,
}

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum VersionPiece {
    Full,
    Major,
    Minor,
}

/// Exactly one occurrence of `from` in `file` (below the vendor folder) becomes `to`.
#[derive(Debug, PartialEq, Eq)]
pub struct Patch {
    pub file: &'static str,
    pub from: &'static str,
    pub to: &'static str,
}

pub const KUBERNETES: Part = Part {
    name: "kubernetes",
    module: "k8s.io/kubernetes",
    binaries: &[
        ("k8s.io/kubernetes/cmd/kube-apiserver", "kube-apiserver"),
        ("k8s.io/kubernetes/cmd/kube-controller-manager", "kube-controller-manager"),
        ("k8s.io/kubernetes/cmd/kube-scheduler", "kube-scheduler"),
        ("k8s.io/kubernetes/cmd/kube-proxy", "kube-proxy"),
        ("k8s.io/kubernetes/cmd/kubelet", "kubelet"),
        ("k8s.io/kubernetes/cmd/kubectl", "kubectl"),
    ],
    tags: "",
    cgo: false,
    // Without them the binaries call themselves v0.0.0-master, which clients refuse to compare.
    version_variables: &[
        ("k8s.io/component-base/version.gitVersion", VersionPiece::Full),
        ("k8s.io/component-base/version.gitMajor", VersionPiece::Major),
        ("k8s.io/component-base/version.gitMinor", VersionPiece::Minor),
    ],
    patch: None,
    data: None,
};

pub const CONTAINERD: Part = Part {
    module: "github.com/containerd/containerd/v2",
    binaries: &[
        ("github.com/containerd/containerd/v2/cmd/containerd", "containerd"),
        ("github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2", "containerd-shim-runc-v2"),
        ("github.com/containerd/containerd/v2/cmd/ctr", "ctr"),
    ],
    tags: "no_btrfs,no_devmapper,no_zfs,no_aufs",
    ..plain("containerd")
};

pub const RUNC: Part = Part {
    module: "github.com/opencontainers/runc",
    binaries: &[("github.com/opencontainers/runc", "runc")],
    tags: "seccomp",
    // runc enters namespaces from C before the Go runtime has threads, and links libseccomp.
    cgo: true,
    ..plain("runc")
};

pub const NETWORK_POLICIES: Part = Part {
    module: "sigs.k8s.io/kube-network-policies",
    binaries: &[("sigs.k8s.io/kube-network-policies/cmd/kube-network-policies/standard", "kube-network-policies")],
    ..plain("network-policies")
};

/// Built from a program of our own beside the pins, which has the plugins that are used and no others.
pub const COREDNS: Part = Part {
    module: "github.com/coredns/coredns",
    binaries: &[("sympozium.ai/hack/kube/coredns", "coredns")],
    ..plain("coredns")
};

pub const GVISOR: Part = Part {
    module: "gvisor.dev/gvisor",
    binaries: &[("gvisor.dev/gvisor/runsc", "runsc"), ("gvisor.dev/gvisor/shim", "containerd-shim-runsc-v1")],
    // The shim lowers its own oom_score_adj and gives up where that needs a capability the machine withholds.
    patch: Some(Patch {
        file: "gvisor.dev/gvisor/pkg/shim/v1/manager.go",
        from: "oomScoreMax = -999",
        to: "oomScoreMax = 0",
    }),
    ..plain("gvisor")
};

pub const AGENT_SANDBOX: Part = Part {
    module: "sigs.k8s.io/agent-sandbox",
    binaries: &[("sigs.k8s.io/agent-sandbox/cmd/agent-sandbox-controller", "agent-sandbox-controller")],
    data: Some("k8s/crds"),
    ..plain("agent-sandbox")
};

pub const HELM: Part =
    Part { module: "helm.sh/helm/v4", binaries: &[("helm.sh/helm/v4/cmd/helm", "helm")], ..plain("helm") };

/// Every part.
pub const ALL: [&Part; 8] =
    [&KUBERNETES, &CONTAINERD, &RUNC, &NETWORK_POLICIES, &COREDNS, &GVISOR, &AGENT_SANDBOX, &HELM];

/// The part of that name.
pub fn find(name: &str) -> Result<&'static Part> {
    let names: Vec<_> = ALL.iter().map(|part| part.name).collect();
    let found = ALL.into_iter().find(|part| part.name == name);
    found.with_context(|| format!("no part is called {name:?}\nhint: there are {}", names.join(", ")))
}

const fn plain(name: &'static str) -> Part {
    Part { name, module: "", binaries: &[], tags: "", cgo: false, version_variables: &[], patch: None, data: None }
}

/// How much of a cluster is wanted: `control-plane`, or `node` with `+gvisor` and `+agent-sandbox` added at will.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tier {
    pub node: bool,
    pub gvisor: bool,
    pub agent_sandbox: bool,
}

impl Tier {
    /// The parts that a cluster of this tier starts, plus `kubectl`, which comes with Kubernetes.
    pub fn parts(self) -> Vec<&'static Part> {
        let mut parts = vec![&KUBERNETES];
        if self.node {
            parts.extend([&CONTAINERD, &RUNC, &NETWORK_POLICIES, &COREDNS]);
        }
        if self.gvisor {
            parts.push(&GVISOR);
        }
        if self.agent_sandbox {
            parts.push(&AGENT_SANDBOX);
        }
        parts
    }

    /// Whether a cluster of this tier has everything that `other` asks for.
    pub fn covers(self, other: Self) -> bool {
        (self.node || !other.node) && (self.gvisor || !other.gvisor) && (self.agent_sandbox || !other.agent_sandbox)
    }
}

impl FromStr for Tier {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut words = text.split('+');
        let mut tier = match words.next() {
            Some("control-plane") => Self::default(),
            Some("node") => Self { node: true, ..Self::default() },
            _ => bail!(
                "unknown tier {text:?}\nhint: use control-plane, node, node+gvisor, node+agent-sandbox or node+gvisor+agent-sandbox"
            ),
        };
        for word in words {
            match word {
                "gvisor" if tier.node => tier.gvisor = true,
                "agent-sandbox" if tier.node => tier.agent_sandbox = true,
                _ => bail!("tier {text:?} cannot have +{word}\nhint: node takes +gvisor and +agent-sandbox"),
            }
        }
        Ok(tier)
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.node { "node" } else { "control-plane" })?;
        if self.gvisor {
            f.write_str("+gvisor")?;
        }
        if self.agent_sandbox {
            f.write_str("+agent-sandbox")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_reads_back_what_it_prints() {
        for text in ["control-plane", "node", "node+gvisor", "node+agent-sandbox", "node+gvisor+agent-sandbox"] {
            assert_eq!(text.parse::<Tier>().unwrap().to_string(), text);
        }
        for text in ["", "nodes", "control-plane+gvisor", "node+", "node+runc"] {
            assert!(text.parse::<Tier>().is_err(), "{text:?} was accepted");
        }
    }

    #[test]
    fn a_tier_builds_only_what_it_starts() {
        let names = |text: &str| -> Vec<_> { text.parse::<Tier>().unwrap().parts().iter().map(|p| p.name).collect() };
        assert_eq!(names("control-plane"), ["kubernetes"]);
        assert_eq!(names("node"), ["kubernetes", "containerd", "runc", "network-policies", "coredns"]);
        assert_eq!(names("node+gvisor"), ["kubernetes", "containerd", "runc", "network-policies", "coredns", "gvisor"]);
    }

    #[test]
    fn a_tier_covers_itself_and_what_is_below() {
        let tier = |text: &str| text.parse::<Tier>().unwrap();
        assert!(tier("node+gvisor").covers(tier("node")));
        assert!(tier("node").covers(tier("control-plane")));
        assert!(!tier("node+gvisor").covers(tier("node+agent-sandbox")));
        assert!(!tier("control-plane").covers(tier("node")));
    }
}
