//! Another process changes the workspace while the tools run: nothing outside is read or written, whatever the order.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use sympozium_testkit::{as_user, cases};

use super::*;

/// Rounds of all tools.
fn rounds() -> usize {
    if cases::is_full() { 20_000 } else { 300 }
}

/// Runs the tools on `path` while `swap` runs again and again, and checks that nothing outside was touched.
fn race(fixture: &Fixture, path: &str, swap: impl Fn() + Sync) {
    let done = AtomicBool::new(false);
    let swaps = AtomicUsize::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                swap();
                swaps.fetch_add(1, Ordering::Relaxed);
            }
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..rounds() {
                // The answers are checked for the secret where they are made.
                tools(fixture, path);
            }
            while swaps.load(Ordering::Relaxed) < 100 {
                tools(fixture, path);
            }
        }));
        done.store(true, Ordering::Relaxed);
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
    fixture.check_outside();
}

fn tools(fixture: &Fixture, path: &str) {
    if let Ok(text) = fixture.call(read_file, json!({ "path": path })) {
        // Empty if a writer has created the file and not written it yet.
        let texts = ["inside", "INSIDE", "(empty file)"];
        assert!(texts.contains(&text.as_str()), "{text}");
    }
    let _ = fixture.call(write_file, json!({ "path": path, "content": "inside" }));
    let edits =
        json!([{ "old_string": "inside", "new_string": "INSIDE" }, { "old_string": "INSIDE", "new_string": "inside" }]);
    let _ = fixture.call(edit_file, json!({ "path": path, "edits": edits }));
    let edits = json!([{ "old_string": "secret", "new_string": "open" }]);
    fixture.call(edit_file, json!({ "path": path, "edits": edits })).expect_err("nothing inside has that");
}

/// A directory of the workspace becomes a link to the outside and back.
fn directories() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.path("in/swapped")).expect("a directory");
    fixture.write("in/swapped/secret", "inside");
    fixture.link("../outside", "in/other");
    let (one, other) = (fixture.path("in/swapped"), fixture.path("in/other"));
    race(&fixture, "@/in/swapped/secret", || {
        renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).expect("they are there");
    });
    race(&fixture, "@/in/swapped/new/secret", || {
        renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).expect("they are there");
    });
}

/// A file of the workspace becomes a link to the outside and back.
fn files() {
    let fixture = Fixture::new();
    fixture.write("in/file", "inside");
    let swapped = fixture.path("in/file");
    let (link, file) = (fixture.path("in/link"), fixture.path("in/next"));
    let put = |from: &Path| fs::rename(from, &swapped).expect("it is there");
    race(&fixture, "@/in/file", || {
        symlink("../outside/secret", &link).expect("a link");
        put(&link);
        fs::write(&file, "inside").expect("a file");
        put(&file);
    });
    fixture.check_clean("in");
}

#[test]
fn swapped_directories_lead_nowhere() {
    directories();
}

#[test]
fn swapped_directories_lead_nowhere_as_another_user() {
    as_user::run(directories);
}

#[test]
fn swapped_files_lead_nowhere() {
    files();
}

#[test]
fn swapped_files_lead_nowhere_as_another_user() {
    as_user::run(files);
}

/// The same by another process, and with directories made and removed.
#[test]
fn another_process_does_not_get_further() {
    let fixture = Fixture::new();
    // At least so often, and until the tools have run once, however slow the machine is.
    let script = "i=0; while [ $i -lt 60 ] || { [ ! -e seen ] && [ $i -lt 6000 ]; }; do i=$((i+1)); \
        mkdir d; printf inside > d/secret; rm -rf d; ln -s ../outside d; rm -f d; done";
    let mut child = sympozium_testkit::command("sh")
        .args(["-c", script])
        .current_dir(fixture.path("in"))
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("a shell");
    let mut turns = 0;
    while child.try_wait().expect("it is ours").is_none() {
        tools(&fixture, "@/in/d/secret");
        let _ = fixture.call(list_directory, json!({ "path": "@/in/d" }));
        fixture.write("in/seen", "");
        turns += 1;
    }
    assert!(turns > 0);
    fixture.check_outside();
}
