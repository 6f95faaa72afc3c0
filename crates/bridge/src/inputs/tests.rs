//! Directories as the kubelet creates them: each input at its limit, beyond it, and invalid.

use std::fs;
use std::os::unix::fs::symlink;

use proptest::prelude::*;
use rustix::fs::Mode;
use sympozium_api::names::{ObjectName, SecretName};
use sympozium_ipc::credential::{Claims, KeyRing};
use tempfile::TempDir;

use super::*;

const STORED: &[u8] = include_bytes!("../../../plan/src/plan/tests/fixtures/plan-v1.json");
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";

/// The mounts of a pod, and the plan that they belong to.
struct MountedInputs {
    plan: RunPlan,
    directory: TempDir,
}

impl MountedInputs {
    /// A run with all inputs.
    fn new() -> Self {
        let mut plan = RunPlan::read(STORED).unwrap();
        plan.model.headers_secret = Some(SecretName::new("headers"));
        plan.model.script = Some(ObjectName::new("script"));
        let mounted = Self { plan, directory: tempfile::tempdir().unwrap() };
        for volume in ["input", "headers", "script"] {
            let volume = mounted.directory.path().join(volume);
            fs::create_dir_all(volume.join("..2026_11_16")).unwrap();
            symlink("..2026_11_16", volume.join("..data")).unwrap();
        }
        mounted.put("input/plan.json", mounted.plan.to_bytes().unwrap());
        mounted.put("input/token", "eyJ.a-b_c.d\n");
        mounted.put("input/ca.crt", CERTIFICATE);
        for name in ["model", "web"] {
            mounted.put(&format!("input/credential-{name}"), mounted.signed(name));
        }
        mounted.put("headers/X-Team", "a team\n");
        mounted.put("headers/authorization", "Bearer sk-1");
        mounted.put("script/turns.yaml", "- say: hello\n");
        mounted
    }

    /// Writes a file as the kubelet does: behind two links.
    fn put(&self, path: &str, content: impl AsRef<[u8]>) {
        let (volume, name) = path.split_once('/').unwrap();
        let volume = self.directory.path().join(volume);
        fs::write(volume.join("..data").join(name), content).unwrap();
        let _ = symlink(format!("..data/{name}"), volume.join(name));
    }

    fn remove(&self, path: &str) {
        fs::remove_file(self.directory.path().join(path)).unwrap();
    }

    /// As `sympozium-gateway sign` creates it.
    fn signed(&self, name: &str) -> String {
        let keys = KeyRing::parse(&format!("k1 {}\n", "5a".repeat(32))).unwrap();
        let claims = Claims { run: self.plan.run.uid.to_string(), name: name.to_owned(), expires: 1_800_000_000 };
        let signed = keys.sign(&claims).unwrap();
        format!("{}:{}", signed.user, *signed.password)
    }

    fn places(&self) -> Directories {
        let at = |name: &str| self.directory.path().join(name);
        Directories {
            input: at("input"),
            door: at("door"),
            ipc: at("ipc"),
            headers: at("headers"),
            script: at("script"),
        }
    }

    fn digest(&self) -> Digest {
        RunPlan::digest_of(&self.plan.to_bytes().unwrap())
    }

    fn read_with(&self, token_need: TokenRequirement) -> Result<Inputs, String> {
        let inputs = Inputs::read(self.plan.clone(), self.digest(), &self.places(), token_need);
        inputs.map_err(|error| {
            assert!(!error.hint().is_empty());
            let place = format!("{}/", self.directory.path().display());
            error.to_string().replace(&place, "")
        })
    }

    fn read(&self) -> Result<Inputs, String> {
        self.read_with(TokenRequirement::Required)
    }

    /// The error if this file has that content.
    fn read_error(path: &str, content: impl AsRef<[u8]>) -> String {
        let mounted = Self::new();
        mounted.put(path, content);
        mounted.read().err().unwrap_or_default()
    }

    fn try_read_plan(&self) -> Result<Option<RunPlan>, String> {
        let read = read_plan(&self.places().input, &self.digest());
        read.map_err(|error| sympozium_program::error_chain(&error))
    }
}

#[test]
fn everything_that_a_kubelet_shows() {
    let mounted = MountedInputs::new();
    assert_eq!(mounted.try_read_plan(), Ok(Some(mounted.plan.clone())));
    let inputs = mounted.read().unwrap();
    assert_eq!(inputs.plan, mounted.plan);
    assert_eq!(inputs.plan_digest, mounted.digest());
    let credentials: Vec<_> = (inputs.credentials.iter())
        .map(|(name, credential)| (name.as_str(), format!("{}:{}", credential.user, *credential.password)))
        .collect();
    let expected = ["model", "web"].map(|name| (name, mounted.signed(name)));
    assert_eq!(credentials, expected);
    assert_eq!(inputs.token.as_deref().map(String::as_str), Some("eyJ.a-b_c.d"));
    assert_eq!(inputs.gateway_certificates.as_deref(), Some(CERTIFICATE.as_bytes()));
    let headers: Vec<_> = (inputs.headers.iter()).map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(headers, [("authorization", "Bearer sk-1"), ("x-team", "a team")]);
    assert_eq!(inputs.script.as_deref(), Some("- say: hello"));
}

