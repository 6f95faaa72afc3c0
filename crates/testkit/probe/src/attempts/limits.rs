//! Taking more than its share. Every loop has an end, so that it is safe where nothing else ends it.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use super::files::scratch_name;
use crate::attempt::{Attempt, Input, Verdict, in_child, plain, signal_name, with, with_default};
use crate::sys::{self, Arg, Ending, Errno, call};

/// No attempt takes more than this many processes, whatever it is asked for.
const MOST_PROCESSES: u64 = 20_000;
/// Attempts that write stop by themselves, to clean up before the alarm. Long: what was given up for time counts as
/// possible, and a busy machine needs a while to fill a file system.
const PATIENCE: Duration = Duration::from_secs(60);

pub const MEMORY: &[Attempt] = &[
    with("allocate-memory", "MIB", "use that much memory", |input| {
        let asked = input.number();
        // In a process of its own: the kernel's answer to too much is SIGKILL, and that is an answer.
        let ending = in_child(|| i32::from(touch(asked).is_err()));
        match ending {
            Ok(Ending::Exited(0)) => Verdict::Possible(format!("touched {asked} MiB")),
            Ok(Ending::Exited(_)) => Verdict::Refused("ENOMEM".into()),
            Ok(Ending::Killed(signal)) => Verdict::Refused(format!("killed by {}", signal_name(signal))),
            Err(error) => Verdict::Refused(error.to_string()),
        }
    }),
    with("fill-shared-memory", "BYTES", "fill /dev/shm", |input| fill(Path::new("/dev/shm"), input.number())),
    with("lock-memory", "MIB", "lock that much memory", |input| {
        let mut bytes = Vec::new();
        if bytes.try_reserve_exact((input.number() << 20) as usize).is_err() {
            return Verdict::Refused("ENOMEM".into());
        }
        bytes.resize((input.number() << 20) as usize, 1_u8);
        let length = Arg::Int(bytes.len() as i64);
        Verdict::of(call(libc::SYS_mlock, [Arg::In(&bytes), length]), "locked")
    }),
];

pub const PIDS: &[Attempt] = &[with("make-processes", "COUNT", "have that many processes at once", make_processes)];

pub const CPU: &[Attempt] = &[
    with_default("spin", "[PROCESSES:SECONDS]", "1:1", "use whole processors", spin),
    plain("realtime-priority", "run before everybody else (SCHED_FIFO)", |_| {
        // struct sched_param: one int, the lowest real-time priority. It ends with this process.
        let lowest = 1_i32.to_ne_bytes();
        let policy = Arg::Int(libc::SCHED_FIFO.into());
        Verdict::of(call(libc::SYS_sched_setscheduler, [Arg::Int(0), policy, Arg::In(&lowest)]), "set")
    }),
    plain("raise-priority", "run before others (a negative nice value)", |_| {
        Verdict::of(call(libc::SYS_setpriority, [Arg::Int(0), Arg::Int(0), Arg::Int(-20)]), "set")
    }),
];

pub const STORAGE: &[Attempt] = &[
    with("fill-directory", "DIRECTORY:BYTES", "fill a disk", |input| {
        let (directory, bytes) = input.place_and_number();
        fill(Path::new(directory), bytes)
    }),
    with("make-files", "DIRECTORY:COUNT", "use up the inodes of a disk", make_files),
    with("make-sparse-file", "DIRECTORY:BYTES", "make a giant file without content", |input| {
        let (directory, bytes) = input.place_and_number();
        Verdict::of(nameless(Path::new(directory)).and_then(|file| file.set_len(bytes).map_err(Errno::from)), "made it")
    }),
];

