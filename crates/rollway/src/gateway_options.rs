//! Conversion of a configuration to the options of the gateway.

use std::time::Duration;

use rollway_base::Secret;
use rollway_base::listener::ListenerKind;
use rollway_base::net::host_port;
use rollway_config::secrets::api_key;
use rollway_config::{
    Config, ConfigError, ConfigProblem, ExperienceWeightsConfig, GatewayConfig, InFlightCalls,
    Mode, ModelConfig,
};
use rollway_engine::cluster::AdvertisedAddress;
use rollway_gateway::gateway::{ByteLimits, GatewayLimits, GatewayOptions, RunBudget};
use rollway_gateway::models::{self, InFlightPolicy, RestartHook, ServerSpec};
use rollway_recording as recording;
use serde_json::{Map, Value};

/// Name of a trained model without a name and a path.
const TRAINED: &str = "policy";

/// Returns the options of the gateway and its servers. Mode `serve` listens on the configured
/// address; other modes on the loopback address, or on one that workers on other machines can
/// reach. The admin key is random. Models without a server (passed in code, embedded) are left out.
pub fn options(config: &Config) -> Result<(GatewayOptions, Vec<ServerSpec>), ConfigError> {
    let explorer = &config.explorer;
    let serves = config.mode == Mode::Serve;
    let admin_key = Secret::random().map_err(|error| {
        ConfigError::from(ConfigProblem::new(
            "",
            format!("the system provides no random numbers: {error}"),
        ))
    })?;
    // A call must not outlive its caller: agents wait like the trainer, a run ends with its
    // attempt.
    let call_timeout: Duration = match serves {
        true => config.synchronizer.sync_timeout.into(),
        false => explorer.max_timeout.into(),
    };
    let gateway = &explorer.gateway;
    // Workers on other machines call the models too.
    let site = AdvertisedAddress::of(config).filter(|_| !serves);
    let mut tls = config.tls_options();
    tls.hosts.extend(site.iter().map(|site| site.host.clone()));
    let options = GatewayOptions {
        listen: match &site {
            _ if serves => host_port(&explorer.listen_address, explorer.proxy_port),
            Some(site) => site.listens_at(site.gateway_port),
            None => host_port("127.0.0.1", 0),
        },
        host: site.map(|site| site.host),
        tls,
        admin_key,
        agent_key: None,
        limits: GatewayLimits {
            listener: config.listeners.limits(ListenerKind::Gateway),
            ..limits(gateway, call_timeout)
        },
        record: recording::RecorderLimits {
            max_bytes: gateway.recorded_bytes_per_run,
            max_experience_bytes: explorer.limits.payload_bytes_per_run,
            ..recording::RecorderLimits::default()
        },
        weights: weights(&gateway.weights),
        budget: RunBudget {
            model_calls: explorer.run_budget.model_calls,
            prompt_tokens: explorer.run_budget.prompt_tokens,
            completion_tokens: explorer.run_budget.completion_tokens,
            tool_turns: explorer.run_budget.tool_turns,
            duration: explorer.run_budget.duration.map(Into::into),
        },
        models: models::RoutingOptions {
            min_running: explorer.min_running_model_num,
            max_in_flight: explorer.gateway.max_requests_per_server,
            min_in_flight: explorer.gateway.min_requests_per_server,
            is_adaptive: explorer.gateway.adaptive_concurrency,
            load_interval: Some(explorer.gateway.load_interval.into())
                .filter(|interval: &Duration| !interval.is_zero()),
            max_wait: explorer.gateway.server_wait.into(),
            restart: restart_hook(config),
            ..models::RoutingOptions::default()
        },
        model_aliases: explorer.gateway.model_aliases.clone(),
        sampling: sampling(&explorer.rollout_model, serves),
        force_sampling: serves,
        seed: explorer.rollout_model.seed.filter(|_| !serves),
        exact_histories: explorer.gateway.exact_histories,
        pass_fields: gateway.pass_fields.clone(),
        remote_media: gateway.remote_media,
        watcher: None,
    };
    Ok((options, servers(config)?))
}

