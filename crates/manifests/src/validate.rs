//! Checks whether the API server would store manifests, and whether their runs would be admitted.
//!
//! The stages: files are found and read ([`crate::sources`]), documents become objects ([`object`]), objects are
//! validated against their schemas ([`schema`]), references are resolved ([`references`]), and the runs are admitted or
//! denied ([`admission`]). Every finding of every stage is reported, with its line.

mod admission;
mod finding;
mod object;
pub(crate) mod references;
mod report;
pub(crate) mod rules;
mod schema;
mod suggest;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::{Path as FilePath, PathBuf};

use crate::kinds::Kind;
use crate::load::{Budget, LoadedFile, load};
use crate::problem::{Problem, Severity};
use crate::sources::{self, Reader};
use crate::tree::{Mark, Path};
use admission::FloorSource;
pub use admission::{CheckOptions, CheckedRun, Purpose, RunDecision};
use finding::Findings;
pub use finding::{Conclusion, Finding, FindingSeverity, ObjectName, ValidationStage};
use object::ObjectReader;
pub use object::{Object, ObjectKind};
pub use references::Completeness;
pub use report::Report;
use schema::Schema;
pub use suggest::closest;

/// The files that were read so far, and the findings in them.
pub struct Session<'a> {
    default_namespace: &'a str,
    files: Vec<String>,
    objects: Vec<Object>,
    findings: Findings,
    budget: Budget,
    floor: FloorSource,
    external: ExternalObjects,
}

/// Which objects exist in addition to those that were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExternalObjects {
    /// The objects of a default installation: packs, policies and the floor.
    Installation,
    /// The same, for a run of this machine.
    Machine,
    /// A cluster, which may have any object, or whose relevant objects were all read.
    Cluster,
}

impl<'a> Session<'a> {
    pub fn new(default_namespace: &'a str) -> Self {
        Self {
            default_namespace,
            files: Vec::new(),
            objects: Vec::new(),
            findings: Findings::default(),
            budget: Budget::default(),
            floor: FloorSource::InFiles,
            external: ExternalObjects::Installation,
        }
    }

    /// For objects that go to a cluster: references resolve to its objects, not to what an installation ships.
    pub fn for_cluster(default_namespace: &'a str) -> Self {
        Self { external: ExternalObjects::Cluster, ..Self::new(default_namespace) }
    }

    /// The same for a run of this machine.
    pub fn for_machine(default_namespace: &'a str) -> Self {
        Self { external: ExternalObjects::Machine, ..Self::new(default_namespace) }
    }

    /// The same with other bounds on what is read.
    pub fn with_budget(default_namespace: &'a str, budget: Budget) -> Self {
        Self { budget, ..Self::new(default_namespace) }
    }

    /// Reads the paths, and the file with the floor.
    pub fn read(default_namespace: &'a str, paths: &[PathBuf], floor: Option<&FilePath>) -> Self {
        let mut session = Self::new(default_namespace);
        let mut reader = Reader::default();
        session.add_inputs(paths, &mut reader);
        if let Some(path) = floor {
            session.add_floor(&mut reader, path);
        }
        session
    }

    /// Reads everything that `inputs` name: files, directories, skills, standard input.
    pub fn add_inputs(&mut self, inputs: &[PathBuf], reader: &mut Reader) {
        // One file at a time, so that only its objects and findings stay in memory.
        let mut budget = std::mem::take(&mut self.budget);
        for (name, loaded) in sources::load_documents(inputs, reader, &mut budget) {
            self.add_loaded(name, loaded);
        }
        self.budget = budget;
    }

    /// Adds a file: its text, or why it could not be read.
    pub fn add_text(&mut self, name: String, text: Result<String, Problem>) {
        let loaded = match text {
            Ok(text) => load(&text, &mut self.budget),
            Err(problem) => LoadedFile::from_problem(problem),
        };
        self.add_loaded(name, loaded);
    }

    /// Adds the documents of a file.
    pub fn add_loaded(&mut self, name: String, loaded: LoadedFile) {
        let findings = &mut self.findings;
        findings.add_problems(&name, loaded.problems);
        let mut sorter = ObjectReader {
            file: self.files.len(),
            default_namespace: self.default_namespace,
            objects: &mut self.objects,
            problems: &mut |object, field, problem| {
                findings.add(schema_finding(&name, object, field, problem));
            },
        };
        for document in loaded.documents {
            sorter.read_document(document);
        }
        self.files.push(name);
    }

    /// Adds an object that an API server has stored.
    pub fn add_stored(&mut self, name: String, loaded: LoadedFile) {
        let before = self.objects.len();
        self.add_loaded(name, loaded);
        for object in &mut self.objects[before..] {
            object.is_stored = true;
        }
    }

    /// Whether everything could be read so far.
    pub fn is_readable(&self) -> bool {
        self.findings.errors == 0
    }

    pub fn objects(&self) -> &[Object] {
        &self.objects
    }

    /// For changes before validation.
    pub fn object_mut(&mut self, index: usize) -> Option<&mut Object> {
        self.objects.get_mut(index)
    }

