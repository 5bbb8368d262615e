//! Human-readable durations.

use std::time::Duration;

/// Returns a duration in at most two units: `1.2 s`, `12 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`.
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64().round() as u64;
    let two = |large: u64, unit, small: u64, less| match small {
        0 => format!("{large} {unit}"),
        small => format!("{large} {unit} {small} {less}"),
    };
    match seconds {
        0..10 if time.as_secs_f64() < 0.0995 => format!("{} ms", time.as_millis()),
        0..10 => format!("{:.1} s", time.as_secs_f64()),
        10..60 => format!("{seconds} s"),
        60..3600 => two(seconds / 60, "min", seconds % 60, "s"),
        3600..86_400 => two(seconds / 3600, "h", seconds / 60 % 60, "min"),
        _ => two(seconds / 86_400, "d", seconds / 3600 % 24, "h"),
    }
}
