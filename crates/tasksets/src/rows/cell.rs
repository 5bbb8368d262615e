//! Conversion of Arrow cells to JSON.
//!
//! Times become ISO 8601 text, decimals text with all digits, bytes base64; NaN and infinities
//! become null.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Date64Type, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type,
    Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    Time32MillisecondType, Time32SecondType, Time64MicrosecondType, Time64NanosecondType,
    TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
    TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef};
use arrow_schema::{DataType, TimeUnit};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

/// Returns the part of a type that has no JSON form, if any.
pub(super) fn unsupported(kind: &DataType) -> Option<String> {
    match kind {
        DataType::List(inner)
        | DataType::LargeList(inner)
        | DataType::FixedSizeList(inner, _)
        | DataType::Map(inner, _) => unsupported(inner.data_type()),
        DataType::Struct(fields) => fields.iter().find_map(|it| unsupported(it.data_type())),
        DataType::Dictionary(_, values) => unsupported(values),
        DataType::Duration(_)
        | DataType::Interval(_)
        | DataType::Union(..)
        | DataType::ListView(_)
        | DataType::LargeListView(_)
        | DataType::RunEndEncoded(..) => Some(kind.to_string()),
        _ => None,
    }
}

/// Returns a cell of a column with a supported type.
pub(super) fn value(array: &ArrayRef, at: usize) -> Value {
    if array.is_null(at) {
        return Value::Null;
    }
    macro_rules! number {
        ($kind:ty) => {
            array.as_primitive::<$kind>().value(at).into()
        };
    }
    match array.data_type() {
        DataType::Boolean => array.as_boolean().value(at).into(),
        DataType::Int8 => number!(Int8Type),
        DataType::Int16 => number!(Int16Type),
        DataType::Int32 => number!(Int32Type),
        DataType::Int64 => number!(Int64Type),
        DataType::UInt8 => number!(UInt8Type),
        DataType::UInt16 => number!(UInt16Type),
        DataType::UInt32 => number!(UInt32Type),
        DataType::UInt64 => number!(UInt64Type),
        DataType::Float16 => f64::from(array.as_primitive::<Float16Type>().value(at)).into(),
        DataType::Float32 => shortest_decimal(array.as_primitive::<Float32Type>().value(at)),
        DataType::Float64 => number!(Float64Type),
        DataType::Utf8 => array.as_string::<i32>().value(at).into(),
        DataType::LargeUtf8 => array.as_string::<i64>().value(at).into(),
        DataType::Utf8View => array.as_string_view().value(at).into(),
        DataType::Binary => bytes(array.as_binary::<i32>().value(at)),
        DataType::LargeBinary => bytes(array.as_binary::<i64>().value(at)),
        DataType::BinaryView => bytes(array.as_binary_view().value(at)),
        DataType::FixedSizeBinary(_) => bytes(array.as_fixed_size_binary().value(at)),
        DataType::List(_) => list(&array.as_list::<i32>().value(at)),
        DataType::LargeList(_) => list(&array.as_list::<i64>().value(at)),
        DataType::FixedSizeList(..) => list(&array.as_fixed_size_list().value(at)),
        DataType::Struct(_) => object(array, at),
        DataType::Map(..) => map(array, at),
        DataType::Dictionary(..) => dictionary(array, at),
        other => temporal_text(array, at, other),
    }
}

/// Shortest decimal form of an `f32`: 0.1, not 0.10000000149011612.
fn shortest_decimal(number: f32) -> Value {
    number.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

fn bytes(bytes: &[u8]) -> Value {
    STANDARD.encode(bytes).into()
}

fn list(items: &ArrayRef) -> Value {
    (0..items.len()).map(|at| value(items, at)).collect()
}

fn object(array: &ArrayRef, at: usize) -> Value {
    let parts = array.as_struct();
    let names = parts.fields().iter().map(|field| field.name().clone());
    let values = parts.columns().iter().map(|column| value(column, at));
    Value::Object(names.zip(values).collect())
}

/// Keys that are not text are written as their JSON.
fn map(array: &ArrayRef, at: usize) -> Value {
    let entries = array.as_map().value(at);
    let (keys, values) = (entries.column(0), entries.column(1));
    let entry = |at| {
        let key = match value(keys, at) {
            Value::String(text) => text,
            other => other.to_string(),
        };
        (key, value(values, at))
    };
    Value::Object((0..entries.len()).map(entry).collect::<Map<_, _>>())
}

fn dictionary(array: &ArrayRef, at: usize) -> Value {
    let dictionary = array.as_any_dictionary();
    let key = value(&dictionary.keys().slice(at, 1), 0);
    let key = key.as_u64().and_then(|key| usize::try_from(key).ok());
    key.map_or(Value::Null, |key| value(dictionary.values(), key))
}

/// Returns dates, times and decimals as text.
fn temporal_text(array: &ArrayRef, at: usize, kind: &DataType) -> Value {
    macro_rules! text {
        ($kind:ty, $method:ident) => {
            array.as_primitive::<$kind>().$method(at).map(|it| it.to_string())
        };
    }
    macro_rules! decimal {
        ($kind:ty) => {
            Some(array.as_primitive::<$kind>().value_as_string(at))
        };
    }
    let zone = matches!(kind, DataType::Timestamp(_, Some(_)));
    let text = match kind {
        DataType::Date32 => text!(Date32Type, value_as_date),
        DataType::Date64 => text!(Date64Type, value_as_date),
        DataType::Time32(TimeUnit::Second) => text!(Time32SecondType, value_as_time),
        DataType::Time32(_) => text!(Time32MillisecondType, value_as_time),
        DataType::Time64(TimeUnit::Nanosecond) => text!(Time64NanosecondType, value_as_time),
        DataType::Time64(_) => text!(Time64MicrosecondType, value_as_time),
        DataType::Timestamp(unit, _) => match unit {
            TimeUnit::Second => text!(TimestampSecondType, value_as_datetime),
            TimeUnit::Millisecond => text!(TimestampMillisecondType, value_as_datetime),
            TimeUnit::Microsecond => text!(TimestampMicrosecondType, value_as_datetime),
            TimeUnit::Nanosecond => text!(TimestampNanosecondType, value_as_datetime),
        },
        DataType::Decimal32(..) => decimal!(Decimal32Type),
        DataType::Decimal64(..) => decimal!(Decimal64Type),
        DataType::Decimal128(..) => decimal!(Decimal128Type),
        DataType::Decimal256(..) => decimal!(Decimal256Type),
        _ => None,
    };
    // Timestamps with a zone are stored in UTC.
    let stamp = matches!(kind, DataType::Timestamp(..));
    let text = text.map(|text| match stamp {
        true => text.replacen(' ', "T", 1) + if zone { "Z" } else { "" },
        false => text,
    });
    text.map_or(Value::Null, Value::from)
}