#[test]
fn what_the_plan_does_not_have_is_not_looked_at() {
    let mut mounted = MountedInputs::new();
    mounted.plan = RunPlan::read(STORED).unwrap();
    mounted.plan.credentials.retain(|credential| credential.name == "model");
    for path in ["input/ca.crt", "input/credential-web"] {
        mounted.remove(path);
    }
    mounted.put("headers/host", "elsewhere");
    mounted.put("script/second", "");
    let inputs = mounted.read().unwrap();
    assert_eq!(inputs.credentials.keys().collect::<Vec<_>>(), ["model"]);
    assert!(inputs.credential("model").is_some() && inputs.credential("web").is_none());
    assert_eq!(inputs.gateway_certificates, None);
    assert!(inputs.headers.is_empty());
    assert_eq!(inputs.script, None);
}

#[test]
fn the_plan_is_the_one_that_was_asked_for() {
    let mounted = MountedInputs::new();
    let unchanged = mounted.plan.to_bytes().unwrap();
    let other = [b"{".as_slice(), &unchanged[1..unchanged.len() - 1], b" }"].concat();
    for (content, why) in [
        (&other[..], "was expected"),
        (STORED, "was expected"),
        (b"", "was expected"),
        (&vec![b' '; run_plan::MAX_BYTES], "was expected"),
        (&vec![b' '; run_plan::MAX_BYTES + 1], "has more than 524288 bytes"),
    ] {
        mounted.put("input/plan.json", content);
        let error = mounted.try_read_plan().unwrap_err();
        assert!(error.contains(why), "{error}");
    }
    mounted.remove("input/plan.json");
    assert_eq!(mounted.try_read_plan(), Ok(None));
    fs::create_dir(mounted.places().input.join("plan.json")).unwrap();
    assert!(mounted.try_read_plan().unwrap_err().ends_with("is not a regular file"));
}

/// A blocking open for reading would wait for a writer that never comes.
#[test]
fn a_fifo_is_not_waited_for() {
    let mounted = MountedInputs::new();
    let path = mounted.places().input.join("token");
    fs::remove_file(&path).unwrap();
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &path, fifo, Mode::RUSR, 0).unwrap();
    assert_eq!(mounted.read().err(), Some("input/token is not a regular file".into()));
}

#[test]
fn tokens() {
    let longest = "t".repeat(MAX_TOKEN_BYTES);
    assert_eq!(MountedInputs::read_error("input/token", &longest), "");
    let too_long = format!("{longest}t");
    assert_eq!(MountedInputs::read_error("input/token", too_long), "input/token has more than 16384 bytes");
    for wrong in [&b""[..], b"\n", b"a b", b"a\nb", b"a\0", b"\xff", "ü".as_bytes()] {
        let error = MountedInputs::read_error("input/token", wrong);
        assert!(error.starts_with("input/token is not "), "{error}");
    }
    let mounted = MountedInputs::new();
    mounted.remove("input/token");
    assert_eq!(mounted.read().err(), Some("input/token is missing".into()));
    let inputs = mounted.read_with(TokenRequirement::Optional).unwrap();
    assert_eq!(inputs.token.as_deref(), None);
    // A token that is there must be valid.
    mounted.put("input/token", "");
    assert!(mounted.read_with(TokenRequirement::Optional).is_err());
}

#[test]
fn a_renewed_token_is_found() {
    let mounted = MountedInputs::new();
    mounted.put("input/token", "renewed");
    assert_eq!(*read_token(&mounted.places().input).unwrap(), "renewed");
}

#[test]
fn credentials() {
    let mounted = MountedInputs::new();
    let good = mounted.signed("model");
    let (user, password) = good.split_once(':').unwrap();
    let malformed = [
        String::new(),
        user.to_owned(),
        format!("{user}:"),
        format!("{user}:{}", &password[1..]),
        format!("{user}:{password}0"),
        format!("{user}:{}", password.to_uppercase()),
        format!("{user}:{}", "g".repeat(PASSWORD_BYTES)),
        format!("{}:{password}", user.replace('.', "")),
        format!("{user}x:{password}"),
        format!("{user} :{password}"),
        good.replacen("k1", "k 1", 1),
        good.replacen("k1", "k\r\n1", 1),
        format!("http://{good}@127.0.0.1:3128"),
        "x".repeat(MAX_CREDENTIAL_BYTES),
    ];
    for wrong in malformed {
        let error = MountedInputs::read_error("input/credential-model", &wrong);
        assert_eq!(error, "input/credential-model is not a credential of the gateway", "{wrong}");
    }
    let other_run = good.replacen(mounted.plan.run.uid.as_str(), "another", 1);
    for wrong in [mounted.signed("web"), mounted.signed("model.web"), other_run] {
        let error = MountedInputs::read_error("input/credential-model", &wrong);
        assert_eq!(error, "input/credential-model is a credential of another run, or for something else");
    }
    let too_long = "x".repeat(MAX_CREDENTIAL_BYTES + 1);
    let error = MountedInputs::read_error("input/credential-model", too_long);
    assert!(error.contains("has more than"), "{error}");
    assert_eq!(MountedInputs::read_error("input/credential-model", format!("{good}\r\n")), "");
    mounted.remove("input/credential-web");
    assert_eq!(mounted.read().err(), Some("input/credential-web is missing".into()));
}

