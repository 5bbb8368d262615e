//! `rollway trace`: a file for Perfetto from the history of a job.

#![expect(clippy::print_stdout, reason = "what was asked for goes to standard output")]

use std::path::PathBuf;

use clap::Args;
use rollway::{recorded_job, trace};

use crate::Failure;

/// How large the file may become, unless somebody says otherwise.
const MOST: u64 = 2 << 30;

#[derive(Debug, Args)]
pub(crate) struct Trace {
    /// The folder of the job
    job_dir: PathBuf,
    /// The file to write; without it `trace-from-history.json` in the job's folder
    #[arg(short, long)]
    output: Option<PathBuf>,
    /// How many bytes it may have
    #[arg(long, default_value_t = MOST)]
    max_bytes: u64,
}

/// Writes the file.
pub(crate) fn trace(wanted: &Trace) -> Result<(), Failure> {
    let Trace { job_dir, output, max_bytes } = wanted;
    if !job_dir.is_dir() {
        let job = job_dir.display();
        return Err(Failure::Input(format!("{job} is no folder; name the folder of a job")));
    }
    let scene = recorded_job::open(job_dir).map_err(|error| Failure::Input(error.to_string()))?;
    let path = output.clone().unwrap_or_else(|| job_dir.join("trace-from-history.json"));
    let (runs, untraced) = trace::draw(&*scene, &path, *max_bytes)
        .map_err(|error| Failure::Job(format!("{}: {error}", path.display())))?;
    println!("{}: {runs} runs; open it at https://ui.perfetto.dev", path.display());
    if untraced.events > 0 {
        println!("{} events did not fit: see --max-bytes", untraced.events);
    }
    Ok(())
}
