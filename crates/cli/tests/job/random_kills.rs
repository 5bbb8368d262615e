//! `kill -9` and Ctrl-C at random moments of a job, its last seconds included: every task is
//! explored and trained exactly once, and every restart ends in bounded time.
//!
//! `ROLLWAY_KILLS=300` kills so often, over all buffers and trainers; `ROLLWAY_KILL_JOBS=4` runs so
//! many jobs at once; `ROLLWAY_KILL_SEED` repeats.

use std::collections::BTreeSet;
use std::fs::File;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::workspace::{Workspace, read, signal};

const STEPS: u64 = 3;
const TASKS: u64 = 4;
const RUNS: u64 = 8;

/// Kills of one job.
const KILLS_PER_JOB: u32 = 3;

/// Kills of one job in a long campaign.
const LONG_KILLS_PER_JOB: u32 = 10;

/// Kills of the ordinary test.
const KILLS: u32 = 6;

/// Maximum time of a job that is not killed, on a slow machine.
const JOB_TIMEOUT: Duration = Duration::from_secs(240);

const BUFFER: &str = "buffer.trainer_input.experience_buffer";

/// Buffers by their keys, relative to the folder of the test.
const BUFFERS: [(&str, &[&str]); 5] = [
    ("queue", &["storage_type=queue"]),
    ("sqlite", &["storage_type=sql"]),
    ("jsonl", &["storage_type=file", "path=FOLDER/rows.jsonl"]),
    ("parquet", &["storage_type=file", "path=FOLDER/rows/"]),
    ("spilled queue", &["storage_type=queue", "on_full=spill", "capacity=8"]),
];

/// A small generator: the seed repeats all moments.
struct Moments(u64);

impl Moments {
    fn below(&mut self, end: u64) -> u64 {
        // Constants of Knuth's MMIX.
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

struct KilledJob<'a> {
    workspace: Workspace,
    buffer: &'a [&'a str],
    is_external: bool,
}

