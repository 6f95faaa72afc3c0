//! Writes the files of a new cluster into its state folder.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use anyhow::{Context, Result};

use super::components::IDENTITIES;
use super::config::{self, Gvisor, NODE};
use super::dns;
use super::network::API_SERVICE;
use super::parts::Tier;
use super::pki::{self, Authority, write_private};
use super::state::{Instance, Plan};

/// What `statfs` says of a file system that is itself an overlay.
const OVERLAYFS_MAGIC: i64 = 0x794c_7630;

/// Everything but the plan itself: keys, kubeconfigs, configuration of the components.
pub fn write(instance: &Instance, plan: &Plan, tier: Tier) -> Result<()> {
    for folder in ["pki", "config/cni", "logs", "audit", "tmp", "images", "dns", "var/lib", "var/log"] {
        make_folder(&instance.file(folder))?;
    }
    // An exclusive or shared lock needs a file to be there.
    write_private(&instance.file("lease"), "")?;
    write_keys(instance, plan)?;

    let config = instance.file("config");
    let write = |name: &str, text: &str| {
        let path = config.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    write("audit-policy.json", &config::audit_policy())?;
    if tier.node {
        let gvisor = if tier.gvisor { Gvisor::Installed } else { Gvisor::Absent };
        write("kubelet.json", &config::kubelet(&format!("/{}", plan.link.cgroup())))?;
        write("kube-proxy.json", &config::kube_proxy())?;
        write("cni/10-pods.conflist", &config::cni())?;
        let name_server = plan.link.cluster();
        // The node's own, for pods that have their node's settings instead of the cluster's.
        write("resolv.conf", &format!("nameserver {name_server}\n"))?;
        write("Corefile", &dns::corefile(name_server))?;
        write("dns.json", &dns::objects(name_server))?;
        let hosts = instance.file("dns/hosts");
        fs::write(&hosts, "").with_context(|| format!("cannot write {}", hosts.display()))?;
        let snapshotter = snapshotter(&instance.folder)?;
        write("containerd.toml", &config::containerd(snapshotter, &plan.part("runc")?, gvisor))?;
        write("runsc.toml", config::runsc())?;
        write("runtime-class.json", &config::gvisor_runtime_class())?;
    }
    Ok(())
}

fn write_keys(instance: &Instance, plan: &Plan) -> Result<()> {
    let pki = instance.file("pki");
    let authority = Authority::new()?;
    write_private(&pki.join("ca.crt"), &authority.certificate())?;

    let names = [
        "localhost",
        NODE,
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    ];
    let addresses = [Ipv4Addr::LOCALHOST, API_SERVICE, plan.link.cluster()].map(IpAddr::V4);
    let server = authority.server(&names, &addresses)?;
    let kubelet_client = authority.client("kube-apiserver-kubelet-client", Some("system:masters"))?;
    for (name, identity) in [("kube-apiserver", server), ("kubelet-client", kubelet_client)] {
        write_private(&pki.join(format!("{name}.crt")), &identity.certificate)?;
        write_private(&pki.join(format!("{name}.key")), &identity.key)?;
    }
    let (private, public) = pki::signing_key()?;
    write_private(&pki.join("service-account.key"), &private)?;
    write_private(&pki.join("service-account.pub"), &public)?;

    let server = config::api_server_url(plan.link.cluster());
    for (name, user, group) in IDENTITIES {
        let identity = authority.client(user, group)?;
        let text = config::kubeconfig(&server, &authority.certificate(), &identity);
        write_private(&instance.file(&format!("config/{name}.kubeconfig")), &text)?;
    }
    Ok(())
}

/// Overlays cannot be stacked on an overlay, which is what a container's own file system is.
fn snapshotter(folder: &Path) -> Result<&'static str> {
    let data = rustix::fs::statfs(folder).with_context(|| format!("cannot examine {}", folder.display()))?;
    Ok(if data.f_type == OVERLAYFS_MAGIC { "native" } else { "overlayfs" })
}

fn make_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).with_context(|| format!("cannot create {}", path.display()))
}
