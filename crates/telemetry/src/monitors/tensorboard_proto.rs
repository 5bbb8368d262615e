//! The messages of event files, as far as we write them.

use prost::{Message, Oneof};

/// What the first record of every file says.
const FILE_VERSION: &str = "brain.Event:2";

/// The type of tensors of texts.
const STRINGS: i32 = 7;

/// The class of data that is read as whole tensors.
const TENSORS: i32 = 2;

/// A session begins: what was told about its first step and later ones is void.
const START: i32 = 1;

/// One record.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Event {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    pub(super) wall_time: f64,
    #[prost(int64, tag = "2")]
    pub(super) step: i64,
    #[prost(oneof = "What", tags = "3, 5, 7")]
    pub(super) what: Option<What>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum What {
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
    /// What every reader of event files understands; TensorBoard makes its tensors of it.
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

/// Texts without a dimension: one.
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

impl What {
    /// Returns the beginning of a file.
    pub(super) fn file_version() -> Self {
        Self::FileVersion(FILE_VERSION.to_owned())
    }

    /// Returns the beginning of a session.
    pub(super) const fn start() -> Self {
        Self::Session(Session { status: START })
    }

    /// Returns numbers under their names. Files have them in single precision.
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
