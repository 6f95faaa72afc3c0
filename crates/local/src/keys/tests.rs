use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::time::Duration;

use sympozium_api::names::{EnvName, SecretName};
use sympozium_testkit::{growing, wait_until};

use super::*;

fn keys() -> Vec<ModelKey> {
    let key = |variable: &str| ModelKey { variable: EnvName::new(variable), secret: SecretName::new("openai-key") };
    vec![key("OPENAI_API_KEY"), key("API_KEY")]
}

/// Every source of keys.
#[derive(Default)]
struct Harness<'g> {
    file: Option<&'g Path>,
    command: Option<&'g str>,
    secret: &'g [(&'g str, &'g str)],
    environment: Option<&'g [(&'g str, &'g str)]>,
}

impl Harness<'_> {
    fn find(&self, keys: &[ModelKey]) -> Result<Option<(String, String)>, String> {
        let secret = |name: &str| {
            assert_eq!(name, "openai-key");
            let all = self.secret.iter();
            let all = all.map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec().into()));
            let all: BTreeMap<_, _> = all.collect();
            Ok(Some(Secret(all)).filter(|it| !it.0.is_empty()))
        };
        let variable = |name: &str| {
            let mut all = self.environment.unwrap_or_default().iter();
            all.find(|(key, _)| *key == name).map(|(_, it)| OsString::from(it))
        };
        let sources = KeySources {
            file: self.file,
            command: self.command,
            secret: &secret,
            environment: self.environment.map(|_| &variable as _),
        };
        match find_key(keys, &sources) {
            Ok(found) => Ok(found.map(|(variable, key)| (variable, key.to_string()))),
            Err(HintedError { error, hint }) => Err(format!("error: {error:#}\nhint: {hint}\n")),
        }
    }
}

fn found_key(variable: &str, key: &str) -> Result<Option<(String, String)>, String> {
    Ok(Some((variable.to_owned(), key.to_owned())))
}

#[test]
fn the_first_source_with_a_key_is_used() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("key");
    fs::write(&file, "  sk-file\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let all = |file, command| Harness {
        file,
        command,
        secret: &[("OPENAI_API_KEY", "sk-secret"), ("API_KEY", "sk-any")],
        environment: Some(&[("OPENAI_API_KEY", "sk-env")]),
    };
    let given = all(Some(&file), None);
    assert_eq!(given.find(&keys()), found_key("OPENAI_API_KEY", "sk-file"));
    let given = all(None, Some("echo sk-command; exec >&-"));
    assert_eq!(given.find(&keys()), found_key("OPENAI_API_KEY", "sk-command"));
    let given = all(None, None);
    assert_eq!(given.find(&keys()), found_key("OPENAI_API_KEY", "sk-secret"));
    let given = Harness { secret: &[("API_KEY", "sk-any\n"), ("other", "x")], ..all(None, None) };
    assert_eq!(given.find(&keys()), found_key("API_KEY", "sk-any"));
    let given = Harness { secret: &[], ..all(None, None) };
    assert_eq!(given.find(&keys()), found_key("OPENAI_API_KEY", "sk-env"));
    let path = file.to_str().unwrap();
    let variables = [("OPENAI_API_KEY", ""), ("API_KEY_FILE", path)];
    let given = Harness { environment: Some(&variables), ..Harness::default() };
    assert_eq!(given.find(&keys()), found_key("API_KEY", "sk-file"));
    // A plan without a variable for a key needs none.
    assert_eq!(all(Some(&file), None).find(&[]), Ok(None));
}

#[test]
fn the_error_lists_every_source_of_keys() {
    let given = Harness { environment: Some(&[]), ..Harness::default() };
    assert_eq!(
        given.find(&keys()),
        Err("error: there is no key for the model's provider\n\
            hint: set one with `sympozium secret set openai-key OPENAI_API_KEY`, --key-file FILE, --key-command COMMAND, \
            OPENAI_API_KEY or OPENAI_API_KEY_FILE in the environment\n"
            .to_owned())
    );
}

