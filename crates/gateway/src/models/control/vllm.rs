//! vLLM's endpoints for training, which it has when started with `VLLM_SERVER_DEV_MODE=1`.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use super::{ControlError, Halt, Wrong, parse_version, post, request};
use crate::models::Server;
use rollway_core::rendezvous::{TensorSpec, TransferGroup};

/// Asks for the version; none if the server was started without these endpoints.
pub(super) async fn version(
    server: &Server,
    timeout: Duration,
) -> Result<Option<u64>, ControlError> {
    match request(server, Method::GET, "/weight_info", None, timeout).await {
        Ok(answer) => {
            let text = answer.get("weight_version").and_then(Value::as_str).unwrap_or_default();
            parse_version(text).map(Some)
        }
        Err(error) if error.kind == Wrong::Refused => Ok(None),
        Err(error) => Err(error),
    }
}

/// Halts the scheduler and forgets the prefix cache, which the old weights made. That is done
/// before the new weights come, so that one that fails has changed nothing. What is kept is
/// computed anew from its tokens.
pub(super) async fn halt(
    server: &Server,
    halt: Halt,
    timeout: Duration,
) -> Result<(), ControlError> {
    let path = match halt {
        // Requests of strangers, who do not come through us, are not ours to abort.
        Halt::Empty | Halt::Keep => "/pause?mode=keep",
        Halt::Abort => "/pause?mode=abort",
    };
    post(server, path, &json!({}), timeout).await.map_err(explain)?;
    post(server, "/reset_prefix_cache?reset_running_requests=true", &json!({}), timeout).await
}

pub(super) async fn go_on(server: &Server, timeout: Duration) -> Result<(), ControlError> {
    post(server, "/resume", &json!({}), timeout).await
}

pub(super) async fn load(
    server: &Server,
    path: &str,
    version: u64,
    timeout: Duration,
) -> Result<(), ControlError> {
    let reload = json!({ "method": "reload_weights", "kwargs": { "weights_path": path } });
    post(server, "/collective_rpc", &reload, timeout).await?;
    name(server, version, timeout).await
}

pub(super) async fn receive(
    server: &Server,
    group: &TransferGroup,
    version: u64,
    rank: u32,
    timeout: Duration,
) -> Result<(), ControlError> {
    if group.join {
        let init = json!({ "init_info": {
            "master_address": group.master_address,
            "master_port": group.master_port,
            "rank_offset": rank,
            "world_size": group.world_size,
        }});
        post(server, "/init_weight_transfer_engine", &init, timeout).await?;
    }
    let column = |of: fn(&TensorSpec) -> Value| group.tensors.iter().map(of).collect::<Vec<_>>();
    let update = json!({ "update_info": {
        "names": column(|tensor| json!(tensor.name)),
        "dtype_names": column(|tensor| json!(tensor.dtype)),
        "shapes": column(|tensor| json!(tensor.shape)),
    }});
    post(server, "/start_weight_update", &json!({}), timeout).await?;
    post(server, "/update_weights", &update, timeout).await.map_err(halfway)?;
    let finish = json!({ "weight_version": version.to_string() });
    post(server, "/finish_weight_update", &finish, timeout).await.map_err(halfway)
}

/// Aborts a request, which the server knows by the id that it was given or by one made of it.
pub(super) async fn abort(
    server: &Server,
    request_id: &str,
    timeout: Duration,
) -> Result<(), ControlError> {
    let ids = [
        request_id.to_owned(),
        format!("chatcmpl-{request_id}"),
        format!("cmpl-{request_id}"),
        format!("cmpl-{request_id}-0"),
    ];
    match post(server, "/abort_requests", &json!({ "request_ids": ids }), timeout).await {
        // Older servers end a request only when its connection is closed.
        Err(error) if error.kind == Wrong::Refused => Ok(()),
        done => done,
    }
}

/// The weights are there already, whatever the server thinks of their name.
async fn name(server: &Server, version: u64, timeout: Duration) -> Result<(), ControlError> {
    let name = json!({ "new_version": version.to_string() });
    post(server, "/update_weight_version", &name, timeout).await.map_err(halfway)
}

/// Something else was done before this was refused.
fn halfway(error: ControlError) -> ControlError {
    ControlError { kind: Wrong::Failed, ..error }
}

fn explain(error: ControlError) -> ControlError {
    if error.kind != Wrong::Refused {
        return error;
    }
    let message = format!("{error}: start vLLM with VLLM_SERVER_DEV_MODE=1 to update its weights");
    ControlError { message, ..error }
}
