//! Test programs that start themselves, for tests that kill a process.

use std::env;
use std::ffi::OsStr;
use std::process::{Command, Stdio};

/// Returns a command that runs one test of this program in its own process with piped output. The
/// variable tells that test that it is the child.
///
/// # Panics
/// If the path of this program is unknown.
pub fn child_test(test: &str, variable: &str, value: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(env::current_exe().expect("the path of this test program"));
    command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(variable, value)
        .stdout(Stdio::piped());
    command
}
