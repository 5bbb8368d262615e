//! What Prometheus is told of a job while it runs, what the documentation says about it, and what
//! the dashboard for Grafana asks for.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use rollway::DropCounters;
use rollway::events::RunObservers;
use rollway::explorer::{Explorer, ExplorerOptions, JobObservers};
use rollway::prometheus::{ExpositionFormat, PrometheusExporter};
use serde_json::Value;

use crate::world::{EventLog, TestWorkflow, Trainer, World};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// A family of metrics.
#[derive(Debug, Default)]
struct Family {
    kind: String,
    help: String,
    /// By name and labels.
    samples: BTreeMap<String, f64>,
}

/// Reads a scrape, and finds everything that no scrape may be.
fn read(text: &str) -> BTreeMap<String, Family> {
    assert!(text.ends_with("\n# EOF\n"), "it has an end");
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    for line in text.lines().filter(|line| *line != "# EOF") {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "HELP", name, help] => {
                let family = Family { help: help.to_owned(), ..Family::default() };
                assert!(
                    families.insert(name.to_owned(), family).is_none(),
                    "{name} is there twice"
                );
                current = name.to_owned();
            }
            ["#", "TYPE", name, kind] => {
                assert_eq!(name, current, "help comes before the type");
                families.get_mut(name).unwrap().kind = kind.to_owned();
            }
            ["#", "UNIT", name, unit] => assert!(name.ends_with(unit), "{line}"),
            _ => {
                let (name, value) = line.rsplit_once(' ').unwrap();
                let bare = name.split('{').next().unwrap();
                let family = families.get_mut(&current).unwrap();
                let suffix = bare.strip_prefix(&*current).unwrap_or_else(|| panic!("{line}"));
                let suffixes: &[&str] = match &*family.kind {
                    "counter" => &["_total"],
                    "gauge" => &[""],
                    "histogram" => &["_bucket", "_count", "_sum"],
                    "info" => &["_info"],
                    other => panic!("{current} has the type {other}"),
                };
                assert!(suffixes.contains(&suffix), "{line}");
                let value: f64 = value.parse().unwrap();
                assert!(family.samples.insert(name.to_owned(), value).is_none(), "{line} is twice");
            }
        }
    }
    for (name, family) in &families {
        assert!(name.starts_with("rollway_"), "{name}");
        assert!(!family.help.is_empty() && !family.kind.is_empty(), "{name}");
        assert!(!name.ends_with("_total"), "{name}");
    }
    families
}

/// The sum over all samples of a family with a label.
fn sum(families: &BTreeMap<String, Family>, name: &str, label: &str) -> f64 {
    let family = families.get(name).unwrap_or_else(|| panic!("there is no {name}"));
    family.samples.iter().filter(|(key, _)| key.contains(label)).map(|(_, value)| value).sum()
}

/// What came in is somewhere, in every scrape.
fn adds_up(families: &BTreeMap<String, Family>) {
    for kind in ["batch_type=\"train\"", "batch_type=\"eval\""] {
        let of = |name: &str| sum(families, name, kind);
        let runs = of("rollway_runs_succeeded") + of("rollway_runs_failed");
        let runs = runs + of("rollway_runs_cancelled") + of("rollway_runs_pending");
        assert_eq!(of("rollway_runs_submitted"), runs + of("rollway_runs_running"), "{kind}");
        let tasks = of("rollway_tasks_ended") + of("rollway_tasks_open");
        assert_eq!(of("rollway_tasks_submitted"), tasks, "{kind}");
    }
    let of = |name: &str| sum(families, name, "");
    let came = of("rollway_payloads_received") + of("rollway_payloads_restored");
    let went = of("rollway_payloads_delivered") + of("rollway_payloads_dropped");
    assert_eq!(came, went + of("rollway_payloads_held"));
}

/// What only grows does.
fn grows(before: &BTreeMap<String, Family>, after: &BTreeMap<String, Family>) {
    for (name, family) in after.iter().filter(|(_, family)| family.kind != "gauge") {
        for (sample, value) in &family.samples {
            let earlier = before.get(name).and_then(|it| it.samples.get(sample));
            assert!(earlier.is_none_or(|earlier| earlier <= value), "{sample}");
        }
    }
}

