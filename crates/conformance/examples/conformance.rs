//! Checks that a worker follows the protocol.
//!
//! `cargo run -p rollway-conformance --example conformance -- [OPTIONS] [COMMAND [ARGUMENT]...]`
//!
//! With a command, the kit starts the worker as needed. Without, the user starts it once.

use std::ffi::OsString;
use std::process::ExitCode;

use rollway_conformance::{ConformanceOptions, ConformanceTarget, TargetEnv};
use rollway_protocol::env;

const USAGE: &str = "usage: conformance [--address ADDRESS] [COMMAND [ARGUMENT]...]";

#[tokio::main(flavor = "current_thread")]
#[expect(clippy::print_stdout, clippy::print_stderr, reason = "a program prints its report")]
async fn main() -> ExitCode {
    match parse() {
        Ok((target, options)) => {
            let report = rollway_conformance::run(&target, &options).await;
            println!("{report}");
            if report.ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("error: {error}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn parse() -> Result<(ConformanceTarget, ConformanceOptions), String> {
    let mut options = ConformanceOptions::default();
    let mut arguments = std::env::args_os().skip(1).peekable();
    if arguments.next_if(|argument| argument == "--address").is_some() {
        let address = arguments.next().ok_or("--address needs an address")?;
        let address = address.to_str().ok_or("the address is not UTF-8")?;
        options.address = address.parse().map_err(|error| format!("{error}"))?;
    }
    let command: Vec<OsString> = arguments.collect();
    if command.is_empty() {
        return Ok((ConformanceTarget::Manual(Box::new(print_parameters)), options));
    }
    if command[0].to_string_lossy().starts_with('-') {
        return Err(format!("unknown option {}", command[0].display()));
    }
    Ok((ConformanceTarget::Command(command), options))
}

#[expect(clippy::print_stderr, reason = "instructions for the user")]
fn print_parameters(parameters: &TargetEnv) {
    let TargetEnv { address, secret, token } = parameters;
    eprintln!("start the worker now with");
    eprintln!("  {}={address}", env::ADDRESS);
    eprintln!("  {}={}", env::SECRET, secret.reveal());
    eprintln!("  {}={token}", env::TOKEN);
}