impl KilledJob<'_> {
    fn keys(&self) -> Vec<String> {
        let folder = self.workspace.path().display().to_string();
        let buffer =
            self.buffer.iter().map(|key| format!("{BUFFER}.{}", key.replace("FOLDER", &folder)));
        let mut keys: Vec<String> = buffer.collect();
        keys.extend([
            format!("buffer.total_steps={STEPS}"),
            format!("buffer.batch_size={TASKS}"),
            format!("explorer.eval_interval={STEPS}"),
            format!("{BUFFER}.max_read_timeout=120"),
            format!("data_processor.experience_pipeline.input_save_path={folder}/input.jsonl"),
            "trainer.grace=2".to_owned(),
        ]);
        if self.is_external {
            keys.push(format!("trainer.command={}", self.trainer_command(&keys)));
        }
        keys
    }

    /// The embedded trainer as a program of its own, which reads the buffer from outside.
    fn trainer_command(&self, keys: &[String]) -> String {
        let (program, root) = (env!("CARGO_BIN_EXE_rollway"), self.workspace.path().display());
        let keys: Vec<String> = keys.iter().map(|key| format!("'{key}'")).collect();
        let is_queue = self.buffer.contains(&"storage_type=queue");
        let path =
            if is_queue { format!("\"{BUFFER}.path=$ROLLWAY_BUFFER\"") } else { String::new() };
        let script = format!(
            "exec {program} run examples/arithmetic.yaml {} checkpoint_root_dir={root} mode=train \
             trainer.name=external buffer.train_batch_size={} trainer.command=[] \
             trainer.trainer_type=tiny dashboard.enable=false {path}",
            keys.join(" "),
            TASKS * RUNS
        );
        serde_json::to_string(&["sh", "-c", &script]).unwrap()
    }

    fn start(&self) -> Child {
        let keys = self.keys();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let log = File::options().create(true).append(true).open(self.log()).unwrap();
        let mut command = self.workspace.command("run", &keys);
        command.args(["--log", "json"]).stdout(Stdio::null()).stderr(log).spawn().unwrap()
    }

    fn log(&self) -> std::path::PathBuf {
        self.workspace.path().join("log.json")
    }

    /// Waits for the end of a process, at most for a time.
    fn ended(&self, process: &mut Child, timeout: Duration) -> Option<Option<i32>> {
        let began = Instant::now();
        loop {
            if let Some(status) = process.try_wait().unwrap() {
                return Some(status.code());
            }
            if began.elapsed() >= timeout {
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Starts the job and ends it at a moment. Returns false if it was finished before.
    fn kill(&self, name: &str, moment: Duration, signal_name: &str) -> bool {
        let mut process = self.start();
        if let Some(code) = self.ended(&mut process, moment) {
            assert_eq!(code, Some(0), "{name}\n{}", self.last_lines());
            return false;
        }
        signal(process.id(), signal_name);
        if self.ended(&mut process, JOB_TIMEOUT).is_none() {
            process.kill().unwrap();
            let lines = self.last_lines();
            panic!("{name}: SIG{signal_name} after {moment:?} did not end it\n{lines}");
        }
        true
    }

    fn finish(&self, name: &str) {
        let mut process = self.start();
        let Some(code) = self.ended(&mut process, JOB_TIMEOUT) else {
            process.kill().unwrap();
            panic!("{name}: the restarted job hangs\n{}", self.last_lines());
        };
        assert_eq!(code, Some(0), "{name}\n{}", self.last_lines());
        self.check(name);
    }

    fn last_lines(&self) -> String {
        let log = std::fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().rev().take(25).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// Every run of every task was delivered once, and every step was trained once.
    fn check(&self, name: &str) {
        let summary = self.workspace.summary();
        assert_eq!((&summary["state"], &summary["steps"]), (&"finished".into(), &STEPS.into()));
        assert_eq!(summary["experiences_delivered"], STEPS * TASKS * RUNS, "{name}");
        let trainer = if self.is_external { "external" } else { "trainer" };
        let meta = read(&self.workspace.job().join(format!("{trainer}_meta.json")));
        assert_eq!(meta["latest_iteration"], STEPS, "{name}");
        let text = std::fs::read_to_string(self.workspace.path().join("input.jsonl"));
        let mut names = BTreeSet::new();
        for line in text.unwrap_or_default().lines() {
            let row: Value = serde_json::from_str(line).unwrap();
            let eid = ["batch", "task", "run"].map(|part| row["eid"][part].to_string());
            assert!(names.insert(eid.clone()), "{name}: twice: {eid:?}");
        }
        assert_eq!(names.len() as u64, STEPS * TASKS * RUNS, "{name}");
    }
}

/// Jobs that are killed one after the other.
struct Campaign {
    seed: u64,
    /// Number of the first job, which determines buffer and trainer.
    first: usize,
    kills: u32,
    kills_per_job: u32,
}

impl Campaign {
    /// Kills until there were enough kills. Returns their number and that of jobs.
    #[expect(clippy::print_stdout, reason = "a long campaign shows its progress")]
    fn run(&self) -> (u32, usize) {
        let mut moments = Moments(self.seed);
        let (mut done, mut jobs) = (0, 0);
        // The longest life of a process so far, from which moments are drawn.
        let mut longest = Duration::from_secs(4);
        while done < self.kills {
            let number = self.first + jobs;
            let (buffer, keys) = BUFFERS[number % BUFFERS.len()];
            // Both trainers with every buffer.
            let is_external = (number + number / BUFFERS.len()) % 2 == 1;
            jobs += 1;
            let job = KilledJob { workspace: Workspace::new(), buffer: keys, is_external };
            let name = format!("{buffer}, external: {is_external}, seed {}, job {jobs}", self.seed);
            let begun = done;
            while done < begun + self.kills_per_job {
                let began = Instant::now();
                let moment = Duration::from_millis(moments.below(longest.as_millis() as u64 + 500));
                let signal = if moments.below(3) == 0 { "INT" } else { "KILL" };
                if !job.kill(&name, moment, signal) {
                    longest = longest.max(began.elapsed());
                    break;
                }
                done += 1;
            }
            let began = Instant::now();
            job.finish(&name);
            longest = longest.max(began.elapsed());
            println!("{name}: {} kills, then done in {:?}", done - begun, began.elapsed());
        }
        (done, jobs)
    }
}

#[test]
fn random_kills_lose_nothing_double_nothing_and_never_hang() {
    let variable = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let kills = variable("ROLLWAY_KILLS").map_or(KILLS, |kills: u64| kills as u32);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let seed = variable("ROLLWAY_KILL_SEED").unwrap_or(now);
    let at_once = variable("ROLLWAY_KILL_JOBS").unwrap_or(1);
    println!("ROLLWAY_KILL_SEED={seed}");
    // Most of a job's time is its last life, so that a long campaign kills each more often.
    let kills_per_job = if kills > 30 { LONG_KILLS_PER_JOB } else { KILLS_PER_JOB };
    let campaigns: Vec<Campaign> = (0..at_once)
        .map(|number| Campaign {
            seed: seed.wrapping_add(number),
            first: seed as usize % BUFFERS.len() + number as usize * 7,
            kills: kills.div_ceil(at_once as u32),
            kills_per_job,
        })
        .collect();
    let counts: Vec<(u32, usize)> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            campaigns.iter().map(|campaign| scope.spawn(|| campaign.run())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let (done, jobs) = counts.iter().fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
    println!("{done} kills of {jobs} jobs: none lost, doubled or hung");
}