/// Some runs take a while, some fail once and some for good.
fn mixed(_: &str, n: u64, times: u32) -> TestWorkflow {
    match n {
        7 => TestWorkflow::Badly,
        3 if times == 0 => TestWorkflow::Badly,
        n if n % 2 == 0 => TestWorkflow::Slowly,
        _ => TestWorkflow::Well,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_scrape_of_a_job_adds_up_and_is_documented() {
    let world = World::with(mixed);
    let config = world.config(&["explorer.max_retry_times=1"]);
    let drops = DropCounters::default();
    drops.count("tensorboard", 2);
    let meters = PrometheusExporter::new(&config, drops);
    let seen = EventLog::default();
    let options = ExplorerOptions {
        fleet: Some(world.fleet()),
        watchers: JobObservers::new(vec![Arc::new(seen.clone()), Arc::clone(&meters) as _]),
        observers: RunObservers::new(vec![Arc::clone(&meters) as _]),
        ..ExplorerOptions::default()
    };
    let mut explorer = Explorer::prepare(&config, options).await.unwrap();
    let trainer = Trainer::start(&explorer, &seen).await;
    let scraping = tokio::spawn({
        let meters = Arc::clone(&meters);
        async move {
            let mut last = read(&meters.render(ExpositionFormat::OpenMetrics).await);
            let mut scrapes = 1;
            // Until all steps are done: the last look is at what there is then.
            while sum(&last, "rollway_step", "rollway_step") < 4.0 {
                let next = read(&meters.render(ExpositionFormat::OpenMetrics).await);
                adds_up(&next);
                grows(&last, &next);
                last = next;
                scrapes += 1;
                tokio::task::yield_now().await;
            }
            (scrapes, last)
        }
    });
    explorer.explore().await.unwrap();
    let (scrapes, last) = scraping.await.unwrap();
    assert!(scrapes > 2, "{scrapes} scrapes");
    drop(trainer);
    explorer.shutdown().await.unwrap();
    drop(explorer);
    let text = meters.render(ExpositionFormat::OpenMetrics).await;
    let families = read(&text);
    grows(&last, &families);
    adds_up(&families);
    assert_eq!(sum(&families, "rollway_runs_submitted", "train"), 24.0);
    assert_eq!(sum(&families, "rollway_tasks_submitted", "train"), 12.0);
    let retried = sum(&families, "rollway_runs_retried", "workflow");
    assert!(retried > 0.0, "{retried}");
    let attempts = sum(&families, "rollway_attempts_ended", "");
    assert_eq!(sum(&families, "rollway_attempt_duration_seconds", "_count"), attempts);
    assert_eq!(sum(&families, "rollway_telemetry_dropped", "tensorboard"), 2.0);
    assert_eq!(sum(&families, "rollway_staleness_mean", ""), 0.0);
    assert!(sum(&families, "rollway_loop_lag_seconds", "_count") > 0.0);
    let classic = meters.render(ExpositionFormat::Text).await;
    assert!(classic.contains("# TYPE rollway_runs_submitted_total counter\n"), "{classic}");
    assert!(!classic.contains("# EOF") && !classic.contains("# UNIT"), "{classic}");
    documented(&families);
    drawn(&families);
}

/// `docs/metrics.md` has a line for every metric.
fn documented(families: &BTreeMap<String, Family>) {
    let mut table = String::from("| metric | type | is |\n|---|---|---|\n");
    for (name, family) in families {
        let suffix = match &*family.kind {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        let (kind, help) = (&family.kind, family.help.trim_end_matches('.'));
        let _ = writeln!(table, "| `{name}{suffix}` | {kind} | {help} |");
    }
    let path = format!("{ROOT}/docs/metrics.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (begin, end) = ("<!-- every metric -->\n", "<!-- end -->\n");
    let (before, rest) = text.split_once(begin).unwrap();
    let (listed, after) = rest.split_once(end).unwrap();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, format!("{before}{begin}{table}{end}{after}")).unwrap();
        return;
    }
    assert!(
        listed == table,
        "docs/metrics.md is out of date; UPDATE_EXPECT=1 rewrites it\n{table}"
    );
}

/// The dashboard for Grafana asks only for what there is, and its panels do not overlap.
fn drawn(families: &BTreeMap<String, Family>) {
    let mut known = BTreeSet::new();
    for (name, family) in families {
        match &*family.kind {
            "counter" => drop(known.insert(format!("{name}_total"))),
            "info" => drop(known.insert(format!("{name}_info"))),
            "histogram" => {
                known.extend(["bucket", "sum", "count"].map(|it| format!("{name}_{it}")))
            }
            _ => drop(known.insert(name.clone())),
        }
    }
    let text = std::fs::read_to_string(format!("{ROOT}/docs/grafana/rollway.json")).unwrap();
    let board: Value = serde_json::from_str(&text).unwrap();
    let panels = board["panels"].as_array().unwrap();
    let (mut ids, mut cells, mut rows, mut asked) =
        (BTreeSet::new(), BTreeSet::new(), Vec::new(), BTreeSet::new());
    for panel in panels {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title} has the id of another");
        let place = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        assert!(place("x") + place("w") <= 24, "{title} is too wide");
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(cells.insert((x, y)), "{title} lies on another");
            }
        }
        if panel["type"] == "row" {
            rows.push(title.to_lowercase());
            continue;
        }
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{title} asks for nothing");
        for target in targets {
            let query = target["expr"].as_str().unwrap();
            let words = query.split(|it: char| !it.is_alphanumeric() && it != '_');
            let named: Vec<&str> = words.filter(|word| word.starts_with("rollway_")).collect();
            assert!(!named.is_empty(), "{title}: {query}");
            for name in named {
                assert!(known.contains(name), "{title} asks for {name}, which there is not");
                asked.insert(name.to_owned());
            }
        }
    }
    assert_eq!(rows, ["health", "throughput", "rollouts", "models", "staleness", "waste"]);
    assert!(asked.len() > 20, "{asked:?}");
    let variables = board["templating"]["list"].as_array().unwrap();
    assert!(variables.iter().any(|it| it["type"] == "datasource" && it["name"] == "datasource"));
}
