//! Calls that continue a recorded response (`previous_response_id`).

use rollway_model_api::{CallError, ErrorKind, ModelCall};
use serde_json::Value;
use tokio::time::Instant;

use super::byte_budget::ByteLease;
use super::refusal::RefusalReason;
use super::run_sessions::RunSession;
use super::state::GatewayState;

/// Puts the messages of the response that a call continues before its own. A system message of the
/// call replaces the earlier one. Leases the memory of the messages first: the request that names
/// the response is small.
pub(super) async fn add(
    app: &GatewayState,
    session: Option<&RunSession>,
    id: &str,
    call: &mut ModelCall,
    lease: &mut ByteLease,
) -> Result<(), CallError> {
    let bytes = session.and_then(|session| measure(app, session, id)).ok_or_else(|| unknown(id))?;
    let by = Instant::now() + app.options.limits.request_timeout;
    let refused = |refusal| app.over_budget(RefusalReason::RequestBytes, refusal);
    lease.grow(bytes?, by).await.map_err(refused)?;
    let messages = session.and_then(|session| Some(session.recorder().conversation(id)?.parse()));
    put_before(call, messages.ok_or_else(|| unknown(id))?);
    Ok(())
}

/// Returns the memory of the messages of a response, as sent and as parsed. `None`: the id is
/// unknown.
fn measure(app: &GatewayState, session: &RunSession, id: &str) -> Option<Result<u64, CallError>> {
    let recorder = session.recorder();
    let conversation = recorder.conversation(id)?;
    let (bytes, limit) = (conversation.text_bytes(), app.options.limits.request_body_bytes as u64);
    if bytes > limit {
        let found = format!("the conversation of response {id} has {bytes} bytes");
        let error = app.too_large(RefusalReason::BodyBytes, found, limit, "request_body_bytes");
        return Some(Err(error.at("previous_response_id")));
    }
    Some(Ok(bytes + conversation.parsed_bytes()))
}

fn unknown(id: &str) -> CallError {
    let message = format!(
        "response {id} is not known: previous_response_id must be a response to the trained model \
         in the same run"
    );
    CallError::new(ErrorKind::NotFound, message).at("previous_response_id")
}

fn put_before(call: &mut ModelCall, mut messages: Vec<Value>) {
    let is_system = |message: &Value| message["role"] == "system";
    let Some(Value::Array(own)) = call.body.get_mut("messages") else { return };
    if own.first().is_some_and(is_system) && messages.first().is_some_and(is_system) {
        messages[0] = own.remove(0);
    } else if own.first().is_some_and(is_system) {
        messages.insert(0, own.remove(0));
    }
    messages.append(own);
    *own = messages;
}
