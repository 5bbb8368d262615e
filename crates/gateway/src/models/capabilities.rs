//! Control endpoints that a server has, found out by requests without an effect.

use std::time::Duration;

use futures_util::future::try_join_all;
use reqwest::{Client, Method, StatusCode};
use rollway_base::ServerKind;
use rollway_model_api::server_api::{ControlEndpoint, EndpointPurpose, server_api, weight_control};

/// Capabilities of a server. Until it was asked: all of its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerCapabilities {
    kind: ServerKind,
    missing: Vec<ControlEndpoint>,
    reports_version: bool,
}

impl ServerCapabilities {
    pub fn of_kind(kind: ServerKind) -> Self {
        let reports_version = !server_api(kind).version_paths().is_empty();
        Self { kind, missing: Vec::new(), reports_version }
    }

    /// Endpoints that the server lacks, of those that the gateway uses.
    pub fn missing(&self) -> &[ControlEndpoint] {
        &self.missing
    }

    /// Returns whether the server tells the version of its weights.
    pub fn reports_version(&self) -> bool {
        self.reports_version
    }

    pub(super) fn set_reports_version(&mut self, reports: bool) {
        self.reports_version = reports;
    }

    pub(super) fn has(&self, path: &str) -> bool {
        self.missing.iter().all(|endpoint| endpoint.path != path)
    }

    /// Returns whether running requests can be paused.
    pub(super) fn can_pause(&self) -> bool {
        self.lacks(EndpointPurpose::Pause).is_none()
    }

    /// Returns why weights cannot be loaded from a folder, and the remedy.
    pub fn cannot_load_folder(&self) -> Option<String> {
        self.cannot_update(EndpointPurpose::LoadFolder)
    }

    /// Returns why weights cannot be received from a trainer, and the remedy.
    pub fn cannot_transfer(&self) -> Option<String> {
        self.cannot_update(EndpointPurpose::Transfer)
    }

    fn cannot_update(&self, purpose: EndpointPurpose) -> Option<String> {
        if let Err(reason) = weight_control(self.kind) {
            return Some(reason);
        }
        let ControlEndpoint { path, provided_by, .. } = self.lacks(purpose)?;
        Some(format!("it has no {path}: {provided_by}"))
    }

    fn lacks(&self, purpose: EndpointPurpose) -> Option<&ControlEndpoint> {
        self.missing.iter().find(|endpoint| endpoint.purpose == purpose)
    }

    /// Describes missing endpoints, with consequences and remedies. `None`: there are none. Those
    /// of `sync_method: nccl` are checked where it is configured.
    pub fn describe_missing(&self) -> Option<String> {
        let is_used = |endpoint: &&ControlEndpoint| endpoint.purpose != EndpointPurpose::Transfer;
        let note = |endpoint: &ControlEndpoint| {
            let ControlEndpoint { path, purpose, provided_by } = endpoint;
            format!("no {path}, so {}: {provided_by}", purpose.consequence())
        };
        let notes: Vec<String> = self.missing.iter().filter(is_used).map(note).collect();
        (!notes.is_empty()).then(|| notes.join("; "))
    }
}

/// Asks a server for its control endpoints. `OPTIONS` is answered with 404 only where there is no
/// endpoint, and is executed by none.
pub(super) async fn probe(
    client: &Client,
    url: &str,
    kind: ServerKind,
    timeout: Duration,
) -> reqwest::Result<ServerCapabilities> {
    let endpoints = server_api(kind).control_endpoints();
    let probes = endpoints.iter().map(async |endpoint| {
        let request = client.request(Method::OPTIONS, format!("{url}{}", endpoint.path));
        let status = request.timeout(timeout).send().await?.status();
        Ok((status == StatusCode::NOT_FOUND).then_some(*endpoint))
    });
    let missing = try_join_all(probes).await?.into_iter().flatten().collect();
    Ok(ServerCapabilities { missing, ..ServerCapabilities::of_kind(kind) })
}
