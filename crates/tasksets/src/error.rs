//! What is said about tasks that cannot be had.

use std::fmt;
use std::io;
use std::path::Path;

/// Why tasks cannot be had: where, what and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TasksetError {
    /// What sort of thing is wrong.
    pub kind: TasksetErrorKind,
    /// The file and the row, the taskset or the key that is meant.
    pub place: String,
    /// What is wrong.
    pub what: String,
    /// What can be done about it.
    pub hint: String,
}

/// What sort of thing is wrong with tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TasksetErrorKind {
    /// There is no such file, folder, split or subset.
    Missing,
    /// There are no rows.
    Empty,
    /// A row is not what it has to be.
    Row,
    /// A field that is named in the configuration is not in the rows.
    Key,
    /// Files of this kind are not read.
    Unsupported,
    /// An option makes no sense.
    Option,
    /// A state that was saved does not belong to these tasks.
    State,
    /// The operating system refused, or a file changed while it was read.
    Io,
}

impl TasksetErrorKind {
    /// Returns a stable name for logs and other languages.
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
}

impl TasksetError {
    pub(super) fn new(
        kind: TasksetErrorKind,
        place: impl fmt::Display,
        what: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self { kind, place: place.to_string(), what: what.into(), hint: hint.into() }
    }

    pub(super) fn io(path: &Path, error: &io::Error) -> Self {
        let hint = "see that the file is there and may be read";
        Self::new(TasksetErrorKind::Io, path.display(), format!("cannot be read: {error}"), hint)
    }

    /// A file that is not as it was when it was opened.
    pub(super) fn changed(path: &Path) -> Self {
        let hint = "leave the files of a running job alone, and start it again";
        let what = "changed while it was in use";
        Self::new(TasksetErrorKind::Io, path.display(), what, hint)
    }
}

impl std::error::Error for TasksetError {}

impl fmt::Display for TasksetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.place, self.what, self.hint)
    }
}
