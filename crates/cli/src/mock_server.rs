//! `rollway mock-server`: a mock inference server, to try a configuration without a GPU.

#![expect(clippy::print_stdout, reason = "the address of the server is the result")]

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as Arguments, ValueEnum};
use rollway_gateway::simulated::{Kind, Lengths, Options, Server};

use crate::signals::Signals;
use crate::{CliError, runtime};

const API_KEY_VARIABLE: &str = "ROLLWAY_MOCK_SERVER_API_KEY";
const OLD_API_KEY_VARIABLE: &str = "ROLLWAY_IMITATE_API_KEY";

// A doc comment here would replace the description of the command in its help.
#[derive(Debug, Arguments)]
pub(crate) struct MockServerArgs {
    /// Server to mock
    #[arg(value_enum, value_name = "SERVER_KIND", default_value_t = ServerKind::Vllm)]
    server_kind: ServerKind,
    /// Port to listen on; 0 takes any free port
    #[arg(long, default_value_t = 8000)]
    port: u16,
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// Name of the model
    #[arg(long, default_value = "mock")]
    model: String,
    /// Seed of the generated tokens
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// API key that clients must send
    #[arg(long, env = API_KEY_VARIABLE, hide_env_values = true)]
    api_key: Option<String>,
    /// Seconds until the first token of a response
    #[arg(long, default_value_t = 0.05, value_parser = non_negative)]
    first_token_seconds: f64,
    /// Tokens per second of each response; 0: all at once
    #[arg(long, default_value_t = 50.0, value_parser = non_negative)]
    tokens_per_second: f64,
    /// Tokens of a completion: `100`, `20-200` (uniform), or `~100` (geometric with that mean)
    #[arg(long, default_value = "20-200", value_parser = completion_tokens)]
    completion_tokens: Lengths,
    /// Maximum tokens of prompt and completion together
    #[arg(long, default_value_t = 131_072, value_parser = clap::value_parser!(u32).range(2..))]
    max_model_len: u32,
    /// Maximum number of concurrent requests; further requests wait
    #[arg(long, default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(1..))]
    max_concurrent: u32,
    /// Folder with the weights: `{"version": 7}` in its `weights.json`, or digits at the end of
    /// its name
    #[arg(long)]
    weights: Option<PathBuf>,
    /// Seconds that a weight update takes
    #[arg(long, default_value_t = 0.5, value_parser = non_negative)]
    update_seconds: f64,
    /// Percentage of requests that fail with status 500
    #[arg(long, default_value_t = 0.0, value_parser = percent)]
    error_percent: f64,
    /// Percentage of requests whose connection is closed in the middle of the response
    #[arg(long, default_value_t = 0.0, value_parser = percent)]
    disconnect_percent: f64,
    /// Percentage of requests with tools that get a tool call without requiring one
    #[arg(long, default_value_t = 0.0, value_parser = percent)]
    tool_call_percent: f64,
    /// Tokenize completions differently when a later prompt repeats them
    #[arg(long)]
    retokenize: bool,
    /// Reject request fields that OpenAI's API does not have (server kind `openai`)
    #[arg(long)]
    reject_unknown_fields: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ServerKind {
    Vllm,
    Sglang,
    Openai,
}

impl ServerKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::Openai => "openai",
        }
    }
}

impl MockServerArgs {
    fn options(&self) -> Options {
        let kind = match self.server_kind {
            ServerKind::Vllm => Kind::Vllm,
            ServerKind::Sglang => Kind::Sglang,
            ServerKind::Openai => Kind::OpenAi,
        };
        Options {
            address: SocketAddr::new(self.host, self.port),
            seed: self.seed,
            model: self.model.clone(),
            api_key: self.api_key.clone(),
            first_token: Duration::from_secs_f64(self.first_token_seconds),
            tokens_per_second: self.tokens_per_second,
            lengths: self.completion_tokens,
            max_model_len: self.max_model_len,
            max_running: self.max_concurrent as usize,
            weights: self.weights.clone(),
            update_time: Duration::from_secs_f64(self.update_seconds),
            fail_rate: self.error_percent / 100.0,
            cut_rate: self.disconnect_percent / 100.0,
            tool_call_rate: self.tool_call_percent / 100.0,
            drift: self.retokenize,
            strict: self.reject_unknown_fields,
            // Records are for tests in the same process.
            max_records: 0,
            ..Options::new(kind)
        }
    }
}

/// Runs a mock server until a signal ends it.
pub(crate) fn mock_server(args: &MockServerArgs) -> Result<(), CliError> {
    if args.api_key.is_none() && std::env::var_os(OLD_API_KEY_VARIABLE).is_some() {
        return Err(CliError::Input(format!(
            "the environment variable {OLD_API_KEY_VARIABLE} was renamed to {API_KEY_VARIABLE}"
        )));
    }
    runtime()?.block_on(async {
        let options = args.options();
        let address = options.address;
        let server = Server::start(options).map_err(|error| {
            CliError::Input(format!(
                "cannot listen on {address}: {error}\nhint: `--port 0` takes any free port"
            ))
        })?;
        // Before the address is printed: a caller may send a signal as soon as it has read it.
        let mut signals = Signals::new()?;
        print_address(args, &server);
        signals.next().await;
        server.stop().await;
        println!("stopped");
        Ok(())
    })
}

fn print_address(args: &MockServerArgs, server: &Server) {
    let name = args.server_kind.name();
    let url = server.url();
    println!("mock {name} server at {url} (Ctrl-C stops it)");
    println!();
    println!("in a configuration:");
    println!("  explorer:");
    println!("    rollout_model:");
    println!("      engine_type: {name}");
    println!("      base_url: {url}/v1");
    println!("      model_path: {}", args.model);
    if args.api_key.is_some() {
        println!("      api_key_env: NAME  # environment variable with the key");
    }
}

/// Parses a number that is not negative.
fn non_negative(text: &str) -> Result<f64, String> {
    parse_in_range(text, 1e6)
}

/// Parses a percentage.
fn percent(text: &str) -> Result<f64, String> {
    parse_in_range(text, 100.0)
}

fn parse_in_range(text: &str, max: f64) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if (0.0..=max).contains(&value) => Ok(value),
        _ => Err(format!("expected a number from 0 to {max}")),
    }
}

/// Parses `100`, `20-200` or `~100`.
fn completion_tokens(text: &str) -> Result<Lengths, String> {
    let number = |part: &str| match part.parse::<u32>() {
        Ok(value) if value > 0 => Ok(value),
        _ => Err(format!("`{part}` is not a number of tokens; expected 1 or more")),
    };
    if let Some(mean) = text.strip_prefix('~') {
        let mean = number(mean)?;
        return Ok(Lengths::Geometric { mean: mean.into(), max: mean.saturating_mul(20) });
    }
    match text.split_once('-') {
        None => number(text).map(Lengths::Fixed),
        Some((low, high)) => match (number(low)?, number(high)?) {
            (low, high) if low <= high => Ok(Lengths::Uniform(low, high)),
            (low, high) => Err(format!("{low} is larger than {high}; swap them")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms_of_completion_tokens_are_parsed() {
        assert_eq!(completion_tokens("100"), Ok(Lengths::Fixed(100)));
        assert_eq!(completion_tokens("20-200"), Ok(Lengths::Uniform(20, 200)));
        assert_eq!(completion_tokens("~50"), Ok(Lengths::Geometric { mean: 50.0, max: 1000 }));
        for wrong in ["", "0", "9-3", "a", "-4", "3-", "~"] {
            assert!(completion_tokens(wrong).is_err(), "{wrong}");
        }
    }
}
