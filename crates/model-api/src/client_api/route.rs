//! Paths of client APIs.

use super::ClientApi;
use crate::error::CallError;
use crate::model_call::ModelCall;

/// A path of the gateway, as `openapi.json` documents it. It may have one parameter in braces,
/// which matches any text that is not empty, also with slashes:
/// `/v1beta/models/{model}:generateContent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Takes model calls.
    Call(&'static str),
    /// Counts the tokens of a call.
    CountTokens(&'static str),
}

impl Route {
    pub const fn path(self) -> &'static str {
        match self {
            Self::Call(path) | Self::CountTokens(path) => path,
        }
    }

    /// Returns the text before the parameter, and the text after it.
    fn around_parameter(self) -> Option<(&'static str, &'static str)> {
        let (before, rest) = self.path().split_once('{')?;
        Some((before, rest.split_once('}')?.1))
    }

    /// Returns the pattern of axum that matches at least the paths of this route.
    pub fn axum_pattern(self) -> String {
        match self.around_parameter() {
            Some((before, _)) => format!("{before}{{*rest}}"),
            None => self.path().to_owned(),
        }
    }

    /// Returns the parameter of a path, empty for a route without one. `None`: no match.
    fn parameter(self, path: &str) -> Option<&str> {
        match self.around_parameter() {
            None => (path == self.path()).then_some(""),
            Some((before, after)) => {
                let parameter = path.strip_prefix(before)?.strip_suffix(after)?;
                (!parameter.is_empty()).then_some(parameter)
            }
        }
    }
}

/// A path of a request at a client API.
#[derive(Clone, Copy, Debug)]
pub struct RouteMatch<'a> {
    pub api: &'static dyn ClientApi,
    pub route: Route,
    /// As in the path, with its percent signs. Empty without a parameter.
    pub parameter: &'a str,
}

impl<'a> RouteMatch<'a> {
    pub(super) fn find(api: &'static dyn ClientApi, path: &'a str) -> Option<Self> {
        let parameter = |route: &Route| Some((*route, route.parameter(path)?));
        let (route, parameter) = api.routes().iter().find_map(parameter)?;
        Some(Self { api, route, parameter })
    }

    /// Label in metrics.
    pub fn endpoint(&self) -> &'static str {
        match self.route {
            Route::Call(_) => self.api.name(),
            Route::CountTokens(_) => "count_tokens",
        }
    }

    /// Parses the body of a request.
    pub fn parse(&self, body: &[u8]) -> Result<ModelCall, CallError> {
        self.api.parse(self, body)
    }

    /// Parses the body of a request that may have several prompts: one call for each.
    pub fn parse_all(&self, body: &[u8]) -> Result<Vec<ModelCall>, CallError> {
        self.api.parse_all(self, body)
    }
}
