//! A PostgreSQL server for tests: started on a free port of this machine in a folder of its own,
//! and gone with the process that started it, however that ends.
//!
//! The programs are looked for in the folder that `ROLLWAY_POSTGRES` names, on the PATH, where
//! Debian puts them, and below the target directory, where `cargo xtask postgres` installs them.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// The user `nobody`. The server refuses to run as root.
const NOBODY: u32 = 65_534;

/// Ends the server and removes its folder when the standard input ends, that is, when the process
/// that started it does. A shell can be relied on for that; a destructor cannot.
const WATCH: &str = r#"
folder=$1; shift
"$@" <&- &
server=$!
while read -r _; do :; done
kill -QUIT $server; wait $server
cd /; rm -rf "$folder"
"#;

/// A running server.
#[derive(Debug)]
pub struct Server {
    /// Where it listens on 127.0.0.1.
    pub port: u16,
    watch: Child,
}

impl Server {
    /// Starts a server with settings like `fsync=off`, and waits until it takes connections.
    ///
    /// # Panics
    /// If there is no server to start, or if it does not start.
    pub fn start(settings: &[&str]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = env::temp_dir().join(format!("rollway-pg-{}-{number}", std::process::id()));
        fs::create_dir(&folder).expect("a folder for the server");
        let _swept = Swept(&folder);
        let root = fs::metadata(&folder).map(|found| uid(&found)).ok() == Some(0);
        if root {
            chown(&folder, Some(NOBODY), Some(NOBODY)).expect("root may give a folder away");
        }
        let start = |program: &Path| {
            let mut command = Command::new(program);
            command.current_dir(&folder).env("LC_ALL", "C");
            if root {
                command.uid(NOBODY).gid(NOBODY);
            }
            command
        };
        let bin = programs(&folder, |initdb| start(initdb).arg("--version").output().is_ok());

        let data = folder.join("data");
        // The better ways to check a password take a tenth of a second each in a debug build.
        let words =
            ["--auth=password", "--encoding=UTF8", "--username=rollway", "--no-sync", "--pwfile"];
        fs::write(folder.join("password"), "secret\n").expect("a file for the password");
        let mut initdb = start(&bin.join("initdb"));
        let made = initdb.args(words).arg(folder.join("password")).arg("-D").arg(&data).output();
        let made = made.expect("initdb starts");
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));

        // Another process may take the port before the server does: then it takes another.
        (0..5)
            .find_map(|_| {
                let sh = start(Path::new("/bin/sh"));
                Self::listen(sh, &bin.join("postgres"), &folder, settings)
            })
            .expect("the server did not start; what it said is above")
    }

    fn listen(mut sh: Command, postgres: &Path, folder: &Path, settings: &[&str]) -> Option<Self> {
        let free = TcpListener::bind(("127.0.0.1", 0)).and_then(|socket| socket.local_addr());
        let port = free.expect("a free port").port();
        sh.args(["-c", WATCH, "watch"])
            .arg(folder)
            .arg(postgres)
            .arg("-D")
            .arg(folder.join("data"));
        sh.arg("-k").arg(folder).args(["-h", "127.0.0.1", "-p", &port.to_string()]);
        sh.args(settings.iter().flat_map(|setting| ["-c", setting]));
        let mut watch = sh
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a shell");
        let mut log = BufReader::new(watch.stderr.take().expect("it is piped")).lines();
        let mut said = Vec::new();
        for line in log.by_ref().map_while(Result::ok) {
            if line.contains("database system is ready to accept connections") {
                // The pipe must be read on, or the server would block on it.
                std::thread::spawn(move || log.for_each(drop));
                return Some(Self { port, watch });
            }
            // The shell outlives a server that gave up; the log would not end.
            let over = line.contains("database system is shut down") || line.contains("FATAL");
            said.push(line);
            if over {
                break;
            }
        }
        let _ = writeln!(std::io::stderr(), "postgres: {}", said.join("\n"));
        // The folder stays for the next attempt.
        let _ = watch.kill();
        let _ = watch.wait();
        None
    }

    /// Returns the address of a database.
    pub fn address(&self, database: &str) -> String {
        address(self.port, database)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.watch.stdin.take());
        let _ = self.watch.wait();
    }
}

/// Removes the folder of a server that could not be started.
struct Swept<'a>(&'a Path);

impl Drop for Swept<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = fs::remove_dir_all(self.0);
        }
    }
}

/// Returns the address of a database behind a port, which may be a proxy's.
pub fn address(port: u16, database: &str) -> String {
    format!("postgresql://rollway:secret@127.0.0.1:{port}/{database}")
}

/// Returns the folder of `initdb` and `postgres`, which must `start` for whoever has to run them.
fn programs(folder: &Path, start: impl Fn(&Path) -> bool) -> PathBuf {
    let works = |bin: &PathBuf| bin.join("postgres").exists() && start(&bin.join("initdb"));
    let named = env::var_os("ROLLWAY_POSTGRES").map(PathBuf::from);
    let path = env::var_os("PATH").unwrap_or_default();
    let mut debian: Vec<PathBuf> = fs::read_dir("/usr/lib/postgresql")
        .map(|found| found.flatten().map(|version| version.path().join("bin")).collect())
        .unwrap_or_default();
    debian.sort();
    let found = named.into_iter().chain(env::split_paths(&path)).chain(debian.into_iter().rev());
    let found = found.chain([installed()]).find(works);
    found.or_else(|| copied(folder).filter(works)).expect(
        "no PostgreSQL server was found, and the tests need one. `cargo xtask postgres` installs \
         one below the target directory; or set ROLLWAY_POSTGRES to the folder of `initdb` and \
         `postgres`. When root runs the tests, the user `nobody` must be able to reach them.",
    )
}

/// Returns where `cargo xtask postgres` installs a server.
fn installed() -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"), PathBuf::from);
    target.join("postgres/bin")
}

/// Copies the installed server to where `nobody` can reach it: a repository may be in root's home.
fn copied(folder: &Path) -> Option<PathBuf> {
    let installed = installed();
    let home = installed.parent().filter(|home| home.exists())?;
    let copy = folder.join("server");
    let done = |command: &mut Command| command.status().is_ok_and(|status| status.success());
    // Theirs, because they remove it in the end.
    let copied = done(Command::new("cp").arg("-r").arg(home).arg(&copy))
        && done(Command::new("chown").arg("-R").arg(NOBODY.to_string()).arg(&copy));
    copied.then(|| copy.join("bin"))
}

fn uid(found: &fs::Metadata) -> u32 {
    std::os::unix::fs::MetadataExt::uid(found)
}
