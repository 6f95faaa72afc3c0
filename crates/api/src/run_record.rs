//! `RunRecord`: a bounded segment of what is stored of a run: its receipts or the end of its transcript.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::limits;
use crate::names::Digest;
use crate::schema;
use crate::tool_approval::RunReference;

/// A bounded piece of what a run left behind. The gateway writes it; it cannot be changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, CustomResource, JsonSchema)]
#[kube(
    group = "sympozium.ai",
    version = "v1alpha1",
    kind = "RunRecord",
    namespaced,
    shortname = "srec",
    category = "sympozium",
    doc = "A bounded piece of what a run left behind: receipts of its actions, or the end of its transcript.",
    derive = "PartialEq",
    printcolumn(name = "Run", type_ = "string", json_path = ".spec.run.name"),
    printcolumn(name = "Kind", type_ = "string", json_path = ".spec.kind"),
    printcolumn(name = "Segment", type_ = "integer", json_path = ".spec.segment"),
    printcolumn(name = "Head", type_ = "string", json_path = ".spec.head", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::Rules(&[
    (
        "self == oldSelf",
        "a record cannot be changed",
    ),
    (
        "has(self.previousHead) == (self.segment > 0)",
        "every segment but the first has the head of the one before in `previousHead`",
    ),
]))]
pub struct RunRecordSpec {
    /// The run that it is about.
    pub run: RunReference,
    /// What the lines are: `receipts` or `transcript`.
    pub kind: RecordKind,
    /// Which piece this is, from 0.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub segment: i32,
    /// The number of the first line, counted over all pieces of this kind.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub first_line: i64,
    /// The lines, each a JSON object.
    #[schemars(length(min = 1, max = limits::RECORD_LINES), inner(length(max = limits::RECORD_LINE)))]
    pub lines: Vec<String>,
    /// The hash of the last line of the piece before this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_head: Option<Digest>,
    /// The hash of the last line; it covers all lines before, of all pieces.
    pub head: Digest,
    /// When it was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded_at: Option<Time>,
}

/// What a record's lines are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(transform = schema::drop_description)]
pub enum RecordKind {
    /// One line for each decision and action.
    Receipts,
    /// The text, without what was dropped at the beginning.
    Transcript,
}
