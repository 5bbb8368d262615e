//! What a job is called that may not go on where one of its name was.

use jiff::Timestamp;

use super::Config;

impl Config {
    /// Returns the configuration under which a job is run: with `continue_from_checkpoint: false`,
    /// and a folder with something in it, the time is added to the name. Doing so twice is doing it
    /// once.
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
        // The second start within a second takes the next free one.
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
    fn a_time_is_the_one_of_the_calendar() {
        assert_eq!(stamp(951_827_696), "20000229-123456");
    }

    #[test]
    fn only_a_job_that_may_not_go_on_gets_another_name() {
        let root = tempfile::tempdir().unwrap();
        let checkpoint_root_dir = root.path().display().to_string();
        let going_on = Config { checkpoint_root_dir, ..Config::default() };
        let anew = Config { continue_from_checkpoint: false, ..going_on.clone() };
        assert_eq!(anew.named().name, "rft", "nobody was there");
        std::fs::create_dir_all(anew.job_dir().join("ledger")).unwrap();
        assert_eq!(going_on.named().name, "rft");
        let named = anew.named();
        assert!(named.name.starts_with("rft_20"), "{}", named.name);
        std::fs::create_dir_all(named.job_dir().join("ledger")).unwrap();
        assert_eq!(named.named().name, named.name);
        assert_ne!(anew.named().name, named.name);
    }
}
