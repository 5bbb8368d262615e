//! Embedded models (`engine_type: tiny` and `echo`): inference servers in this process.

use std::path::PathBuf;

use rollway_base::listener::{ListenerKind, ListenerLimits};
use rollway_base::{Secret, ServerKind};
use rollway_config::{Config, EngineType, ModelConfig};
use rollway_gateway::models::ServerSpec;
use rollway_mock_server::{MockServer, MockServerOptions};
use rollway_tiny::trainer::MODEL;
use rollway_tiny::{TinyServer, TinyServerOptions};
use rollway_tiny_model::ModelWeights;

use super::{ExplorerError, Result};
use crate::gateway_options::trained_model;

/// Servers in this process. Dropping it ends them.
#[derive(Debug, Default)]
pub(crate) struct EmbeddedServers {
    tiny: Vec<TinyServer>,
    echo: Vec<MockServer>,
}

/// Version and folder of the initial weights. `None`: the built-in ones.
pub(crate) type InitialWeights = Option<(u64, PathBuf)>;

impl EmbeddedServers {
    /// Starts the servers of all embedded models, the trained one with these weights.
    pub(super) fn start(
        config: &Config,
        start: &InitialWeights,
    ) -> Result<(Self, Vec<ServerSpec>)> {
        let (mut embedded, mut specs) = (Self::default(), Vec::new());
        let trained = trained_model(config);
        let limits = config.listeners.limits(ListenerKind::EmbeddedModel);
        embedded.model(&config.explorer.rollout_model, &trained, start, &limits, &mut specs)?;
        specs.iter_mut().for_each(|spec| spec.trained = true);
        for (name, model) in config.explorer.named_auxiliary_models() {
            embedded.model(model, &name, &None, &limits, &mut specs)?;
        }
        Ok((embedded, specs))
    }

    /// Returns whether no model is embedded.
    pub(crate) fn is_empty(&self) -> bool {
        self.tiny.is_empty() && self.echo.is_empty()
    }

    fn model(
        &mut self,
        model: &ModelConfig,
        name: &str,
        start: &InitialWeights,
        limits: &ListenerLimits,
        specs: &mut Vec<ServerSpec>,
    ) -> Result<()> {
        let failed = |error: std::io::Error| ExplorerError::Model(error.to_string());
        for _ in 0..if model.engine_type.is_server() { 0 } else { model.engine_num } {
            let mut api_key = None;
            let url = if model.engine_type == EngineType::Tiny {
                api_key = Some(Secret::random().map_err(failed)?);
                let mut options = tiny(model, name, start, api_key.clone())?;
                options.listener = limits.clone();
                self.tiny.push(TinyServer::start(options).map_err(failed)?);
                self.tiny.last().map(TinyServer::url)
            } else {
                let options = MockServerOptions {
                    model: name.to_owned(),
                    seed: model.seed.unwrap_or(0),
                    version: start.as_ref().map_or(0, |(version, _)| *version),
                    ..MockServerOptions::default()
                };
                self.echo.push(MockServer::start(options).map_err(failed)?);
                self.echo.last().map(MockServer::url)
            };
            specs.push(ServerSpec {
                model: name.to_owned(),
                trained: false,
                engine: ServerKind::Vllm,
                url: url.unwrap_or_default(),
                api_key,
                server_model: Some(name.to_owned()),
            });
        }
        Ok(())
    }

    pub(crate) async fn stop(self) {
        for server in self.tiny {
            server.stop().await;
        }
        for server in self.echo {
            server.stop().await;
        }
    }
}

fn tiny(
    model: &ModelConfig,
    name: &str,
    start: &InitialWeights,
    api_key: Option<Secret>,
) -> Result<TinyServerOptions> {
    let mut options = TinyServerOptions {
        api_key,
        model: name.to_owned(),
        seed: model.seed.unwrap_or(0),
        ..TinyServerOptions::default()
    };
    if let Some((version, folder)) = start {
        let path = folder.join(MODEL);
        let weights = ModelWeights::load(&path).map_err(|error| {
            let hint = "hint: restore the checkpoint, or remove it and the later ones";
            ExplorerError::Weights(format!("{}: {error}\n{hint}", path.display()))
        })?;
        (options.version, options.weights) = (*version, std::sync::Arc::new(weights));
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;

    use super::*;

    /// Sends a request as a web page does: without a key and with a body of text.
    fn status(url: &str, path: &str) -> String {
        let mut stream = TcpStream::connect(url.strip_prefix("http://").unwrap()).unwrap();
        let body = r#"{"new_version":"999"}"#;
        let request = format!(
            "POST {path} HTTP/1.0\r\nHost: evil.example\r\nOrigin: https://evil.example\r\n\
             Content-Type: text/plain\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response.split(' ').nth(1).unwrap().to_owned()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn each_embedded_model_has_a_key_of_its_own() {
        let text = "explorer: {rollout_model: {engine_type: tiny, engine_num: 2}}";
        let config = Config::from_yaml(text, "job.yaml").unwrap();
        let (servers, specs) = EmbeddedServers::start(&config, &None).unwrap();
        assert!(specs.len() == 2 && specs[0].api_key != specs[1].api_key);
        for spec in &specs {
            assert!(spec.api_key.is_some());
            for path in ["/update_weight_version", "/pause", "/collective_rpc", "/v1/completions"] {
                let (url, path) = (spec.url.clone(), path.to_owned());
                let sent = tokio::task::spawn_blocking(move || status(&url, &path)).await.unwrap();
                assert_eq!(sent, "401");
            }
        }
        assert!(servers.tiny.iter().all(|server| &*server.version() == "0"));
        servers.stop().await;
    }
}
