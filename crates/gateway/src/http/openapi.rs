//! The description of the HTTP surface, for tools.

use axum::http::StatusCode;
use axum::response::Response;

use super::responses;

/// Written by hand: it says what clients may rely on, and not what the code happens to do.
const DOCUMENT: &str = include_str!("openapi.json");

/// Shows the description.
pub(super) async fn show() -> Response {
    responses::json(StatusCode::OK, DOCUMENT)
}