    pub fn retain(&mut self, keep: impl FnMut(&Object) -> bool) {
        self.objects.retain(keep);
    }

    /// Denies an object for a reason that admission does not know.
    pub fn deny(&mut self, index: usize, field: &str, problem: Problem) {
        let Some(object) = self.objects.get(index) else {
            return;
        };
        let (file, name) = (&self.files[object.file], &object.name);
        self.findings.add(Finding {
            severity: FindingSeverity::Denied,
            stage: ValidationStage::Admission,
            ..schema_finding(file, Some(name), field.to_owned(), problem)
        });
    }

    /// The index of the file with the floor, if it is a file of its own.
    pub fn floor_file(&self) -> Option<usize> {
        match self.floor {
            FloorSource::InFile(file) => Some(file),
            FloorSource::InFiles | FloorSource::Absent => None,
        }
    }

    /// Adds the file with the cluster's floor.
    pub fn add_floor(&mut self, reader: &mut Reader, path: &FilePath) {
        let (file, before) = (self.files.len(), self.objects.len());
        self.add_inputs(&[path.to_owned()], reader);
        self.set_floor(file, before);
    }

    /// The same for a floor that does not come from a file.
    pub fn add_floor_text(&mut self, name: &str, text: &str) {
        let (file, before) = (self.files.len(), self.objects.len());
        self.add_text(name.to_owned(), Ok(text.to_owned()));
        self.set_floor(file, before);
    }

    /// The same for a floor that was parsed already; `None` means that there is known to be none.
    pub fn add_floor_loaded(&mut self, name: &str, floor: Option<LoadedFile>) {
        let Some(floor) = floor else {
            self.floor = FloorSource::Absent;
            return;
        };
        let (file, before) = (self.files.len(), self.objects.len());
        self.add_loaded(name.to_owned(), floor);
        self.set_floor(file, before);
    }

    fn set_floor(&mut self, file: usize, before: usize) {
        self.floor = FloorSource::InFile(file);
        let policy = ObjectKind::Sympozium(Kind::SympoziumPolicy);
        let is_one = self.files.len() == file + 1 && matches!(&self.objects[before..], [only] if only.kind == policy);
        if !is_one {
            let problem =
                Problem::error("floor", Mark::START, "the file of the floor must contain exactly one SympoziumPolicy")
                    .with_hint("use --floor with a file that contains only that policy");
            let name = &self.files[file];
            self.findings.add(Finding::from_problem(name, problem));
        }
    }

    /// Validates all files together.
    pub fn finish(self, schemas: &mut Schemas, completeness: Completeness) -> Report {
        self.finish_with(schemas, completeness, CheckOptions::ALL_RUNS)
    }

    /// The same, for callers that use the admitted runs.
    pub fn finish_with(
        mut self,
        schemas: &mut Schemas,
        completeness: Completeness,
        demand: CheckOptions<'_>,
    ) -> Report {
        for object in &mut self.objects {
            let findings = &mut self.findings;
            let file = &self.files[object.file];
            let mut is_sound = object.is_valid;
            schemas.check(object, &mut |path: Path<'_>, problem| {
                is_sound = false;
                let field = path.to_string();
                findings.add(schema_finding(file, Some(&object.name), field, problem));
            });
            object.is_valid = is_sound;
        }
        self.warn_if_empty();
        references::check(&self.objects, &self.files, completeness, &mut self.findings);
        let undecided = admission::check(
            &self.objects,
            &self.files,
            self.floor,
            self.external,
            completeness,
            demand,
            &mut self.findings,
        );
        Report::new(self.files, &self.objects, undecided, self.findings)
    }
}

impl Session<'_> {
    /// An empty input is suspicious: usually another file was meant.
    fn warn_if_empty(&mut self) {
        let first = match self.files.first() {
            Some(first) if self.objects.is_empty() && self.findings.errors == 0 => first,
            _ => return,
        };
        let problem = Problem::warning("empty", Mark::START, "there is no object to check")
            .with_hint("name a file with manifests, or check why this one is empty");
        self.findings.add(Finding::from_problem(first, problem));
    }
}

/// The schemas by kind, each parsed with the first object of its kind.
#[derive(Default)]
pub struct Schemas(HashMap<Kind, Option<Schema>>);

impl Schemas {
    fn check(&mut self, object: &Object, sink: &mut schema::Sink<'_>) {
        let ObjectKind::Sympozium(kind) = object.kind else {
            return;
        };
        let schema = self.0.entry(kind).or_insert_with(|| Schema::for_kind(kind));
        // Every kind has a schema; a test parses them all.
        if let Some(schema) = schema {
            schema::check_root(&object.node, schema, sink);
        }
        rules::check(kind, &object.node, sink);
    }
}

fn schema_finding(file: &str, object: Option<&ObjectName>, field: String, problem: Problem) -> Finding {
    Finding {
        severity: match problem.severity {
            Severity::Error => FindingSeverity::Error,
            Severity::Warning => FindingSeverity::Warning,
        },
        stage: ValidationStage::Schema,
        object: object.cloned(),
        field,
        ..Finding::from_problem(file, problem)
    }
}