#[test]
fn a_variable_is_used_only_for_the_providers_own_address() {
    let error = Harness::default().find(&keys()).unwrap_err();
    assert!(error.contains("--key-command 'printenv OPENAI_API_KEY'"), "{error}");
}

#[test]
fn files_that_others_can_read_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("key");
    fs::write(&file, "hunter2").unwrap();
    let refused = |path: &Path, expected: &str| {
        let given = Harness { file: Some(path), ..Harness::default() };
        let error = given.find(&keys()).unwrap_err();
        assert!(error.contains(expected), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    };
    for mode in [0o644, 0o640, 0o660, 0o602] {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        refused(&file, "is accessible to other users");
    }
    let link = directory.path().join("link");
    symlink(&file, &link).unwrap();
    refused(&link, "is accessible to other users");
    refused(directory.path(), "is not a regular file");
    refused(Path::new("/dev/zero"), "is not a regular file");
    refused(&directory.path().join("missing"), "cannot read");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    for (text, expected) in [
        (String::new(), "contains no key"),
        (" \n".to_owned(), "contains no key"),
        ("hunter2 hunter2".to_owned(), "more than one word"),
        ("hunter2\nX-Header: hunter2".to_owned(), "more than one word"),
        ("hunter2\u{e9}".to_owned(), "characters that are invalid in a key"),
        ("x".repeat(MAX_KEY_BYTES + 1), "more than 16384 bytes"),
    ] {
        fs::write(&file, text).unwrap();
        refused(&file, expected);
    }
    fs::write(&file, "x".repeat(MAX_KEY_BYTES)).unwrap();
    assert_eq!(from_file(&file).unwrap().len(), MAX_KEY_BYTES);
}

#[test]
fn a_failed_key_command_has_a_printable_error() {
    let run = |command: &str| {
        let given = Harness { command: Some(command), ..Harness::default() };
        given.find(&keys()).unwrap_err()
    };
    for (command, expected) in [
        (r"printf 'no such \033[2Jentry\n' >&2; echo hunter2; exit 3", "exited with code 3: no such [2Jentry\n"),
        ("kill -9 $$", "was killed by signal 9\n"),
        ("true", "it contains no key"),
        ("echo hunter2 hunter2", "more than one word"),
        ("head -c 20000 /dev/zero", "more than 16384 bytes"),
        ("yes hunter2", "more than 16384 bytes"),
        ("seq 100000 >&2; exit 1", "99999 100000\n"),
    ] {
        let error = run(command);
        assert!(error.contains(expected), "{command}: {error}");
        assert!(!error.contains("hunter2"), "{error}");
        assert!(error.len() < 4096, "{}", error.len());
    }
}

#[test]
fn a_key_command_that_hangs_is_killed_with_its_processes() {
    let directory = tempfile::tempdir().unwrap();
    let pids = directory.path().join("pids");
    let command = format!("sleep 1000 & echo $! $$ > {}; wait", pids.display());
    // Repeated with a longer timeout if the machine was too slow to start it.
    let written = growing(Duration::from_millis(500)).find_map(|time| {
        let error = command::run_within(&command, time).unwrap_err();
        assert_eq!(error.to_string(), "the key command took too long and was killed");
        let written = fs::read_to_string(&pids).ok()?;
        written.ends_with('\n').then_some(written)
    });
    let written = written.expect("in time");
    let gone = |pid: &str| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
        stat.map_or(true, |it| it.contains(") Z "))
    };
    let deadline = Duration::from_secs(60);
    assert!(wait_until(deadline, || written.split_whitespace().all(gone)));
}

#[test]
fn a_key_command_has_the_users_environment() {
    let given = Harness { command: Some("echo \"k${PATH:+-has-path}\""), ..Harness::default() };
    assert_eq!(given.find(&keys()), found_key("OPENAI_API_KEY", "k-has-path"));
}
