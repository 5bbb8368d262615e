//! `kill -9` and Ctrl-C at random moments of a job, its last seconds included: every task is
//! explored and trained exactly once, and every restart ends in bounded time.
//!
//! `cargo xtask kills` runs a long campaign over all buffers and both kinds of trainer with a
//! release build: `ROLLWAY_KILLS` kills of `ROLLWAY_KILL_PROGRAM`, counted in
//! `ROLLWAY_KILL_REPORT`; `ROLLWAY_KILL_SEED` repeats the moments.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rollway_data::buffer::sql::SqlOptions;
use rollway_data::buffer::{self, Buffer, BufferOptions, ReadEnd, ReadRequest};
use rollway_testkit::postgres::Server;
use serde_json::Value;

use crate::kill_report::{JobVerdict, KillReport};
use crate::workspace::{Workspace, read, signal};

/// Steps of a job in the ordinary test, and in a long campaign, whose jobs take a few seconds.
const STEPS: u64 = 3;
const LONG_STEPS: u64 = 20;

const TASKS: u64 = 4;
const RUNS: u64 = 8;

/// Maximum number of kills of one job, and in a long campaign. Most jobs finish before: the later
/// lives of a job are shorter.
const KILLS_PER_JOB: u32 = 3;
const LONG_KILLS_PER_JOB: u32 = 10;

/// Kills of the ordinary test.
const KILLS: u32 = 6;

/// Maximum time of a job that is not killed, on a slow machine; one that takes longer hangs.
const JOB_TIMEOUT: Duration = Duration::from_secs(240);

/// Life of a job of the ordinary test that is not killed.
const USUAL_LIFE: Duration = Duration::from_secs(4);

const BUFFER: &str = "buffer.trainer_input.experience_buffer";

/// Buffers by their keys. FOLDER is the folder of the test, POSTGRES the address of a server, TABLE
/// a name that no other job has.
const BUFFERS: [(&str, &[&str]); 6] = [
    ("queue", &["storage_type=queue"]),
    ("sqlite", &["storage_type=sql"]),
    ("jsonl", &["storage_type=file", "path=FOLDER/rows.jsonl"]),
    ("parquet", &["storage_type=file", "path=FOLDER/rows/"]),
    ("spilled queue", &["storage_type=queue", "on_full=spill", "capacity=8"]),
    ("postgresql", &["storage_type=sql", "path=POSTGRES", "name=TABLE"]),
];

/// Server of all jobs. Processes are killed, the server is not, so it need not sync.
fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| Server::start(&["fsync=off"]))
}

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
    program: PathBuf,
    buffer: &'a [&'a str],
    is_external: bool,
    steps: u64,
    /// Number of the job in the campaign.
    number: usize,
}

/// End of a process.
enum ProcessEnd {
    Finished,
    /// It was running when the signal was sent, and ended.
    Killed,
}

/// Reason why a process is a failure of the campaign.
enum KillFailure {
    /// It did not end in time.
    Hung(String),
    /// It ended by itself with another code than 0.
    Failed(String),
}

/// Batch, task and run of an experience.
type RunName = [String; 3];

