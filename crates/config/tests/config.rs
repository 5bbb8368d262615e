//! Defaults, files, errors and warnings of the configuration.
//!
//! `config/mistakes.txt` holds pairs of a file and its error message. `UPDATE_EXPECT=1` rewrites
//! the messages; review the difference as the author of the file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;
use rollway_config::{
    ClusterBackend, Config, ConfigSeconds, Mode, SyncMethod, SyncStyle, Taskset, Then, TrainerType,
    reference, schema,
};
use serde_json::{Value, json};

fn yaml(text: &str) -> Config {
    Config::from_yaml(text, "job.yaml").unwrap_or_else(|error| panic!("{error}"))
}

fn warnings(config: &Config) -> Vec<String> {
    let warnings = config.check().unwrap_or_else(|error| panic!("{error}"));
    warnings.iter().map(ToString::to_string).collect()
}

/// Compares a text with a file, or writes the file with `UPDATE_EXPECT`.
fn expect_file(path: &Path, text: &str) {
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(path, text).expect("the folder is there");
    }
    let expected = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        expected == text,
        "{} is out of date; UPDATE_EXPECT=1 rewrites it.\n{text}",
        path.display()
    );
}

fn data_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/config").join(name)
}

/// Keys of Trinity-RFT with their defaults there.
const DEFAULTS: &str = r#"
/mode "both"
/group ""
/name "rft"
/checkpoint_root_dir ""
/continue_from_checkpoint true
/buffer/batch_size 1
/buffer/train_batch_size 0
/buffer/total_epochs 1
/buffer/total_steps null
/buffer/trainer_input/experience_buffer/storage_type "queue"
/buffer/trainer_input/experience_buffer/path null
/buffer/trainer_input/experience_buffer/capacity 10000
/buffer/trainer_input/experience_buffer/max_read_timeout 1800
/buffer/trainer_input/experience_buffer/max_retry_times 3
/buffer/trainer_input/experience_buffer/max_retry_interval 1
/buffer/trainer_input/experience_buffer/replay_buffer/enable false
/buffer/trainer_input/experience_buffer/replay_buffer/priority_fn "linear_decay"
/buffer/trainer_input/experience_buffer/replay_buffer/reuse_cooldown_time null
/buffer/trainer_input/experience_buffer/replay_buffer/priority_fn_args {"decay": 2.0}
/buffer/explorer_input/taskset null
/buffer/explorer_input/tasksets []
/buffer/explorer_input/eval_tasksets []
/data_processor/experience_pipeline/operators []
/data_processor/experience_pipeline/save_input true
/data_processor/experience_pipeline/input_save_path null
/algorithm/repeat_times 1
/explorer/name "explorer"
/explorer/runner_per_model 8
/explorer/max_timeout 1800
/explorer/max_retry_times 2
/explorer/env_vars {}
/explorer/concurrent_mode "sequential"
/explorer/max_repeat_times_per_runner null
/explorer/rollout_model/engine_type "vllm"
/explorer/rollout_model/engine_num 1
/explorer/rollout_model/tensor_parallel_size 1
/explorer/auxiliary_models []
/explorer/eval_interval 100
/explorer/eval_on_startup true
/explorer/bench_on_latest_checkpoint false
/explorer/over_rollout/ratio 0.0
/explorer/over_rollout/wait_after_min 30
/explorer/over_rollout/return_partial_tasks false
/explorer/dynamic_timeout/enable false
/explorer/dynamic_timeout/warmup_min_steps 1
/explorer/dynamic_timeout/ratio 3.0
/explorer/runner_state_report_interval 0
/explorer/proxy_port 8010
/explorer/service_status_check_interval 60
/explorer/min_running_model_num 1
/explorer/db_url null
/explorer/max_inflight_batches 2
/synchronizer/sync_style "fixed"
/synchronizer/sync_interval 1
/synchronizer/sync_offset 0
/synchronizer/sync_timeout 3600
/monitor/monitor_type ["tensorboard"]
/monitor/monitor_args {}
/monitor/detailed_stats false
/log/level "INFO"
"#;

