//! An explorer that is prepared, with all who look at it, and how its job ends.

use std::sync::Arc;

use rollway::config::Config;
use rollway::explorer::{Event, Explorer, ExplorerError, Options, Watcher, Watchers};
use rollway::job::Lookout;
use rollway::view::JobState;
use rollway::workflow_runtime::Fleet;
use rollway_data::pipeline::Registry;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::Trouble;

/// One that is prepared, with all who look at it.
pub(super) struct Ready {
    pub(super) explorer: Explorer,
    pub(super) lookout: Lookout,
    /// Stops it when an alarm wants that.
    _alarmed: AbortOnDropHandle<()>,
    /// How the job ended, as far as it has.
    pub(super) ended: (JobState, Option<String>),
}

impl Ready {
    /// Opens an explorer, and before it all who look at it.
    pub(super) async fn open(
        config: &Config,
        fleet: Fleet,
        watchers: Watchers,
        operators: Arc<Registry>,
        stop: &CancellationToken,
    ) -> Result<Self, Trouble> {
        let people = Watchers::new(vec![Arc::new(Logged)]);
        let lookout = Lookout::open(config, watchers, &people, stop).await?;
        let options = Options {
            fleet: Some(fleet),
            watchers: lookout.watchers(),
            observers: lookout.observers(),
            operators: Some(operators),
            ..Options::default()
        };
        let explorer = match Box::pin(Explorer::prepare(config, options)).await {
            Ok(explorer) => explorer,
            Err(error) => {
                lookout.close(JobState::Failed, Some(error.to_string())).await;
                return Err(error.into());
            }
        };
        let (alarmed, stopper) = (lookout.stop(), explorer.stopper());
        let alarmed = tokio::spawn(async move {
            alarmed.cancelled().await;
            stopper.stop();
        });
        let _alarmed = AbortOnDropHandle::new(alarmed);
        Ok(Self { explorer, lookout, _alarmed, ended: (JobState::Stopped, None) })
    }

    /// Notes how work ended on which the job depends.
    pub(super) fn note<T>(&mut self, done: Result<T, ExplorerError>) -> Result<T, Trouble> {
        let done = match (self.lookout.alarm(), done) {
            (Some(words), _) => Err(Trouble::Alarm(words.to_owned())),
            (None, done) => done.map_err(Trouble::from),
        };
        self.ended = match &done {
            Ok(_) => (JobState::Finished, None),
            Err(Trouble::Alarm(words)) => (JobState::Failed, Some(words.clone())),
            Err(Trouble::Explorer(error)) => (JobState::Failed, Some(error.to_string())),
            Err(_) => (JobState::Failed, None),
        };
        done
    }

    pub(super) async fn close(self) -> Result<(), Trouble> {
        let Self { mut explorer, lookout, ended: (state, error), .. } = self;
        let closed = explorer.shutdown().await;
        drop(explorer);
        lookout.close(state, error).await;
        Ok(closed?)
    }
}

/// Puts what people have to know into the log.
#[derive(Debug)]
struct Logged;

impl Watcher for Logged {
    fn saw(&self, event: &Event) {
        if let Event::Note(words) = event {
            tracing::info!(target: "rollway::explorer", "{words}");
        }
    }
}
