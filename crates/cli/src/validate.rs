//! `sympozium validate`: checks whether the API server would store manifests, and whether their runs would be admitted.

use std::process::ExitCode;

use sympozium_manifests::validate::{Completeness, Report, Schemas, Session};

use crate::arguments::{OutputFormat, ValidateArguments};
use crate::failure::{Failure, exit_code};
use crate::output::{print_stderr, print_stdout, to_json};

pub fn run(arguments: &ValidateArguments) -> Result<ExitCode, Failure> {
    let report = validate(arguments);
    match arguments.output {
        OutputFormat::Text => {
            print_stdout(&report.text())?;
            print_stderr(&report.summary());
        }
        OutputFormat::Json => print_stdout(&to_json(&report)?)?,
    }
    Ok(exit_code(report.conclusion()))
}

fn validate(arguments: &ValidateArguments) -> Report {
    let session = Session::read(&arguments.namespace, &arguments.files, arguments.floor.as_deref());
    let completeness = if arguments.strict { Completeness::Complete } else { Completeness::Partial };
    session.finish(&mut Schemas::default(), completeness)
}
