//! External trainer program: its environment, its failure, and its end with the job.

use std::io::Read as _;
use std::process::Command;

use crate::workspace::Workspace;

/// Keys that make a shell script the trainer.
fn keys(script: &str) -> [String; 4] {
    [
        format!("trainer.command=[sh, -c, {script:?}]"),
        "trainer.grace=1".to_owned(),
        "buffer.total_steps=3".to_owned(),
        "buffer.batch_size=4".to_owned(),
    ]
}

fn borrowed(keys: &[String]) -> Vec<&str> {
    keys.iter().map(String::as_str).collect()
}

#[test]
fn failed_trainer_ends_the_job_with_its_last_output() {
    let workspace = Workspace::new();
    let script = "env | grep ^ROLLWAY_ | sort; echo out of memory >&2; exit 3";
    let ran = workspace.run("run", &borrowed(&keys(script)));
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let (log, error) = ran.stderr.rsplit_once("\nerror: ").unwrap();
    assert!(log.contains("INFO  trainer: out of memory"), "{log}");
    assert!(error.contains("`sh` ended with an error: exit status: 3"), "{error}");
    assert!(error.contains("| out of memory"), "{error}");
    for variable in [
        "ROLLWAY_BUFFER=rollway://127.0.0.1:",
        "ROLLWAY_JOB_DIR=/",
        "ROLLWAY_READER_SECRET=",
        "ROLLWAY_SYNCHRONIZER=/",
        "ROLLWAY_TRAIN_BATCH_SIZE=32",
    ] {
        assert!(error.contains(variable), "{variable} is not in {error}");
    }
    let summary = workspace.summary();
    assert_eq!(summary["state"], "failed");
    assert!(summary["error"].as_str().unwrap().contains("exit status: 3"), "{summary:#}");
}

#[test]
fn traceback_of_a_trainer_is_printed_once() {
    let raises = "echo loading; echo 'Traceback (most recent call last):' >&2; \
                  echo '  File train.py, line 3' >&2; echo 'ValueError: no GPU' >&2";
    let workspace = Workspace::new();
    let ran = workspace.run("run", &borrowed(&keys(&format!("{raises}; exit 1"))));
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let (log, error) = ran.stderr.rsplit_once("\nerror: ").unwrap();
    assert!(log.contains("INFO  trainer: loading"), "{log}");
    assert!(error.contains("| ValueError: no GPU"), "{error}");
    assert!(!log.contains("line 3") && !log.contains("no GPU"), "{log}");
    // The program continues, or ends without an error.
    let workspace = Workspace::new();
    let ran = workspace.run("run", &borrowed(&keys(&format!("{raises}; exit 0"))));
    assert!(ran.stderr.contains("INFO  trainer: ValueError: no GPU"), "{}", ran.stderr);
}

#[test]
fn traceback_of_a_trainer_in_python_ends_its_output() {
    let script = "for line in range(30): print('line', line)\nraise ValueError('no GPU')";
    let workspace = Workspace::new();
    let path = workspace.path().join("train.py");
    std::fs::write(&path, script).unwrap();
    let ran = workspace.run("run", &borrowed(&keys(&format!("python3 {}", path.display()))));
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let (_, error) = ran.stderr.rsplit_once("\nerror: ").unwrap();
    assert!(error.contains("| ValueError: no GPU"), "{error}");
}

#[test]
fn trainer_and_its_children_are_killed_with_the_job() {
    for signal in ["INT", "KILL"] {
        let workspace = Workspace::new();
        // Processes that are alive hold the pipe open.
        let pipe = workspace.path().join("alive");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let script = format!(
            "trap '' TERM; exec 9> {}; sleep 600 & while :; do sleep 1; done",
            pipe.display()
        );
        let running = workspace.start(&borrowed(&keys(&script)));
        // Opens when the program has opened its end.
        let mut alive = std::fs::File::open(&pipe).unwrap();
        running.signal(signal);
        let mut rest = Vec::new();
        alive.read_to_end(&mut rest).unwrap();
        let (code, _) = running.finish();
        assert_eq!(code, if signal == "INT" { Some(130) } else { None });
    }
}

/// The trainer of a killed job lives until its guard has killed it.
#[test]
fn restarted_job_waits_for_the_end_of_the_earlier_trainer() {
    let workspace = Workspace::new();
    let folder = workspace.path().display();
    // The lock is free only after the end of the other trainer.
    let script = format!(
        "trap '' TERM; exec 9>> {folder}/lock; flock -n 9 || touch {folder}/twice; \
         echo started >> {folder}/starts; while :; do sleep 0.1; done"
    );
    let starts = |count: usize| {
        let lines = || std::fs::read_to_string(workspace.path().join("starts")).unwrap_or_default();
        while lines().lines().count() < count {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    };
    let mut first = workspace.start(&borrowed(&keys(&script)));
    starts(1);
    first.kill();
    let second = workspace.start(&borrowed(&keys(&script)));
    starts(2);
    assert!(!workspace.path().join("twice").exists(), "two trainers at once");
    drop(second);
}
