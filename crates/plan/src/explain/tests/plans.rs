//! Plans of any form, including those that a planner would never make, because an explanation must not depend on that.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};
use sympozium_api::RunPlan;

/// A text as in manifests, or one that is meant to be misread.
pub fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => "[a-z][a-z0-9-]{0,8}",
        1 => "\\PC{0,12}",
        1 => "[a-z\n\r\t\u{1b}\u{7f}\u{9b}\u{202e}\u{2066}\u{200b}]{0,12}",
    ]
}

fn name() -> impl Strategy<Value = String> {
    select(vec!["a", "b", "c", "d"]).prop_map(str::to_owned)
}

fn part_name() -> impl Strategy<Value = String> {
    select(vec!["agent", "ipc-bridge", "skill-a", "skill-b", "sandbox"]).prop_map(str::to_owned)
}

fn volume() -> impl Strategy<Value = Value> {
    prop_oneof![
        (select(vec!["disk", "memory"]), select(vec!["1Gi", "64Mi"]))
            .prop_map(|(medium, size)| json!({"kind": "scratch", "medium": medium, "size": size})),
        Just(json!({"kind": "kept", "size": "1Gi"})),
        (name(), any::<bool>())
            .prop_map(|(pack, programs)| json!({"kind": "texts", "pack": pack, "programs": programs})),
        part_name().prop_map(|part| json!({"kind": "input", "part": part})),
        select(vec!["skill-0", "hooks"]).prop_map(|identity| json!({"kind": "token", "identity": identity})),
        text().prop_map(|secret| json!({"kind": "secret", "secret": secret})),
        text().prop_map(|name| json!({"kind": "configMap", "configMap": name})),
        text().prop_map(|path| json!({"kind": "host", "path": path})),
        declared().prop_map(|volume| json!({"kind": "declared", "volume": volume})),
    ]
}