/// Keys whose defaults differ on purpose, or that Trinity-RFT does not have.
const OWN_DEFAULTS: &str = r#"
/project "Rollway"
/synchronizer/sync_method "checkpoint"
/explorer/listen_address "127.0.0.1"
/explorer/authentication true
/cluster/backend "local"
/simulation/seed 0
/simulation/run_seconds 1
/simulation/faults/hang 0.0
"#;

const TASKSET_DEFAULTS: &str = r#"
/name null
/storage_type "file"
/path null
/split "train"
/subset_name null
/rollout_args {}
/workflow_args {}
/reward_fn_args {}
/repeat_times 1
/data_selector/selector_type "sequential"
/data_selector/seed 42
/data_selector/feature_keys []
/data_selector/kwargs {}
"#;

#[test]
fn defaults_equal_those_of_trinity() {
    let config = Config::default().to_value();
    let taskset = serde_json::to_value(Taskset::default()).unwrap();
    for (value, table) in
        [(&config, DEFAULTS), (&config, OWN_DEFAULTS), (&taskset, TASKSET_DEFAULTS)]
    {
        for line in table.trim().lines() {
            let (key, default) = line.split_once(' ').unwrap();
            let default: Value = serde_json::from_str(default).unwrap();
            assert_eq!(value.pointer(key), Some(&default), "{key}");
        }
    }
}

#[test]
fn configuration_round_trips() {
    let config = Config::default();
    assert_eq!(Config::from_value(&config.to_value()), Ok(config.clone()));
    assert_eq!(yaml(""), config);
    assert_eq!(yaml("# nothing yet\n"), config);
    assert_eq!(yaml("explorer:\nbuffer:\n  explorer_input:\n"), config);
}

#[test]
fn default_configuration_converts_to_core_defaults() {
    let config = Config::default();
    // Runners of the core have processes of their own by default.
    let runners_per_worker = config.explorer.runner_per_worker;
    let defaults = rollway_core::CoreConfig::default();
    assert_eq!(config.to_core(8), rollway_core::CoreConfig { runners_per_worker, ..defaults });
}

#[test]
fn core_configuration_follows_the_file() {
    let config = yaml(
        "explorer:
  max_timeout: 10
  max_retry_times: 4
  concurrent_mode: asynchronous
  failures:
    timeout: {retries: 0, on_exhausted: fail_batch}
    model_unavailable: {backoff: 2.5}
    group_policy: whole
  batch:
    train: {quorum_percent: 80}
    eval: {min_success_percent: 10}
  supervision:
    heartbeat_timeout: null
",
    );
    let core = config.to_core(3);
    assert_eq!(core.runners, 3);
    assert!(!core.runs_in_turn);
    assert_eq!(core.max_timeout, Duration::from_secs(10));
    assert_eq!(core.default_timeout, Duration::from_secs(50));
    assert_eq!(core.failures.rule(rollway_core::FailureKind::Workflow).retries, 4);
    assert_eq!(core.failures.rule(rollway_core::FailureKind::Timeout).retries, 0);
    assert_eq!(
        core.failures.rule(rollway_core::FailureKind::Timeout).then,
        rollway_core::OnExhausted::FailBatch
    );
    assert_eq!(core.failures.rule(rollway_core::FailureKind::ModelUnavailable).retries, 10);
    assert_eq!(
        core.failures.rule(rollway_core::FailureKind::ModelUnavailable).backoff,
        Duration::from_millis(2500)
    );
    assert_eq!(core.failures.groups, rollway_core::GroupPolicy::Whole);
    assert_eq!(core.train.quorum_percent, Some(80));
    assert_eq!((core.eval.quorum_percent, core.eval.success_min_percent), (Some(0), 10));
    assert_eq!(core.supervision.heartbeat_timeout, None);
}

