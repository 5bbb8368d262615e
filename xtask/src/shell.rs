//! Starts processes: where they run, what they inherit, and what is said when one fails.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt::{self, Display};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The places and programs that every command shares.
#[derive(Debug)]
pub(crate) struct Shell {
    /// The root of the repository; every command runs there.
    pub(crate) root: PathBuf,
    /// Where cargo builds; absolute.
    pub(crate) target: PathBuf,
    cargo: OsString,
    python: OsString,
}

impl Shell {
    pub(crate) fn from_env() -> Result<Self, CommandFailure> {
        let manifest =
            env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let root = Path::new(&manifest).parent().expect("xtask is a folder of the repository");
        let target = match env::var_os("CARGO_TARGET_DIR").filter(|dir| !dir.is_empty()) {
            // A relative path counts from where the person stands, as it did for the cargo that
            // started this program.
            Some(dir) => std::path::absolute(dir)
                .map_err(|cause| CommandFailure::new(format!("no current directory: {cause}")))?,
            None => root.join("target"),
        };
        Ok(Self {
            root: root.into(),
            target,
            cargo: env::var_os("CARGO").unwrap_or_else(|| "cargo".into()),
            python: env::var_os("PYTHON").unwrap_or_else(|| "python3".into()),
        })
    }

    /// Prepares a call of cargo with words that spaces part.
    pub(crate) fn cargo(&self, words: &str) -> Cmd {
        self.command("cargo", &self.cargo).words(words)
    }

    /// Prepares a call of the interpreter that the person chose, outside any environment of ours.
    pub(crate) fn python(&self) -> Cmd {
        self.program(Path::new(&self.python))
    }

    /// Prepares a call of the program at a path; one below the root is shown relative to it.
    pub(crate) fn program(&self, path: &Path) -> Cmd {
        let shown = path.strip_prefix(&self.root).unwrap_or(path).display().to_string();
        self.command(&shown, path.as_os_str())
    }

    fn command(&self, shown: &str, program: &OsStr) -> Cmd {
        let mut inner = Command::new(program);
        inner.current_dir(&self.root).env("CARGO_TARGET_DIR", &self.target);
        // What cargo told this program about its own package would look like news to build scripts
        // that watch these variables: they would run again after every plain `cargo build`.
        for (key, _) in env::vars_os() {
            let key = key.to_string_lossy();
            if key.starts_with("CARGO_PKG_") || key.starts_with("CARGO_MANIFEST_") {
                inner.env_remove(&*key);
            }
        }
        Cmd { inner, words: vec![quoted(shown)] }
    }
}

/// A command that is ready to run and knows how a person would type it.
#[derive(Debug)]
pub(crate) struct Cmd {
    inner: Command,
    words: Vec<String>,
}

impl Cmd {
    /// Adds arguments that spaces part.
    pub(crate) fn words(self, words: &str) -> Self {
        self.args(words.split_whitespace())
    }

    pub(crate) fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        for arg in args {
            self.words.push(quoted(&arg.as_ref().to_string_lossy()));
            self.inner.arg(arg);
        }
        self
    }

    /// Runs the command in a folder of the repository.
    pub(crate) fn dir(mut self, folder: &str) -> Self {
        let inside = self.inner.get_current_dir().map(|root| root.join(folder));
        self.inner.current_dir(inside.unwrap_or_else(|| folder.into()));
        self.words.insert(0, format!("cd {} &&", quoted(folder)));
        self
    }

    pub(crate) fn env(mut self, key: &str, value: impl AsRef<OsStr>) -> Self {
        self.words.insert(0, format!("{key}={}", quoted(&value.as_ref().to_string_lossy())));
        self.inner.env(key, value);
        self
    }

    /// Shows the command and runs it to its end with our own output.
    pub(crate) fn run(mut self) -> Result<(), CommandFailure> {
        println!("    $ {self}");
        let status = self.inner.status();
        let status =
            status.map_err(|cause| self.failure(format!("the command did not start: {cause}")))?;
        if status.success() {
            Ok(())
        } else {
            Err(self.failure(format!("the command failed: {status}")))
        }
    }

    /// Runs the command in silence and returns what it wrote to its standard output.
    pub(crate) fn output(mut self) -> Result<String, CommandFailure> {
        let output = self.inner.stdin(Stdio::null()).output();
        let output =
            output.map_err(|cause| self.failure(format!("the command did not start: {cause}")))?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).trim().into())
        } else {
            let said = String::from_utf8_lossy(&output.stderr);
            let what = format!("the command failed: {}\n{said}", output.status);
            Err(self.failure(what.trim().into()))
        }
    }

    fn failure(&self, what: String) -> CommandFailure {
        CommandFailure { what, command: Some(self.to_string()), hint: None }
    }
}

impl Display for Cmd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words.join(" "))
    }
}

/// Why something did not work, for a person to read.
#[derive(Debug)]
pub(crate) struct CommandFailure {
    what: String,
    command: Option<String>,
    hint: Option<String>,
}

impl CommandFailure {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), command: None, hint: None }
    }

    /// Reports a file that could not be read or written.
    pub(crate) fn file(path: &Path, cause: &io::Error) -> Self {
        Self::new(format!("{}: {cause}", path.display()))
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl Display for CommandFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if let Some(command) = &self.command {
            write!(f, "\n  command: {command}")?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "\n  hint: {hint}")?;
        }
        Ok(())
    }
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:=,@+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_one_would_type_it() {
        let shell = Shell::from_env().unwrap();
        let doc = shell.cargo("doc --no-deps").env("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(doc.to_string(), "RUSTDOCFLAGS='-D warnings' cargo doc --no-deps");
        let script = shell.program(&shell.root.join("bin/it's")).args(["", "a=b"]);
        assert_eq!(script.to_string(), r"'bin/it'\''s' '' a=b");
    }

    #[test]
    fn a_failed_command_is_named_with_what_it_said() {
        let shell = Shell::from_env().unwrap();
        let failure = shell.cargo("no-such-command").output().unwrap_err().to_string();
        assert!(failure.starts_with("the command failed: exit status: 101\n"), "{failure}");
        assert!(failure.ends_with("\n  command: cargo no-such-command"), "{failure}");
        let failure = shell.program(Path::new("no-such-program")).run().unwrap_err().to_string();
        assert!(failure.starts_with("the command did not start: "), "{failure}");
    }
}
