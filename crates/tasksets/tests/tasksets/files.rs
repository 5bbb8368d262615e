//! Reading of every file format.

use std::sync::Arc;

use arrow_array::builder::{ListBuilder, MapBuilder, StringBuilder};
use arrow_array::types::{Float32Type, Int32Type};
use arrow_array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, DictionaryArray,
    Float32Array, Float64Array, Int64Array, LargeStringArray, ListArray, StringArray, StructArray,
    TimestampMillisecondArray, UInt64Array,
};
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use rollway_config::SelectorType;
use serde_json::{Value, json};

use crate::help::{arrow, columns, epochs, folder, parquet, read, selected, taskset, write};

#[test]
fn json_lines_are_read_with_blank_lines_marks_and_without_a_last_line_break() {
    let folder = folder();
    let text =
        "\u{feff}{\"a\": 1}\r\n\n  \n{\"a\": \"ü\\n\", \"b\": [1, {\"c\": null}]}\n{\"a\": 2.5}";
    let expected = [json!({"a": 1}), json!({"a": "ü\n", "b": [1, {"c": null}]}), json!({"a": 2.5})];
    for name in ["a.jsonl", "a.json", "a.ndjson", "no_extension"] {
        assert_eq!(read(taskset(&write(&folder, name, text))), expected, "{name}");
    }
}

#[test]
fn a_list_of_objects_is_read_however_it_is_laid_out() {
    let folder = folder();
    let tricky = json!({"a": "]},{[\"\\", "b": [[1], {"c": {}}]});
    let rows = [json!({}), tricky, json!({"a": null})];
    let list = Value::from(rows.to_vec());
    let pretty = serde_json::to_string_pretty(&list).unwrap();
    for text in [list.to_string(), pretty, format!("\u{feff} \n{list}\n\n")] {
        assert_eq!(read(taskset(&write(&folder, "a.json", &text))), rows, "{text}");
    }
}

#[test]
fn columns_of_a_csv_have_types_only_where_every_cell_agrees() {
    let folder = folder();
    let text = "int,float,truth,code,mixed,,big\n\
                1,1.5,true,007,1,\"a, \"\"b\"\"\nc\",12345678901234567890\n\
                ,-2e3,False,8,x,,2\n";
    let expected = [
        json!({"int": 1, "float": 1.5, "truth": true, "code": "007", "mixed": "1",
               "Unnamed: 5": "a, \"b\"\nc", "big": "12345678901234567890"}),
        json!({"int": null, "float": -2e3, "truth": false, "code": "8", "mixed": "x",
               "Unnamed: 5": null, "big": "2"}),
    ];
    assert_eq!(read(taskset(&write(&folder, "a.csv", text))), expected);

    // One type for all files of a set.
    write(&folder, "set/train-00000-of-00002.tsv", "n\tt\n1\ta,b\n");
    write(&folder, "set/train-00001-of-00002.tsv", "n\tt\nx\t\"\"\n");
    let expected = [json!({"n": "1", "t": "a,b"}), json!({"n": "x", "t": null})];
    assert_eq!(read(taskset(&folder.path().join("set"))), expected);
}