#[test]
fn file_for_trinity_is_accepted_with_warnings() {
    let config = Config::from_yaml(
        &std::fs::read_to_string(data_file("trinity.yaml")).unwrap(),
        "trinity.yaml",
    );
    let config = config.unwrap_or_else(|error| panic!("{error}"));
    expect_file(&data_file("trinity.txt"), &(warnings(&config).join("\n\n") + "\n"));

    assert_eq!(config.checkpoint_root_dir, "./checkpoints");
    assert_eq!(config.buffer.batch_size, 96);
    assert_eq!(config.algorithm.repeat_times, 16);
    assert_eq!(config.synchronizer.sync_style, SyncStyle::ExplorerDriven);
    let resolved = config.resolve().unwrap().config;
    assert_eq!(resolved.explorer.eval_interval, 50);
    assert_eq!(resolved.buffer.train_batch_size, 96 * 16);
    let input = &resolved.buffer.explorer_input;
    assert_eq!(input.train_tasksets().map(|set| set.repeat_times).collect::<Vec<_>>(), [16]);
    assert_eq!(input.eval_tasksets[1].name.as_deref(), Some("eval_taskset_1"));
    assert_eq!(input.eval_tasksets[1].rollout_args, input.eval_tasksets[0].rollout_args);
    assert_eq!(resolved.explorer.over_rollout.min_wait_num(96), Some(87));
}

#[test]
fn errors_have_the_expected_messages() {
    const CASE: &str = "========\n";
    const MESSAGE: &str = "--------\n";
    let path = data_file("mistakes.txt");
    let text = std::fs::read_to_string(&path).unwrap();
    let (head, cases) = text.split_once(CASE).expect("there is a case");
    let mut updated = head.to_owned();
    for case in cases.split(CASE) {
        let (file, _) = case.split_once(MESSAGE).unwrap_or((case, ""));
        let checked = Config::from_yaml(file, "job.yaml").and_then(|config| config.check());
        let Err(error) = checked else { panic!("no error in\n{file}") };
        updated += &format!("{CASE}{file}{MESSAGE}{error}\n");
    }
    expect_file(&path, &updated);
}

