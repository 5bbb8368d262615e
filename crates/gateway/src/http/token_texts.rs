//! Texts of tokens, by the tokenizer of a server.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use rollway_model_api::CallError;
use rollway_model_api::server_api::server_api;
use tokio::time::{Instant, timeout_at};

use super::server_reply::{LookupError, ServerLookups};
use super::state::GatewayState;
use crate::models::RouteNeeds;

const CONCURRENT_REQUESTS: usize = 16;

/// Maximum time for all texts.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the texts of tokens of the trained model; fewer if a server fails or takes too long, and
/// none if servers of its kind do not tell them.
///
/// # Errors
/// If no server of the model is available.
pub(crate) async fn token_texts(
    app: &GatewayState,
    tokens: BTreeSet<i32>,
) -> Result<HashMap<i32, String>, CallError> {
    let permit = app.models.pick(RouteNeeds::default()).await?;
    let server = permit.server();
    let (api, model) = (server_api(server.spec.engine), permit.server_model());
    let by = Instant::now() + TIMEOUT;
    let lookups = ServerLookups { app, server, run: None, by };
    let text = async |token: i32| {
        let (request, field) = api.detokenize(token, model)?;
        let reply = lookups.send(&request).await;
        let failed = |error: &LookupError| tracing::debug!(?error, token, "no text");
        let (reply, _lease) = reply.inspect_err(failed).ok()?;
        Some((token, reply.get(field)?.as_str()?.to_owned()))
    };
    let mut texts = HashMap::new();
    let mut replies = stream::iter(tokens).map(text).buffer_unordered(CONCURRENT_REQUESTS);
    let collect = async {
        // The first failure ends it: the others would fail alike.
        while let Some(Some((token, text))) = replies.next().await {
            texts.insert(token, text);
        }
    };
    let _ = timeout_at(by, collect).await;
    drop(replies);
    Ok(texts)
}