fn declared() -> impl Strategy<Value = Value> {
    prop_oneof![
        text().prop_map(|name| json!({"name": "v", "secret": {"secretName": name}})),
        text().prop_map(|name| json!({"name": "v", "persistentVolumeClaim": {"claimName": name}})),
        text().prop_map(|path| json!({"name": "v", "hostPath": {"path": path}})),
        text().prop_map(|path| json!({"name": "v", "emptyDir": {}, "hostPath": {"path": path}})),
        vec(text(), 0..3).prop_map(|all| {
            let sources = all.iter().map(|name| json!({"secret": {"name": name}}));
            let sources: Vec<Value> = sources.collect();
            json!({"name": "v", "projected": {"sources": sources}})
        }),
        Just(json!({"name": "v"})),
        Just(json!({"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}})),
        Just(json!({"name": "v", "configMap": 3})),
        text().prop_map(|key| json!({"name": "v", key: null})),
    ]
}

fn mount() -> impl Strategy<Value = Value> {
    let path = prop_oneof![2 => Just("/workspace".to_owned()), 1 => text()];
    (0..6usize, path, any::<bool>(), option::of(text())).prop_map(|(volume, path, read_only, sub_path)| {
        let mut mount = json!({"volume": format!("v{volume}"), "path": path, "readOnly": read_only});
        if let Some(sub_path) = sub_path {
            mount["subPath"] = json!(sub_path);
        }
        mount
    })
}

fn variable() -> impl Strategy<Value = Value> {
    prop_oneof![
        (text(), text()).prop_map(|(name, value)| json!({"name": name, "value": value})),
        (text(), text(), text()).prop_map(|(name, secret, key)| {
            json!({"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}})
        }),
    ]
}

fn host_access() -> impl Strategy<Value = Value> {
    (any::<bool>(), any::<[bool; 4]>(), vec(text(), 0..2)).prop_map(
        |(enabled, [network, privileged, processes, root], mounts)| {
            let mounts: Vec<Value> =
                mounts.iter().map(|path| json!({"hostPath": path, "mountPath": "/host"})).collect();
            json!({
                "enabled": enabled, "hostNetwork": network, "privileged": privileged, "hostPID": processes,
                "runAsRoot": root, "mounts": mounts,
            })
        },
    )
}

/// Boxed: so many nested strategies would not fit on a test's stack.
fn part(name: &'static str, role: Value) -> BoxedStrategy<Value> {
    (
        vec(mount(), 0..4),
        vec(variable(), 0..3),
        option::of(select(vec!["skill-0", "hooks", "missing"])),
        option::weighted(0.1, host_access()),
        text(),
        option::of(1..100u64),
    )
        .prop_map(move |(mounts, env, identity, host_access, image, seconds)| {
            let mut part = json!({
                "name": name, "role": role, "image": image, "start": {"kind": "image"},
                "env": env, "mounts": mounts,
                "amounts": {"cpuRequest": "1", "cpuLimit": "1", "memoryRequest": "1Gi", "memoryLimit": "1Gi"},
            });
            if let Some(identity) = identity {
                part["identity"] = json!(identity);
            }
            if let Some(access) = host_access {
                part["hostAccess"] = access;
            }
            if let Some(seconds) = seconds {
                part["timeoutSeconds"] = json!(seconds);
            }
            part
        })
        .boxed()
}

fn rule() -> impl Strategy<Value = Value> {
    let words = |words: &'static [&'static str]| vec(select(words), 1..4);
    (
        words(&["", "apps", "*", "sympozium.ai", "example.com"]),
        words(&["pods", "pods/exec", "secrets", "*", "configmaps", "deployments/scale"]),
        words(&["get", "list", "patch", "*", "delete", "bind"]),
        vec(text(), 0..2),
    )
        .prop_map(|(groups, resources, verbs, names)| {
            json!({"apiGroups": groups, "resources": resources, "verbs": verbs, "resourceNames": names})
        })
}

fn identity(name: &'static str, pack: Option<&'static str>) -> impl Strategy<Value = Value> {
    (vec(rule(), 0..3), vec(rule(), 0..3)).prop_map(move |(own, whole)| {
        let mut identity = json!({"name": name, "namespaceRules": own, "clusterRules": whole, "tokenSeconds": 600});
        if let Some(pack) = pack {
            identity["pack"] = json!(pack);
        }
        identity
    })
}

fn credential() -> impl Strategy<Value = Value> {
    let destination = (text(), option::of(any::<u16>())).prop_map(|(host, port)| match port {
        Some(port) => json!({"host": host, "port": port}),
        None => json!({"host": host}),
    });
    (part_name(), any::<bool>(), vec(destination, 0..3)).prop_map(
        |(part, public, all)| json!({"name": part, "part": part, "reach": {"public": public, "destinations": all}}),
    )
}

fn tool() -> impl Strategy<Value = Value> {
    let acts = prop_oneof![
        Just(json!({"by": "agent"})),
        Just(json!({"by": "bridge"})),
        part_name().prop_map(|part| json!({"by": "shell", "part": part})),
        (part_name(), vec(text(), 0..3))
            .prop_map(|(part, exec)| json!({"by": "program", "part": part, "exec": exec, "inputMode": "args"})),
    ];
    (text(), option::of(name()), select(vec!["allow", "ask", "deny"]), acts, 1..100u32).prop_map(
        |(name, pack, gate, acts, number)| {
            let mut tool = json!({
                "name": name, "gate": gate, "acts": acts, "description": name, "parameters": {},
                "limits": {"timeoutSeconds": number, "argumentBytes": 1, "outputBytes": 1, "concurrent": 1, "perMinute": 1},
            });
            if let Some(pack) = pack {
                tool["pack"] = json!(pack);
            }
            tool
        },
    )
}

prop_compose! {
    /// Any plan.
    pub fn any_plan()(
        agent in part("agent", json!({"kind": "agent"})),
        bridge in part("ipc-bridge", json!({"kind": "bridge"})),
        others in (
            option::of(part("skill-a", json!({"kind": "skill", "pack": "a"}))),
            option::of(part("skill-b", json!({"kind": "skill", "pack": "b"}))),
            option::of(part("sandbox", json!({"kind": "sandbox"}))),
            option::of(prop_oneof![
                part("post-0-tell", json!({"kind": "postRun", "hook": "tell", "gate": false})),
                part("post-0-tell", json!({"kind": "postRun", "hook": "tell", "gate": true})),
                part("post-0-tell", json!({"kind": "postRun", "hook": "tell", "gate": true, "gateDefault": "allow"})),
            ]),
        ),
        volumes in vec(volume(), 0..6),
        identities in (option::of(identity("skill-0", Some("a"))), option::of(identity("hooks", None))),
        credentials in vec(credential(), 0..4),
        tools in vec(tool(), 0..5),
        keys in vec((text(), text()), 0..2),
        headers in option::of(text()),
        pulls in vec(text(), 0..2),
        floor in vec(select(vec!["network", "filesystem", "kernel"]), 0..3),
        approvers in option::of(vec(text(), 0..3)),
        numbers in (1..1000u64, option::of(1..1000u64), 0..3u32),
    ) -> RunPlan {
        let mut parts = vec![agent, bridge];
        parts.extend([others.0, others.1, others.2, others.3].into_iter().flatten());
        let volumes: Vec<Value> = volumes.into_iter().enumerate()
            .map(|(number, source)| json!({"name": format!("v{number}"), "source": source}))
            .collect();
        let identities: Vec<Value> = [identities.0, identities.1].into_iter().flatten().collect();
        let keys: Vec<Value> = keys.iter()
            .map(|(variable, secret)| json!({"variable": variable, "secret": secret}))
            .collect();
        let pulls: Vec<Value> = pulls.iter().map(|name| json!({"name": name})).collect();
        let mut model = json!({"provider": "p", "model": "m", "wire": "openAi", "keys": keys});
        if let Some(secret) = headers {
            model["headersSecret"] = json!(secret);
        }
        let mut approval = json!({"required": 1, "runScope": false, "runAuthor": true});
        if let Some(approvers) = approvers {
            let approvers: Vec<Value> = approvers.iter()
                .map(|name| json!({"kind": "User", "name": name}))
                .collect();
            approval["approvers"] = json!(approvers);
        }
        let mut limits = json!({
            "iterations": 1, "modelRequests": 1, "modelRequestsPerMinute": 1, "modelRequestBytes": 1,
            "modelAnswerBytes": 1, "toolCalls": 1, "concurrentToolCalls": 1, "resultBytes": 1, "transcriptBytes": 1,
        });
        if let Some(tokens) = numbers.1 {
            limits["modelTokens"] = json!(tokens);
        }
        let plan = json!({
            "format": "sympozium.ai/run-plan/v1",
            "run": {
                "namespace": "team", "name": "r", "uid": "00000000-0000-0000-0000-000000000000",
                "agentKind": "Agent", "agent": "a", "agentId": "default", "sessionKey": "s",
            },
            "resolved": [],
            "task": {"useContext": false, "mode": "task"},
            "model": model,
            "workload": {"kind": "job"},
            "isolation": {"floor": floor, "seccomp": {"type": "RuntimeDefault"}},
            "parts": parts, "volumes": volumes, "identities": identities, "credentials": credentials, "tools": tools,
            "approval": approval,
            "subagents": {"levels": numbers.2, "concurrent": 1, "children": 1},
            "limits": limits,
            "deadlines": {
                "runSeconds": numbers.0, "approvalSeconds": 1, "waitingSeconds": 1, "startSeconds": 300, "connectSeconds": 1, "graceSeconds": 1,
                "ceilingSeconds": 1,
            },
            "placement": {"imagePullSecrets": pulls},
            "cleanup": "delete",
        });
        serde_json::from_value(plan).expect("a plan")
    }
}
