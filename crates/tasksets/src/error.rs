//! Errors of tasksets.

use std::fmt;
use std::io;
use std::path::Path;

/// Error of opening or reading tasks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{location}: {what}; {hint}")]
pub struct TasksetError {
    pub kind: TasksetErrorKind,
    /// File and row, taskset or configuration key.
    pub location: String,
    pub what: String,
    /// Remedy.
    pub hint: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TasksetErrorKind {
    /// No such file, folder, split or subset.
    Missing,
    Empty,
    /// An invalid row.
    Row,
    /// A configured field that no row has.
    Key,
    /// A format or feature that is not read.
    Unsupported,
    /// An invalid option.
    Option,
    /// A saved state of other tasks.
    State,
    /// An I/O error, or a file that changed in use.
    Io,
}

impl TasksetErrorKind {
    /// Returns the stable code for logs and other languages.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Missing => "taskset_missing",
            Self::Empty => "taskset_empty",
            Self::Row => "taskset_row",
            Self::Key => "taskset_key",
            Self::Unsupported => "taskset_unsupported",
            Self::Option => "taskset_option",
            Self::State => "taskset_state",
            Self::Io => "taskset_io",
        }
    }

    pub(super) fn at(
        self,
        location: impl fmt::Display,
        what: impl Into<String>,
        hint: impl Into<String>,
    ) -> TasksetError {
        let location = location.to_string();
        TasksetError { kind: self, location, what: what.into(), hint: hint.into() }
    }
}

impl TasksetError {
    pub(super) fn io(path: &Path, error: &io::Error) -> Self {
        let hint = "check that the file exists and is readable";
        TasksetErrorKind::Io.at(path.display(), format!("cannot be read: {error}"), hint)
    }

    pub(super) fn changed(path: &Path) -> Self {
        let hint = "do not change the files of a running job; start it again";
        let what = "changed while it was in use";
        TasksetErrorKind::Io.at(path.display(), what, hint)
    }
}
