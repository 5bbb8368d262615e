//! What a job is called that may not go on where one of its name was.

use std::time::{SystemTime, UNIX_EPOCH};

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
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let is_taken = |config: &Self| {
            std::fs::read_dir(config.job_dir()).is_ok_and(|mut entries| entries.next().is_some())
        };
        // Whoever begins twice in a second goes on to the next.
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
fn stamp(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March, so that the day that comes and goes is the last.
    let from_march = days + 719_468;
    let (era, day) = (from_march / 146_097, from_march % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_the_one_of_the_calendar() {
        assert_eq!(stamp(0), "19700101-000000");
        assert_eq!(stamp(951_827_696), "20000229-123456");
        assert_eq!(stamp(1_767_225_599), "20251231-235959");
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
