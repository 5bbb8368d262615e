//! The terminal while `rollway top` has it: keys come one by one, the whole of it is drawn on, and
//! whatever happens it is as it was before.

use std::io::{self, IsTerminal, Read, Write};
use std::panic;
use std::sync::{Mutex, Once, PoisonError};
use std::thread;

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::sync::mpsc;

use super::keys::{self, Key};
use crate::output::{TerminalSize, size_of};
use crate::styled_line::StyledLine;

/// How the terminal was; none: nobody has it.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// Goes to a screen of its own and hides the cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
/// Goes back.
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// Shows nothing until all of a frame is there, where a terminal can.
const HOLD: &str = "\x1b[?2026h\x1b[H";
const RELEASE: &str = "\x1b[J\x1b[?2026l";

/// The terminal. It is given back when this is dropped, and when somebody panics.
#[derive(Debug)]
pub struct RawTerminal {
    colors: bool,
}

impl RawTerminal {
    /// Takes the terminal.
    ///
    /// # Errors
    /// If standard input or output is none.
    pub fn take() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let usual = panic::take_hook();
            panic::set_hook(Box::new(move |what| {
                give_back();
                usual(what);
            }));
        });
        let screen = Self { colors: colors() };
        tcsetattr(io::stdin(), OptionalActions::Flush, &raw)?;
        write(ENTER)?;
        Ok(screen)
    }

    /// Returns how large it is now.
    pub fn size(&self) -> TerminalSize {
        size_of(io::stdout())
    }

    /// Draws a screenful.
    ///
    /// # Errors
    /// If nobody sees it any more.
    pub fn show(&self, lines: &[StyledLine]) -> io::Result<()> {
        let lines: Vec<String> =
            lines.iter().map(|line| line.encode(self.colors) + "\x1b[K").collect();
        write(&format!("{HOLD}{}{RELEASE}", lines.join("\r\n")))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        give_back();
    }
}

/// Leaves the terminal as it was found. Does nothing the second time.
fn give_back() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(before) = before {
        // Nothing can be done about a terminal that is gone.
        let _ = write(LEAVE);
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &before);
    }
}

/// Tells whether standard output shows colours.
pub fn colors() -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    io::stdout().is_terminal() && !is_dumb && !is_set("NO_COLOR")
}

/// Tells whether there is a terminal to draw on and to read keys from.
pub fn is_there() -> bool {
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    io::stdout().is_terminal() && io::stdin().is_terminal() && !is_dumb
}

/// Writes at once.
pub fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Returns the keys as they are pressed. The thread that reads them ends with the process, or with
/// standard input.
pub fn keys() -> mpsc::Receiver<Vec<Key>> {
    let (sender, receiver) = mpsc::channel(64);
    let reading = thread::Builder::new().name("keys".to_owned());
    // Without the thread there are no keys, and Ctrl-C from elsewhere still ends it.
    let _ = reading.spawn(move || {
        let mut bytes = [0; 256];
        loop {
            match io::stdin().lock().read(&mut bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) | Ok(0) => return,
                Ok(count) => {
                    if sender.blocking_send(keys::read(&bytes[..count])).is_err() {
                        return;
                    }
                }
            }
        }
    });
    receiver
}
