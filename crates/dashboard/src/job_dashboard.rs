//! The dashboard of a job that runs: opened with it, found by others through its card.

use std::sync::Arc;

use rollway_config::Config;
use rollway_engine::job_event::{JobEvent, JobObservers};
use rollway_telemetry::history::RunHistory;
use rollway_telemetry::live_job;
use rollway_telemetry::prometheus::PrometheusExporter;

use super::address_file::DashboardAddressFile;
use super::{Dashboard, DashboardOptions};

/// The dashboard of a job, and its card in the job's folder. Both end when this is dropped.
#[derive(Debug)]
pub struct JobDashboard {
    _card: Option<DashboardAddressFile>,
    dashboard: Dashboard,
}

impl JobDashboard {
    /// Serves the dashboard of a job, if its configuration wants that, and tells `people` where it
    /// is. What goes wrong is said as well, and does not keep the job from running.
    pub async fn open(
        config: &Config,
        history: &Arc<RunHistory>,
        metrics: Option<Arc<PrometheusExporter>>,
        people: &JobObservers,
    ) -> Option<Self> {
        if !config.dashboard.enable {
            return None;
        }
        let scene = live_job::live(Arc::clone(history));
        let opened = match DashboardOptions::new(config, scene) {
            Ok(options) => Dashboard::open(DashboardOptions { metrics, ..options }).await,
            Err(error) => Err(error),
        };
        let dashboard = match opened {
            Ok(dashboard) => dashboard,
            Err(error) => {
                people.emit(&JobEvent::Info(format!("{error}; the job goes on without it")));
                return None;
            }
        };
        let card = dashboard.card().leave(&config.job_dir());
        if let Err(error) = &card {
            tracing::warn!(%error, "`rollway view` and `rollway top` will not find the dashboard");
        }
        people.emit(&JobEvent::Info(format!("dashboard: {}", dashboard.address())));
        Some(Self { _card: card.ok(), dashboard })
    }

    /// Returns where it is, with the token that opens it.
    pub fn address(&self) -> String {
        self.dashboard.address()
    }
}
