//! The dashboard of a running job, with its address file.

use std::io::{self, IsTerminal as _};
use std::sync::Arc;

use rollway_config::Config;
use rollway_engine::job_event::{JobEvent, JobObservers};
use rollway_telemetry::history::{self, RunHistory};
use rollway_telemetry::prometheus::PrometheusExporter;

use super::address_file::DashboardAddressFile;
use super::{Dashboard, DashboardOptions};

/// Dashboard and address file of a job. Dropping it removes both.
#[derive(Debug)]
pub struct JobDashboard {
    _file: Option<DashboardAddressFile>,
    dashboard: Dashboard,
}

impl JobDashboard {
    /// Serves the dashboard of a job if its configuration wants it. `observers` get the address, or
    /// an error that does not affect the job.
    pub async fn open(
        config: &Config,
        history: &Arc<RunHistory>,
        metrics: Option<Arc<PrometheusExporter>>,
        observers: &JobObservers,
    ) -> Option<Self> {
        if !config.dashboard.enable {
            return None;
        }
        let view = history::live_view(Arc::clone(history));
        let opened = match DashboardOptions::new(config, view) {
            Ok(options) => Dashboard::open(DashboardOptions { metrics, ..options }).await,
            Err(error) => Err(error),
        };
        let dashboard = match opened {
            Ok(dashboard) => dashboard,
            Err(error) => {
                observers.emit(&JobEvent::Info(format!("{error}; the job continues without it")));
                return None;
            }
        };
        let file = dashboard.card().write(&config.job_dir());
        if let Err(error) = &file {
            tracing::warn!(%error, "`rollway view` and `rollway top` cannot find the dashboard");
        }
        observers.emit(&JobEvent::Info(format!("dashboard: {}", shown(config, &dashboard))));
        Some(Self { _file: file.ok(), dashboard })
    }

    /// Returns the URL with the token.
    pub fn address(&self) -> String {
        self.dashboard.address()
    }
}

/// Returns the address for people: with the token on a terminal, else with the command that finds
/// it, because log files have more readers than the job's folder.
fn shown(config: &Config, dashboard: &Dashboard) -> String {
    if io::stdout().is_terminal() && io::stderr().is_terminal() {
        return dashboard.address();
    }
    let (url, job) = (&dashboard.card().url, config.job_dir());
    format!("{url} (`rollway view {}` opens it)", job.display())
}
