//! Size of a JSON text as parsed values, before it is parsed.

use serde_json::Value;

/// Estimated memory of an object: the smallest node of its tree.
const OBJECT_BYTES: u64 = 664;

const LIST_BYTES: u64 = 128;

/// Estimated memory of a further item: its value, and room of a list that grew.
const ITEM_BYTES: u64 = 64;

/// Estimated memory of a further key.
const KEY_BYTES: u64 = 72;

/// Estimated overhead of the allocation of a string.
const STRING_BYTES: u64 = 32;

/// Upper bounds for a JSON text. One scan finds them without allocating; the text may be invalid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JsonShape {
    /// Objects, lists and their items.
    pub nodes: u64,
    /// Levels of objects and lists.
    pub depth: u32,
    /// Estimated memory of the parsed values.
    pub bytes: u64,
}

impl JsonShape {
    pub fn of(json: &[u8]) -> Self {
        let mut shape = Self { nodes: 1, bytes: json.len() as u64, ..Self::default() };
        let mut depth: u32 = 0;
        let mut rest = json.iter();
        while let Some(byte) = rest.next() {
            match byte {
                b'"' => {
                    shape.bytes += STRING_BYTES;
                    rest = rest.as_slice()[string_length(rest.as_slice())..].iter();
                }
                b',' => {
                    shape.nodes += 1;
                    shape.bytes += ITEM_BYTES;
                }
                b':' => shape.bytes += KEY_BYTES,
                b'{' | b'[' => {
                    shape.nodes += 1;
                    shape.bytes += if *byte == b'{' { OBJECT_BYTES } else { LIST_BYTES };
                    depth = depth.saturating_add(1);
                    shape.depth = shape.depth.max(depth);
                }
                b'}' | b']' => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
        shape
    }
}

/// Estimates the memory of parsed fields of an object.
pub fn fields_bytes<'a>(fields: impl IntoIterator<Item = (&'a String, &'a Value)>) -> u64 {
    let bytes = |(name, value): (&String, &Value)| {
        // The keys of a value are strings and writing to memory cannot fail.
        let value = JsonShape::of(&serde_json::to_vec(value).unwrap_or_default());
        KEY_BYTES + STRING_BYTES + name.len() as u64 + ITEM_BYTES + value.bytes
    };
    OBJECT_BYTES + fields.into_iter().map(bytes).sum::<u64>()
}

/// Returns the length of a string behind its opening quote, with the closing one.
fn string_length(text: &[u8]) -> usize {
    let mut at = 0;
    while let Some(found) = text[at..].iter().position(|byte| matches!(byte, b'"' | b'\\')) {
        let end = at + found;
        if text[end] == b'"' {
            return end + 1;
        }
        at = (end + 2).min(text.len());
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::JsonShape;

    /// Returns the values and levels of a value.
    fn measured(value: &Value) -> (u64, u32) {
        let parts: Vec<(u64, u32)> = match value {
            Value::Array(items) => items.iter().map(measured).collect(),
            Value::Object(fields) => fields.values().map(measured).collect(),
            _ => return (1, 0),
        };
        let nodes = parts.iter().map(|part| part.0).sum::<u64>();
        (nodes + 1, 1 + parts.iter().map(|part| part.1).max().unwrap_or(0))
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<i64>().prop_map(Value::from),
            "[\\[\\]{},:\"\\\\a-c\u{e4}]{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(6, 60, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::btree_map("[\"\\\\,{a-c]{0,3}", inner, 0..6)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_shape_bounds_the_parsed_value(value in json()) {
            for text in [value.to_string(), format!("{value:#}")] {
                let shape = JsonShape::of(text.as_bytes());
                let (nodes, depth) = measured(&value);
                prop_assert_eq!(shape.depth, depth, "{}", text);
                prop_assert!(shape.nodes >= nodes, "{} of {}: {}", shape.nodes, nodes, text);
                // An empty list or object counts one more.
                prop_assert!(shape.nodes <= 2 * nodes, "{} of {}: {}", shape.nodes, nodes, text);
            }
        }

        #[test]
        fn any_bytes_have_a_shape(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let shape = JsonShape::of(&bytes);
            prop_assert!(shape.nodes <= bytes.len() as u64 + 1);
        }
    }

    #[test]
    fn many_small_objects_are_estimated_at_their_memory() {
        let text = format!("[{}0]", "{\"\":0},".repeat(1000));
        let shape = JsonShape::of(text.as_bytes());
        assert_eq!((shape.nodes, shape.depth), (2002, 2));
        assert!(shape.bytes > 1000 * 600, "{}", shape.bytes);
    }
}
