//! `rollway mock-server`: a mock inference server, to try a configuration without a GPU.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args as Arguments;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use rollway_base::ServerKind;
use rollway_base::listener::{ListenerKind, ListenerLimits};
use rollway_mock_server::{CompletionLengths, MockServer, MockServerOptions};

use crate::signals::Signals;
use crate::{CliError, runtime};

const API_KEY_VARIABLE: &str = "ROLLWAY_MOCK_SERVER_API_KEY";
const OLD_API_KEY_VARIABLE: &str = "ROLLWAY_IMITATE_API_KEY";

// A doc comment here would replace the description of the command in its help.
#[derive(Debug, Arguments)]
pub(crate) struct MockServerArgs {
    /// Server to mock
    #[arg(value_name = "SERVER_KIND", default_value = "vllm", value_parser = server_kinds())]
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
    completion_tokens: CompletionLengths,
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

/// Returns the parser of the server kinds that have a mock.
fn server_kinds() -> impl TypedValueParser<Value = ServerKind> {
    PossibleValuesParser::new(rollway_mock_server::mocked_kinds().map(ServerKind::name))
        .try_map(|name| name.parse())
}

impl MockServerArgs {
    fn options(&self) -> MockServerOptions {
        let kind = ListenerKind::MockServer;
        MockServerOptions {
            listener: ListenerLimits { is_main: true, ..ListenerLimits::of(kind) },
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
            ..MockServerOptions::new(self.server_kind)
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
        let server = MockServer::start(options).map_err(|error| {
            CliError::Input(format!(
                "cannot listen on {address}: {error}\nhint: `--port 0` takes any free port"
            ))
        })?;
        // Before the address is printed: a caller may send a signal as soon as it has read it.
        let mut signals = Signals::new()?;
        print_address(args, &server);
        signals.next().await;
        server.stop().await;
        outln!("stopped");
        Ok(())
    })
}

fn print_address(args: &MockServerArgs, server: &MockServer) {
    let name = args.server_kind.name();
    let url = server.url();
    outln!("mock {name} server at {url} (Ctrl-C stops it)");
    outln!();
    outln!("in a configuration:");
    outln!("  explorer:");
    outln!("    rollout_model:");
    outln!("      engine_type: {name}");
    outln!("      base_url: {url}/v1");
    outln!("      model_path: {}", args.model);
    if args.api_key.is_some() {
        outln!("      api_key_env: NAME  # environment variable with the key");
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
fn completion_tokens(text: &str) -> Result<CompletionLengths, String> {
    let number = |part: &str| match part.parse::<u32>() {
        Ok(value) if value > 0 => Ok(value),
        _ => Err(format!("`{part}` is not a number of tokens; expected 1 or more")),
    };
    if let Some(mean) = text.strip_prefix('~') {
        let mean = number(mean)?;
        return Ok(CompletionLengths::Geometric {
            mean: mean.into(),
            max: mean.saturating_mul(20),
        });
    }
    match text.split_once('-') {
        None => number(text).map(CompletionLengths::Fixed),
        Some((low, high)) => match (number(low)?, number(high)?) {
            (low, high) if low <= high => Ok(CompletionLengths::Uniform(low, high)),
            (low, high) => Err(format!("{low} is larger than {high}; swap them")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms_of_completion_tokens_are_parsed() {
        assert_eq!(completion_tokens("100"), Ok(CompletionLengths::Fixed(100)));
        assert_eq!(completion_tokens("20-200"), Ok(CompletionLengths::Uniform(20, 200)));
        assert_eq!(
            completion_tokens("~50"),
            Ok(CompletionLengths::Geometric { mean: 50.0, max: 1000 })
        );
        for wrong in ["", "0", "9-3", "a", "-4", "3-", "~"] {
            assert!(completion_tokens(wrong).is_err(), "{wrong}");
        }
    }
}
