//! The reference worker as a program: connects to the engine that its environment names.
//!
//! `cargo run -p rollway-conformance --example echo_worker -- [RUNNERS]`

use std::process::ExitCode;

use rollway_base::Secret;
use rollway_conformance::TargetEnv;
use rollway_conformance::reference::ReferenceWorker;
use rollway_protocol::env;

#[tokio::main(flavor = "current_thread")]
#[expect(clippy::print_stderr, reason = "command-line output")]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn std::error::Error>> {
    let runners = match std::env::args().nth(1) {
        Some(text) => text.parse().map_err(|_| format!("not a number of runners: `{text}`"))?,
        None => 2,
    };
    let variable = |name| std::env::var(name).map_err(|_| format!("{name} is not set"));
    let parameters = TargetEnv {
        address: variable(env::ADDRESS)?.parse()?,
        secret: Secret::new(variable(env::SECRET)?)?,
        token: variable(env::TOKEN).unwrap_or_default(),
    };
    Ok(ReferenceWorker { runners, flaw: None }.run(parameters).await?)
}
