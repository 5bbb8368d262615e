//! The dashboard of a job that runs: opened with it, found by others through its card.

use std::sync::Arc;

use rollway_config::Config;
use rollway_engine::job_event::{Event, Watchers};
use rollway_telemetry::history::History;
use rollway_telemetry::live_job;
use rollway_telemetry::prometheus::Meters;

use super::address_file::Left;
use super::{Dashboard, Options};

/// The dashboard of a job, and its card in the job's folder. Both end when this is dropped.
#[derive(Debug)]
pub struct Shown {
    _card: Option<Left>,
    dashboard: Dashboard,
}

impl Shown {
    /// Serves the dashboard of a job, if its configuration wants that, and tells `people` where it
    /// is. What goes wrong is said as well, and does not keep the job from running.
    pub async fn open(
        config: &Config,
        history: &Arc<History>,
        metrics: Option<Arc<Meters>>,
        people: &Watchers,
    ) -> Option<Self> {
        if !config.dashboard.enable {
            return None;
        }
        let scene = live_job::live(Arc::clone(history));
        let opened = match Options::new(config, scene) {
            Ok(options) => Dashboard::open(Options { metrics, ..options }).await,
            Err(error) => Err(error),
        };
        let dashboard = match opened {
            Ok(dashboard) => dashboard,
            Err(error) => {
                people.tell(&Event::Note(format!("{error}; the job goes on without it")));
                return None;
            }
        };
        let card = dashboard.card().leave(&config.job_dir());
        if let Err(error) = &card {
            tracing::warn!(%error, "`rollway view` and `rollway top` will not find the dashboard");
        }
        people.tell(&Event::Note(format!("dashboard: {}", dashboard.address())));
        Some(Self { _card: card.ok(), dashboard })
    }

    /// Returns where it is, with the token that opens it.
    pub fn address(&self) -> String {
        self.dashboard.address()
    }
}