/// Returns the limits of calls.
fn limits(gateway: &GatewayConfig, call_timeout: Duration) -> GatewayLimits {
    let defaults = GatewayLimits::default();
    let bytes = |limit: u64| usize::try_from(limit).unwrap_or(usize::MAX);
    GatewayLimits {
        call_timeout,
        idle_timeout: defaults.idle_timeout.min(call_timeout),
        request_body_bytes: bytes(gateway.request_body_bytes),
        response_body_bytes: bytes(gateway.response_body_bytes),
        json_nodes: gateway.json_nodes,
        json_depth: gateway.json_depth,
        calls: gateway.calls as usize,
        calls_per_run: gateway.calls_per_run as usize,
        request_bytes: ByteLimits {
            total: gateway.request_bytes,
            per_run: gateway.request_bytes_per_run,
        },
        response_bytes: ByteLimits {
            total: gateway.response_bytes,
            per_run: gateway.response_bytes_per_run,
        },
        recorded_bytes: gateway.recorded_bytes,
        ..defaults
    }
}

/// Returns the weights of the experiences of a run.
fn weights(weights: &ExperienceWeightsConfig) -> recording::ExperienceWeights {
    recording::ExperienceWeights {
        per_run: weights.per_run,
        branch: weights.branch,
        drift: weights.drift,
        agents: weights.agents.clone(),
    }
}

/// Returns the command that restarts servers. `None`: there is none.
fn restart_hook(config: &Config) -> Option<RestartHook> {
    let restart = &config.explorer.server_restart;
    (!restart.command.is_empty()).then(|| RestartHook {
        command: restart.command.clone(),
        after: restart.after.into(),
        timeout: restart.timeout.into(),
    })
}

/// Returns the treatment of running calls by a weight update.
pub fn in_flight(config: &Config) -> InFlightPolicy {
    let sync = &config.synchronizer;
    match sync.in_flight {
        InFlightCalls::Drain => InFlightPolicy::Drain {
            timeout: sync.drain_timeout.unwrap_or(sync.sync_timeout).into(),
            then_abort: sync.abort_after_drain,
        },
        InFlightCalls::Keep => InFlightPolicy::Keep,
        InFlightCalls::Abort => InFlightPolicy::Abort,
    }
}

pub fn trained_model(config: &Config) -> String {
    let model = &config.explorer.rollout_model;
    let chosen = |name: &Option<String>| name.clone().filter(|name| !name.is_empty());
    chosen(&model.name).or_else(|| chosen(&model.model_path)).unwrap_or_else(|| TRAINED.to_owned())
}

fn servers(config: &Config) -> Result<Vec<ServerSpec>, ConfigError> {
    let mut problems = Vec::new();
    let (key, rollout) = ("explorer.rollout_model", &config.explorer.rollout_model);
    let mut servers = servers_of(key, &trained_model(config), rollout, &mut problems);
    servers.iter_mut().for_each(|server| server.trained = true);
    for (index, (name, model)) in config.explorer.named_auxiliary_models().enumerate() {
        let key = format!("explorer.auxiliary_models[{index}]");
        servers.extend(servers_of(&key, &name, model, &mut problems));
    }
    if problems.is_empty() { Ok(servers) } else { Err(ConfigError::new(problems)) }
}

fn servers_of(
    key: &str,
    name: &str,
    model: &ModelConfig,
    problems: &mut Vec<ConfigProblem>,
) -> Vec<ServerSpec> {
    let Some(engine) = model.engine_type.server_kind() else { return Vec::new() };
    let api_key = match api_key(&format!("{key}.api_key_env"), model.api_key_env.as_deref()) {
        Ok(api_key) => api_key,
        Err(problem) => {
            problems.push(problem);
            None
        }
    };
    let server_model = model.model_path.clone().filter(|path| !path.is_empty());
    let server = |url: &String| ServerSpec {
        model: name.to_owned(),
        trained: false,
        engine,
        url: root(url).to_owned(),
        api_key: api_key.clone(),
        server_model: server_model.clone(),
    };
    model.base_url.iter().map(server).collect()
}

