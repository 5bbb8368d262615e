//! Conversion of rows to tasks by the format.

use rollway_config::{BufferConfig, Format, Taskset};
use rollway_tasksets::{SelectedTask, TasksetOpener};
use serde_json::{Value, json};

use crate::help::{assert_refused, buffer, folder, taskset, write};

fn first(buffer: &BufferConfig) -> SelectedTask {
    TasksetOpener::new(buffer).train().unwrap().all().next().unwrap().unwrap()
}

fn formatted(row: &Value, format: Format) -> SelectedTask {
    let folder = folder();
    let path = write(&folder, "a.jsonl", row.to_string());
    first(&buffer(vec![Taskset { format, ..taskset(&path) }]))
}

fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

#[test]
fn question_and_answer_are_found_by_their_keys() {
    let row = json!({"q": "1+1?", "a": 2, "more": [1]});
    let system_prompt = some("Be brief.");
    let format = Format {
        prompt_key: "q".into(),
        response_key: "a".into(),
        system_prompt,
        ..Format::default()
    };
    let drawn = formatted(&row, format);
    let task = &drawn.task;
    assert_eq!((&task.prompt, &task.response), (&Some("1+1?".into()), &Some(2.into())));
    let system = json!({"role": "system", "content": "Be brief."});
    let user = json!({"role": "user", "content": "1+1?"});
    assert_eq!(task.messages, [system, user]);

    let fields = Value::Object(drawn.fields());
    assert_eq!(fields["raw_task"], row);
    assert_eq!(fields["index"], json!({"index": 0, "taskset_id": 0}));
    let expected = json!({"prompt_key": "q", "response_key": "a", "system_prompt": "Be brief."});
    assert_eq!(fields["format_args"], expected);
    assert_eq!(fields.get("rollout_args"), None);
}

#[test]
fn messages_and_tools_are_taken_from_lists_and_from_text() {
    let messages = json!([{"role": "user", "content": "hi", "name": null}]);
    let tools = json!([{"type": "function", "function": {"name": "f", "strict": null}}]);
    let format = Format {
        messages_key: some("chat"),
        tools_key: some("tools"),
        system_prompt: some("default"),
        system_prompt_key: some("system"),
        ..Format::default()
    };
    for row in [
        json!({"chat": messages, "tools": tools, "system": "own"}),
        json!({"chat": messages.to_string(), "tools": tools.to_string(), "system": "own"}),
    ] {
        let task = formatted(&row, format.clone()).task;
        let system = json!({"role": "system", "content": "own"});
        assert_eq!(task.messages, [system, json!({"role": "user", "content": "hi"})]);
        let expected = json!([{"type": "function", "function": {"name": "f"}}]);
        assert_eq!(task.tools, Some(expected));
    }
    // Messages with a system prompt of their own keep it.
    let chat = json!([{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]);
    let row = json!({"chat": chat, "tools": null, "system": null});
    let task = formatted(&row, format).task;
    assert_eq!((Value::from(task.messages), task.tools), (chat, None));
}

#[test]
fn a_prompt_that_is_a_list_of_messages_is_used_as_such() {
    let chat = json!([{"role": "user", "content": "y"}]);
    let task = formatted(&json!({"prompt": chat}), Format::default()).task;
    assert_eq!(Value::from(task.messages), chat);
}

#[test]
fn workflow_and_reward_function_come_from_row_taskset_and_job_in_that_order() {
    let folder = folder();
    let rows = json!([
        {"prompt": "a", "w": "of_row", "r": "reward_of_row"},
        {"prompt": "b", "w": null},
    ]);
    let path = write(&folder, "a.json", rows.to_string());
    let format = Format { workflow_key: some("w"), reward_fn_key: some("r"), ..Format::default() };
    let set = Taskset {
        format,
        default_workflow_type: some("of_taskset"),
        repeat_times: 4,
        ..taskset(&path)
    };
    let mut buffer = buffer(vec![set.clone()]);
    buffer.explorer_input.default_workflow_type = some("of_job");
    buffer.explorer_input.default_eval_workflow_type = some("of_evals");
    buffer.explorer_input.default_reward_fn_type = some("reward_of_job");
    buffer.explorer_input.eval_tasksets =
        vec![set.clone(), Taskset { default_workflow_type: None, name: some("x"), ..set }];

    let names = |drawn: &SelectedTask| {
        let text = |name: &Option<_>| name.as_deref().unwrap_or("none").to_owned();
        (text(&drawn.task.workflow), text(&drawn.task.reward_fn))
    };
    let pair = |one: &str, other: &str| (one.to_owned(), other.to_owned());
    let opener = TasksetOpener::new(&buffer);
    let train: Vec<_> = opener.train().unwrap().all().map(|it| names(&it.unwrap())).collect();
    assert_eq!(train, [pair("of_row", "reward_of_row"), pair("of_taskset", "reward_of_job")]);
    let mut evals = opener.evals().unwrap();
    let second = evals[1].all().nth(1).unwrap().unwrap();
    assert_eq!(names(&second), pair("of_evals", "reward_of_job"));
    let source = &*second.source;
    assert_eq!((&*source.name, source.taskset_id, source.is_eval), ("x", 1, true));
    assert_eq!(source.repeat_times, 4);
}

#[test]
fn invalid_rows_are_refused_with_their_line() {
    let folder = folder();
    for (text, format, expected) in [
        (r#"{"m": [{"content": "x"}]}"#, some("m"), "message 0 of `m` has no role"),
        (r#"{"m": "hello"}"#, some("m"), "`m` is not a list of messages"),
        ("{\"prompt\": \"x\"}\n\n{\"prompt\": null}", None, "the row has no `prompt`"),
    ] {
        let path = write(&folder, "a.jsonl", text);
        let format = Format { messages_key: format, ..Format::default() };
        let buffer = buffer(vec![Taskset { format, ..taskset(&path) }]);
        let read = |mut tasks: rollway_tasksets::TaskStream| tasks.all().find_map(Result::err);
        let error = TasksetOpener::new(&buffer).train().map_or_else(Some, read).unwrap();
        assert!(error.what.contains(expected), "{error}");
        let line = text.lines().count();
        assert!(error.location.ends_with(&format!("a.jsonl, line {line}")), "{error}");
    }
    let path = write(&folder, "a.jsonl", r#"{"prompt": "x", "w": 3}"#);
    let format = Format { workflow_key: some("w"), ..Format::default() };
    let buffer = buffer(vec![Taskset { format, ..taskset(&path) }]);
    let error = TasksetOpener::new(&buffer).train().unwrap().next_batch(1).unwrap_err();
    assert!(error.to_string().contains("`w` holds 3, which is not a name"), "{error}");
    assert_refused(
        Taskset {
            format: Format { response_key: "anwser".into(), ..Format::default() },
            ..taskset(&write(&folder, "a.jsonl", r#"{"prompt": "x", "answer": 3}"#))
        },
        "did you mean `answer`?",
    );
}
