//! The programs in `examples/` that do something.

use sympozium_testkit::command;
use sympozium_testkit::static_build::workspace_root;

#[test]
fn the_yt_dlp_of_the_example_takes_addresses_and_no_options() {
    let script = workspace_root().join("examples/with-yt-dlp/yt-dlp");
    let many = ["https://example.com/"; 9];
    let refused: [&[&str]; 6] = [
        &[],
        &many,
        &["--exec", "id"],
        &["https://example.com/", "--config-location=/etc/passwd"],
        &["file:///etc/passwd"],
        &["ytsearch:x"],
    ];
    for arguments in refused {
        let output = command(&script).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert_eq!(output.stdout, b"");
    }
}