pub const RESOURCES: &[Attempt] = &[
    plain("dump-core", "leave a core dump", |_| {
        let (soft, hard) = limit(libc::RLIMIT_CORE as i64);
        // A hard limit above 0 lets the program raise the soft one.
        Verdict::from_condition(soft > 0 || hard > 0, format!("limit {soft}, at most {hard}"))
    }),
    plain("be-inspected", "be dumpable: readable by others of its user", |_| {
        let flag = call(
            libc::SYS_prctl,
            [Arg::Int(libc::PR_GET_DUMPABLE.into()), Arg::Int(0), Arg::Int(0), Arg::Int(0), Arg::Int(0)],
        );
        Verdict::from_condition(flag == Ok(1), format!("dumpable is {}", flag.unwrap_or(-1)))
    }),
    with("open-files", "COUNT", "have that many files open", |input| {
        let mut open: Vec<OwnedFd> = Vec::new();
        let asked = input.number().min(1 << 20);
        while (open.len() as u64) < asked {
            match call(libc::SYS_dup, [Arg::Int(1)]) {
                Ok(fd) => open.push(sys::owned(fd)),
                Err(error) => return Verdict::Refused(format!("{error} after {}", open.len())),
            }
        }
        Verdict::Possible(format!("{asked} open"))
    }),
    plain("see-limits", "see its resource limits (always possible)", |_| {
        let named = [
            ("cpu", libc::RLIMIT_CPU),
            ("fsize", libc::RLIMIT_FSIZE),
            ("data", libc::RLIMIT_DATA),
            ("stack", libc::RLIMIT_STACK),
            ("core", libc::RLIMIT_CORE),
            ("nproc", libc::RLIMIT_NPROC),
            ("nofile", libc::RLIMIT_NOFILE),
            ("memlock", libc::RLIMIT_MEMLOCK),
            ("as", libc::RLIMIT_AS),
            ("msgqueue", libc::RLIMIT_MSGQUEUE),
        ];
        let shown: Vec<_> = named
            .iter()
            .map(|(name, number)| {
                let (soft, hard) = limit(*number as i64);
                format!("{name}={}/{}", amount(soft), amount(hard))
            })
            .collect();
        Verdict::Possible(shown.join(" "))
    }),
];

fn amount(value: u64) -> String {
    if value == u64::MAX { "unlimited".to_owned() } else { value.to_string() }
}

/// Soft and hard limit.
pub fn limit(resource: i64) -> (u64, u64) {
    let mut bytes = [0_u8; 16];
    let _ = call(libc::SYS_prlimit64, [Arg::Int(0), Arg::Int(resource), Arg::Null, Arg::Out(&mut bytes)]);
    let (soft, hard) = bytes.split_at(8);
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
    (word(soft), word(hard))
}

/// Allocates and writes to every page: memory that is only promised costs nothing.
pub fn touch(mebibytes: u64) -> Result<Vec<Vec<u8>>, ()> {
    let mut held = Vec::new();
    for _ in 0..mebibytes {
        let mut block: Vec<u8> = Vec::new();
        block.try_reserve_exact(1 << 20).map_err(drop)?;
        block.resize(1 << 20, 0x55);
        held.push(std::hint::black_box(block));
    }
    Ok(held)
}

fn make_processes(input: &Input<'_>) -> Verdict {
    let asked = input.number().min(MOST_PROCESSES);
    // The children wait for this pipe to close, so they end with us, however we end.
    let (read, write) = match crate::attempt::pipe() {
        Ok(ends) => ends,
        Err(error) => return Verdict::Refused(error.to_string()),
    };
    let mut children = Vec::new();
    let mut stopped = None;
    while (children.len() as u64) < asked {
        match sys::fork() {
            Ok(None) => {
                drop(write);
                sys::alarm(60);
                let _ = std::io::copy(&mut File::from(read), &mut std::io::sink());
                sys::exit_now(0);
            }
            Ok(Some(child)) => children.push(child),
            Err(error) => {
                stopped = Some(error);
                break;
            }
        }
    }
    drop(write);
    for child in &children {
        let _ = sys::wait_for(*child);
    }
    match stopped {
        None => Verdict::Possible(format!("{} processes", children.len())),
        Some(error) => Verdict::Refused(format!("{error} after {} processes", children.len())),
    }
}