#[test]
fn yaml_accepts_common_spellings() {
    let config = yaml(
        "mode: Explore
explorer:
  max_timeout: 1e3
  eval_on_startup: off
  max_repeat_times_per_runner: None
  env_vars: {VISIBLE: 0, FLAG: on, QUOTED: \"1\"}
  rollout_model: {base_url: 'http://one:8000/v1', engine_type: VLLM}
  limits: {payload_bytes: 8_000_000_000}
buffer: {explorer_input: {taskset: {path: t, workflow_args: {rate: 1e-6, flag: true, word: on}}}}
cluster: ray
",
    );
    let explorer = &config.explorer;
    assert_eq!(config.mode, Mode::Explore);
    assert_eq!(explorer.max_timeout, ConfigSeconds::new(1000));
    assert!(!explorer.eval_on_startup);
    assert_eq!(explorer.max_repeat_times_per_runner, None);
    let variables: Vec<&str> = explorer.env_vars.values().map(String::as_str).collect();
    assert_eq!(variables, ["on", "1", "0"]);
    assert_eq!(explorer.rollout_model.base_url, ["http://one:8000/v1"]);
    assert_eq!(explorer.limits.payload_bytes, 8_000_000_000);
    let taskset = config.buffer.explorer_input.taskset.as_ref().unwrap();
    let args = json!({ "rate": 1e-6, "flag": true, "word": "on" });
    assert_eq!(Value::from(taskset.workflow_args.clone()), args);
    assert_eq!(config.cluster.backend, ClusterBackend::Ray);
}

#[test]
fn overrides_replace_single_keys() {
    let config = yaml("explorer:\n  max_timeout: 5\n  env_vars: {A: 1}\n");
    let config = config
        .with_overrides([
            "explorer.max_timeout=7.5",
            "explorer.env_vars.B=two",
            "mode=bench",
            "buffer.explorer_input.taskset.path=tasks.jsonl",
            "buffer.explorer_input.eval_tasksets=[{path: a.jsonl}]",
            "explorer.failures.timeout.on_exhausted=fail_batch",
            "buffer.total_steps=",
            "cluster=ray",
        ])
        .unwrap();
    assert_eq!(config.explorer.max_timeout, ConfigSeconds(Duration::from_millis(7500)));
    assert_eq!(config.explorer.env_vars.len(), 2);
    assert_eq!(config.mode, Mode::Bench);
    assert_eq!(config.explorer.failures.timeout.on_exhausted, Then::FailBatch);
    let taskset = config.buffer.explorer_input.taskset.as_ref().unwrap();
    assert_eq!((taskset.path.as_deref(), taskset.split.as_str()), (Some("tasks.jsonl"), "train"));

    let error = config.with_overrides(["explorer.max_timout=5", "mode", "=1", "log.level=loud"]);
    let expected = "\
`mode` is not `key=value`
hint: write it like `explorer.max_timeout=60`

`=1` does not begin with a key
hint: write it like `explorer.max_timeout=60`

explorer.max_timout: unknown key
hint: did you mean `max_timeout`?

log.level: `loud` is not a choice
hint: the choices are TRACE, DEBUG, INFO, WARNING, ERROR";
    assert_eq!(error.unwrap_err().to_string(), expected);
}

#[test]
fn dictionary_is_read_like_a_file() {
    let config = Config::from_value(&json!({
        "explorer": { "max_timeout": 5, "rollout_model": { "temperature": 0.7 } },
        "synchronizer": { "sync_method": "offline" },
    }));
    let config = config.unwrap();
    assert_eq!(config.synchronizer.sync_method, SyncMethod::Checkpoint);
    let error = Config::from_value(&json!({ "explorer": { "max_timeout": "5" } })).unwrap_err();
    let [problem] = error.problems() else { panic!("{error}") };
    assert_eq!(problem.key, "explorer.max_timeout");
    assert_eq!(problem.value.as_deref(), Some("\"5\""));
    assert_eq!(problem.span, None);
    assert_eq!(problem.hint.as_deref(), Some("remove the quotes"));
}

#[test]
fn value_set_later_has_no_source_span() {
    let mut config = yaml("mode: simulate\nalgorithm:\n  repeat_times: 4\n");
    config.algorithm.repeat_times = 0;
    let expected = "algorithm.repeat_times: `0` is too small\nhint: give a number, at least 1";
    assert_eq!(config.check().unwrap_err().to_string(), expected);
}

#[test]
fn corrections_are_reported_as_warnings() {
    let text = "
mode: explore
buffer:
  batch_size: 10
  explorer_input:
    taskset: {path: tasks.jsonl}
    eval_tasksets: [{path: eval.jsonl}]
explorer:
  concurrent_mode: asynchronous
  runner_per_model: 9
  eval_interval: 3
  rollout_model: {engine_type: echo, engine_num: 4}
synchronizer: {sync_method: nccl, sync_interval: 2}
";
    let config = yaml(text);
    let messages = warnings(&config);
    let keys = ["explorer.runner_per_model", "explorer.eval_interval", "synchronizer.sync_method"];
    assert_eq!(messages.len(), keys.len(), "{messages:#?}");
    assert!(messages.iter().zip(keys).all(|(message, key)| message.contains(key)), "{messages:#?}");
    let config = config.resolve().unwrap().config;
    assert_eq!(config.explorer.runner_per_model, 3);
    assert_eq!(config.explorer.eval_interval, 2);
    assert_eq!(config.synchronizer.sync_method, SyncMethod::Checkpoint);
    // Resolving is idempotent.
    assert_eq!(config.resolve().unwrap().config, config);
}

#[test]
fn trainer_type_follows_from_model_and_command() {
    let job = |rest: &str| {
        yaml(&format!("buffer: {{explorer_input: {{taskset: {{path: tasks.jsonl}}}}}}\n{rest}"))
    };
    let resolved = |config: &Config| config.resolve().unwrap().config;
    let tiny = "explorer: {rollout_model: {engine_type: tiny}}\n";
    // The embedded model has its own trainer and no GPU for nccl.
    let config = job(tiny);
    assert_eq!(warnings(&config), Vec::<String>::new());
    assert_eq!(resolved(&config).trainer.trainer_type, TrainerType::Tiny);
    assert_eq!(resolved(&config).synchronizer.sync_method, SyncMethod::Checkpoint);
    let config = job(&format!("{tiny}synchronizer: {{sync_method: nccl, max_staleness: 2}}"));
    let messages = warnings(&config);
    assert!(messages.iter().any(|message| message.contains("by checkpoint")), "{messages:#?}");
    assert!(messages.iter().any(|message| message.contains("fully_async")), "{messages:#?}");
    assert_eq!(resolved(&config).synchronizer.max_staleness, None);
    // A command is the trainer; without one, the job waits for a trainer started from outside.
    let server = "explorer: {rollout_model: {base_url: 'http://localhost:8000/v1'}}\n";
    let config = job(&format!("{server}trainer: {{command: [python, train.py]}}"));
    assert_eq!(warnings(&config), Vec::<String>::new());
    assert_eq!(resolved(&config).trainer.trainer_type, TrainerType::Command);
    let messages = warnings(&job(server));
    assert!(
        messages.len() == 1 && messages[0].contains("no trainer is configured"),
        "{messages:#?}"
    );
    let config = job(&format!("mode: explore\n{server}trainer: {{command: [train]}}"));
    assert!(warnings(&config)[0].contains("no trainer is started in this mode"));
    assert_eq!(resolved(&config).resolve().unwrap().config, resolved(&config));
}

#[test]
fn keys_without_effect_are_reported_as_warnings() {
    let job = |mode: &str, rest: &str| {
        let input = "buffer: {explorer_input: {taskset: {path: a}, eval_tasksets: [{path: b}]}}";
        warnings(&yaml(&format!("mode: {mode}\n{input}\n{rest}")))
    };
    let server = "explorer: {rollout_model: {base_url: 'http://localhost:1/v1'}, proxy_port: 9000}";
    assert_eq!(job("serve", server), Vec::<String>::new());
    let messages = job("bench", server);
    assert!(messages[0].contains("explorer.proxy_port: has no effect in mode `bench`"));
    assert!(messages[0].ends_with("only mode `serve` reads it"), "{messages:#?}");
    let simulation = "simulation: {seed: 3}";
    assert_eq!(job("simulate", simulation), Vec::<String>::new());
    let messages =
        job("bench", &format!("explorer: {{rollout_model: {{engine_type: tiny}}}}\n{simulation}"));
    assert!(messages.len() == 1 && messages[0].contains("simulation: has no"), "{messages:#?}");
    let tiny = "explorer: {rollout_model: {engine_type: tiny}, bench_on_latest_checkpoint: true}\n";
    let messages = job("both", tiny);
    assert!(messages.len() == 1 && messages[0].contains("mode `bench` reads"), "{messages:#?}");
    // A program does not read the learning rate.
    let rate = "explorer: {rollout_model: {engine_type: tiny}}\ntrainer: {learning_rate: 0.1";
    assert_eq!(job("both", &format!("{rate}}}")), Vec::<String>::new());
    let messages = job("both", &format!("{rate}, command: [train]}}"));
    assert!(messages.len() == 1 && messages[0].contains("trainer program"), "{messages:#?}");
}

#[test]
fn weights_in_memory_are_reported_with_servers_on_other_machines() {
    let job = |url: &str| {
        warnings(&yaml(&format!(
            "buffer: {{explorer_input: {{taskset: {{path: tasks.jsonl}}}}}}\n\
             explorer: {{rollout_model: {{base_url: '{url}'}}}}\n\
             synchronizer: {{sync_method: memory}}\ntrainer: {{command: [train]}}"
        )))
    };
    for url in ["http://localhost:8000/v1", "http://127.0.0.1:8000/v1", "https://[::1]:8000/v1"] {
        assert_eq!(job(url), Vec::<String>::new(), "{url}");
    }
    let messages = job("http://gpu-1:8000/v1");
    assert!(messages.len() == 1 && messages[0].contains("http://gpu-1:8000/v1"), "{messages:#?}");
}

#[test]
fn unreadable_file_is_named() {
    let error = Config::load("no/such/file.yaml").unwrap_err().to_string();
    let expected = "no/such/file.yaml: file not found\n\
                hint: give the path of a YAML file, relative to the current folder";
    assert_eq!(error, expected);
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/arithmetic.yaml");
    let config = Config::load(example).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(warnings(&config), Vec::<String>::new());
}

#[test]
fn schema_describes_every_key() {
    fn walk(path: &str, schema: &Value) {
        let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return };
        assert_eq!(schema["additionalProperties"], false, "{path}");
        for (name, schema) in properties {
            let path = format!("{path}.{name}");
            assert!(schema.get("description").is_some(), "{path} is not described");
            assert!(schema.get("default").is_some(), "{path} has no default");
            walk(&path, schema);
            walk(&path, schema.get("items").unwrap_or(&Value::Null));
            let alternatives = schema.get("anyOf").and_then(Value::as_array);
            alternatives.into_iter().flatten().for_each(|schema| walk(&path, schema));
        }
    }
    let schema = schema();
    walk("", &schema);
    assert!(!schema.to_string().contains("\"x-"), "our extensions are translated");
}

