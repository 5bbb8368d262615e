//! Explorer and trainer as two processes that share a job folder.

use crate::workspace::{Workspace, read};

const KEYS: [&str; 3] = ["buffer.total_steps=3", "buffer.batch_size=4", "explorer.eval_interval=3"];

#[test]
fn trainer_process_reads_the_queue_of_the_explorer_process() {
    let workspace = Workspace::new();
    let mut explorer = workspace.start(&[&KEYS[..], &["mode=explore"]].concat());
    explorer.wait_for("began");
    let file = |name: &str| {
        let text = std::fs::read_to_string(workspace.job().join(name)).unwrap();
        text.trim().to_owned()
    };
    let url = file("experience_buffer_reader_url.txt");
    let path = format!("buffer.trainer_input.experience_buffer.path={url}");
    let keys = [&KEYS[..], &["mode=train", "buffer.train_batch_size=32", &path]].concat();
    let mut trainer = workspace.command("run", &keys);
    let secret = file("experience_buffer_reader_secret.txt");
    let output = trainer.env("ROLLWAY_READER_SECRET", secret).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let (code, events) = explorer.finish();
    assert_eq!(code, Some(0), "{events:#?}");

    // The explorer came first, and has the summary of the job.
    let (explored, trained) =
        (workspace.summary(), read(&workspace.job().join("trainer_summary.json")));
    assert_eq!((&explored["mode"], &explored["steps"]), (&"explore".into(), &3.into()));
    assert_eq!((&explored["version"], &explored["state"]), (&3.into(), &"finished".into()));
    assert_eq!((&trained["mode"], &trained["steps"]), (&"train".into(), &3.into()));
    assert_eq!(trained["state"], "finished");
}
