//! JSON bodies of requests and responses.

use axum_core::extract::{FromRequest, Request};
use axum_core::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// A JSON body, like `axum::Json`. The feature of axum that has it turns on `raw_value` of
/// `serde_json` in the whole program. An object with the key `$serde_json::private::RawValue` is
/// then replaced by the JSON in its text, which is parsed with a new limit of the depth.
#[derive(Clone, Copy, Debug)]
pub struct JsonBody<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = (StatusCode, String);

    async fn from_request(request: Request, state: &S) -> Result<Self, Self::Rejection> {
        if !is_json(request.headers()) {
            let message = "the request needs the header `Content-Type: application/json`";
            return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, message.to_owned()));
        }
        let body = Bytes::from_request(request, state).await;
        let body = body.map_err(|refusal| (refusal.status(), refusal.body_text()))?;
        serde_json::from_slice(&body).map(Self).map_err(|error| {
            let status = match error.is_data() {
                true => StatusCode::UNPROCESSABLE_ENTITY,
                false => StatusCode::BAD_REQUEST,
            };
            (status, format!("invalid JSON in the body of the request: {error}"))
        })
    }
}

impl<T: Serialize> IntoResponse for JsonBody<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(body) => ([(CONTENT_TYPE, JSON)], body).into_response(),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        }
    }
}

/// Returns whether the type of a body is JSON, with any parameters.
fn is_json(headers: &HeaderMap) -> bool {
    let given = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let name = given.and_then(|given| given.split(';').next()).map(str::trim);
    name.is_some_and(|name| name.eq_ignore_ascii_case("application/json"))
}

#[cfg(test)]
mod tests {
    use axum_core::body::Body;

    use super::*;

    async fn parsed(content_type: &str, body: &str) -> Result<Vec<u8>, StatusCode> {
        let request = Request::builder().header(CONTENT_TYPE, content_type);
        let request = request.body(Body::from(body.to_owned())).expect("a valid request");
        let JsonBody(found) =
            JsonBody::from_request(request, &()).await.map_err(|refused| refused.0)?;
        Ok(found)
    }

    #[tokio::test]
    async fn bodies_are_parsed_by_their_type() {
        assert_eq!(parsed("application/json; charset=utf-8", "[1]").await, Ok(vec![1]));
        assert_eq!(parsed("text/plain", "[1]").await, Err(StatusCode::UNSUPPORTED_MEDIA_TYPE));
        assert_eq!(parsed("application/json", "[1").await, Err(StatusCode::BAD_REQUEST));
        let wrong = parsed("application/json", "[true]").await;
        assert_eq!(wrong, Err(StatusCode::UNPROCESSABLE_ENTITY));
    }

    #[test]
    fn responses_have_their_type() {
        let response = JsonBody([1]).into_response();
        assert_eq!(response.headers()[CONTENT_TYPE], JSON);
    }
}