/// Every type that a column can have, in three rows.
fn everything() -> (arrow_array::RecordBatch, Vec<Value>) {
    let parts: Vec<(Arc<arrow_schema::Field>, ArrayRef)> = vec![(
        Arc::new(arrow_schema::Field::new("x", arrow_schema::DataType::Int64, true)),
        Arc::new(Int64Array::from(vec![Some(1), None, Some(3)])),
    )];
    let mut texts = ListBuilder::new(StringBuilder::new());
    texts.append_value([Some("a"), None]);
    texts.append_null();
    texts.append_value([] as [Option<&str>; 0]);
    let mut map = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
    map.keys().append_value("k");
    map.values().append_value("v");
    map.append(true).unwrap();
    map.append(true).unwrap();
    map.append(false).unwrap();
    let numbers = vec![Some(vec![Some(0.5)]), None, Some(vec![None, Some(2.0)])];
    let batch = columns(&[
        ("int", Arc::new(Int64Array::from(vec![Some(i64::MIN), None, Some(7)]))),
        ("uint", Arc::new(UInt64Array::from(vec![u64::MAX, 0, 1]))),
        ("short", Arc::new(Float32Array::from(vec![0.1, f32::NAN, -2.0]))),
        ("float", Arc::new(Float64Array::from(vec![0.1, f64::INFINITY, -2.0]))),
        ("truth", Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)]))),
        ("text", Arc::new(LargeStringArray::from(vec![Some("ä"), None, Some("")]))),
        ("bytes", Arc::new(BinaryArray::from(vec![&b"\x00\xff"[..], b"", b"abc"]))),
        ("texts", Arc::new(texts.finish())),
        ("numbers", Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(numbers))),
        ("parts", Arc::new(StructArray::from(parts))),
        ("map", Arc::new(map.finish())),
        ("day", Arc::new(Date32Array::from(vec![Some(0), None, Some(19_000)]))),
        (
            "stamp",
            Arc::new(TimestampMillisecondArray::from(vec![0, 1500, 2]).with_timezone("+02:00")),
        ),
        (
            "price",
            Arc::new(
                Decimal128Array::from(vec![1050, -5, 0]).with_precision_and_scale(9, 2).unwrap(),
            ),
        ),
        (
            "class",
            Arc::new(DictionaryArray::<Int32Type>::from_iter([Some("one"), None, Some("two")])),
        ),
    ]);
    let rows = vec![
        json!({"int": i64::MIN, "uint": u64::MAX, "short": 0.1, "float": 0.1, "truth": true,
               "text": "ä", "bytes": "AP8=", "texts": ["a", null], "numbers": [0.5],
               "parts": {"x": 1}, "map": {"k": "v"}, "day": "1970-01-01",
               "stamp": "1970-01-01T00:00:00Z", "price": "10.50", "class": "one"}),
        json!({"int": null, "uint": 0, "short": null, "float": null, "truth": null, "text": null,
               "bytes": "", "texts": null, "numbers": null, "parts": {"x": null}, "map": {},
               "day": null, "stamp": "1970-01-01T00:00:01.500Z", "price": "-0.05",
               "class": null}),
        json!({"int": 7, "uint": 1, "short": -2.0, "float": -2.0, "truth": false, "text": "",
               "bytes": "YWJj", "texts": [], "numbers": [null, 2.0], "parts": {"x": 3},
               "map": null, "day": "2022-01-08", "stamp": "1970-01-01T00:00:00.002Z",
               "price": "0.00", "class": "two"}),
    ];
    (batch, rows)
}

#[test]
fn every_type_of_parquet_and_arrow_becomes_the_json_it_means() {
    let folder = folder();
    let (batch, expected) = everything();
    for (name, compression) in [
        ("plain.parquet", Compression::UNCOMPRESSED),
        ("snappy.parquet", Compression::SNAPPY),
        ("zstd.parquet", Compression::ZSTD(ZstdLevel::default())),
        ("gzip.parquet", Compression::GZIP(Default::default())),
        ("lz4.parquet", Compression::LZ4_RAW),
    ] {
        let path = folder.path().join(name);
        parquet(&path, &batch, WriterProperties::builder().set_compression(compression).build());
        assert_eq!(read(taskset(&path)), expected, "{name}");
    }
    let path = folder.path().join("stream.arrow");
    arrow(&path, &batch, 3);
    assert_eq!(read(taskset(&path)), expected);
    let path = folder.path().join("file.feather");
    arrow(&path, &batch, 2);
    assert_eq!(read(taskset(&path)), expected);
}

#[test]
fn rows_are_found_in_any_order_over_groups_batches_and_many_files() {
    let folder = folder();
    let total = 20 * 150;
    let prompt = |at: usize| format!("{at}{}", "x".repeat(at % 50));
    for file in 0..20 {
        let rows = (file * 150..(file + 1) * 150).map(|at| Some(prompt(at)));
        let batch = columns(&[("prompt", Arc::new(StringArray::from_iter(rows)))]);
        let name = format!("train-{file:05}-of-00020");
        let group = if file % 2 == 0 { 70 } else { 150 };
        let properties = WriterProperties::builder().set_max_row_group_row_count(Some(group));
        let path = folder.path().join("p").join(&name).with_extension("parquet");
        parquet(&path, &batch, properties.build());
        arrow(&folder.path().join("a").join(&name).with_extension("arrow"), &batch, 40);
    }
    for kind in ["p", "a"] {
        let path = folder.path().join(kind);
        let mut tasks = epochs(vec![taskset(&path)], 1);
        assert_eq!(tasks.len(), total as u64);
        for (at, drawn) in tasks.all().enumerate() {
            assert_eq!(drawn.unwrap().task.prompt, Some(prompt(at).into()), "{kind}");
        }
        for seed in 0..4 {
            let mut tasks = epochs(vec![selected(&path, SelectorType::Shuffle, seed)], 1);
            for size in [1, 20, 7, 20, 1, 200, 300] {
                for drawn in tasks.next_batch(size).unwrap().unwrap() {
                    let expected = prompt(drawn.index as usize);
                    assert_eq!(drawn.task.prompt, Some(expected.into()), "{kind}");
                }
            }
        }
    }
}
