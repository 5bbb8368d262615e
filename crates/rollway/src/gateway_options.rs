//! What the gateway is told of a configuration.

use std::time::Duration;

use rollway_base::Secret;
use rollway_base::net::host_port;
use rollway_config::secrets::api_key;
use rollway_config::{Config, ConfigError, ConfigProblem, Mode, ModelConfig};
use rollway_engine::cluster::AdvertisedAddress;
use rollway_gateway::gateway::{GatewayLimits, GatewayOptions};
use rollway_gateway::models::{self, ServerSpec};
use rollway_gateway::recording;
use serde_json::{Map, Value};

/// What a trained model is called that has neither a name nor a path.
const TRAINED: &str = "policy";

/// Returns how the gateway of a checked configuration behaves, and the servers behind it. The
/// gateway of mode `serve` listens where the configuration says; any other on the loopback, or
/// where workers on other machines reach it. Its key is new and random.
///
/// Models without a server (handed over in code, embedded) are left out.
pub fn options(config: &Config) -> Result<(GatewayOptions, Vec<ServerSpec>), ConfigError> {
    let explorer = &config.explorer;
    let serves = config.mode == Mode::Serve;
    let admin_key = Secret::random().map_err(|error| {
        ConfigError::from(ConfigProblem::new(
            "",
            format!("the system has no random numbers: {error}"),
        ))
    })?;
    // Nobody outlives what waits for it: agents elsewhere wait like the trainer does, a run is over
    // when its attempt is.
    let call_timeout: Duration = match serves {
        true => config.synchronizer.sync_timeout.into(),
        false => explorer.max_timeout.into(),
    };
    let usual = GatewayLimits::default();
    // Workers on other machines call the models too.
    let site = AdvertisedAddress::of(config).filter(|_| !serves);
    let options = GatewayOptions {
        listen: match &site {
            _ if serves => host_port(&explorer.listen_address, explorer.proxy_port),
            Some(site) => site.listens_at(site.gateway_port),
            None => host_port("127.0.0.1", 0),
        },
        host: site.map(|site| site.host),
        admin_key,
        limits: GatewayLimits {
            call_timeout,
            idle_timeout: usual.idle_timeout.min(call_timeout),
            ..usual
        },
        record: recording::RecorderLimits::default(),
        models: models::RoutingOptions {
            min_running: explorer.min_running_model_num,
            ..models::RoutingOptions::default()
        },
        sampling: sampling(&explorer.rollout_model, serves),
        force_sampling: serves,
        watcher: None,
    };
    Ok((options, servers(config)?))
}

/// Returns what the trained model is called.
pub fn trained_model(config: &Config) -> String {
    let model = &config.explorer.rollout_model;
    let chosen = |name: &Option<String>| name.clone().filter(|name| !name.is_empty());
    chosen(&model.name).or_else(|| chosen(&model.model_path)).unwrap_or_else(|| TRAINED.to_owned())
}

/// Returns the servers of all models.
fn servers(config: &Config) -> Result<Vec<ServerSpec>, ConfigError> {
    let mut problems = Vec::new();
    let rollout = &config.explorer.rollout_model;
    let mut servers = of_model("explorer.rollout_model", rollout, &mut problems);
    for server in &mut servers {
        server.model = trained_model(config);
        server.trained = true;
    }
    for (index, model) in config.explorer.auxiliary_models.iter().enumerate() {
        let key = format!("explorer.auxiliary_models[{index}]");
        for mut server in of_model(&key, model, &mut problems) {
            server.model = model.name.clone().unwrap_or_else(|| index.to_string());
            servers.push(server);
        }
    }
    if problems.is_empty() { Ok(servers) } else { Err(ConfigError::new(problems)) }
}

/// Returns the servers of one model, without its name.
fn of_model(key: &str, model: &ModelConfig, problems: &mut Vec<ConfigProblem>) -> Vec<ServerSpec> {
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
        model: String::new(),
        trained: false,
        engine,
        url: root(url).to_owned(),
        api_key: api_key.clone(),
        server_model: server_model.clone(),
    };
    model.base_url.iter().map(server).collect()
}

/// Returns the arguments of every call of the trained model. Those that replace what a client says
/// are about how tokens are drawn; how many it wants stays its own business.
fn sampling(model: &ModelConfig, forced: bool) -> Map<String, Value> {
    let mut sampling = Map::new();
    let mut set = |name: &str, value: Option<Value>| {
        sampling.extend(value.map(|value| (name.to_owned(), value)));
    };
    set("temperature", model.temperature.map(Value::from));
    set("top_p", model.top_p.map(Value::from));
    set("top_k", model.top_k.map(Value::from));
    set("seed", model.seed.map(Value::from));
    if !forced {
        set("max_tokens", model.max_response_tokens.map(Value::from));
    }
    sampling
}

/// Returns an address without `/v1`, which every path has itself.
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
    fn a_configuration_names_servers_and_how_they_are_asked() {
        let (options, servers) = read(
            "mode: serve
explorer:
  proxy_port: 9000
  listen_address: '::1'
  min_running_model_num: 2
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
    fn a_key_that_is_not_there_is_named() {
        let error = read(
            "explorer: {rollout_model: {base_url: http://a:1, api_key_env: ROLLWAY_NO_SUCH_KEY}}",
        )
        .unwrap_err()
        .to_string();
        assert!(error.contains("explorer.rollout_model.api_key_env"), "{error}");
        assert!(error.contains("ROLLWAY_NO_SUCH_KEY is not set"), "{error}");
    }
}
