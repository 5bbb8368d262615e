//! `rollway view`: the dashboard of a running or ended job.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;
use rollway::dashboard::{Dashboard, DashboardAddress, DashboardError, DashboardOptions};
use rollway::history;
use rollway_base::error_chain;
use rollway_base::listener::{ListenerKind, ListenerLimits};
use rollway_base::tls::{CertificateSource, TlsMode, TlsOptions};

use crate::signals::Signals;
use crate::{CliError, runtime};

// A doc comment here would replace the description of the command in its help.
#[derive(Debug, Args)]
pub(crate) struct ViewArgs {
    /// Folder of the job
    job_dir: PathBuf,
    /// Address to listen on, as `host:port`; port 0 takes any free port
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    listen: String,
    /// Open the dashboard in a browser
    #[arg(long)]
    open: bool,
}

/// Prints the address of a running job's dashboard, or serves the recorded history of an ended job
/// until a signal stops it.
pub(crate) fn view(args: &ViewArgs) -> Result<(), CliError> {
    let job = &args.job_dir;
    if !job.is_dir() {
        let job = job.display();
        return Err(CliError::Input(format!("no such folder: {job}; pass the folder of a job")));
    }
    let runtime = runtime()?;
    runtime.block_on(async {
        if let Some(dashboard) = running_dashboard(job).await {
            outln!("{}", dashboard.address());
            errln!("the job is running; this is its live dashboard");
            open(args, &dashboard.address());
            return Ok(());
        }
        let view =
            history::recorded_view(job).map_err(|error| CliError::Input(error.to_string()))?;
        let limits = ListenerLimits::of(ListenerKind::Dashboard);
        let listen = args.listen.clone();
        let source = CertificateSource::Folder(job.join("tls"));
        let tls = TlsOptions { mode: TlsMode::Auto, source, hosts: Vec::new() };
        let options = DashboardOptions { listen, limits, tls, token: None, view, metrics: None };
        let dashboard = Dashboard::open(options).await?;
        let mut signals = Signals::new()?;
        outln!("{}", dashboard.address());
        errln!("recorded history of the job; Ctrl-C stops the dashboard");
        open(args, &dashboard.address());
        signals.next().await;
        Ok(())
    })
}

/// Returns the address of the job's own dashboard, if it responds.
async fn running_dashboard(job: &Path) -> Option<DashboardAddress> {
    let dashboard = DashboardAddress::read(job).ok().flatten()?;
    dashboard.is_served().await.then_some(dashboard)
}

/// Opens an address in a browser if requested. A failure is only a warning.
fn open(args: &ViewArgs, address: &str) {
    if !args.open {
        return;
    }
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let mut command = Command::new(program);
    let command = command.arg(address).stdin(Stdio::null()).stdout(Stdio::null());
    if let Err(error) = command.stderr(Stdio::null()).spawn() {
        errln!("warning: cannot open a browser with {program}: {error}; open {address} yourself");
    }
}

impl From<DashboardError> for CliError {
    fn from(error: DashboardError) -> Self {
        Self::Input(error_chain(&error))
    }
}
