//! Prometheus metrics of a running job, their documentation, and the queries of the Grafana
//! dashboard.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use rollway::DropCounters;
use rollway::events::RunObservers;
use rollway::explorer::{Explorer, ExplorerOptions, JobObservers};
use rollway::prometheus::{ExpositionFormat, PrometheusExporter};
use serde_json::Value;

use crate::world::{EventLog, TestRun, Trainer, World};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

#[derive(Debug, Default)]
struct Family {
    kind: String,
    help: String,
    /// Values by name and labels.
    samples: BTreeMap<String, f64>,
}

/// Parses and validates a scrape.
fn read(text: &str) -> BTreeMap<String, Family> {
    assert!(text.ends_with("\n# EOF\n"), "the scrape ends with EOF");
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    for line in text.lines().filter(|line| *line != "# EOF") {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "HELP", name, help] => {
                let family = Family { help: help.to_owned(), ..Family::default() };
                assert!(
                    families.insert(name.to_owned(), family).is_none(),
                    "duplicate family {name}"
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
                assert!(
                    family.samples.insert(name.to_owned(), value).is_none(),
                    "duplicate sample {line}"
                );
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

/// Returns the sum of all samples of a family with a label.
fn sum(families: &BTreeMap<String, Family>, name: &str, label: &str) -> f64 {
    let family = families.get(name).unwrap_or_else(|| panic!("there is no {name}"));
    family.samples.iter().filter(|(key, _)| key.contains(label)).map(|(_, value)| value).sum()
}

/// Checks that submitted work equals ended and open work.
fn assert_balanced(families: &BTreeMap<String, Family>) {
    for kind in ["batch_type=\"train\"", "batch_type=\"eval\""] {
        let of = |name: &str| sum(families, name, kind);
        let runs = of("rollway_runs_succeeded") + of("rollway_runs_failed");
        let runs = runs + of("rollway_runs_cancelled") + of("rollway_runs_pending");
        assert_eq!(of("rollway_runs_submitted"), runs + of("rollway_runs_running"), "{kind}");
        let tasks = of("rollway_tasks_ended") + of("rollway_tasks_open");
        assert_eq!(of("rollway_tasks_submitted"), tasks, "{kind}");
    }
    let of = |name: &str| sum(families, name, "");
    let received = of("rollway_payloads_received") + of("rollway_payloads_restored");
    let gone = of("rollway_payloads_delivered") + of("rollway_payloads_dropped");
    assert_eq!(received, gone + of("rollway_payloads_held"));
}

/// Checks that counters do not decrease.
fn assert_monotonic(before: &BTreeMap<String, Family>, after: &BTreeMap<String, Family>) {
    for (name, family) in after.iter().filter(|(_, family)| family.kind != "gauge") {
        for (sample, value) in &family.samples {
            let earlier = before.get(name).and_then(|it| it.samples.get(sample));
            assert!(earlier.is_none_or(|earlier| earlier <= value), "{sample}");
        }
    }
}

/// Some runs are delayed, some fail once and some always.
fn mixed(_: &str, n: u64, times: u32) -> TestRun {
    match n {
        7 => TestRun::Fails,
        3 if times == 0 => TestRun::Fails,
        n if n % 2 == 0 => TestRun::Delayed,
        _ => TestRun::Succeeds,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_scrape_is_balanced_and_documented() {
    let world = World::with(mixed);
    let config = world.config(&["explorer.max_retry_times=1"]);
    let drops = DropCounters::default();
    drops.count("tensorboard", 2);
    let meters = PrometheusExporter::new(&config, drops);
    let seen = EventLog::default();
    let options = ExplorerOptions {
        runtime: Some(world.runtime()),
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
            // The last scrape is after the last step.
            while sum(&last, "rollway_step", "rollway_step") < 4.0 {
                let next = read(&meters.render(ExpositionFormat::OpenMetrics).await);
                assert_balanced(&next);
                assert_monotonic(&last, &next);
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
    assert_monotonic(&last, &families);
    assert_balanced(&families);
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
    assert_documented(&families);
    assert_dashboard(&families);
}

/// Checks that `docs/metrics.md` has a line for every metric.
fn assert_documented(families: &BTreeMap<String, Family>) {
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

/// Checks that the Grafana dashboard queries existing metrics, and that its panels do not overlap.
fn assert_dashboard(families: &BTreeMap<String, Family>) {
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
    let (mut ids, mut cells, mut rows, mut queried) =
        (BTreeSet::new(), BTreeSet::new(), Vec::new(), BTreeSet::new());
    for panel in panels {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title} has a duplicate id");
        let grid = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        assert!(grid("x") + grid("w") <= 24, "{title} is too wide");
        for x in grid("x")..grid("x") + grid("w") {
            for y in grid("y")..grid("y") + grid("h") {
                assert!(cells.insert((x, y)), "{title} overlaps another panel");
            }
        }
        if panel["type"] == "row" {
            rows.push(title.to_lowercase());
            continue;
        }
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{title} has no query");
        for target in targets {
            let query = target["expr"].as_str().unwrap();
            let words = query.split(|it: char| !it.is_alphanumeric() && it != '_');
            let named: Vec<&str> = words.filter(|word| word.starts_with("rollway_")).collect();
            assert!(!named.is_empty(), "{title}: {query}");
            for name in named {
                assert!(known.contains(name), "{title} queries the unknown metric {name}");
                queried.insert(name.to_owned());
            }
        }
    }
    assert_eq!(rows, ["health", "throughput", "rollouts", "models", "staleness", "waste"]);
    assert!(queried.len() > 20, "{queried:?}");
    let variables = board["templating"]["list"].as_array().unwrap();
    assert!(variables.iter().any(|it| it["type"] == "datasource" && it["name"] == "datasource"));
}
