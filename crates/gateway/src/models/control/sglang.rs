//! SGLang's endpoints for training.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use super::{ControlError, Halt, Wrong, parse_version, post, request};
use crate::models::Server;
use rollway_core::rendezvous::{TensorSpec, TransferGroup};

/// Asks for the version, at the place of newer servers and then at that of older ones; none if the
/// server does not know any of them.
pub(super) async fn version(
    server: &Server,
    timeout: Duration,
) -> Result<Option<u64>, ControlError> {
    for path in ["/model_info", "/get_weight_version", "/get_model_info"] {
        match request(server, Method::GET, path, None, timeout).await {
            Ok(answer) => {
                if let Some(text) = answer.get("weight_version").and_then(Value::as_str) {
                    return parse_version(text).map(Some);
                }
            }
            Err(error) if error.kind == Wrong::Refused => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Halts the scheduler. An empty server need not be halted: it loads weights between requests.
pub(super) async fn halt(
    server: &Server,
    halt: Halt,
    timeout: Duration,
) -> Result<(), ControlError> {
    let mode = match halt {
        Halt::Empty => return Ok(()),
        // What is kept goes back to the queue, so that the caches which the old weights made can be
        // forgotten; it is computed anew from its tokens.
        Halt::Keep => "retract",
        Halt::Abort => "abort",
    };
    post(server, "/pause_generation", &json!({ "mode": mode }), timeout).await
}

pub(super) async fn go_on(
    server: &Server,
    halt: Halt,
    timeout: Duration,
) -> Result<(), ControlError> {
    match halt {
        Halt::Empty => Ok(()),
        Halt::Keep | Halt::Abort => post(server, "/continue_generation", &json!({}), timeout).await,
    }
}

/// A load that fails is taken back by the server itself, and refused.
pub(super) async fn load(
    server: &Server,
    path: &str,
    version: u64,
    timeout: Duration,
) -> Result<(), ControlError> {
    let load = json!({
        "model_path": path,
        "abort_all_requests": false,
        "weight_version": version.to_string(),
        "flush_cache": true,
    });
    post(server, "/update_weights_from_disk", &load, timeout).await
}

pub(super) async fn receive(
    server: &Server,
    group: &TransferGroup,
    version: u64,
    rank: u32,
    timeout: Duration,
) -> Result<(), ControlError> {
    if group.join {
        let init = json!({
            "master_address": group.master_address,
            "master_port": group.master_port,
            "rank_offset": rank,
            "world_size": group.world_size,
            "group_name": group.name,
            "backend": group.backend,
        });
        post(server, "/init_weights_update_group", &init, timeout).await?;
    }
    let column = |of: fn(&TensorSpec) -> Value| group.tensors.iter().map(of).collect::<Vec<_>>();
    let update = json!({
        "names": column(|tensor| json!(tensor.name)),
        "dtypes": column(|tensor| json!(tensor.dtype)),
        "shapes": column(|tensor| json!(tensor.shape)),
        "group_name": group.name,
        "abort_all_requests": false,
        "weight_version": version.to_string(),
        "flush_cache": true,
    });
    let sent = post(server, "/update_weights_from_distributed", &update, timeout).await;
    // Some of the tensors may have arrived before it was refused.
    sent.map_err(|error| ControlError { kind: Wrong::Failed, ..error })
}

pub(super) async fn abort(
    server: &Server,
    request_id: &str,
    timeout: Duration,
) -> Result<(), ControlError> {
    post(server, "/abort_request", &json!({ "rid": request_id }), timeout).await
}
