//! Human-readable numbers and durations.

use std::time::Duration;

use rollway_base::human;

/// Returns an estimated duration, rounded by its size: `40 s`, `3 min`, `2 h 5 min`.
pub fn estimate(time: Duration) -> String {
    let seconds = time.as_secs();
    let step = match seconds {
        0..20 => 1,
        20..120 => 5,
        120..600 => 15,
        600..3600 => 60,
        3600..86_400 => 300,
        _ => 3600,
    };
    let rounded = Duration::from_secs((seconds.div_ceil(step) * step).max(1));
    human::duration(rounded).replace(".0 s", " s")
}

/// Returns an elapsed time like a clock: `0:07`, `12:05`, `1:02:05`.
pub fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds / 3600 {
        0 => format!("{}:{:02}", seconds / 60, seconds % 60),
        hours => format!("{hours}:{:02}:{:02}", seconds / 60 % 60, seconds % 60),
    }
}

/// Returns a large number in short form: `999`, `1.2k`, `34k`, `5.6M`.
pub fn short(number: f64) -> String {
    let scaled = |number: f64, unit| match number {
        number if number < 9.95 => format!("{number:.1}{unit}"),
        number => format!("{number:.0}{unit}"),
    };
    match number {
        number if number < 999.5 => format!("{number:.0}"),
        number if number < 999_500.0 => scaled(number / 1e3, "k"),
        number if number < 999_500_000.0 => scaled(number / 1e6, "M"),
        number => scaled(number / 1e9, "G"),
    }
}

/// Returns a count with thousands separators: `12,345`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns a count with its noun: `1 step`, `2 steps`.
pub fn counted(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", count(number))
}

/// Returns a reward or a score.
pub fn score(value: f64) -> String {
    match value.abs() {
        large if large >= 1000.0 => short(value.abs()).replacen("", sign(value), 1),
        large if large >= 100.0 => format!("{value:.1}"),
        _ => format!("{value:.3}").replace("-0.000", "0.000"),
    }
}

const fn sign(value: f64) -> &'static str {
    if value < 0.0 { "-" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short() {
        let all = |format: fn(Duration) -> String, seconds: &[f64]| {
            let format = |seconds: &f64| format(Duration::from_secs_f64(*seconds));
            seconds.iter().map(format).collect::<Vec<_>>().join(", ")
        };
        let seconds = [0.0, 0.02, 1.25, 9.4, 59.6, 60.0, 200.0, 7500.0, 90_000.0];
        let expected = "0 ms, 20 ms, 1.2 s, 9.4 s, 1 min, 1 min, 3 min 20 s, 2 h 5 min, 1 d 1 h";
        assert_eq!(all(human::duration, &seconds), expected);
        let seconds = [0.0, 0.9, 7.0, 21.0, 61.0, 130.0, 601.0, 4000.0, 90_001.0];
        let expected = "1 s, 1 s, 7 s, 25 s, 1 min 5 s, 2 min 15 s, 11 min, 1 h 10 min, 1 d 2 h";
        assert_eq!(all(estimate, &seconds), expected);
        assert_eq!(all(clock, &[0.0, 67.0, 3725.0]), "0:00, 1:07, 1:02:05");
    }

    #[test]
    fn numbers_are_short() {
        let shown: Vec<String> = [0.0, 999.0, 1234.0, 34_000.0, 999_999.0, 5e9].map(short).into();
        assert_eq!(shown, ["0", "999", "1.2k", "34k", "1.0M", "5.0G"]);
        assert_eq!([1, 1234, 1_234_567].map(count), ["1", "1,234", "1,234,567"]);
        assert_eq!([1, 2].map(|number| counted(number, "step")), ["1 step", "2 steps"]);
        let shown: Vec<String> = [0.5, -0.0001, -12.0, 123.45, -4321.0].map(score).into();
        assert_eq!(shown, ["0.500", "0.000", "-12.000", "123.5", "-4.3k"]);
    }
}
