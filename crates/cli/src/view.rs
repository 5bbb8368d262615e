//! How a job looks while it runs: a live view on a terminal, plain or JSON lines elsewhere.
//!
//! [`Screen`] knows what there is to show and [`draw`](draw::draw) turns it into lines, both
//! without a clock or a terminal. [`View`] is the watcher of a job that owns a screen and draws it
//! several times a second.

pub mod draw;
pub mod json;
pub mod plain;
pub mod screen;
pub mod series;
pub mod summary;
pub mod words;

use std::fmt::{self, Debug};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rollway::config::{Config, Mode};
use rollway::explorer::{Beat, Event, Pulse, Watcher};
use rollway::gateway_options::trained_model;
use tokio::runtime::Handle;
use tracing::Level;

use self::screen::Screen;
use self::summary::Account;
use crate::log;
use crate::output::{Kind, Output};

/// How often the live view is drawn.
const FRAME: Duration = Duration::from_millis(125);

/// What the view says about a job as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Title {
    /// The job's name.
    pub name: String,
    /// What it does.
    pub mode: Mode,
    /// The model that is trained.
    pub model: String,
    /// The job's folder.
    pub job_dir: PathBuf,
    /// Where the curves are, if they are written.
    pub curves: Option<PathBuf>,
    /// The file that describes the job.
    pub source: Option<PathBuf>,
}

impl Title {
    /// Returns the title of a checked configuration that was read from a file.
    pub fn new(config: &Config, source: Option<PathBuf>) -> Self {
        Self {
            name: config.name.clone(),
            mode: config.mode,
            model: trained_model(config),
            job_dir: config.job_dir(),
            curves: rollway::monitors::folder(config),
            source,
        }
    }
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It is done.
    Done,
    /// It was told to stop; the same command goes on.
    Stopped,
    /// Something went wrong, which somebody else says.
    Failed,
}

/// Shows a job. Draws until [`end`](Self::end) or until it is dropped.
pub struct View {
    myself: Weak<Self>,
    output: Output,
    began: Instant,
    state: Mutex<State>,
    ended: Condvar,
}

struct State {
    screen: Screen,
    is_over: bool,
}

impl View {
    /// Begins to show a job.
    pub fn start(title: Title, output: &Output) -> Arc<Self> {
        let state = State { screen: Screen::new(title), is_over: false };
        let view = Arc::new_cyclic(|myself| Self {
            myself: Weak::clone(myself),
            output: output.clone(),
            began: Instant::now(),
            state: Mutex::new(state),
            ended: Condvar::new(),
        });
        if output.kind() == Kind::Live {
            let weak = Arc::downgrade(&view);
            let drawing = thread::Builder::new().name("view".to_owned());
            // Without the thread there are still the lines above and the block at the end.
            let _ = drawing.spawn(move || keep_drawing(&weak));
        }
        view
    }

    /// Takes in the numbers of this moment.
    pub fn beat(&self, beat: Beat) {
        let mut state = self.lock();
        state.screen.beat(beat, self.began.elapsed());
    }

    /// Ends the view and leaves a summary. `account` is what the whole job came to; none: what
    /// was seen here.
    pub fn end(&self, ending: Ending, account: Option<&Account>) {
        let mut state = self.lock();
        if state.is_over {
            return;
        }
        state.is_over = true;
        state.screen.now = self.began.elapsed();
        let screen = &state.screen;
        let mut account = account.unwrap_or(&screen.account).clone();
        account.tokens = account.tokens.max(screen.account.tokens);
        let account = &account;
        match self.output.kind() {
            Kind::Live => {
                let width = self.output.size().columns;
                self.output.end(&summary::block(screen, account, ending, width));
            }
            Kind::Plain => {
                let lines = summary::block(screen, account, ending, 100);
                self.output.print(&lines);
            }
            Kind::Json => {
                let ended = json::ended(screen, account, ending, SystemTime::now());
                self.output.raw(&ended.to_string());
            }
        }
        drop(state);
        self.ended.notify_all();
    }

    /// Asks for the numbers of the moment, again and again.
    fn follow(&self, pulse: &Pulse) {
        // Without a runtime there is no explorer.
        let Ok(runtime) = Handle::try_current() else { return };
        let (view, pulse) = (self.myself.clone(), pulse.clone());
        runtime.spawn(async move {
            loop {
                let beat = pulse.beat().await;
                // Nobody keeps a view alive that is not needed any more.
                match view.upgrade() {
                    Some(view) if !view.lock().is_over => view.beat(beat),
                    _ => return,
                }
                tokio::time::sleep(FRAME).await;
            }
        });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watcher for View {
    fn saw(&self, event: &Event) {
        if let Event::Pulse(pulse) = event {
            self.follow(pulse);
        }
        let mut state = self.lock();
        let now = self.began.elapsed();
        state.screen.see(event, now);
        let screen = &state.screen;
        match (self.output.kind(), event) {
            (Kind::Json, event) => {
                self.output.raw(&json::event(event, SystemTime::now()).to_string());
            }
            (_, Event::Note(note)) => log::say(&self.output, Level::INFO, note),
            (_, Event::Alarm(alarm)) => {
                let level = if alarm.raised { Level::WARN } else { Level::INFO };
                log::say(&self.output, level, &alarm.words);
            }
            (Kind::Plain, event) => {
                if let Some(line) = plain::event(screen, event) {
                    log::say(&self.output, Level::INFO, &line);
                }
            }
            (Kind::Live, _) => {}
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        if !self.lock().is_over && self.output.kind() == Kind::Live {
            self.output.end(&[]);
        }
    }
}

impl Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View").field("output", &self.output).finish_non_exhaustive()
    }
}

/// Draws a frame after the other while there is a view.
fn keep_drawing(view: &Weak<View>) {
    while let Some(view) = view.upgrade() {
        let mut state = view.lock();
        if state.is_over {
            return;
        }
        state.screen.pass(view.began.elapsed());
        view.output.show(draw::draw(&state.screen, view.output.size()));
        // Sleeping is the point: a frame is due when its time has come, not when something happens.
        let _ = view.ended.wait_timeout(state, FRAME);
    }
}
