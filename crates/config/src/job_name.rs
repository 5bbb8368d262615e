//! Name of a job that must not resume an earlier job of the same name.

use jiff::Timestamp;

use super::Config;

impl Config {
    /// Returns the configuration with the final name of the job: with `continue_from_checkpoint:
    /// false` and a folder that is not empty, the time is added. Idempotent.
    #[must_use]
    pub fn named(&self) -> Self {
        let mut config = self.clone();
        if self.continue_from_checkpoint {
            return config;
        }
        config.continue_from_checkpoint = true;
        let now = Timestamp::now().as_second();
        let is_taken = |config: &Self| {
            std::fs::read_dir(config.job_dir()).is_ok_and(|mut entries| entries.next().is_some())
        };
        // A second start within the same second gets the next free name.
        for second in now.. {
            if !is_taken(&config) {
                break;
            }
            config.name = format!("{}_{}", self.name, stamp(second));
        }
        config
    }
}

/// Returns a time in UTC as `20260131-235959`.
fn stamp(seconds: i64) -> String {
    Timestamp::from_second(seconds).unwrap_or_default().strftime("%Y%m%d-%H%M%S").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamp_is_the_time_in_utc() {
        assert_eq!(stamp(951_827_696), "20000229-123456");
    }

    #[test]
    fn only_a_job_that_must_not_resume_gets_another_name() {
        let root = tempfile::tempdir().unwrap();
        let checkpoint_root_dir = root.path().display().to_string();
        let resumed = Config { checkpoint_root_dir, ..Config::default() };
        let fresh = Config { continue_from_checkpoint: false, ..resumed.clone() };
        assert_eq!(fresh.named().name, "rft", "the folder is empty");
        std::fs::create_dir_all(fresh.job_dir().join("ledger")).unwrap();
        assert_eq!(resumed.named().name, "rft");
        let named = fresh.named();
        assert!(named.name.starts_with("rft_20"), "{}", named.name);
        std::fs::create_dir_all(named.job_dir().join("ledger")).unwrap();
        assert_eq!(named.named().name, named.name);
        assert_ne!(fresh.named().name, named.name);
    }
}
