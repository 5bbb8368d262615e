//! `rollway run` in mode `serve`: serves until a signal stops it.

use crate::log;
use crate::output::{LogFormat, Output};
use rollway::config::Config;
use rollway::job::OperatorRegistry;
use rollway::serve::{ServeJob, ServeJobError, served_weights};
use rollway_base::error_chain;

use crate::signals::Signals;
use crate::{CliError, runtime};

/// Serves the models of a checked configuration until a signal stops it.
pub(crate) fn serve(config: &Config, operators: &OperatorRegistry) -> Result<(), CliError> {
    log::install(config.log.level, &Output::stderr(LogFormat::Plain), None);
    runtime()?.block_on(async {
        let mut signals = Signals::new()?;
        let weights = served_weights(config);
        let server = tokio::select! {
            server = ServeJob::start(config, weights, operators) => server?,
            () = signals.next() => return Ok(()),
        };
        print_address(config, &server);
        signals.next().await;
        outln!("stopping; press Ctrl-C again to stop immediately");
        tokio::select! {
            stopped = server.stop() => stopped?,
            () = signals.next() => {
                let message = "stopped before requests in flight finished; their turns may be lost";
                return Err(CliError::Job(message.to_owned()));
            }
        }
        outln!("stopped");
        Ok(())
    })
}

impl From<ServeJobError> for CliError {
    fn from(error: ServeJobError) -> Self {
        match error {
            ServeJobError::Config(error) => error.into(),
            ServeJobError::Sink(error) => Self::Input(error_chain(&error)),
            error => Self::Job(error_chain(&error)),
        }
    }
}

fn print_address(config: &Config, server: &ServeJob) {
    let counts = server.counts();
    outln!("serving {} at {}", rollway::gateway_options::trained_model(config), server.url());
    outln!("  address in  {}", server.url_file().display());
    match server.key_file() {
        Some(file) => outln!("  key in      {}", file.display()),
        None if config.explorer.authentication => {
            let variable = config.explorer.proxy_key_env.as_deref().unwrap_or_default();
            outln!("  key in      ${variable}");
        }
        None => outln!("  key         none: every client that reaches the address has access"),
    }
    outln!("  admin key   in {}", server.admin_key_file().display());
    if let Some((url, secret)) = server.reader() {
        outln!("  trainers    {url}, secret in {}", secret.display());
    }
    outln!(
        "  so far      {} recorded, {} waiting for a commit, step {}",
        counts.recorded,
        counts.ready,
        counts.step
    );
}
