//! Test programs that start themselves again, for tests that kill a process.

use std::env;
use std::ffi::OsStr;
use std::process::{Command, Stdio};

/// Returns the command that runs one test of this test program in a process of its own, with a
/// variable by which that test knows that it is the child. Its standard output is piped.
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