impl KilledJob<'_> {
    fn keys(&self) -> Vec<String> {
        let folder = self.workspace.path().display();
        let buffer = self.buffer.iter().map(|key| format!("{BUFFER}.{}", self.filled(key)));
        let mut keys: Vec<String> = buffer.collect();
        keys.extend([
            format!("buffer.total_steps={}", self.steps),
            format!("buffer.batch_size={TASKS}"),
            format!("explorer.eval_interval={}", self.steps),
            format!("{BUFFER}.max_read_timeout=120"),
            format!("data_processor.experience_pipeline.input_save_path={folder}/input.jsonl"),
            "trainer.grace=2".to_owned(),
        ]);
        if self.is_external {
            keys.push(format!("trainer.command={}", self.trainer_command(&keys)));
        }
        keys
    }

    /// Fills in the parts of a key that belong to this job.
    fn filled(&self, key: &str) -> String {
        let key = key.replace("FOLDER", &self.workspace.path().display().to_string());
        let key = key.replace("TABLE", &self.table());
        if key.contains("POSTGRES") {
            key.replace("POSTGRES", &server().address("postgres"))
        } else {
            key
        }
    }

    fn table(&self) -> String {
        format!("job_{}", self.number)
    }

    /// The embedded trainer as a program of its own, which reads the buffer from outside.
    fn trainer_command(&self, keys: &[String]) -> String {
        let (program, root) = (self.program.display(), self.workspace.path().display());
        let keys: Vec<String> = keys.iter().map(|key| format!("'{key}'")).collect();
        let path = if self.is_queue() {
            format!("\"{BUFFER}.path=$ROLLWAY_BUFFER\"")
        } else {
            String::new()
        };
        let script = format!(
            "exec {program} run examples/arithmetic.yaml {} checkpoint_root_dir={root} mode=train \
             trainer.name=external buffer.train_batch_size={} trainer.command=[] \
             trainer.trainer_type=tiny dashboard.enable=false {path}",
            keys.join(" "),
            TASKS * RUNS
        );
        serde_json::to_string(&["sh", "-c", &script]).unwrap()
    }

    fn is_queue(&self) -> bool {
        self.buffer.contains(&"storage_type=queue")
    }

    fn start(&self) -> Child {
        let keys = self.keys();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let log = File::options().create(true).append(true).open(self.log()).unwrap();
        let mut command: Command = self.workspace.command_of(&self.program, "run", &keys);
        command.args(["--log", "json"]).stdout(Stdio::null()).stderr(log).spawn().unwrap()
    }

    fn log(&self) -> PathBuf {
        self.workspace.path().join("log.json")
    }

    /// Waits for the end of a process, at most for a time.
    fn ended(process: &mut Child, timeout: Duration) -> Option<Option<i32>> {
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

    /// Starts the job and ends it at a moment, unless it has finished before.
    fn kill(&self, moment: Duration, signal_name: &str) -> Result<ProcessEnd, KillFailure> {
        let mut process = self.start();
        if let Some(code) = Self::ended(&mut process, moment) {
            return self.finished(code).map(|()| ProcessEnd::Finished);
        }
        signal(process.id(), signal_name);
        if Self::ended(&mut process, JOB_TIMEOUT).is_none() {
            process.kill().unwrap();
            process.wait().unwrap();
            return Err(KillFailure::Hung(format!("SIG{signal_name} did not end it")));
        }
        Ok(ProcessEnd::Killed)
    }

    /// Runs the job to its end.
    fn finish(&self) -> Result<(), KillFailure> {
        let mut process = self.start();
        let Some(code) = Self::ended(&mut process, JOB_TIMEOUT) else {
            process.kill().unwrap();
            process.wait().unwrap();
            return Err(KillFailure::Hung("the restarted job did not end".to_owned()));
        };
        self.finished(code)
    }

    fn finished(&self, code: Option<i32>) -> Result<(), KillFailure> {
        if code == Some(0) {
            return Ok(());
        }
        Err(KillFailure::Failed(format!("it ended with {code:?}\n{}", self.last_lines())))
    }

    fn last_lines(&self) -> String {
        let log = std::fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().rev().take(25).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// Compares what was saved and what is in the buffer with what had to be explored and trained.
    fn check(&self, verdict: &mut JobVerdict) {
        let expected = self.steps * TASKS * RUNS;
        verdict.compare("saved input", expected, &self.saved());
        if !self.is_queue() {
            // A queue cannot be read again: what was trained from it is counted below.
            let (saved, stored) = (self.saved(), self.stored());
            verdict.compare("buffer", expected, &stored);
            let [saved, stored] = [saved, stored].map(BTreeSet::from_iter);
            if saved != stored {
                verdict.failed.push("the buffer has other runs than the saved input".to_owned());
            }
        }
        let summary = self.workspace.summary();
        let trainer = if self.is_external { "external" } else { "trainer" };
        let meta = read(&self.workspace.job().join(format!("{trainer}_meta.json")));
        for (name, found, expected) in [
            ("state", &summary["state"], Value::from("finished")),
            ("steps", &summary["steps"], self.steps.into()),
            ("experiences_delivered", &summary["experiences_delivered"], expected.into()),
            ("latest_iteration of the trainer", &meta["latest_iteration"], self.steps.into()),
        ] {
            if *found != expected {
                verdict.failed.push(format!("{name} is {found}, not {expected}"));
            }
        }
    }

    /// Returns the runs in the file of unprocessed experiences.
    fn saved(&self) -> Vec<RunName> {
        let text = std::fs::read_to_string(self.workspace.path().join("input.jsonl"));
        let text = text.unwrap_or_default();
        let rows = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        rows.map(|row| ["batch", "task", "run"].map(|part| row["eid"][part].to_string())).collect()
    }

    /// Returns the runs in the buffer, read under the name of another reader.
    fn stored(&self) -> Vec<RunName> {
        let buffer = self.opened();
        let mut reader = buffer.reader("check").unwrap();
        let request = ReadRequest {
            count: 1000,
            timeout: Duration::from_secs(10),
            min_model_version: 0,
            keep: false,
        };
        let mut names = Vec::new();
        loop {
            let taken = reader.read(&request).unwrap();
            for sample in &taken.samples {
                let eid = sample.decode().unwrap().eid.to_json();
                names.push(["batch", "task", "run"].map(|part| eid[part].to_string()));
            }
            if taken.end != ReadEnd::Full {
                return names;
            }
        }
    }

    fn opened(&self) -> Arc<dyn Buffer> {
        let value = |name| self.buffer.iter().find_map(|key| key.strip_prefix(name));
        let address = match value("path=") {
            Some(path) => self.filled(path),
            None => {
                let file = self.workspace.job().join("buffer/experience_buffer.db");
                format!("sqlite:///{}", file.display())
            }
        };
        let name = value("name=").map(|name| self.filled(name));
        let table = buffer::table(name.as_deref().unwrap_or("experience_buffer"));
        let sql = SqlOptions { table, ..SqlOptions::default() };
        let options = BufferOptions { sql, ..BufferOptions::default() };
        buffer::open(&address.parse().unwrap(), &options).unwrap()
    }
}

/// Jobs that are killed one after the other.
struct Campaign {
    program: PathBuf,
    kills: u32,
    kills_per_job: u32,
    steps: u64,
    /// Number of the first job, which determines buffer and trainer.
    first: usize,
    moments: Moments,
    /// The longest life of a process that was not killed, from which moments are drawn; by buffer
    /// and trainer. Zero: not known.
    lives: [[Duration; 2]; BUFFERS.len()],
    report: KillReport,
}

impl Campaign {
    /// Kills until there were enough kills.
    fn run(&mut self) {
        while self.report.kills < self.kills {
            let number = self.first + self.report.jobs as usize;
            let buffer = number % BUFFERS.len();
            // Both trainers with every buffer.
            let is_external = number / BUFFERS.len() % 2 == 1;
            let life = &mut self.lives[buffer][usize::from(is_external)];
            let (name, keys) = BUFFERS[buffer];
            let trainer = if is_external { "external" } else { "built-in" };
            let (workspace, program) = (Workspace::new(), self.program.clone());
            let steps = self.steps;
            let mut job =
                KilledJob { workspace, program, buffer: keys, is_external, steps, number };
            self.report.begin(name, trainer);
            // The first job of its kind shows how long one lives.
            let kills = if life.is_zero() { 0 } else { self.kills_per_job };
            let mut verdict = JobVerdict::default();
            match kill_job(&job, kills, &mut self.moments, life, &mut self.report) {
                Ok(()) => job.check(&mut verdict),
                Err(KillFailure::Hung(message)) => verdict.hung.push(message),
                Err(KillFailure::Failed(message)) => verdict.failed.push(message),
            }
            if !verdict.is_good() {
                verdict.failed.push(format!("its files are in {}", job.workspace.keep().display()));
            }
            self.report.end(verdict);
        }
    }
}

/// Kills one job several times, unless it finishes before, and runs it to its end.
fn kill_job(
    job: &KilledJob<'_>,
    kills: u32,
    moments: &mut Moments,
    life: &mut Duration,
    report: &mut KillReport,
) -> Result<(), KillFailure> {
    for _ in 0..kills {
        let moment = Duration::from_millis(moments.below(life.as_millis() as u64 + 1));
        let signal = if moments.below(3) == 0 { "INT" } else { "KILL" };
        match job.kill(moment, signal)? {
            // A finished job is started once more: it has nothing to do.
            ProcessEnd::Finished => break,
            ProcessEnd::Killed => report.killed(signal, moment),
        }
    }
    let began = Instant::now();
    job.finish()?;
    *life = began.elapsed().max(*life);
    Ok(())
}

#[test]
fn random_kills_lose_nothing_double_nothing_and_never_hang() {
    let variable = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let seed = variable("ROLLWAY_KILL_SEED").unwrap_or(now);
    let program = std::env::var_os("ROLLWAY_KILL_PROGRAM")
        .map_or_else(|| env!("CARGO_BIN_EXE_rollway").into(), PathBuf::from);
    let path = std::env::var_os("ROLLWAY_KILL_REPORT").map(PathBuf::from);
    let kills = variable("ROLLWAY_KILLS").map(|kills: u64| kills as u32);
    let (steps, kills_per_job, life) = match kills {
        Some(_) => (LONG_STEPS, LONG_KILLS_PER_JOB, Duration::ZERO),
        None => (STEPS, KILLS_PER_JOB, USUAL_LIFE),
    };
    let kills = kills.unwrap_or(KILLS);
    let mut campaign = Campaign {
        program,
        kills,
        kills_per_job,
        steps,
        first: seed as usize % (2 * BUFFERS.len()),
        moments: Moments(seed),
        lives: [[life; 2]; BUFFERS.len()],
        report: KillReport::create(path.as_deref(), seed, kills),
    };
    campaign.run();
    let report = &campaign.report;
    assert!(report.is_good(), "{}\n{}", report.totals(), report.problems.join("\n"));
}
