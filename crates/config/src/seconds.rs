//! Durations of the configuration: numbers of seconds.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A duration that is written as a number of seconds, from 0 to [`MAX`](Self::MAX).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConfigSeconds(pub Duration);

impl ConfigSeconds {
    /// Maximum number of seconds: about thirty years.
    pub const MAX: f64 = 1e9;

    pub const fn new(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }
}

impl From<Duration> for ConfigSeconds {
    fn from(duration: Duration) -> Self {
        Self(duration)
    }
}

impl From<ConfigSeconds> for Duration {
    fn from(seconds: ConfigSeconds) -> Self {
        seconds.0
    }
}

impl fmt::Display for ConfigSeconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.as_secs_f64())
    }
}

impl Serialize for ConfigSeconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.subsec_nanos() == 0 {
            serializer.serialize_u64(self.0.as_secs())
        } else {
            serializer.serialize_f64(self.0.as_secs_f64())
        }
    }
}

impl<'de> Deserialize<'de> for ConfigSeconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = f64::deserialize(deserializer)?;
        if !(0.0..=Self::MAX).contains(&number) {
            return Err(D::Error::invalid_value(Unexpected::Float(number), &"seconds, 0 or more"));
        }
        Ok(Self(Duration::from_secs_f64(number)))
    }
}

impl JsonSchema for ConfigSeconds {
    fn schema_name() -> Cow<'static, str> {
        "Seconds".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "number", "minimum": 0, "maximum": Self::MAX, "x-unit": "seconds" })
    }

    fn inline_schema() -> bool {
        true
    }
}
