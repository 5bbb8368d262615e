//! Child processes: output, descendants, file descriptors, Python interpreter; and messages of
//! panics.

mod process_tree;
pub mod python;

use std::any::Any;

pub use self::process_tree::{ProcessGroup, ProcessTree};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};

/// Longest piece of a line that is passed on.
const LINE_BYTES: u64 = 16 * 1024;

/// Upper bound of the limit of file descriptors.
const MAX_DESCRIPTORS: u64 = 1 << 16;

/// Calls `each` for every line until the output ends. Longer lines are split, so that memory is
/// bounded.
pub async fn lines(output: impl AsyncRead + Unpin, mut each: impl FnMut(&str)) {
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    while let Ok(1..) = (&mut output).take(LINE_BYTES).read_until(b'\n', &mut line).await {
        each(String::from_utf8_lossy(&line).trim_end());
        line.clear();
    }
}

/// Raises the limit of file descriptors of this process and its children as far as allowed: every
/// worker needs one, and many systems allow only 1024 by default.
pub(crate) fn raise_fd_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(MAX_DESCRIPTORS, |most| most.min(MAX_DESCRIPTORS));
    if current.is_some_and(|current| current < wanted) {
        let raised = Rlimit { current: Some(wanted), maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::debug!(%error, "limit of file descriptors not raised");
        }
    }
}

/// Returns the message of a caught panic.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message")
}
