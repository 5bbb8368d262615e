//! The models of a job and the gateway before them.

use std::time::Duration;

use rollway_base::Secret;
use rollway_config::{Config, ConfigProblem, EngineType};
use rollway_engine::events::RunObservers;
use rollway_gateway::gateway::{Gateway, GatewayOptions};
use rollway_gateway::models::ServerSpec;

use super::Result;
use super::embedded::{EmbeddedServers, InitialWeights};

/// Embedded models, and the gateway for all models.
#[derive(Debug)]
pub(crate) struct ModelStack {
    embedded: EmbeddedServers,
    gateway: Gateway,
    key: Secret,
}

impl ModelStack {
    /// Starts the embedded models, the trained one with these weights, and the gateway.
    pub(crate) async fn start(
        config: &Config,
        start: &InitialWeights,
        observers: &RunObservers,
    ) -> Result<Self> {
        let (mut options, embedded, servers) = models(config, start)?;
        options.watcher = observers.of_calls();
        if !servers.iter().any(|server| server.trained) {
            let key = "explorer.rollout_model.base_url";
            let hint = "give the address, such as http://localhost:8000/v1, or set \
                        `explorer.rollout_model.engine_type` to tiny";
            return Err(ConfigProblem::new(key, "no inference server is given").hint(hint).into());
        }
        let key = options.admin_key.clone();
        let gateway = Gateway::start(options, servers).await?;
        Ok(Self { embedded, gateway, key })
    }

    pub(crate) const fn gateway(&self) -> &Gateway {
        &self.gateway
    }

    /// Returns the admin key of the gateway.
    pub(crate) const fn key(&self) -> &Secret {
        &self.key
    }

    pub(super) fn into_parts(self) -> (EmbeddedServers, Gateway) {
        (self.embedded, self.gateway)
    }

    pub(crate) async fn stop(self) {
        self.gateway.stop(Duration::ZERO).await;
        self.embedded.stop().await;
    }
}

/// Starts the embedded models, the trained one with these weights. Returns the options of the
/// gateway, the embedded servers, and the servers of all models.
pub(crate) fn models(
    config: &Config,
    start: &InitialWeights,
) -> Result<(GatewayOptions, EmbeddedServers, Vec<ServerSpec>)> {
    let (mut options, mut servers) = crate::gateway_options::options(config)?;
    if config.explorer.rollout_model.engine_type == EngineType::Tiny {
        // The server uses the seed; in every request it would make all runs of a task equal.
        options.sampling.remove("seed");
    }
    let (embedded, own) = EmbeddedServers::start(config, start)?;
    servers.extend(own);
    Ok((options, embedded, servers))
}
