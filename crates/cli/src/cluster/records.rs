//! Reads the RunRecords of a run and puts their segments in order.

use kube::ResourceExt as _;
use kube::api::ListParams;
use sympozium_api::run_record::RecordKind;
use sympozium_api::{AgentRun, RunRecord, labels};
use sympozium_plan::render::names::ObjectNames;

use super::call_error::Role;
use super::{Connection, plan};
use sympozium_runs::HintedError;

/// Records per list page: each may have up to a megabyte.
pub const PAGE_SIZE: u32 = 20;
/// The maximum number of records of one run that are read.
const MAX_RECORDS: usize = 20_000;
/// The maximum number of bytes of all their lines.
const MAX_BYTES: usize = 128 << 20;

/// The records of one kind, in order and without a gap.
#[derive(Debug, Default)]
pub struct Records {
    pub records: Vec<RunRecord>,
    /// Whether there is more than was read.
    pub is_truncated: bool,
    /// The first missing segment, if there are segments behind it.
    pub gap: Option<usize>,
}

impl Records {
    pub fn lines(&self) -> impl Iterator<Item = &String> {
        self.records.iter().flat_map(|it| &it.spec.lines)
    }
}

/// Reads the records of a run of one kind.
///
/// # Errors
///
/// When they cannot be listed.
pub async fn read(connection: &Connection, run: &AgentRun, kind: RecordKind) -> Result<Records, HintedError> {
    let api = connection.records();
    let names = plan::object_names(run);
    let mut parameters = ListParams::default().labels(&run_selector(run)).limit(PAGE_SIZE);
    let mut records = Vec::new();
    let (mut count, mut bytes, mut is_truncated) = (0, 0, false);
    loop {
        let page = connection.call("list RunRecords", Role::Viewer, api.list(&parameters));
        let page = page.await?;
        for record in page.items {
            count += 1;
            let is_wanted = record.spec.kind == kind && belongs_to(&record, run, &names);
            let length: usize = record.spec.lines.iter().map(String::len).sum();
            if is_wanted && bytes + length <= MAX_BYTES {
                bytes += length;
                records.push(record);
            } else {
                is_truncated |= is_wanted;
            }
        }
        let next = page.metadata.continue_.filter(|it| !it.is_empty());
        match next {
            Some(next) if count < MAX_RECORDS && !is_truncated => {
                parameters = parameters.continue_token(&next);
            }
            next => {
                is_truncated |= next.is_some();
                break;
            }
        }
    }
    let (records, gap) = take_contiguous(records);
    Ok(Records { records, is_truncated, gap })
}

/// The label selector for the objects of a run. Callers check the owner that is in them.
pub fn run_selector(run: &AgentRun) -> String {
    format!("{}={}", labels::RUN_UID, run.uid().unwrap_or_default())
}

/// Whether a record is one of this run, with the only name that such a record has: any user may set labels.
pub fn belongs_to(record: &RunRecord, run: &AgentRun, names: &ObjectNames) -> bool {
    let spec = &record.spec;
    let name = names.with_suffix(&segment_name(spec.kind, spec.segment));
    run.metadata.uid.as_deref() == Some(spec.run.uid.as_str()) && record.name_any() == name
}

/// The name of a segment in its run.
pub fn segment_name(kind: RecordKind, segment: i32) -> String {
    let letter = match kind {
        RecordKind::Receipts => 'r',
        RecordKind::Transcript => 't',
    };
    format!("{letter}{segment}")
}

/// The segments up to the first missing one, and which that is.
pub fn take_contiguous(mut records: Vec<RunRecord>) -> (Vec<RunRecord>, Option<usize>) {
    records.sort_by_key(|it| it.spec.segment);
    let is_next =
        |(index, record): &(usize, &RunRecord)| usize::try_from(record.spec.segment).is_ok_and(|it| it == *index);
    let contiguous = records.iter().enumerate().take_while(is_next).count();
    let gap = (contiguous < records.len()).then_some(contiguous);
    records.truncate(contiguous);
    (records, gap)
}