/// Returns the sampling arguments of calls of the trained model. `forced`: they override those of
/// clients, except for the number of tokens.
fn sampling(model: &ModelConfig, forced: bool) -> Map<String, Value> {
    let mut sampling = Map::new();
    let mut set = |name: &str, value: Option<Value>| {
        sampling.extend(value.map(|value| (name.to_owned(), value)));
    };
    set("temperature", model.temperature.map(Value::from));
    set("top_p", model.top_p.map(Value::from));
    set("top_k", model.top_k.map(Value::from));
    if forced {
        set("seed", model.seed.map(Value::from));
    } else {
        set("max_tokens", model.max_response_tokens.map(Value::from));
    }
    sampling
}

/// Returns an address without `/v1`, which is part of every path.
fn root(url: &str) -> &str {
    let url = url.trim_end_matches('/');
    url.strip_suffix("/v1").unwrap_or(url).trim_end_matches('/')
}

#[cfg(test)]
mod tests {
    use rollway_base::ServerKind;

    use super::*;

    fn read(text: &str) -> Result<(GatewayOptions, Vec<ServerSpec>), ConfigError> {
        let config = Config::from_yaml(text, "job.yaml").unwrap_or_else(|error| panic!("{error}"));
        options(&config)
    }

    #[test]
    fn options_and_servers_follow_the_configuration() {
        let (options, servers) = read(
            "mode: serve
explorer:
  proxy_port: 9000
  listen_address: '::1'
  min_running_model_num: 2
  gateway:
    exact_histories: false
    max_requests_per_server: 7
    server_wait: 9
    load_interval: 0
    weights: {branch: 0.5}
  rollout_model:
    engine_type: llama_cpp
    model_path: Qwen/Qwen3
    base_url: [http://a:1/v1, 'http://b:2/']
    temperature: 0.5
    max_response_tokens: 9
  auxiliary_models:
  - {name: judge, base_url: https://c/x/v1/, engine_type: openai}
  - {engine_type: echo}
synchronizer: {sync_timeout: 60}",
        )
        .unwrap();
        assert_eq!(options.listen, "[::1]:9000");
        assert!(options.force_sampling);
        assert_eq!(options.models.min_running, 2);
        assert!(!options.exact_histories);
        assert_eq!((options.weights.branch, options.weights.drift), (0.5, 1.0));
        assert_eq!(options.models.max_in_flight, 7);
        assert_eq!(options.models.load_interval, None);
        assert_eq!(options.models.max_wait, Duration::from_secs(9));
        assert_eq!(options.limits.call_timeout, Duration::from_secs(60));
        assert_eq!(Value::from(options.sampling), serde_json::json!({ "temperature": 0.5 }));
        let named: Vec<_> = servers
            .iter()
            .map(|one| (one.model.as_str(), one.trained, one.engine, one.url.as_str()))
            .collect();
        assert_eq!(
            named,
            [
                ("Qwen/Qwen3", true, ServerKind::LlamaCpp, "http://a:1"),
                ("Qwen/Qwen3", true, ServerKind::LlamaCpp, "http://b:2"),
                ("judge", false, ServerKind::Openai, "https://c/x"),
            ]
        );
        assert_eq!(servers[0].server_model.as_deref(), Some("Qwen/Qwen3"));
    }

    #[test]
    fn missing_api_key_variable_is_named() {
        let error = read(
            "explorer: {rollout_model: {base_url: http://a:1, api_key_env: ROLLWAY_NO_SUCH_KEY}}",
        )
        .unwrap_err()
        .to_string();
        assert!(error.contains("explorer.rollout_model.api_key_env"), "{error}");
        assert!(error.contains("ROLLWAY_NO_SUCH_KEY is not set"), "{error}");
    }
}
