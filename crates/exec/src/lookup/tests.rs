//! Real files in a directory that is used as the root of the view. Nothing in it belongs to the runner unless a case
//! says so, whichever user runs the tests.

mod sticky;

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

use rustix::fs::{CWD, XattrFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, FsPickFlags, MountAttrFlags, fsconfig_create, fsconfig_reconfigure, fsconfig_set_flag,
    fsmount, fsopen, fspick,
};
use tempfile::TempDir;

use super::*;
use crate::beneath::tests::while_swapping;

const ELF: &[u8] = b"\x7fELF\x02\x01\x01";
const SCRIPT: &[u8] = b"#!/bin/sh\n";

/// The root of a view, by path and by descriptor.
struct View {
    _owner: Option<TempDir>,
    path: PathBuf,
    root: OwnedFd,
}

impl View {
    fn new() -> Self {
        let owner = tempfile::tempdir().unwrap();
        let path = owner.path().to_owned();
        Self::at(path, Some(owner))
    }

    fn at(path: PathBuf, owner: Option<TempDir>) -> Self {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&path, flags, Mode::empty()).unwrap();
        let view = Self { _owner: owner, path, root };
        view.set_mode("/", 0o755);
        for directory in ["/usr", "/usr/local", "/usr/local/bin", "/usr/bin", "/opt"] {
            fs::create_dir(view.real(directory)).unwrap();
            view.set_mode(directory, 0o755);
        }
        view.put("/usr/local/bin/tool", ELF, 0o755);
        view.put("/usr/local/bin/run.sh", SCRIPT, 0o755);
        view
    }

    fn real(&self, path: &str) -> PathBuf {
        self.path.join(path.trim_start_matches('/'))
    }

    fn put(&self, path: &str, content: &[u8], mode: u32) {
        fs::write(self.real(path), content).unwrap();
        self.set_mode(path, mode);
    }

    fn set_mode(&self, path: &str, mode: u32) {
        fs::set_permissions(self.real(path), fs::Permissions::from_mode(mode)).unwrap();
    }

    fn link(&self, path: &str, target: &str) {
        symlink(target, self.real(path)).unwrap();
    }

    /// A user who owns nothing here and is in none of its groups.
    fn stranger(&self) -> Runner {
        let meta = fs::metadata(&self.path).unwrap();
        Runner { uid: meta.uid() + 1000, gids: vec![meta.gid() + 1000] }
    }

    fn find(&self, name: &str) -> Result<ProgramKind, String> {
        let search = ["/usr/local/bin", "/usr/bin"].map(PathBuf::from);
        describe(find(self.root.as_fd(), &search, OsStr::new(name), &self.stranger()))
    }

    fn skill(&self, name: &str) -> Result<ProgramKind, String> {
        self.skill_as(name, &self.stranger())
    }

    fn skill_as(&self, name: &str, runner: &Runner) -> Result<ProgramKind, String> {
        let name = SkillName::parse(name).unwrap();
        describe(find_skill(self.root.as_fd(), Path::new("/usr/local/bin"), &name, runner))
    }
}

/// Kind or message, without the runner's number (which depends on the user who runs the tests).
fn describe(found: Result<Program, LookupError>) -> Result<ProgramKind, String> {
    match found {
        Ok(program) => {
            let flags = rustix::io::fcntl_getfd(&program.file).unwrap();
            assert_eq!(flags, rustix::io::FdFlags::CLOEXEC);
            Ok(program.kind)
        }
        Err(error) => {
            let (message, uid) = (
                error.to_string(),
                match &error {
                    LookupError::Writable { uid, .. } | LookupError::NotExecutable { uid, .. } => *uid,
                    _ => return Err(error.to_string()),
                },
            );
            Err(message.replace(&format!("uid {uid}"), "uid R"))
        }
    }
}

fn script(path: &str) -> Result<ProgramKind, String> {
    Ok(ProgramKind::Script { path: path.into() })
}

fn refused(message: &str) -> Result<ProgramKind, String> {
    Err(message.to_owned())
}

fn writable(program: &str, what: &str) -> Result<ProgramKind, String> {
    Err(format!("{program:?} cannot be trusted: {what:?} is writable by uid R, which runs commands"))
}

