//! The command line.

use sympozium_testkit::command;

const PROGRAM: &str = env!("CARGO_BIN_EXE_sympozium-controller");

fn output(arguments: &[&str]) -> (Option<i32>, String) {
    let output = command(PROGRAM)
        .args(arguments)
        .env_remove("KUBERNETES_SERVICE_HOST")
        .env_remove("KUBECONFIG")
        .output()
        .expect("it starts");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn it_says_what_is_wrong_and_what_to_do() {
    let (code, text) = output(&["--probe-listen=127.0.0.1:0"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("error: this process is in no pod with a ServiceAccount"), "{text}");
    assert!(text.contains("hint: name a kubeconfig with --kubeconfig"), "{text}");

    let (code, text) = output(&["--probe-listen=127.0.0.1:0", "--kubeconfig=/nowhere"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("error: the kubeconfig cannot be used"), "{text}");

    let (code, text) = output(&["--concurrency=0"]);
    assert_eq!(code, Some(2));
    assert!(text.contains("--concurrency"), "{text}");

    let (code, text) = output(&["--help"]);
    assert_eq!(code, Some(0));
    assert!(text.contains("Exit codes:") && text.contains("SYMPOZIUM_SYSTEM_NAMESPACE"), "{text}");
}
