//! A PostgreSQL server for tests, on a free port of the loopback and with its own folder. It ends
//! with the process that started it, however that ends.
//!
//! Programs are searched in the folder of `ROLLWAY_POSTGRES`, on the PATH, in Debian's folders, and
//! below the target directory, where `cargo xtask postgres` installs them.

use std::env;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Unprivileged user for tests run by root: the server refuses to run as root.
const UNPRIVILEGED_UID: u32 = 65_534;

/// Ends the server and removes its folder at the end of the standard input, that is, with the
/// process that started it. A destructor would not run after a kill.
const WATCH: &str = r#"
folder=$1; shift
"$@" <&- &
server=$!
while read -r _; do :; done
kill -QUIT $server; wait $server
cd /; rm -rf "$folder"
"#;

#[derive(Debug)]
pub struct Server {
    /// Port on 127.0.0.1.
    pub port: u16,
    watch: Child,
}

impl Server {
    /// Starts a server with settings like `fsync=off` and waits until it accepts connections.
    ///
    /// # Panics
    /// If there is no server to start, or if it does not start.
    pub fn start(settings: &[&str]) -> Self {
        Self::start_with(settings, &[])
    }

    /// Same as [`start`](Self::start), with TLS: PEM of the certificate and of its key.
    ///
    /// # Panics
    /// If there is no server to start, or if it does not start.
    pub fn start_tls(certificate: &str, key: &str) -> Self {
        Self::start_with(&["ssl=on"], &[("server.crt", certificate), ("server.key", key)])
    }

    /// Starts a server with files in its data folder.
    fn start_with(settings: &[&str], files: &[(&str, &str)]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = env::temp_dir().join(format!("rollway-pg-{}-{number}", std::process::id()));
        fs::create_dir(&folder).expect("a folder for the server");
        let _removed = RemovedOnPanic(&folder);
        let root = fs::metadata(&folder).is_ok_and(|folder| folder.uid() == 0);
        if root {
            chown(&folder, Some(UNPRIVILEGED_UID), Some(UNPRIVILEGED_UID))
                .expect("root may give a folder away");
        }
        let start = |program: &Path| {
            let mut command = Command::new(program);
            command.current_dir(&folder).env("LC_ALL", "C");
            if root {
                command.uid(UNPRIVILEGED_UID).gid(UNPRIVILEGED_UID);
            }
            command
        };
        let bin = programs(&folder, |initdb| start(initdb).arg("--version").output().is_ok());

        let data = folder.join("data");
        // Other password checks take a tenth of a second each in a debug build.
        let options =
            ["--auth=password", "--encoding=UTF8", "--username=rollway", "--no-sync", "--pwfile"];
        fs::write(folder.join("password"), "secret\n").expect("a file for the password");
        let mut initdb = start(&bin.join("initdb"));
        let made = initdb.args(options).arg(folder.join("password")).arg("-D").arg(&data).output();
        let made = made.expect("initdb starts");
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        for (name, content) in files {
            let path = data.join(name);
            fs::write(&path, content).expect("a file for the server");
            fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("its own file");
            if root {
                let user = Some(UNPRIVILEGED_UID);
                chown(&path, user, user).expect("root may give a file away");
            }
        }

        // Retries with another port if a process takes this one first.
        (0..5)
            .find_map(|_| {
                let sh = start(Path::new("/bin/sh"));
                Self::listen(sh, &bin.join("postgres"), &folder, settings)
            })
            .expect("the server did not start; its output is above")
    }

    fn listen(mut sh: Command, postgres: &Path, folder: &Path, settings: &[&str]) -> Option<Self> {
        let free = TcpListener::bind(("127.0.0.1", 0)).and_then(|socket| socket.local_addr());
        let port = free.expect("a free port").port();
        sh.args(["-c", WATCH, "watch"]).arg(folder).arg(postgres);
        sh.arg("-D").arg(folder.join("data")).arg("-k").arg(folder).args([
            "-h",
            "127.0.0.1",
            "-p",
            &port.to_string(),
        ]);
        sh.args(settings.iter().flat_map(|setting| ["-c", setting]));
        let mut watch = sh
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a shell");
        let mut log = BufReader::new(watch.stderr.take().expect("it is piped")).lines();
        let mut output = Vec::new();
        for line in log.by_ref().map_while(Result::ok) {
            if line.contains("database system is ready to accept connections") {
                // Keep reading: a full pipe would block the server.
                std::thread::spawn(move || log.for_each(drop));
                return Some(Self { port, watch });
            }
            // The shell outlives a failed server, so the log would not end.
            let has_failed =
                line.contains("database system is shut down") || line.contains("FATAL");
            output.push(line);
            if has_failed {
                break;
            }
        }
        let _ = writeln!(std::io::stderr(), "postgres: {}", output.join("\n"));
        // The folder stays for the next attempt.
        let _ = watch.kill();
        let _ = watch.wait();
        None
    }

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
struct RemovedOnPanic<'a>(&'a Path);

impl Drop for RemovedOnPanic<'_> {
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

/// Returns the folder of `initdb` and `postgres`; `start` tries a program as the user of the
/// server.
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
         `postgres`. When root runs the tests, an unprivileged user (uid 65534) must be able to \
         read them.",
    )
}

/// Folder of `cargo xtask postgres`.
fn installed() -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"), PathBuf::from);
    target.join("postgres/bin")
}

/// Copies the installed server to a folder that the unprivileged user can read: a repository may be
/// in root's home.
fn copied(folder: &Path) -> Option<PathBuf> {
    let installed = installed();
    let home = installed.parent().filter(|home| home.exists())?;
    let copy = folder.join("server");
    let done = |command: &mut Command| command.status().is_ok_and(|status| status.success());
    // Owned by that user, which removes it at the end.
    let copied = done(Command::new("cp").arg("-r").arg(home).arg(&copy))
        && done(Command::new("chown").arg("-R").arg(UNPRIVILEGED_UID.to_string()).arg(&copy));
    copied.then(|| copy.join("bin"))
}
