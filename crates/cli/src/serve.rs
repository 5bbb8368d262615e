//! `rollway run` in mode `serve`: serves until it is told to end.

#![expect(clippy::print_stdout, reason = "where the server is, is what was asked for")]

use std::io;
use std::sync::Arc;

use rollway::config::Config;
use rollway::serve::{Checkpoints, ServeError, Server};
use rollway_cli::log::{self, Form};
use rollway_cli::output::Output;

use crate::signals::Signals;
use crate::{Failure, runtime};

/// Serves the models of a checked configuration until a signal ends it.
pub(crate) fn serve(config: &Config) -> Result<(), Failure> {
    log::install(config.log.level, &Output::stderr(Form::Plain), None);
    let failed = |what: &str, error: io::Error| Failure::Job(format!("{what}: {error}"));
    runtime()?.block_on(async {
        let mut signals =
            Signals::new().map_err(|error| failed("signals cannot be waited for", error))?;
        let weights = Arc::new(Checkpoints::new(config.job_dir()));
        let server = tokio::select! {
            server = Server::start(config, weights) => server?,
            () = signals.next() => return Ok(()),
        };
        print_where(config, &server);
        signals.next().await;
        println!("ending; a second signal ends it at once");
        tokio::select! {
            stopped = server.stop() => stopped?,
            () = signals.next() => {
                return Err(Failure::Job("ended before everything was closed".to_owned()));
            }
        }
        println!("ended");
        Ok(())
    })
}

impl From<ServeError> for Failure {
    fn from(error: ServeError) -> Self {
        match error {
            ServeError::Config(error) => error.into(),
            ServeError::Sink(error) => Self::Input(error.to_string()),
            error => Self::Job(error.to_string()),
        }
    }
}

fn print_where(config: &Config, server: &Server) {
    let counts = server.counts();
    println!("serving {} at {}", rollway::gateway_options::trained_model(config), server.url());
    println!("  address in  {}", server.url_file().display());
    match server.key_file() {
        Some(file) => println!("  key in      {}", file.display()),
        None if config.explorer.authentication => {
            let variable = config.explorer.proxy_key_env.as_deref().unwrap_or_default();
            println!("  key in      ${variable}");
        }
        None => println!("  key         none: whoever reaches the address may use it"),
    }
    if let Some((url, secret)) = server.reader() {
        println!("  trainers    {url}, secret in {}", secret.display());
    }
    println!(
        "  so far      {} recorded, {} wait for a commit, step {}",
        counts.recorded, counts.ready, counts.step
    );
}
