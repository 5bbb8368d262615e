//! Sampling parameters, seeds and labels of recorded turns.

use rollway_experience::Experience;
use rollway_mock_server::MockServerOptions;
use serde_json::{Value, json};

use super::help::{MODEL, Run, World, options, read, says};

fn info(experience: &Experience) -> Value {
    experience.info.value()
}

async fn labelled(run: &Run, body: &Value, labels: &[(&str, &str)]) -> Value {
    let request =
        labels.iter().fold(run.chat(body), |request, (name, label)| request.header(*name, *label));
    let (status, answer) = read(request.send().await.unwrap()).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

/// Returns the body that continues a response.
fn next(mut body: Value, answer: &Value, text: &str) -> Value {
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(answer["choices"][0]["message"].clone());
    messages.push(json!({ "role": "user", "content": text }));
    body
}

#[tokio::test]
async fn sampling_parameters_are_on_the_experience() {
    let mut options = options();
    options.sampling = json!({ "top_p": 0.5 }).as_object().unwrap().clone();
    let world = World::with(options, vec![MockServerOptions::default()]).await;
    let run = world.open(1);
    let mut first = says("hello");
    first["temperature"] = json!(0.7);
    first["logit_bias"] = json!({ "5": -100 });
    let answer = labelled(&run, &first, &[]).await;
    let found = info(&world.experiences(&run)[0]);
    let bias = json!({ "5": -100 });
    let marks = json!(["logit_bias"]);
    let sampling = json!({
        "temperature": 0.7, "top_p": 0.5, "logit_bias": bias, "constrained_by": marks,
    });
    assert_eq!(found["sampling"], sampling);
    assert_eq!(found.get("sampling_by_turn"), None);

    let mut second = next(first, &answer, "go on");
    second["temperature"] = json!(1.0);
    labelled(&run, &second, &[]).await;
    let experiences = world.experiences(&run);
    assert_eq!(experiences.len(), 1);
    let found = info(&experiences[0]);
    let common = json!({ "top_p": 0.5, "logit_bias": bias, "constrained_by": marks });
    assert_eq!(found["sampling"], common);
    let temperatures = found["sampling_by_turn"].as_array().unwrap();
    let temperatures: Vec<_> = temperatures.iter().map(|turn| &turn["temperature"]).collect();
    assert_eq!(temperatures, [&json!(0.7), &json!(1.0)]);
}

#[tokio::test]
async fn runs_of_a_group_have_seeds_that_differ_and_repeat() {
    let mut answers = Vec::new();
    for (attempt, job_seed) in [(1, 7), (2, 7), (3, 8)] {
        let mut options = options();
        options.seed = Some(job_seed);
        let world = World::with(options, vec![MockServerOptions::default()]).await;
        let keys = world.handle.open_task(attempt, 0, 2, "train/3/0");
        let mut seeds = Vec::new();
        for key in keys {
            let run = Run { key, ..world.open(100) };
            // Twice the same call is two samples.
            for _ in 0..2 {
                labelled(&run, &says("hello"), &[]).await;
            }
            let sent = world.control().records();
            let sent = sent.iter().rev().take(2).map(|record| record.body["seed"].clone());
            seeds.extend(sent.map(|seed| seed.as_u64().unwrap()));
        }
        let mut distinct = seeds.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), 4, "{seeds:?}");
        answers.push(seeds);
    }
    assert_eq!(answers[0], answers[1], "the same job, task and run");
    assert_ne!(answers[0], answers[2]);

    let mut options = options();
    options.seed = Some(7);
    let world = World::with(options, vec![MockServerOptions::default()]).await;
    let mut own = says("hello");
    own["seed"] = json!(5);
    let run = world.open(1);
    labelled(&run, &own, &[]).await;
    assert_eq!(world.control().records()[0].body["seed"], 5, "the client's own seed is kept");
    assert_eq!(info(&world.experiences(&run)[0])["sampling"], json!({ "seed": 5 }));
}

#[tokio::test]
async fn a_retry_is_recognized_although_its_seed_would_differ() {
    let mut options = options();
    options.seed = Some(7);
    let world = World::with(options, vec![MockServerOptions::default()]).await;
    let run = world.open(1);
    let first = labelled(&run, &says("hello"), &[]).await;
    let again = labelled(&run, &says("hello"), &[("x-stainless-retry-count", "1")]).await;
    assert_eq!(first["id"], again["id"]);
}

#[tokio::test]
async fn sub_agents_branches_and_compactions_have_labels_and_parents() {
    let world = World::new().await;
    let run = world.open(1);
    let start = says("hello");
    let first = labelled(&run, &start, &[]).await;
    let id = first["id"].as_str().unwrap();
    labelled(&run, &next(start.clone(), &first, "go on"), &[]).await;
    labelled(&run, &next(start.clone(), &first, "another way"), &[]).await;
    // The same conversation, continued by another agent.
    let inherited = next(start.clone(), &first, "you do it");
    labelled(&run, &inherited, &[("X-Rollway-Agent", "helper")]).await;
    let compacted = json!({ "model": MODEL, "messages": [
        { "role": "user", "content": "summary: hello was said" },
    ]});
    labelled(&run, &compacted, &[("x-rollway-agent", "main"), ("x-rollway-parent", id)]).await;

    let found: Vec<Value> = world.experiences(&run).iter().map(info).collect();
    let shown: Vec<_> =
        found.iter().map(|info| (&info["agent"], &info["origin"], &info["parent"])).collect();
    let (none, branch, id) = (&Value::Null, &json!("branch"), &json!(id));
    assert_eq!(
        shown,
        [
            (none, none, none),
            (none, branch, id),
            (&json!("helper"), branch, id),
            (&json!("main"), none, id),
        ]
    );

    let wrong = run.chat(&start).header("X-Rollway-Agent", "").send().await.unwrap();
    assert_eq!(wrong.status(), 400);
}

#[tokio::test]
async fn drift_names_the_turn_it_departs_from() {
    let mut options = options();
    options.exact_histories = false;
    let server = MockServerOptions { drift: true, ..MockServerOptions::default() };
    let world = World::with(options, vec![server]).await;
    let run = world.open(1);
    let first = labelled(&run, &says("hello"), &[]).await;
    labelled(&run, &next(says("hello"), &first, "go on"), &[]).await;
    let found = info(&world.experiences(&run)[1]);
    assert_eq!((&found["origin"], &found["parent"]), (&json!("drift"), &first["id"]));
}
