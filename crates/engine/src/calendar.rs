//! Moments in the calendar of UTC.

/// A second of a day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The year.
    pub year: u64,
    /// The month, from 1 on.
    pub month: u64,
    /// The day of the month, from 1 on.
    pub day: u64,
    /// The hour.
    pub hour: u64,
    /// The minute.
    pub minute: u64,
    /// The second.
    pub second: u64,
}

/// Returns the moment that is so many seconds after the beginning of 1970.
pub const fn utc(seconds: u64) -> Moment {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years that begin in March end with the leap day, so that it shifts no other.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year + next;
    Moment { year, month, day, hour: second / 3600, minute: second / 60 % 60, second: second % 60 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leap_days_and_ends_of_years_are_those_of_the_calendar() {
        for (seconds, date, time) in [
            (0, (1970, 1, 1), (0, 0, 0)),
            (951_827_696, (2000, 2, 29), (12, 34, 56)),
            (1_767_225_599, (2025, 12, 31), (23, 59, 59)),
            (4_107_542_400, (2100, 3, 1), (0, 0, 0)),
        ] {
            let Moment { year, month, day, hour, minute, second } = utc(seconds);
            assert_eq!(((year, month, day), (hour, minute, second)), (date, time));
        }
    }
}
