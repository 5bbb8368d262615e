//! What child processes print, line by line.

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};

/// How much of a line is shown at once.
const LINE_BYTES: u64 = 16 * 1024;

/// Hands on every line until the output ends. Longer lines come in pieces: a process that never
/// ends one costs no memory.
pub async fn lines(output: impl AsyncRead + Unpin, mut each: impl FnMut(&str)) {
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    while let Ok(read) = (&mut output).take(LINE_BYTES).read_until(b'\n', &mut line).await {
        if read == 0 {
            return;
        }
        each(String::from_utf8_lossy(&line).trim_end());
        line.clear();
    }
}