#[test]
fn reference_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    expect_file(&path, &reference());
}

#[test]
fn anchors_cannot_exhaust_memory() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..10 {
        let item = format!("*a{}", level - 1);
        text += &format!("a{level}: &a{level} [{}]\n", vec![item; 10].join(", "));
    }
    let long = format!("a: &a {}\nb: [{}]", "x".repeat(1 << 20), vec!["*a"; 50_000].join(", "));
    for (text, message) in [
        (text.as_str(), "more than 100000 values"),
        ("a: &a [*a]", "itself"),
        (&long, "more than 16777216 bytes"),
    ] {
        let error = Config::from_yaml(text, "job.yaml").unwrap_err();
        assert!(
            error.problems().iter().any(|problem| problem.message.contains(message)),
            "{error}"
        );
    }
    let deep = "[".repeat(10_000);
    assert!(Config::from_yaml(&deep, "job.yaml").is_err());
}

/// Texts that are often YAML.
fn yamlish() -> impl Strategy<Value = String> {
    const TOKENS: &str = "mode explorer buffer max_timeout taskset tasksets << trainer model \
                          over_rollout 1 -5 1e400 null ~ on 'x &a *a !!str !x [ ] { } , : --- ... \
                          | > % @ ${oc.env:X ${oc.env:X,y} ${a.b} é";
    let separators =
        ["\"", "- ", "? ", ": ", "\n", "\n  ", "\n    ", "\t", "# x", "\u{feff}", "\u{0}"];
    let tokens: Vec<&str> = TOKENS.split(' ').chain(separators).collect();
    let tokens = prop::sample::select(tokens);
    prop::collection::vec(tokens, 0..40).prop_map(|tokens| tokens.concat())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn arbitrary_text_does_not_panic(text in prop_oneof![yamlish(), any::<String>()]) {
        match Config::from_yaml(&text, "job.yaml") {
            Ok(config) => drop(config.check().map_err(|error| error.to_string())),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
        let _ = Config::default().with_overrides([format!("explorer.{text}"), text]);
    }
}
