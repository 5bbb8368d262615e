//! `rollway trace`: exports the history of a job for Perfetto.

use std::path::PathBuf;

use clap::Args;
use rollway::{history, trace};

use crate::CliError;

const MAX_TRACE_BYTES: u64 = 2 << 30;

#[derive(Debug, Args)]
pub(crate) struct TraceArgs {
    /// Folder of the job
    job_dir: PathBuf,
    /// File to write; default: `trace-from-history.json` in the job's folder
    #[arg(short, long)]
    output: Option<PathBuf>,
    /// Maximum size of the file in bytes
    #[arg(long, default_value_t = MAX_TRACE_BYTES)]
    max_bytes: u64,
}

pub(crate) fn trace(args: &TraceArgs) -> Result<(), CliError> {
    let TraceArgs { job_dir, output, max_bytes } = args;
    if !job_dir.is_dir() {
        let job = job_dir.display();
        return Err(CliError::Input(format!("no such folder: {job}; pass the folder of a job")));
    }
    let view =
        history::recorded_view(job_dir).map_err(|error| CliError::Input(error.to_string()))?;
    let path = output.clone().unwrap_or_else(|| job_dir.join("trace-from-history.json"));
    let (runs, untraced) = trace::write_trace(&*view, &path, *max_bytes).map_err(|error| {
        CliError::Job(format!("cannot write {}: {error}; choose another --output", path.display()))
    })?;
    outln!("{}: {runs} runs; open it at https://ui.perfetto.dev", path.display());
    if untraced.events > 0 {
        outln!("{} events left out; raise --max-bytes to include them", untraced.events);
    }
    Ok(())
}
