//! `rollway imitate`: a simulated inference server, to try a configuration without a GPU.

#![expect(clippy::print_stdout, reason = "where the server is, is what was asked for")]

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args as Arguments;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use rollway_base::ServerKind;
use rollway_mock_server::{CompletionLengths, MockServer, MockServerOptions};

use crate::signals::Signals;
use crate::{Failure, runtime};

// What the server is to be like. Words with three slashes here would be shown instead of those
// that describe the command.
#[derive(Debug, Arguments)]
pub(crate) struct Imitation {
    /// Which server to imitate
    #[arg(default_value = "vllm", value_parser = server_kinds())]
    dialect: ServerKind,
    /// Port to listen on; 0 takes any that is free
    #[arg(long, default_value_t = 8000)]
    port: u16,
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// Name of the model
    #[arg(long, default_value = "simulated")]
    model: String,
    /// Number that everything it says depends on
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Key that callers must show
    #[arg(long, env = "ROLLWAY_IMITATE_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Seconds until the first token of an answer
    #[arg(long, default_value_t = 0.05, value_parser = seconds)]
    first_token: f64,
    /// Tokens a second that each answer gets; 0 for all at once
    #[arg(long, default_value_t = 50.0, value_parser = seconds)]
    tokens_per_second: f64,
    /// Length of answers in tokens: `100`, `20-200` for anything between, `~100` for mostly short
    /// ones with that mean
    #[arg(long, default_value = "20-200", value_parser = lengths)]
    length: CompletionLengths,
    /// Longest prompt and answer together, in tokens
    #[arg(long, default_value_t = 131_072, value_parser = clap::value_parser!(u32).range(2..))]
    max_model_len: u32,
    /// Requests that are answered at a time; others wait
    #[arg(long, default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(1..))]
    max_running: u32,
    /// Directory with the weights: `{"version": 7}` in its `weights.json`, or digits at the end of
    /// its name
    #[arg(long)]
    weights: Option<PathBuf>,
    /// Seconds that an update of the weights takes
    #[arg(long, default_value_t = 0.5, value_parser = seconds)]
    update_time: f64,
    /// Requests that fail with status 500, in percent
    #[arg(long, default_value_t = 0.0, value_parser = percent)]
    fail: f64,
    /// Requests whose connection is lost in the middle of the answer, in percent
    #[arg(long, default_value_t = 0.0, value_parser = percent)]
    cut: f64,
    /// Requests with tools that are answered by a tool call without being told to, in percent
    #[arg(long, default_value_t = 0.0, value_parser = percent)]
    tool_calls: f64,
    /// Spell what the model said in other tokens when a prompt repeats it
    #[arg(long)]
    drift: bool,
    /// Refuse fields that OpenAI's API does not have (dialect `openai`)
    #[arg(long)]
    strict: bool,
}

/// Returns the parser of the server kinds that have a mock.
fn server_kinds() -> impl TypedValueParser<Value = ServerKind> {
    let kinds = ServerKind::ALL.into_iter().filter(|kind| *kind != ServerKind::LlamaCpp);
    PossibleValuesParser::new(kinds.map(ServerKind::name)).try_map(|name| name.parse())
}

impl Imitation {
    fn options(&self) -> MockServerOptions {
        MockServerOptions {
            address: SocketAddr::new(self.host, self.port),
            seed: self.seed,
            model: self.model.clone(),
            api_key: self.api_key.clone(),
            first_token: Duration::from_secs_f64(self.first_token),
            tokens_per_second: self.tokens_per_second,
            lengths: self.length,
            max_model_len: self.max_model_len,
            max_running: self.max_running as usize,
            weights: self.weights.clone(),
            update_time: Duration::from_secs_f64(self.update_time),
            fail_rate: self.fail / 100.0,
            cut_rate: self.cut / 100.0,
            tool_call_rate: self.tool_calls / 100.0,
            drift: self.drift,
            strict: self.strict,
            // Nobody could look at them.
            max_records: 0,
            ..MockServerOptions::new(self.dialect)
        }
    }
}

/// Runs a server until it is told to end.
pub(crate) fn imitate(imitation: &Imitation) -> Result<(), Failure> {
    let failed = |what: &str, error: std::io::Error| Failure::Job(format!("{what}: {error}"));
    runtime()?.block_on(async {
        let options = imitation.options();
        let address = options.address;
        let server = MockServer::start(options).map_err(|error| {
            let hint = "hint: --port 0 takes any port that is free";
            Failure::Input(format!("{address} cannot be listened on: {error}\n{hint}"))
        })?;
        print_where(imitation, &server);
        let signals = Signals::new();
        signals.map_err(|error| failed("signals cannot be waited for", error))?.next().await;
        server.stop().await;
        println!("ended");
        Ok(())
    })
}

fn print_where(imitation: &Imitation, server: &MockServer) {
    let Imitation { model, dialect: name, .. } = imitation;
    let url = server.url();
    println!("simulated {name} server at {url} (Ctrl-C ends it)");
    println!();
    println!("in a configuration:");
    println!("  explorer:");
    println!("    rollout_model:");
    println!("      engine_type: {name}");
    println!("      base_url: {url}/v1");
    println!("      model_path: {model}");
    if imitation.api_key.is_some() {
        println!("      api_key_env: NAME  # of a variable that holds the key");
    }
}

/// A number of seconds, or of anything else that is not negative.
fn seconds(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| format!("`{text}` is no number"))?;
    if (0.0..=1e6).contains(&value) { Ok(value) } else { Err("not between 0 and 1000000".into()) }
}

fn percent(text: &str) -> Result<f64, String> {
    let value = seconds(text)?;
    if value <= 100.0 { Ok(value) } else { Err("not between 0 and 100".to_owned()) }
}

/// `100`, `20-200` or `~100`.
fn lengths(text: &str) -> Result<CompletionLengths, String> {
    let number = |part: &str| {
        let value: u32 = part.parse().map_err(|_| format!("`{part}` is no number of tokens"))?;
        if value == 0 { Err("an answer has at least one token".to_owned()) } else { Ok(value) }
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
            (low, high) => Err(format!("{low} is more than {high}")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_read_in_all_their_forms() {
        assert_eq!(lengths("100"), Ok(CompletionLengths::Fixed(100)));
        assert_eq!(lengths("20-200"), Ok(CompletionLengths::Uniform(20, 200)));
        assert_eq!(lengths("~50"), Ok(CompletionLengths::Geometric { mean: 50.0, max: 1000 }));
        for wrong in ["", "0", "9-3", "a", "-4", "3-", "~"] {
            assert!(lengths(wrong).is_err(), "{wrong}");
        }
    }
}