#[test]
fn elf_files_and_scripts_are_found() {
    let view = View::new();
    view.put("/usr/bin/late", ELF, 0o755);
    view.link("/opt/lib", "../usr/bin");
    view.link("/usr/local/bin/linked", "/opt/lib/../bin/late");
    view.link("/usr/local/bin/linked.sh", "./run.sh");
    view.put("/usr/bin/tool", SCRIPT, 0o755);
    for (name, expected) in [
        ("tool", Ok(ProgramKind::Elf)),
        ("late", Ok(ProgramKind::Elf)),
        ("linked", Ok(ProgramKind::Elf)),
        ("run.sh", script("/usr/local/bin/run.sh")),
        ("linked.sh", script("/usr/local/bin/run.sh")),
    ] {
        assert_eq!(view.find(name), expected, "{name}");
    }
    for (name, expected) in [
        ("tool", Ok(ProgramKind::Elf)),
        ("linked", Ok(ProgramKind::Elf)),
        ("linked.sh", script("/usr/local/bin/run.sh")),
    ] {
        assert_eq!(view.skill(name), expected, "{name}");
    }
}

#[test]
fn the_descriptor_is_the_file_that_was_found() {
    let view = View::new();
    view.link("/opt/tool", "/usr/local/bin/tool");
    let found = find_at_path(view.root.as_fd(), Path::new("/opt/tool"), &view.stranger()).unwrap();
    let inode = rustix::fs::fstat(&found.file).unwrap().st_ino;
    assert_eq!(inode, fs::metadata(view.real("/usr/local/bin/tool")).unwrap().ino());
    assert_eq!(found.path, Path::new("/opt/tool"));
}

#[test]
fn names_that_are_no_component_are_refused() {
    let view = View::new();
    for name in ["", ".", "..", "a/b", "/bin/sh", "../sh", "a\0b"] {
        let expected = format!("program name {name:?} is not one path component");
        assert_eq!(view.find(name), Err(expected));
    }
}

#[test]
fn what_cannot_be_executed_is_passed_over_in_the_search() {
    let view = View::new();
    fs::create_dir(view.real("/usr/local/bin/dir")).unwrap();
    view.put("/usr/local/bin/plain", ELF, 0o644);
    assert_eq!(view.find("dir"), refused("\"/usr/local/bin/dir\" is a directory, not a regular file"));
    assert_eq!(view.find("plain"), refused("\"/usr/local/bin/plain\" is not executable by uid R"));
    assert_eq!(view.find("nope"), refused("\"nope\" was not found"));
    view.put("/usr/bin/dir", ELF, 0o755);
    view.put("/usr/bin/plain", ELF, 0o755);
    assert_eq!(view.find("dir"), Ok(ProgramKind::Elf));
    assert_eq!(view.find("plain"), Ok(ProgramKind::Elf));
}

#[test]
fn an_untrusted_script_or_unknown_format_ends_the_search() {
    let view = View::new();
    for name in ["script", "text"] {
        view.put(&format!("/usr/bin/{name}"), ELF, 0o755);
    }
    view.put("/usr/local/bin/script", SCRIPT, 0o757);
    view.put("/usr/local/bin/text", b"echo\n", 0o755);
    let path = "/usr/local/bin/script";
    assert_eq!(view.find("script"), writable(path, path));
    let message = "has no executable format: neither an elf file nor a #! script";
    assert_eq!(view.find("text"), Err(format!("\"/usr/local/bin/text\" {message}")));
}

#[test]
fn formats_are_recognised_by_their_first_bytes() {
    let view = View::new();
    let unknown = "\"/usr/local/bin/x\" has no executable format: neither an elf file nor a #! script";
    for (content, expected) in [
        (&b"\x7fELF"[..], Ok(ProgramKind::Elf)),
        (b"#!", script("/usr/local/bin/x")),
        (b"#!/bin/sh", script("/usr/local/bin/x")),
        (b"", refused(unknown)),
        (b"#", refused(unknown)),
        (b"\x7fEL", refused(unknown)),
        (b" #!/bin/sh", refused(unknown)),
        (b"MZ\x90\0", refused(unknown)),
    ] {
        view.put("/usr/local/bin/x", content, 0o755);
        assert_eq!(view.find("x"), expected, "{content:?}");
        assert_eq!(view.skill("x"), expected, "{content:?}");
    }
}

#[test]
fn relative_search_directories_are_skipped() {
    let view = View::new();
    let search = ["", ".", "usr/local/bin", "../usr/local/bin"].map(PathBuf::from);
    let found = find(view.root.as_fd(), &search, OsStr::new("tool"), &view.stranger());
    assert_eq!(describe(found), refused("\"tool\" was not found"));
}

