//! Writing that keeps nobody waiting: a terminal that somebody has stopped, or a pipe that nobody
//! reads, does not hold up the job whose log goes there.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// How many bytes wait to be written; what comes then is left out, and counted.
const MOST: usize = 8 << 20;

/// How long the end of the process waits for somebody who does not read.
const PATIENCE: Duration = Duration::from_secs(2);

/// Something that is written to by a thread of its own. Clones are the same.
#[derive(Clone, Debug)]
pub struct BackgroundWriter(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// What is said in place of so many texts that were left out.
    instead: fn(u64) -> String,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<u8>,
    is_writing: bool,
    left_out: u64,
}

impl BackgroundWriter {
    /// Begins to write there.
    pub fn to(mut to: impl Write + Send + 'static, instead: fn(u64) -> String) -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { state, changed, instead });
        let drain = Self(Arc::clone(&shared));
        thread::spawn(move || {
            loop {
                let text = shared.take();
                // A log that cannot be written to is no reason to stop.
                let _ = to.write_all(&text).and_then(|()| to.flush());
                shared.wrote();
            }
        });
        drain
    }

    /// Waits until everything is written, or nobody seems to read it.
    pub fn finish(&self) {
        let is_open = |state: &mut State| state.is_writing || !state.waiting.is_empty();
        drop(self.0.changed.wait_timeout_while(self.0.lock(), PATIENCE, is_open));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for something to write.
    fn take(&self) -> Vec<u8> {
        let empty = |state: &mut State| state.waiting.is_empty();
        let waited = self.changed.wait_while(self.lock(), empty);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        state.is_writing = true;
        std::mem::take(&mut state.waiting)
    }

    fn wrote(&self) {
        self.lock().is_writing = false;
        self.changed.notify_all();
    }
}

/// Takes every text whole or leaves it out.
impl Write for BackgroundWriter {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let mut state = self.0.lock();
        if state.waiting.len() + text.len() > MOST {
            state.left_out += 1;
            return Ok(text.len());
        }
        if state.left_out > 0 {
            let left_out = std::mem::take(&mut state.left_out);
            state.waiting.extend_from_slice((self.0.instead)(left_out).as_bytes());
        }
        state.waiting.extend_from_slice(text);
        drop(state);
        self.0.changed.notify_all();
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Receiver, Sender};

    use super::*;

    /// Keeps whoever writes until somebody reads.
    struct Slow(Sender<Vec<u8>>, Receiver<()>);

    impl Write for Slow {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            let _ = self.1.recv();
            let _ = self.0.send(text.to_vec());
            Ok(text.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn nobody_waits_for_a_reader_and_what_is_left_out_is_counted() {
        let (said, heard) = mpsc::channel();
        let (read, asked) = mpsc::channel();
        let mut drain =
            BackgroundWriter::to(Slow(said, asked), |count| format!("{count} left out\n"));
        drain.write_all(b"first\n").unwrap();
        // From here on its thread waits for the reader.
        let mut text = vec![b'a'; MOST - 1];
        text.push(b'\n');
        while !drain.0.lock().waiting.is_empty() {
            thread::yield_now();
        }
        drain.write_all(&text).unwrap();
        drain.write_all(b"second\n").unwrap();
        drain.write_all(b"third\n").unwrap();
        read.send(()).unwrap();
        read.send(()).unwrap();
        assert_eq!(heard.recv().unwrap(), b"first\n");
        assert_eq!(heard.recv().unwrap().len(), MOST);
        drain.write_all(b"fourth\n").unwrap();
        read.send(()).unwrap();
        assert_eq!(heard.recv().unwrap(), b"2 left out\nfourth\n");
        drain.finish();
    }
}