proptest! {
    /// Accepted input is unchanged, and nothing is mistaken for something else.
    #[test]
    fn whatever_is_in_a_credential(
        text in "[a-z0-9]{0,3}(\\.(run|web|model)){0,4}(\\.[0-9]{0,3})?:?([0-9a-f]{64}|\\PC{0,8})|\\PC{0,40}",
    ) {
        if let Ok(taken) = parse_credential(&text, "run", "model") {
            prop_assert_eq!(format!("{}:{}", taken.user, *taken.password), text.clone());
            prop_assert!(text.contains(".run.model."));
        }
    }

    #[test]
    fn whatever_a_header_is_called(name in "\\PC{0,20}|[!-~]{0,20}") {
        // RFC 9110: no delimiter, no space, only ASCII.
        let delimiters = "\"(),/:;<=>?@[\\]{}";
        let expected = !name.is_empty()
            && name.chars().all(|character| character.is_ascii_graphic() && !delimiters.contains(character));
        prop_assert_eq!(is_header_name(&name), expected);
    }
}

#[test]
fn certificates() {
    let fill = |bytes: usize| CERTIFICATE.to_owned() + &"#".repeat(bytes - CERTIFICATE.len());
    assert_eq!(MountedInputs::read_error("input/ca.crt", fill(MAX_CERTIFICATES_BYTES)), "");
    let error = MountedInputs::read_error("input/ca.crt", fill(MAX_CERTIFICATES_BYTES + 1));
    assert_eq!(error, "input/ca.crt has more than 262144 bytes");
    for wrong in ["", "MIIB", "-----BEGIN PRIVATE KEY-----"] {
        let error = MountedInputs::read_error("input/ca.crt", wrong);
        assert_eq!(error, "input/ca.crt has no certificate in it");
    }
}

#[test]
fn headers() {
    let longest_name = format!("headers/{}", "n".repeat(MAX_HEADER_NAME_BYTES));
    assert_eq!(MountedInputs::read_error(&longest_name, "v"), "");
    assert_eq!(MountedInputs::read_error("headers/x", "v".repeat(MAX_HEADER_BYTES)), "");
    assert_eq!(
        MountedInputs::read_error("headers/x", "v".repeat(MAX_HEADER_BYTES + 1)),
        "headers/x has more than 8192 bytes"
    );
    for name in [&format!("{}n", &longest_name[8..]), "a b", "a:b", "ü", "a\n", "a,b", ".hidden (1)"] {
        let error = MountedInputs::read_error(&format!("headers/{name}"), "v");
        assert!(error.ends_with("is not called as a header can be"), "{error}");
    }
    for name in ["host", "Content-Length", "TRANSFER-ENCODING", "proxy-authorization", "Proxy-X"] {
        let error = MountedInputs::read_error(&format!("headers/{name}"), "v");
        assert!(error.ends_with("is a header that is not for you to set"), "{error}");
    }
    for value in ["", "\n", " v", "v ", "a\nb: c", "a\rb", "a\0b", "ü", "a\tb"] {
        let error = MountedInputs::read_error("headers/x", value);
        assert_eq!(error, "headers/x is not the value of a header", "{value:?}");
    }
    // Two files, one header.
    assert_eq!(
        MountedInputs::read_error("headers/x-team", "v"),
        "headers/x-team is there twice, in different spellings"
    );
    let mounted = MountedInputs::new();
    for number in 0..MAX_HEADERS - 2 {
        mounted.put(&format!("headers/n{number}"), "v");
    }
    assert_eq!(mounted.read().unwrap().headers.len(), MAX_HEADERS);
    mounted.put("headers/one-more", "v");
    assert_eq!(mounted.read().err(), Some("headers has too many files: 32 at most".into()));
}

#[test]
fn scripts() {
    let path = "script/turns.yaml";
    assert_eq!(MountedInputs::read_error(path, "s".repeat(MAX_SCRIPT_BYTES)), "");
    let error = MountedInputs::read_error(path, "s".repeat(MAX_SCRIPT_BYTES + 1));
    assert_eq!(error, "script/turns.yaml has more than 1048576 bytes");
    assert_eq!(MountedInputs::read_error(path, b"\xff"), "script/turns.yaml is not text in UTF-8");
    assert_eq!(MountedInputs::read_error("script/second", ""), "script has too many files: 1 at most");
    let mounted = MountedInputs::new();
    mounted.remove(path);
    assert_eq!(mounted.read().err(), Some("script has no script in it".into()));
}

/// A volume that was not mounted is not an empty one.
#[test]
fn directories_that_the_plan_has_are_there() {
    for missing in ["headers", "script"] {
        let mounted = MountedInputs::new();
        fs::remove_dir_all(mounted.directory.path().join(missing)).unwrap();
        assert_eq!(mounted.read().err(), Some(format!("{missing} is missing")));
    }
}