#[test]
fn paths_are_looked_up_within_the_root() {
    let view = View::new();
    view.link("/opt/passwd", "../../../../../../etc/passwd");
    let at = |path: &str| describe(find_at_path(view.root.as_fd(), Path::new(path), &view.stranger()));
    assert_eq!(at("/usr/local/bin/tool"), Ok(ProgramKind::Elf));
    assert_eq!(at("/../../usr/./local/bin//run.sh"), script("/usr/local/bin/run.sh"));
    assert_eq!(at("/opt/passwd"), refused("\"/opt/passwd\" was not found"));
    assert_eq!(at("/bin/sh"), refused("\"/bin/sh\" was not found"));
    assert_eq!(at("usr/local/bin/tool"), refused("\"usr/local/bin/tool\" is not an absolute path"));
    assert_eq!(at("/usr/local/bin/tool/"), refused("\"/usr/local/bin/tool/\" was not found"));
}

#[test]
fn relative_paths_stay_in_the_working_directory_and_are_elf_files() {
    let view = View::new();
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(view.real("/usr/local"), flags, Mode::empty()).unwrap();
    view.put("/usr/bin/late", ELF, 0o755);
    let at = |path: &str| describe(find_in_directory(directory.as_fd(), Path::new(path), &view.stranger()));
    assert_eq!(at("bin/tool"), Ok(ProgramKind::Elf));
    assert_eq!(at("./bin/../bin/tool"), Ok(ProgramKind::Elf));
    assert_eq!(at("../bin/late"), refused("cannot open \"../bin/late\""));
    assert_eq!(at("/usr/bin/late"), refused("cannot open \"/usr/bin/late\""));
    let message = "script \"bin/run.sh\" can only be executed by an absolute path";
    assert_eq!(at("bin/run.sh"), refused(message));
}

#[test]
fn special_files_are_refused_without_opening_them() {
    let view = View::new();
    let bin = |name: &str| view.real(&format!("/usr/local/bin/{name}"));
    rustix::fs::mknodat(CWD, bin("fifo"), FileType::Fifo, Mode::from(0o755), 0).unwrap();
    drop(std::os::unix::net::UnixListener::bind(bin("socket")).unwrap());
    fs::create_dir(bin("dir")).unwrap();
    let mut cases = vec![("fifo", "fifo"), ("socket", "socket"), ("dir", "directory")];
    // Major 4, minor 0 is a terminal: opening it would have effects.
    let device = rustix::fs::makedev(4, 0);
    match rustix::fs::mknodat(CWD, bin("tty"), FileType::CharacterDevice, Mode::from(0o755), device) {
        Ok(()) => cases.push(("tty", "device")),
        Err(_) => sympozium_testkit::skips::record("mknod needs root"),
    }
    for (name, kind) in cases {
        let expected = format!("\"/usr/local/bin/{name}\" is a {kind}, not a regular file");
        assert_eq!(view.find(name), Err(expected.clone()));
        assert_eq!(view.skill(name), Err(expected));
    }
}

