//! The name server of a cluster: CoreDNS, a process of the node behind the Service `kube-dns`.
//!
//! It answers for the cluster's Services, and for the names of one file, `dns/hosts` in the state folder, which it reads
//! again when it changes: tests put names of the public network there. Every other name does not exist.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use serde_json::{Value, json};

use super::config::STATE;
use super::network::DNS_SERVICE;

/// What names of Services end in.
pub const DOMAIN: &str = "cluster.local";
const PORT: u16 = 53;
/// How long to wait for an answer before asking again.
const ANSWER_DEADLINE: Duration = Duration::from_millis(200);

/// The configuration of CoreDNS. There is no cache: a test that makes a Service looks it up at once.
pub fn corefile(address: Ipv4Addr) -> String {
    format!(
        r#". {{
    bind {address}
    errors
    hosts {STATE}/dns/hosts {{
        ttl 1
        reload 100ms
        no_reverse
        fallthrough
    }}
    kubernetes {DOMAIN} in-addr.arpa {{
        kubeconfig {STATE}/config/coredns.kubeconfig
        ttl 1
    }}
    template ANY ANY . {{
        rcode NXDOMAIN
        authority ". 1 IN SOA ns.dns.{DOMAIN}. hostmaster.{DOMAIN}. 1 60 60 60 1"
    }}
}}
"#
    )
}

/// The Service, with CoreDNS on the node at `address` behind it.
pub fn objects(address: Ipv4Addr) -> String {
    let name = "kube-dns";
    let port = |name: &str, protocol: &str| -> Value { json!({"name": name, "port": PORT, "protocol": protocol}) };
    let ports = [port("dns", "UDP"), port("dns-tcp", "TCP")];
    let metadata = |labels: Value| json!({"name": name, "namespace": "kube-system", "labels": labels});
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {
            "apiVersion": "v1", "kind": "Service",
            "metadata": metadata(json!({"k8s-app": name, "kubernetes.io/name": "CoreDNS"})),
            "spec": {"clusterIP": DNS_SERVICE, "ports": ports},
        },
        {
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": metadata(json!({"kubernetes.io/service-name": name})),
            "addressType": "IPv4", "ports": ports,
            "endpoints": [{"addresses": [address], "conditions": {"ready": true}}],
        },
    ]})
    .to_string()
}

/// The whole name of a Service.
pub fn full_name(service: &str, namespace: &str) -> String {
    format!("{service}.{namespace}.svc.{DOMAIN}")
}

/// Whether the name server at `server` knows an address of `name`.
pub fn answers(server: Ipv4Addr, name: &str) -> bool {
    let ask = || -> std::io::Result<bool> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.set_read_timeout(Some(ANSWER_DEADLINE))?;
        socket.connect((server, PORT))?;
        socket.send(&question(name))?;
        let mut answer = [0; 512];
        let length = socket.recv(&mut answer)?;
        Ok(has_records(&answer[..length]))
    };
    // CoreDNS does not listen yet, or kube-proxy has no rules for its Service yet.
    ask().unwrap_or(false)
}

/// A question for the IPv4 addresses of a name (RFC 1035, section 4).
fn question(name: &str) -> Vec<u8> {
    // Id 1, recursion desired, one question.
    let mut message = vec![0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        // A label has 63 bytes at most, and ours are constants.
        message.push(u8::try_from(label.len()).unwrap_or(u8::MAX));
        message.extend(label.as_bytes());
    }
    // The root, type A, class IN.
    message.extend([0, 0, 1, 0, 1]);
    message
}

/// Whether an answer is without error and has a record.
fn has_records(answer: &[u8]) -> bool {
    matches!(answer, [0, 1, flags, code, _, _, high, low, ..]
        if flags & 0x80 != 0 && code & 0x0f == 0 && (*high, *low) != (0, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_written_as_the_rfc_says() {
        let expected = b"\0\x01\x01\0\0\x01\0\0\0\0\0\0\x01a\x02bc\0\0\x01\0\x01";
        assert_eq!(question("a.bc"), expected);
    }

    #[test]
    fn only_an_answer_with_a_record_counts() {
        let answer = |flags: u8, code: u8, records: u8| [0, 1, flags, code, 0, 1, 0, records, 0, 0, 0, 0];
        assert!(has_records(&answer(0x85, 0, 1)));
        for other in [answer(0x05, 0, 1), answer(0x85, 3, 1), answer(0x85, 0, 0)] {
            assert!(!has_records(&other), "{other:?}");
        }
        assert!(!has_records(&[]));
    }

    #[test]
    fn pods_get_the_address_of_the_service() {
        let objects: Value = serde_json::from_str(&objects(Ipv4Addr::new(198, 18, 3, 2))).unwrap();
        let kubelet: Value = serde_json::from_str(&super::super::config::kubelet("/x")).unwrap();
        assert_eq!(objects["items"][0]["spec"]["clusterIP"], kubelet["clusterDNS"][0]);
        assert_eq!(objects["items"][1]["endpoints"][0]["addresses"], json!(["198.18.3.2"]));
    }
}
