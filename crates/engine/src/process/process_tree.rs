//! Ends everything that child processes have started.
//!
//! Each child leads a process group. Its descendants inherit a mark in their environment, by which
//! those are found that have left the group (`setsid`). A guard, a shell that waits for the end of
//! a pipe from this process, ends what is left if this process is killed.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use rollway_base::Secret;
use rustix::process::{Pid, Signal, kill_process_group};

/// Environment variable of the mark. Descendants of a child must keep it.
const MARK: &str = "ROLLWAY_PROCESS_MARK";

/// Length of the random part of a mark.
const MARK_LENGTH: usize = 32;

/// Repetitions of a search: processes may be started while it runs.
const MAX_SEARCHES: u32 = 20;

/// Pause between two searches.
const SEARCH_PAUSE: Duration = Duration::from_millis(20);

/// Pause between two searches of the guard.
const GUARD_PAUSE: Duration = Duration::from_millis(200);

/// Searches of the guard after its first SIGKILL.
const GUARD_KILLS: u32 = 50;

/// Script of the guard. Arguments: the text to search for, the search that sends SIGKILL, the last
/// search, the pause. The first search sends SIGTERM.
const GUARD: &str = r#"trap '' HUP INT TERM; cd /; read -r _; search=0
while [ $search -lt "$3" ]; do
  found=$(grep -lsF -e "$1" /proc/[0-9]*/environ); [ -n "$found" ] || exit 0
  for path in $found; do
    pid=${path#/proc/}; pid=${pid%/environ}
    [ $search -eq 0 ] && kill -s TERM "$pid" 2>/dev/null
    [ $search -ge "$2" ] && kill -s KILL "$pid" 2>/dev/null
  done
  search=$((search + 1)); sleep "$4"
done"#;

/// Children of this process and everything that they start. Dropping it ends all of it.
#[derive(Debug)]
pub struct ProcessTree {
    /// Random part of the marks of this tree.
    name: String,
    /// Number of the next child.
    next: AtomicU64,
    ended: Sender<u64>,
    _guard: Guard,
}

impl ProcessTree {
    /// Starts the guard. `grace`: its time between SIGTERM and SIGKILL. `lock`: a locked file that
    /// stays locked until the guard has ended everything.
    ///
    /// # Errors
    /// If the guard cannot be started, or there is no randomness.
    pub fn new(grace: Duration, lock: Option<File>) -> io::Result<Arc<Self>> {
        let mut name = Secret::random()?.reveal().to_owned();
        name.truncate(MARK_LENGTH);
        let prefix = format!("{MARK}={name}.");
        let guard = Guard::start(&prefix, grace, lock)?;
        let (ended, orders) = channel();
        thread::Builder::new()
            .name("rollway-orphans".to_owned())
            .spawn(move || end_descendants(&prefix, &orders))?;
        Ok(Arc::new(Self { name, next: AtomicU64::new(0), ended, _guard: guard }))
    }

    /// Starts a command as the leader of a group, with a mark of its own.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub fn spawn(
        self: &Arc<Self>,
        command: &mut tokio::process::Command,
    ) -> io::Result<(tokio::process::Child, ProcessGroup)> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let child =
            command.process_group(0).env(MARK, format!("{}.{number}", self.name)).spawn()?;
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        Ok((child, ProcessGroup { group, number, tree: Arc::clone(self) }))
    }
}

/// Group of one child. Dropping it kills the group, and everything else that the child has started.
#[derive(Debug)]
pub struct ProcessGroup {
    group: Option<Pid>,
    number: u64,
    tree: Arc<ProcessTree>,
}

impl ProcessGroup {
    /// Sends a signal to the group. An empty group is no error.
    pub fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        // Fails only without the thread; the guard ends the processes later.
        let _ = self.tree.ended.send(self.number);
    }
}

/// Ends the descendants of ended children. One search serves all children that ended meanwhile.
fn end_descendants(prefix: &str, ended: &Receiver<u64>) {
    while let Ok(first) = ended.recv() {
        let mut numbers = BTreeSet::from([first]);
        numbers.extend(ended.try_iter());
        for _ in 0..MAX_SEARCHES {
            if !marked::kill(prefix, &numbers) {
                break;
            }
            thread::sleep(SEARCH_PAUSE);
        }
    }
}

/// A shell that outlives this process. The end of its input is its order to end the tree.
#[derive(Debug)]
struct Guard {
    shell: Option<Child>,
    input: Option<ChildStdin>,
}

impl Guard {
    fn start(mark: &str, grace: Duration, lock: Option<File>) -> io::Result<Self> {
        let pause = GUARD_PAUSE.as_secs_f64();
        let kill = (grace.as_secs_f64() / pause).ceil();
        let last = kill + f64::from(GUARD_KILLS);
        let mut shell = Command::new("/bin/sh")
            .args(["-c", GUARD, "rollway-guard", mark])
            .args([kill, last, pause].map(|number| number.to_string()))
            .env_remove(MARK)
            .stdin(Stdio::piped())
            .stdout(lock.map_or_else(Stdio::null, Stdio::from))
            .stderr(Stdio::null())
            // Ctrl-C at a terminal must not reach it.
            .process_group(0)
            .spawn()?;
        let input = shell.stdin.take();
        Ok(Self { shell: Some(shell), input })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.input = None;
        // The shell ends in its own time; a thread waits for it, so that no zombie stays.
        if let Some(mut shell) = self.shell.take() {
            let wait = move || drop(shell.wait());
            let _ = thread::Builder::new().name("rollway-guard".to_owned()).spawn(wait);
        }
    }
}

#[cfg(target_os = "linux")]
mod marked {
    use std::collections::BTreeSet;
    use std::fs;

    use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

    /// Kills processes with a mark of one of the numbers; returns whether there were any.
    pub(super) fn kill(prefix: &str, numbers: &BTreeSet<u64>) -> bool {
        let Ok(processes) = fs::read_dir("/proc") else { return false };
        let ids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let ids: Vec<i32> = ids.collect();
        ids.into_iter().filter(|id| kill_if_marked(*id, prefix, numbers)).count() > 0
    }

    fn kill_if_marked(id: i32, prefix: &str, numbers: &BTreeSet<u64>) -> bool {
        // The descriptor is opened first, so that the signal cannot reach a later process.
        let Some(Ok(process)) = Pid::from_raw(id).map(|pid| pidfd_open(pid, PidfdFlags::empty()))
        else {
            return false;
        };
        // Processes of other users cannot be read.
        let Ok(environment) = fs::read(format!("/proc/{id}/environ")) else { return false };
        let number = |entry: &[u8]| {
            std::str::from_utf8(entry.strip_prefix(prefix.as_bytes())?).ok()?.parse().ok()
        };
        let mark = environment.split(|byte| *byte == 0).find_map(number);
        mark.is_some_and(|mark| numbers.contains(&mark))
            && pidfd_send_signal(&process, Signal::KILL).is_ok()
    }
}

#[cfg(not(target_os = "linux"))]
mod marked {
    use std::collections::BTreeSet;

    /// Other systems show no environments; only the group is ended.
    pub(super) fn kill(_prefix: &str, _numbers: &BTreeSet<u64>) -> bool {
        false
    }
}