#[test]
fn what_was_checked_is_what_is_opened() {
    let view = View::new();
    view.put("/opt/other", ELF, 0o600);
    let [tool, other] = ["/usr/local/bin/tool", "/opt/other"].map(|path| view.real(path));
    while_swapping(&tool, &other, || {
        let path = Path::new("/usr/local/bin/tool");
        for _ in 0..5_000 {
            match find_at_path(view.root.as_fd(), path, &view.stranger()) {
                Ok(found) => assert_eq!(rustix::fs::fstat(&found.file).unwrap().st_mode, 0o100_755),
                Err(LookupError::Replaced { .. } | LookupError::NotExecutable { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    });
}

#[test]
fn dangling_and_looping_links_are_refused() {
    let view = View::new();
    view.link("/usr/local/bin/dangling", "/nope");
    view.link("/usr/local/bin/loop", "loop");
    assert_eq!(view.skill("dangling"), refused("\"/usr/local/bin/dangling\" was not found"));
    assert_eq!(view.skill("loop"), refused("cannot open \"/usr/local/bin/loop\""));
    assert_eq!(view.find("loop"), refused("cannot open \"/usr/local/bin/loop\""));
}

#[test]
fn skills_with_dangerous_mode_bits_are_refused() {
    let view = View::new();
    for (mode, rule) in [
        (0o4755, "has a setuid or setgid bit"),
        (0o2755, "has a setuid or setgid bit"),
        (0o757, "is world-writable"),
        (0o6757, "has a setuid or setgid bit"),
        (0o644, "is not executable by uid R"),
        (0o754, "is not executable by uid R"),
    ] {
        view.set_mode("/usr/local/bin/tool", mode);
        let expected = format!("\"/usr/local/bin/tool\" {rule}");
        assert_eq!(view.skill("tool"), Err(expected), "{mode:o}");
    }
    // no_new_privs disables the bit, so programs that are not skills may have it.
    view.set_mode("/usr/local/bin/tool", 0o4755);
    assert_eq!(view.find("tool"), Ok(ProgramKind::Elf));
}

#[test]
fn the_class_of_the_runner_decides_who_may_execute() {
    let view = View::new();
    let meta = fs::metadata(&view.path).unwrap();
    let stranger = view.stranger();
    let owner = Runner { uid: meta.uid(), gids: vec![] };
    let member = Runner { uid: stranger.uid, gids: vec![7, meta.gid()] };
    for (mode, runner, expected) in [
        (0o100, &owner, true),
        (0o011, &owner, false),
        (0o010, &member, true),
        (0o101, &member, false),
        (0o001, &stranger, true),
        (0o110, &stranger, false),
    ] {
        view.set_mode("/usr/local/bin/tool", mode);
        let stat = rustix::fs::stat(view.real("/usr/local/bin/tool")).unwrap();
        assert_eq!(runner.may_execute(&stat), expected, "{mode:o} {runner:?}");
    }
}

/// Each component of `/usr/local/bin/far`, which is a link to `/opt/sub/far`, through a link in `/opt`.
#[test]
fn anything_writable_on_the_way_is_refused() {
    let way = ["/", "/usr", "/usr/local", "/usr/local/bin", "/opt", "/opt/real", "/opt/real/far"];
    for content in [ELF, SCRIPT] {
        for what in way {
            for mode in [0o757, 0o775, 0o1757] {
                let view = View::new();
                fs::create_dir(view.real("/opt/real")).unwrap();
                view.set_mode("/opt/real", 0o755);
                view.link("/opt/sub", "real");
                view.link("/usr/local/bin/far", "../../../opt/sub/far");
                view.put("/opt/real/far", content, 0o755);
                // A member of the group that everything here has, so that 0775 counts.
                let gid = fs::metadata(view.real("/opt")).unwrap().gid();
                let member = Runner { gids: vec![gid], ..view.stranger() };
                view.skill_as("far", &member).unwrap();
                view.set_mode(what, mode);
                let program = "/usr/local/bin/far";
                // These contain only directories, and a directory of another user cannot be replaced.
                if mode == 0o1757 && ["/", "/usr", "/usr/local"].contains(&what) {
                    assert!(view.skill_as("far", &member).is_ok(), "{what} {mode:o}");
                    continue;
                }
                let expected = if what == "/opt/real/far" && mode != 0o775 {
                    Err(format!("{program:?} is world-writable"))
                } else {
                    writable(program, what)
                };
                assert_eq!(view.skill_as("far", &member), expected, "{what} {mode:o}");
                let found = describe(find_at_path(view.root.as_fd(), Path::new(program), &member));
                let expected = match content {
                    ELF => Ok(ProgramKind::Elf),
                    _ => writable(program, what),
                };
                assert_eq!(found, expected, "{what} {mode:o}");
            }
        }
    }
}

#[test]
fn an_owner_counts_as_a_writer() {
    let view = View::new();
    view.link("/usr/local/bin/linked", "tool");
    let way = ["/", "/usr", "/usr/local", "/usr/local/bin", "/usr/local/bin/tool"];
    let owner = Runner { uid: fs::metadata(&view.path).unwrap().uid(), gids: vec![] };
    assert_eq!(view.skill_as("tool", &owner), writable("/usr/local/bin/tool", "/"));
    if !rustix::process::geteuid().is_root() {
        sympozium_testkit::skip!("chown needs root");
    }
    let runner = view.stranger();
    for what in way {
        let real = view.real(what);
        let mode = fs::metadata(&real).unwrap().mode();
        chown(&real, Some(runner.uid), None).unwrap();
        view.set_mode(what, 0o555);
        assert_eq!(view.skill_as("tool", &runner), writable("/usr/local/bin/tool", what));
        chown(&real, Some(0), None).unwrap();
        view.set_mode(what, mode & 0o777);
    }
    assert_eq!(view.skill("linked"), Ok(ProgramKind::Elf));
    std::os::unix::fs::lchown(view.real("/usr/local/bin/linked"), Some(runner.uid), None).unwrap();
    let linked = "/usr/local/bin/linked";
    assert_eq!(view.skill("linked"), writable(linked, linked));
}

#[test]
fn root_without_capabilities_is_judged_like_an_ordinary_user() {
    let view = View::new();
    let root = Runner { uid: 0, gids: vec![0] };
    let expected = match fs::metadata(&view.path).unwrap().uid() {
        0 => writable("/usr/local/bin/tool", "/"),
        _ => Ok(ProgramKind::Elf),
    };
    assert_eq!(view.skill_as("tool", &root), expected);
}

#[test]
fn group_write_is_no_harm_to_others_unless_an_access_list_says_so() {
    let view = View::new();
    for (what, qualified) in [("/usr/local", "user"), ("/usr/local/bin/tool", "group")] {
        view.set_mode(what, 0o775);
        assert_eq!(view.skill("tool"), Ok(ProgramKind::Elf), "{what}");
        // acl(5) as the kernel stores it: version 2, then (tag, permissions, id) in order of tags.
        let named = if qualified == "user" { 0x02_u16 } else { 0x08 };
        let id = view.stranger().uid;
        let mut entries = vec![(0x01_u16, 7_u16, u32::MAX), (0x04, 5, u32::MAX), (named, 7, id)];
        entries.extend([(0x10, 7, u32::MAX), (0x20, 5, u32::MAX)]);
        entries.sort_unstable();
        let mut list = 2_u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            list.extend(tag.to_le_bytes());
            list.extend(permissions.to_le_bytes());
            list.extend(id.to_le_bytes());
        }
        let name = "system.posix_acl_access";
        match rustix::fs::setxattr(view.real(what), name, &list, XattrFlags::empty()) {
            Ok(()) => assert_eq!(view.skill("tool"), writable("/usr/local/bin/tool", what)),
            Err(Errno::NOTSUP) => {
                sympozium_testkit::skips::record("access lists on this filesystem");
            }
            Err(errno) => panic!("{errno}"),
        }
        rustix::fs::removexattr(view.real(what), name).unwrap();
        view.set_mode(what, 0o755);
    }
}

/// A mount that no other process sees: it is attached nowhere and gone when closed.
fn mounted(attributes: MountAttrFlags) -> Result<(OwnedFd, View), Errno> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(context.as_fd())?;
    let mount = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", mount.as_raw_fd()));
    Ok((mount, View::at(path, None)))
}

#[test]
fn nothing_on_a_read_only_mount_is_writable() {
    let Ok((mount, view)) = mounted(MountAttrFlags::empty()) else {
        sympozium_testkit::skip!("fsmount needs root");
    };
    let owner = Runner { uid: fs::metadata(&view.path).unwrap().uid(), gids: vec![] };
    view.put("/usr/local/bin/loose", ELF, 0o757);
    assert_eq!(view.skill_as("tool", &owner), writable("/usr/local/bin/tool", "/"));
    let context = fspick(&mount, "", FsPickFlags::FSPICK_EMPTY_PATH).unwrap();
    fsconfig_set_flag(context.as_fd(), "ro").unwrap();
    fsconfig_reconfigure(context.as_fd()).unwrap();
    assert_eq!(view.skill_as("tool", &owner), Ok(ProgramKind::Elf));
    let world_writable = "\"/usr/local/bin/loose\" is world-writable";
    assert_eq!(view.skill_as("loose", &owner), refused(world_writable));
}

#[test]
fn nothing_on_a_noexec_mount_is_a_program() {
    let Ok((_mount, view)) = mounted(MountAttrFlags::MOUNT_ATTR_NOEXEC) else {
        sympozium_testkit::skip!("fsmount needs root");
    };
    let expected = "\"/usr/local/bin/tool\" is on a noexec mount";
    assert_eq!(view.find("tool"), refused(expected));
    assert_eq!(view.skill("tool"), refused(expected));
}

#[test]
fn skill_names_are_one_harmless_component() {
    use SkillNameError::{BadCharacter, BadStart, Empty, TooLong};
    let longest = "x".repeat(128);
    for name in ["gh", "yt-dlp", "g++", "python3.12", "_x", "+x", "A", "0", "a..b", &longest] {
        assert_eq!(SkillName::parse(name).unwrap().as_str(), name);
    }
    for (name, expected) in [
        ("", Empty),
        (".", BadStart('.')),
        ("..", BadStart('.')),
        (".hidden", BadStart('.')),
        ("-rf", BadStart('-')),
        ("a/b", BadCharacter('/')),
        ("../../bin/sh", BadStart('.')),
        ("x/../../bin/sh", BadCharacter('/')),
        ("a\0", BadCharacter('\0')),
        ("a\n", BadCharacter('\n')),
        ("a b", BadCharacter(' ')),
        ("%2e%2e", BadCharacter('%')),
        ("a\\b", BadCharacter('\\')),
        ("\u{ff0e}\u{ff0e}", BadCharacter('\u{ff0e}')),
        ("caf\u{e9}", BadCharacter('\u{e9}')),
        (&"x".repeat(129), TooLong { length: 129 }),
    ] {
        assert_eq!(name.parse::<SkillName>(), Err(expected), "{name:?}");
    }
}
