//! Progress of a running job: a live view on a terminal, plain or JSON lines elsewhere.
//!
//! [`ProgressModel`] is the state and [`draw`](draw::draw) its layout, both without a clock or a
//! terminal. [`ProgressView`] observes a job, updates the model and draws it several times a
//! second.

pub mod draw;
pub mod format;
pub mod json;
pub mod model;
pub mod plain;
pub mod series;
pub mod summary;

use std::fmt::{self, Debug};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rollway::config::{Config, Mode};
use rollway::explorer::{JobEvent, JobObserver, JobWait, LiveStats, StatsSample};
use rollway::gateway_options::trained_model;
use tokio::runtime::Handle;
use tracing::Level;

use self::model::ProgressModel;
use self::summary::FinalSummary;
use crate::log;
use crate::output::{Output, OutputKind};

/// Time between two frames of the live view.
const FRAME_INTERVAL: Duration = Duration::from_millis(125);

/// Columns of the final summary when standard error is not a terminal.
const PLAIN_COLUMNS: usize = 100;

/// Identity of a job, as the view shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobTitle {
    pub name: String,
    pub mode: Mode,
    pub model: String,
    pub job_dir: PathBuf,
    /// A history is recorded, so that `rollway view` can show the job after its end.
    pub has_history: bool,
    /// Folder of the TensorBoard files, if they are written.
    pub curves: Option<PathBuf>,
    /// Evaluation tasks are configured, which mode `bench` needs.
    pub has_evals: bool,
    /// Command that runs the job, with the overrides of the user.
    pub command: Option<String>,
}

impl JobTitle {
    /// Returns the title of a checked configuration; `command` runs it.
    pub fn new(config: &Config, command: Option<String>) -> Self {
        Self {
            name: config.name.clone(),
            mode: config.mode,
            model: trained_model(config),
            job_dir: config.job_dir(),
            has_history: config.dashboard.history,
            curves: rollway::monitors::folder(config),
            has_evals: !config.buffer.explorer_input.eval_tasksets.is_empty(),
            command,
        }
    }
}

/// Outcome of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgressEnd {
    Done,
    /// Stopped on request; the same command resumes it.
    Stopped,
    /// Failed; the caller reports the error.
    Failed,
}

/// Observer that shows a job until [`end`](Self::end) or until it is dropped.
pub struct ProgressView {
    this: Weak<Self>,
    output: Output,
    started: Instant,
    state: Mutex<ViewState>,
    ended: Condvar,
}

struct ViewState {
    model: ProgressModel,
    is_over: bool,
}

impl ProgressView {
    pub fn start(title: JobTitle, output: &Output) -> Arc<Self> {
        let state = ViewState { model: ProgressModel::new(title), is_over: false };
        let view = Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            output: output.clone(),
            started: Instant::now(),
            state: Mutex::new(state),
            ended: Condvar::new(),
        });
        if output.kind() == OutputKind::Live {
            let weak = Arc::downgrade(&view);
            let drawing_thread = thread::Builder::new().name("view".to_owned());
            // Without the thread, log lines and the final summary are still shown.
            let _ = drawing_thread.spawn(move || keep_drawing(&weak));
        }
        view
    }

    pub fn on_sample(&self, sample: StatsSample, wait: Option<JobWait>) {
        let mut state = self.lock();
        state.model.on_sample(sample, self.started.elapsed());
        let began = |wait: &JobWait| {
            self.started.elapsed().saturating_sub(wait.since.elapsed().unwrap_or_default())
        };
        state.model.wait = wait.map(|wait| (wait.clone(), began(&wait)));
    }

    /// Ends the view and prints a summary of the whole job. `None`: of what this view observed.
    pub fn end(&self, end: ProgressEnd, summary: Option<&FinalSummary>) {
        let mut state = self.lock();
        if state.is_over {
            return;
        }
        state.is_over = true;
        state.model.now = self.started.elapsed();
        let model = &state.model;
        let mut summary = summary.unwrap_or(&model.summary).clone();
        summary.tokens = summary.tokens.max(model.summary.tokens);
        match self.output.kind() {
            OutputKind::Live => {
                let width = self.output.size().columns;
                self.output.end(&summary::block(model, &summary, end, width));
            }
            OutputKind::Plain => {
                let lines = summary::block(model, &summary, end, PLAIN_COLUMNS);
                self.output.print(&lines);
            }
            OutputKind::Json => {
                let ended = json::ended(model, &summary, end, SystemTime::now());
                self.output.raw(&ended.to_string());
            }
        }
        drop(state);
        self.ended.notify_all();
    }

    /// Samples the live statistics periodically.
    fn poll_stats(&self, stats: &LiveStats) {
        // Without a runtime there is no explorer.
        let Ok(runtime) = Handle::try_current() else { return };
        let (view, stats) = (self.this.clone(), stats.clone());
        runtime.spawn(async move {
            loop {
                let (sample, wait) = (stats.sample().await, stats.wait().await);
                // A weak reference: the task does not keep the view alive.
                match view.upgrade() {
                    Some(view) if !view.lock().is_over => view.on_sample(sample, wait),
                    _ => return,
                }
                tokio::time::sleep(FRAME_INTERVAL).await;
            }
        });
    }

    fn lock(&self) -> MutexGuard<'_, ViewState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl JobObserver for ProgressView {
    fn on_event(&self, event: &JobEvent) {
        if let JobEvent::Ready(stats) = event {
            self.poll_stats(stats);
        }
        let mut state = self.lock();
        let now = self.started.elapsed();
        state.model.on_event(event, now);
        let model = &state.model;
        match (self.output.kind(), event) {
            (OutputKind::Json, event) => {
                self.output.raw(&json::event(event, SystemTime::now()).to_string());
            }
            (_, JobEvent::Info(note)) => log::emit(&self.output, Level::INFO, note),
            (_, JobEvent::Alarm(alarm)) => {
                let level = if alarm.raised { Level::WARN } else { Level::INFO };
                log::emit(&self.output, level, &alarm.message);
            }
            (OutputKind::Plain, event) => {
                if let Some(line) = plain::event(model, event) {
                    log::emit(&self.output, Level::INFO, &line);
                }
            }
            (OutputKind::Live, _) => {}
        }
    }
}

impl Drop for ProgressView {
    fn drop(&mut self) {
        if !self.lock().is_over && self.output.kind() == OutputKind::Live {
            self.output.end(&[]);
        }
    }
}

impl Debug for ProgressView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProgressView").field("output", &self.output).finish_non_exhaustive()
    }
}

/// Draws frames until the view ends or is dropped.
fn keep_drawing(view: &Weak<ProgressView>) {
    while let Some(view) = view.upgrade() {
        let mut state = view.lock();
        if state.is_over {
            return;
        }
        state.model.advance_clock(view.started.elapsed());
        view.output.show(draw::draw(&state.model, view.output.size()));
        // Frames are periodic: elapsed time changes without an event.
        let _ = view.ended.wait_timeout(state, FRAME_INTERVAL);
    }
}
