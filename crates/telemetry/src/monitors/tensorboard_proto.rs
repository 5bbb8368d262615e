//! Messages of event files, as far as they are written.

use prost::{Message, Oneof};

/// Content of the first record of every file.
const FILE_VERSION: &str = "brain.Event:2";

/// Data type of string tensors.
const STRINGS: i32 = 7;

/// Data class of tensors.
const TENSORS: i32 = 2;

/// Begin of a session: earlier values of its first step and later ones are void.
const START: i32 = 1;

#[derive(Clone, PartialEq, Message)]
pub(super) struct Event {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    pub(super) wall_time: f64,
    #[prost(int64, tag = "2")]
    pub(super) step: i64,
    #[prost(oneof = "EventKind", tags = "3, 5, 7")]
    pub(super) kind: Option<EventKind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum EventKind {
    #[prost(string, tag = "3")]
    FileVersion(String),
    #[prost(message, tag = "5")]
    Summary(Summary),
    #[prost(message, tag = "7")]
    Session(Session),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Session {
    #[prost(int32, tag = "1")]
    status: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Summary {
    #[prost(message, repeated, tag = "1")]
    pub(super) values: Vec<Value>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Value {
    #[prost(string, tag = "1")]
    pub(super) tag: String,
    #[prost(message, optional, tag = "9")]
    pub(super) metadata: Option<Metadata>,
    #[prost(oneof = "Content", tags = "2, 8")]
    pub(super) content: Option<Content>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Content {
    /// Understood by all readers; TensorBoard converts it to a tensor.
    #[prost(float, tag = "2")]
    Number(f32),
    #[prost(message, tag = "8")]
    Tensor(Tensor),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Metadata {
    #[prost(message, optional, tag = "1")]
    plugin: Option<Plugin>,
    #[prost(int32, tag = "4")]
    data_class: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Plugin {
    #[prost(string, tag = "1")]
    name: String,
}

/// Scalar string tensor.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Tensor {
    #[prost(int32, tag = "1")]
    kind: i32,
    #[prost(message, optional, tag = "2")]
    shape: Option<Shape>,
    #[prost(bytes = "vec", repeated, tag = "8")]
    pub(super) texts: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Shape {}

impl EventKind {
    pub(super) fn file_version() -> Self {
        Self::FileVersion(FILE_VERSION.to_owned())
    }

    pub(super) const fn start() -> Self {
        Self::Session(Session { status: START })
    }

    /// Returns named numbers, in single precision.
    pub(super) fn numbers<'a>(numbers: impl Iterator<Item = (&'a str, f64)>) -> Self {
        let value = |(tag, number): (&str, f64)| {
            let content = Some(Content::Number(number as f32));
            Value { tag: tag.to_owned(), metadata: None, content }
        };
        Self::Summary(Summary { values: numbers.map(value).collect() })
    }

    /// Returns a text in Markdown.
    pub(super) fn text(tag: &str, text: &str) -> Self {
        let plugin = Some(Plugin { name: "text".to_owned() });
        let texts = vec![text.as_bytes().to_owned()];
        let tensor = Tensor { kind: STRINGS, shape: Some(Shape {}), texts };
        Self::Summary(Summary {
            values: vec![Value {
                tag: tag.to_owned(),
                metadata: Some(Metadata { plugin, data_class: TENSORS }),
                content: Some(Content::Tensor(tensor)),
            }],
        })
    }
}
