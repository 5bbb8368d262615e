//! Processes and files of the commands, with errors that name the command or path.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt::{self, Display};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

#[derive(Debug)]
pub(crate) struct Shell {
    /// Root of the repository; commands run there.
    pub(crate) root: PathBuf,
    /// Absolute target directory of cargo.
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
            // Relative to the current directory, as for the cargo that started this program.
            Some(dir) => std::path::absolute(&dir).map_err(CommandFailure::at(Path::new(&dir)))?,
            None => root.join("target"),
        };
        Ok(Self {
            root: root.into(),
            target,
            cargo: env::var_os("CARGO").unwrap_or_else(|| "cargo".into()),
            python: env::var_os("PYTHON").unwrap_or_else(|| "python3".into()),
        })
    }

    /// Returns a shell with another program in place of cargo.
    #[cfg(test)]
    pub(crate) fn with_cargo(cargo: &Path) -> Self {
        let shell = Self::from_env().expect("the environment of a test");
        Self { cargo: cargo.into(), ..shell }
    }

    /// Calls cargo with arguments separated by spaces.
    pub(crate) fn cargo(&self, arguments: &str) -> Cmd {
        self.command("cargo", &self.cargo).split_args(arguments)
    }

    /// Calls the user's interpreter, outside any environment of ours.
    pub(crate) fn python(&self) -> Cmd {
        self.program(Path::new(&self.python))
    }

    /// Calls `pip install` of an interpreter.
    pub(crate) fn pip_install(&self, python: &Path) -> Cmd {
        self.program(python).split_args("-m pip install --disable-pip-version-check --quiet")
    }

    /// Installs a package from PyPI into a folder.
    pub(crate) fn pip_target(&self, package: &str, folder: &Path) -> Result<(), CommandFailure> {
        let install = self.pip_install(Path::new(&self.python));
        install.split_args("--no-deps --upgrade --target").args([folder]).args([package]).run()
    }

    /// Calls a program; a path below the root is shown relative to it.
    pub(crate) fn program(&self, path: &Path) -> Cmd {
        let shown = path.strip_prefix(&self.root).unwrap_or(path).display().to_string();
        self.command(&shown, path.as_os_str())
    }

    fn command(&self, shown: &str, program: &OsStr) -> Cmd {
        let mut inner = Command::new(program);
        inner.current_dir(&self.root).env("CARGO_TARGET_DIR", &self.target);
        // Variables of this package would make build scripts that watch them run again after every
        // plain `cargo build`.
        for (key, _) in env::vars_os() {
            let key = key.to_string_lossy();
            if key.starts_with("CARGO_PKG_") || key.starts_with("CARGO_MANIFEST_") {
                inner.env_remove(&*key);
            }
        }
        Cmd { inner, shown: vec![quoted(shown)] }
    }
}

/// A command and its form for the terminal.
#[derive(Debug)]
pub(crate) struct Cmd {
    inner: Command,
    shown: Vec<String>,
}

impl Cmd {
    /// Adds arguments separated by spaces.
    pub(crate) fn split_args(self, arguments: &str) -> Self {
        self.args(arguments.split_whitespace())
    }

    pub(crate) fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        for arg in args {
            self.shown.push(quoted(&arg.as_ref().to_string_lossy()));
            self.inner.arg(arg);
        }
        self
    }

    /// Runs in a folder of the repository.
    pub(crate) fn dir(mut self, folder: &str) -> Self {
        let inside = self.inner.get_current_dir().map(|root| root.join(folder));
        self.inner.current_dir(inside.unwrap_or_else(|| folder.into()));
        self.shown.insert(0, format!("cd {} &&", quoted(folder)));
        self
    }

    pub(crate) fn env(mut self, key: &str, value: impl AsRef<OsStr>) -> Self {
        self.shown.insert(0, format!("{key}={}", quoted(&value.as_ref().to_string_lossy())));
        self.inner.env(key, value);
        self
    }

    /// Prints the command and runs it with inherited output.
    pub(crate) fn run(mut self) -> Result<(), CommandFailure> {
        println!("    $ {self}");
        let status = self.inner.status().map_err(|cause| self.not_started(&cause))?;
        if status.success() {
            Ok(())
        } else {
            Err(self.failure(format!("the command failed: {status}")))
        }
    }

    /// Runs without output and returns the standard output.
    pub(crate) fn output(mut self) -> Result<String, CommandFailure> {
        let output = self.inner.stdin(Stdio::null()).output();
        let output = output.map_err(|cause| self.not_started(&cause))?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).trim().into())
        } else {
            let stderr = String::from_utf8_lossy(&output.stderr);
            let message = format!("the command failed: {}\n{stderr}", output.status);
            Err(self.failure(message.trim().into()))
        }
    }

    fn not_started(&self, cause: &io::Error) -> CommandFailure {
        self.failure(format!("the command did not start: {cause}"))
    }

    fn failure(&self, message: String) -> CommandFailure {
        CommandFailure { message, command: Some(self.to_string()), hint: None }
    }
}

impl Display for Cmd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown.join(" "))
    }
}

/// A failure with its command and a hint for the user.
#[derive(Debug)]
pub(crate) struct CommandFailure {
    message: String,
    command: Option<String>,
    hint: Option<String>,
}

impl CommandFailure {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), command: None, hint: None }
    }

    /// Returns a conversion of I/O errors of a path.
    pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self::new(format!("{}: {cause}", path.display()))
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl Display for CommandFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if let Some(command) = &self.command {
            write!(f, "\n  command: {command}")?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "\n  hint: {hint}")?;
        }
        Ok(())
    }
}

/// Removes a folder, if it exists.
pub(crate) fn remove_folder(folder: &Path) -> Result<(), CommandFailure> {
    match fs::remove_dir_all(folder) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
            Err(CommandFailure::at(folder)(cause))
        }
        _ => Ok(()),
    }
}

pub(crate) fn create_folder(folder: &Path) -> Result<(), CommandFailure> {
    fs::create_dir_all(folder).map_err(CommandFailure::at(folder))
}

pub(crate) fn write_file(path: &Path, content: impl AsRef<[u8]>) -> Result<(), CommandFailure> {
    fs::write(path, content).map_err(CommandFailure::at(path))
}

pub(crate) fn entries(folder: &Path) -> Result<Vec<PathBuf>, CommandFailure> {
    let entries = fs::read_dir(folder).map_err(CommandFailure::at(folder))?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

fn quoted(argument: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:=,@+".contains(c);
    if !argument.is_empty() && argument.chars().all(plain) {
        argument.into()
    } else {
        format!("'{}'", argument.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_shown_as_typed() {
        let shell = Shell::from_env().unwrap();
        let doc = shell.cargo("doc --no-deps").env("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(doc.to_string(), "RUSTDOCFLAGS='-D warnings' cargo doc --no-deps");
        let script = shell.program(&shell.root.join("bin/it's")).args(["", "a=b"]);
        assert_eq!(script.to_string(), r"'bin/it'\''s' '' a=b");
    }

    #[test]
    fn failures_contain_the_command_and_its_output() {
        let shell = Shell::from_env().unwrap();
        let failure = shell.cargo("no-such-command").output().unwrap_err().to_string();
        assert!(failure.starts_with("the command failed: exit status: 101\n"), "{failure}");
        assert!(failure.ends_with("\n  command: cargo no-such-command"), "{failure}");
        let failure = shell.program(Path::new("no-such-program")).run().unwrap_err().to_string();
        assert!(failure.starts_with("the command did not start: "), "{failure}");
    }
}
