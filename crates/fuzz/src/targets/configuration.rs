//! Configurations: YAML files, overrides and dictionaries.

use rollway_config::Config;

use crate::FuzzTarget;
use crate::input::{choice, with_bytes};

pub(crate) const TARGET: FuzzTarget = FuzzTarget {
    name: "configuration",
    max_bytes: 8192,
    memory: 16 << 20,
    per_byte: 4096,
    parse,
    seeds,
};

const OVERRIDES: u8 = 1;
const DICTIONARY: u8 = 2;
/// Flag: a valid configuration survives a round trip, which takes long.
const ROUND_TRIP: u8 = 128;

fn parse(input: &[u8]) {
    let (choice, rest) = choice(input);
    let text = String::from_utf8_lossy(rest);
    let config = match choice & !ROUND_TRIP {
        OVERRIDES => Config::default().with_overrides(text.lines()),
        DICTIONARY => match serde_json::from_str(&text) {
            Ok(value) => Config::from_value(&value),
            Err(_) => return,
        },
        _ => Config::from_yaml(&text, "job.yaml"),
    };
    let config = match config {
        Ok(config) => config,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    if choice & ROUND_TRIP > 0 {
        let again = Config::from_value(&config.to_value());
        let again = again.unwrap_or_else(|error| panic!("the keys of a configuration: {error}"));
        assert_eq!(again, config);
    }
    match config.check() {
        Ok(warnings) => warnings.iter().for_each(|warning| drop(warning.to_string())),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

const EXAMPLES: [&str; 3] = [
    include_str!("../../../../examples/arithmetic.yaml"),
    include_str!("../../../../examples/simulate.yaml"),
    include_str!("../../../../examples/serve/serve.yaml"),
];

const YAML: &str = "\
name: &name job
explorer: {max_timeout: 1.5h, limits: {batches: 3}, env_vars: {A: '1'}}
buffer:
  total_steps: 3
  explorer_input:
    tasksets:
    - name: *name
      path: a.jsonl
      format: {prompt_key: question}
  trainer_input:
    experience_buffer: {storage_type: sql, path: 'sqlite:///x.db'}
data_processor:
  experience_pipeline:
    operators: [{name: grpo, args: {a: 1}}]
synchronizer:
  sync_method: checkpoint
model: {model_path: ${oc.env:HOME}, x: |
    text
  , y: !!int 3}
";

fn seeds() -> Vec<Vec<u8>> {
    let overrides = "explorer.max_timeout=60\nbuffer.batch_size=4\nexplorer.env_vars={A: b}\nname=";
    let dictionary = Config::default().to_value().to_string();
    let files = EXAMPLES.iter().chain([&YAML]).map(|text| with_bytes(0, text));
    let others = [
        with_bytes(OVERRIDES, overrides),
        with_bytes(DICTIONARY, &dictionary),
        with_bytes(DICTIONARY | ROUND_TRIP, "{\"name\":\"a\"}"),
        with_bytes(ROUND_TRIP, YAML),
    ];
    files.chain(others).collect()
}
