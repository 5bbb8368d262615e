//! One-time check that a server is reachable.

use std::time::Duration;

use reqwest::StatusCode;

use super::ServerSpec;
use super::connect::{client, root};

/// Requests the models of a server. The error is the reason why it cannot be used.
pub async fn reach(spec: &ServerSpec, timeout: Duration) -> Result<(), String> {
    let root = root(spec).map_err(|error| error.to_string())?;
    let client = client(spec, &root, timeout).map_err(|error| error.to_string())?;
    let answer = client.get(format!("{root}/v1/models")).timeout(timeout).send().await;
    let status = match answer {
        Ok(answer) => answer.status(),
        Err(error) if error.is_timeout() => {
            return Err(format!("no answer within {} s", timeout.as_secs_f64()));
        }
        Err(error) if error.is_connect() => {
            return Err(format!("no connection ({})", root_of(&error)));
        }
        Err(error) => return Err(root_of(&error)),
    };
    match status {
        status if status.is_success() => Ok(()),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            Err(format!("it refuses the key ({status})"))
        }
        status => Err(format!("/v1/models is answered with {status}")),
    }
}

fn root_of(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}
