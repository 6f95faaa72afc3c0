//! What the API server enforces for every client: ValidatingAdmissionPolicies.
//!
//! RBAC says who may write an object; these say what may stand in it. They fail closed, so each is asked about kinds of ours
//! only, or, for kinds of others, about objects that have the form of a run's: `kube-system`, our own namespace and the
//! cluster's own controllers are never asked about those. Members of `system:masters` may do everything but vote in another's
//! name: they could remove the policies as well, and an administrator must be able to repair things.

use serde_json::{Value, json};
use sympozium_api::installation::{CONTROLLER, GATEWAY};
use sympozium_api::labels::{GROUP, MANAGED_BY, MANAGER, PLATFORM_ANNOTATIONS, SYSTEM_NAMESPACE, VERSION, annotation};

use super::{Document, cluster_wide};

/// The group that RBAC does not bound.
const MASTERS: &str = "has(request.userInfo.groups) && 'system:masters' in request.userInfo.groups";
/// What ends a name that was made for a run (`sympozium_plan::render::names`): the digits of its UID, or those and a word.
const OF_A_RUN: &str = "-[0-9a-f]{32}(-[a-z0-9]{1,13})?$";

struct Policy {
    name: &'static str,
    comment: &'static str,
    /// What it is asked about.
    rules: Value,
    /// Names and expressions: it is asked only where all hold.
    conditions: Vec<(&'static str, String)>,
    variables: Vec<(&'static str, String)>,
    /// Expressions that must hold, and the message where they do not.
    validations: Vec<(String, &'static str)>,
}

pub fn documents() -> Vec<Document> {
    [votes(), records(), runs(), run_status(), run_objects()].into_iter().flat_map(Policy::documents).collect()
}

/// Who votes on a request for approval, and how.
fn votes() -> Policy {
    let votes = |object: &str| {
        format!("has({object}.status) && has({object}.status.votes) ? dyn({object}.status.votes) : dyn([])")
    };
    // What stays as it is, once there is a decision; the kind's own rules hold the rest of it.
    let reason = |object: &str| format!("has({object}.status.reason) ? dyn({object}.status.reason) : dyn('')");
    Policy {
        name: "sympozium-votes",
        comment: "A vote has the name of the user who sends it, lists only groups of this user, and replaces no other vote. Skills cannot\n\
                  vote, so no run approves itself. This policy exempts no user, because it guarantees who decided.",
        rules: json!([ours(&["toolapprovals/status"], &["UPDATE"])]),
        conditions: Vec::new(),
        variables: vec![
            ("me", "request.userInfo.username".to_owned()),
            (
                "groups",
                "has(request.userInfo.groups) ? request.userInfo.groups : []".to_owned(),
            ),
            ("before", votes("oldObject")),
            ("after", votes("object")),
            (
                "decidedBefore",
                "has(oldObject.status) && has(oldObject.status.decision)".to_owned(),
            ),
            (
                "decided",
                "has(object.status) && has(object.status.decision)".to_owned(),
            ),
        ],
        validations: vec![
            (
                "!variables.decided || variables.decidedBefore || (has(object.status.decidedBy) && object.status.decidedBy == variables.me)"
                    .to_owned(),
                "`decidedBy` must be your own name, as the API server knows you",
            ),
            (
                "variables.before.all(old, variables.after.exists(new, new == old))".to_owned(),
                "a vote that was given cannot be changed or removed",
            ),
            (
                "variables.after.all(new, new.by == variables.me || variables.before.exists(old, old.by == new.by))"
                    .to_owned(),
                "a vote must have your own name in `by`, as the API server knows you",
            ),
            (
                "variables.after.all(new, variables.before.exists(old, old.by == new.by) || !has(new.groups) || new.groups.all(group, group in variables.groups))"
                    .to_owned(),
                "a vote may name only groups in `groups` that you are in",
            ),
            (
                format!(
                    "!variables.decidedBefore || ({}) == ({})",
                    reason("object"),
                    reason("oldObject")
                ),
                "the reason of a decision cannot be changed",
            ),
            (
                format!(
                    "!variables.me.matches('^system:serviceaccount:[^:]+:.+{OF_A_RUN}') && !(variables.me in [{}, {}])",
                    account(CONTROLLER),
                    account(GATEWAY)
                ),
                "skills, the controller and the gateway cannot vote",
            ),
        ],
    }
}

/// Who writes down what runs did and asked.
fn records() -> Policy {
    Policy {
        name: "sympozium-records",
        comment: "Only the gateway creates records of runs and requests for approval. Records are never changed.",
        rules: json!([ours(&["runrecords"], &["CREATE", "UPDATE"]), ours(&["toolapprovals"], &["CREATE"]),]),
        conditions: exempt(),
        variables: Vec::new(),
        validations: vec![(
            format!("request.operation == 'CREATE' && request.userInfo.username == {}", account(GATEWAY)),
            "only the gateway creates records and requests for approval, and records cannot be changed",
        )],
    }
}

/// What may stand in a run, and what of it may change.
fn runs() -> Policy {
    let author = |object: &str| {
        let name = annotation::CREATED_BY;
        // A list, so that a name that is empty is not the same as none.
        format!(
            "{object} != null && has({object}.metadata.annotations) && '{name}' in {object}.metadata.annotations ? \
             [{object}.metadata.annotations['{name}']] : []"
        )
    };
    Policy {
        name: "sympozium-runs",
        comment: "The spec of a run does not change, except `cancel`. The rules in the CRD cannot check every field; this one compares\n\
                  the whole spec. Only an admission webhook, which does not exist yet, may record who created a run or a pack.",
        rules: json!([ours(&["agentruns", "skillpacks"], &["CREATE", "UPDATE"])]),
        conditions: exempt(),
        variables: vec![("author", author("object")), ("authorBefore", author("oldObject"))],
        validations: vec![
            (
                "variables.author == variables.authorBefore".to_owned(),
                "only Sympozium records who created an object: do not set or change the annotation sympozium.ai/created-by",
            ),
            (
                format!(
                    "request.operation == 'CREATE' || request.resource.resource != 'agentruns' || ({})",
                    same("object.spec", "oldObject.spec", "cancel")
                ),
                "a run cannot be changed, only cancelled (`cancel: true`): create a new one",
            ),
        ],
    }
}

/// Who writes which part of a run's status.
fn run_status() -> Policy {
    let status = |object: &str| format!("has({object}.status) ? dyn({object}.status) : dyn({{}})");
    Policy {
        name: "sympozium-run-status",
        comment: "Two programs write a run's status: the gateway the field `report`, the controller all others.",
        rules: json!([ours(&["agentruns/status"], &["UPDATE"])]),
        conditions: exempt(),
        variables: vec![
            ("me", "request.userInfo.username".to_owned()),
            ("before", status("oldObject")),
            ("after", status("object")),
        ],
        validations: vec![
            (
                format!("variables.me in [{}, {}]", account(CONTROLLER), account(GATEWAY)),
                "the status of a run is written by Sympozium only; to end a run set `spec.cancel`",
            ),
            (
                format!(
                    "variables.me != {} || ({})",
                    account(GATEWAY),
                    same("variables.after", "variables.before", "report")
                ),
                "the gateway writes `status.report` only",
            ),
            (
                format!(
                    "variables.me != {} || ('report' in variables.after) == ('report' in variables.before) && \
                     (!('report' in variables.after) || variables.after.report == variables.before.report)",
                    account(CONTROLLER)
                ),
                "`status.report` is the gateway's",
            ),
        ],
    }
}

/// Who makes and changes what belongs to a run.
fn run_objects() -> Policy {
    let is_of_a_run = |object: &str| {
        format!(
            "({object} != null && has({object}.metadata.name) && {object}.metadata.name.matches('{OF_A_RUN}') && \
             has({object}.metadata.labels) && '{MANAGED_BY}' in {object}.metadata.labels && \
             {object}.metadata.labels['{MANAGED_BY}'] == '{MANAGER}')"
        )
    };
    let mut conditions = vec![
        ("of-a-run", format!("{} || {}", is_of_a_run("object"), is_of_a_run("oldObject"))),
        (
            "not-in-the-system",
            // What is in no namespace has none in the request either.
            format!("!has(request.namespace) || !(request.namespace in ['kube-system', '{SYSTEM_NAMESPACE}'])"),
        ),
    ];
    conditions.extend(exempt());
    let rule = |group: &str, resources: &[&str], operations: &[&str]| json!({ "apiGroups": [group], "apiVersions": ["*"], "resources": resources, "operations": operations });
    let write: &[&str] = &["CREATE", "UPDATE"];
    Policy {
        name: "sympozium-run-objects",
        comment: "Only the controller creates and changes objects with the name and label of a run's object: no other client can give a\n\
                  run a Secret, a permission or egress. Deletion is not restricted beyond RBAC. On PersistentVolumeClaims and\n\
                  ServiceAccounts, platforms may write annotations of volumes, finalizers and image pull secrets. A label does not turn\n\
                  another client's object into a run's, and no client can give a ServiceAccount a cloud identity.",
        rules: json!([
            rule("", &["configmaps", "persistentvolumeclaims", "secrets", "serviceaccounts"], write),
            rule("batch", &["jobs"], write),
            rule("networking.k8s.io", &["networkpolicies"], write),
            rule("rbac.authorization.k8s.io", &["clusterrolebindings", "clusterroles", "rolebindings", "roles"], write),
            rule("agents.x-k8s.io", &["sandboxes"], &["CREATE"]),
        ]),
        conditions,
        variables: vec![
            ("annotationsBefore", metadata("oldObject", "annotations", "{}")),
            ("annotationsAfter", metadata("object", "annotations", "{}")),
            ("platformOnly", platform_only()),
            ("sameOtherwise", same_otherwise()),
        ],
        validations: vec![(
            // What is not needed is not looked at: there is no old object of one that is created.
            format!(
                "request.userInfo.username == {} || request.operation == 'UPDATE' && \
                 request.resource.resource in ['persistentvolumeclaims', 'serviceaccounts'] && \
                 variables.sameOtherwise && variables.platformOnly",
                account(CONTROLLER)
            ),
            "objects of runs are made and changed by the Sympozium controller only; use another name, or leave the label sympozium.ai/managed-by out",
        )],
    }
}

/// A field of an object's metadata, or what stands for none.
fn metadata(object: &str, field: &str, none: &str) -> String {
    format!("has({object}.metadata.{field}) ? dyn({object}.metadata.{field}) : dyn({none})")
}

/// Holds where annotations differ in those only that platforms write by themselves.
fn platform_only() -> String {
    let names: Vec<String> = (PLATFORM_ANNOTATIONS.iter()).map(|name| name.replace('.', "[.]")).collect();
    let platform = format!("key.matches('^({})')", names.join("|"));
    format!(
        "variables.annotationsAfter.all(key, {platform} || (key in variables.annotationsBefore && \
         variables.annotationsAfter[key] == variables.annotationsBefore[key])) && \
         variables.annotationsBefore.all(key, {platform} || key in variables.annotationsAfter)"
    )
}

/// Holds where a claim or an account has the labels, owners and powers that it had.
fn same_otherwise() -> String {
    let top = |field: &str, none: &str| {
        let of = |object: &str| format!("(has(dyn({object}).{field}) ? dyn({object}).{field} : dyn({none}))");
        format!("{} == {}", of("object"), of("oldObject"))
    };
    let metadata = |field: &str, none: &str| {
        format!("({}) == ({})", metadata("object", field, none), metadata("oldObject", field, none))
    };
    [
        metadata("labels", "{}"),
        metadata("ownerReferences", "[]"),
        top("spec", "{}"),
        top("automountServiceAccountToken", "true"),
    ]
    .join(" && ")
}

/// Whom policies are not for: those who can do everything, and the cluster's own controllers (the garbage collector changes
/// owners, for one).
fn exempt() -> Vec<(&'static str, String)> {
    vec![
        ("not-a-master", format!("!({MASTERS})")),
        (
            "not-the-cluster",
            "!request.userInfo.username.startsWith('system:serviceaccount:kube-system:') && \
             !(request.userInfo.username in ['system:apiserver', 'system:kube-controller-manager'])"
                .to_owned(),
        ),
    ]
}

/// The user that a ServiceAccount of ours is, as text in an expression.
fn account(name: &str) -> String {
    format!("'system:serviceaccount:{SYSTEM_NAMESPACE}:{name}'")
}

/// Holds where two maps differ in one key at most.
fn same(after: &str, before: &str, but: &str) -> String {
    format!(
        "dyn({after}).all(key, key == '{but}' || (key in dyn({before}) && dyn({after})[key] == dyn({before})[key])) && \
         dyn({before}).all(key, key == '{but}' || key in dyn({after}))"
    )
}

fn ours(resources: &[&str], operations: &[&str]) -> Value {
    json!({
        "apiGroups": [GROUP], "apiVersions": [VERSION], "resources": resources, "operations": operations,
    })
}

impl Policy {
    fn documents(self) -> [Document; 2] {
        let conditions: Vec<Value> = (self.conditions.iter())
            .map(|(name, expression)| json!({ "name": name, "expression": expression }))
            .collect();
        let variables: Vec<Value> = (self.variables.iter())
            .map(|(name, expression)| json!({ "name": name, "expression": expression }))
            .collect();
        let validations: Vec<Value> = (self.validations.iter())
            .map(|(expression, message)| json!({ "expression": expression, "message": message, "reason": "Forbidden" }))
            .collect();
        let mut spec = json!({
            "failurePolicy": "Fail",
            "matchConstraints": { "resourceRules": self.rules },
            "validations": validations,
        });
        if !conditions.is_empty() {
            spec["matchConditions"] = json!(conditions);
        }
        if !variables.is_empty() {
            spec["variables"] = json!(variables);
        }
        let api_version = "admissionregistration.k8s.io/v1";
        [
            Document::new(
                self.comment,
                json!({
                    "apiVersion": api_version, "kind": "ValidatingAdmissionPolicy",
                    "metadata": cluster_wide(self.name), "spec": spec,
                }),
            ),
            Document::new(
                "",
                json!({
                    "apiVersion": api_version, "kind": "ValidatingAdmissionPolicyBinding",
                    "metadata": cluster_wide(self.name),
                    "spec": { "policyName": self.name, "validationActions": ["Deny"] },
                }),
            ),
        ]
    }
}