/// Burns processors and compares what was got with what was asked for.
fn spin(input: &Input<'_>) -> Verdict {
    let (processes, seconds) = input.argument.split_once(':').unwrap_or(("1", input.argument));
    let processes = processes.parse::<u32>().unwrap_or(1).clamp(1, 64);
    let time = Duration::from_secs_f64(seconds.parse::<f64>().unwrap_or(1.0).clamp(0.1, 10.0));
    let begin = Instant::now();
    let mut children = Vec::new();
    for _ in 0..processes {
        match sys::fork() {
            Ok(None) => {
                while begin.elapsed() < time {
                    std::hint::spin_loop();
                }
                sys::exit_now(0)
            }
            Ok(Some(child)) => children.push(child),
            Err(error) => return Verdict::Refused(error.to_string()),
        }
    }
    for child in children {
        let _ = sys::wait_for(child);
    }
    let got = children_time().as_secs_f64();
    let wanted = time.as_secs_f64() * f64::from(processes);
    let share = got / wanted;
    // A busy machine takes its share too, so "refused" here proves no limit: read the number in the detail.
    Verdict::from_condition(share > 0.9, format!("{got:.2} s of {wanted:.2} s ({:.0} %)", share * 100.0))
}

/// Processor time of the children that were waited for.
fn children_time() -> Duration {
    let mut usage = [0_u8; 144];
    let _ = call(libc::SYS_getrusage, [Arg::Int(libc::RUSAGE_CHILDREN.into()), Arg::Out(&mut usage)]);
    let word = |index: usize| usage[index * 8..index * 8 + 8].try_into().map_or(0, u64::from_ne_bytes);
    Duration::from_secs(word(0) + word(2)) + Duration::from_micros(word(1) + word(3))
}

/// A file whose name is gone at once, so that nothing stays behind even if we are killed.
fn nameless(directory: &Path) -> Result<File, Errno> {
    // A limit on file sizes should be an error to report, not our end.
    sys::ignore(libc::SIGXFSZ);
    let path = scratch_name(directory);
    let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
    fs::remove_file(path)?;
    Ok(file)
}

fn fill(directory: &Path, bytes: u64) -> Verdict {
    let mut file = match nameless(directory) {
        Ok(file) => file,
        Err(error) => return Verdict::Refused(error.to_string()),
    };
    let block = vec![0x55; 1 << 16];
    let end = Instant::now() + PATIENCE;
    let mut written = 0;
    while written < bytes {
        let length = block.len().min((bytes - written) as usize);
        match file.write(&block[..length]) {
            Ok(count) => written += count as u64,
            Err(error) => {
                return Verdict::Refused(format!("{} after {written} bytes", Errno::from(error)));
            }
        }
        if Instant::now() > end {
            return Verdict::Possible(format!("{written} bytes, then gave up for time"));
        }
    }
    Verdict::Possible(format!("{written} bytes"))
}

fn make_files(input: &Input<'_>) -> Verdict {
    let (directory, count) = input.place_and_number();
    let place = scratch_name(Path::new(directory));
    if let Err(error) = fs::create_dir(&place) {
        return Verdict::Refused(Errno::from(error).to_string());
    }
    let end = Instant::now() + PATIENCE;
    let mut made = 0;
    let mut stopped = None;
    while made < count && Instant::now() < end {
        match File::create(place.join(made.to_string())) {
            Ok(_) => made += 1,
            Err(error) => {
                stopped = Some(Errno::from(error));
                break;
            }
        }
    }
    let _ = fs::remove_dir_all(&place);
    match stopped {
        Some(error) => Verdict::Refused(format!("{error} after {made} files")),
        None => Verdict::Possible(format!("{made} files")),
    }
}
