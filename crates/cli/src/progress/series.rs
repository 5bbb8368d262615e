//! Curve over steps in bounded memory, drawn in one line.

/// Number of points after merging; merging starts at twice as many.
const MERGED_POINTS: usize = 512;

/// Number of values on each side of a trend.
const TREND_VALUES: usize = 8;

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Values by step. Neighbours in a long series are merged into their mean.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    points: Vec<Point>,
    /// Number of values that a point merges.
    merged: u32,
    first: Option<(u64, f64)>,
    /// Last values, unmerged.
    recent: Vec<(u64, f64)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    step: u64,
    sum: f64,
    count: u32,
}

impl Series {
    /// Adds the value of a step; NaN and infinity are ignored.
    pub fn push(&mut self, step: u64, value: f64) {
        if !value.is_finite() {
            return;
        }
        self.first.get_or_insert((step, value));
        if self.recent.len() == 2 * TREND_VALUES {
            self.recent.remove(0);
        }
        self.recent.push((step, value));
        match self.points.last_mut() {
            Some(point) if point.count < self.merged => point.merge(step, value, 1),
            _ => self.points.push(Point { step, sum: value, count: 1 }),
        }
        if self.points.len() == 2 * MERGED_POINTS {
            self.points = self.points.chunks(2).map(Point::merged).collect();
            self.merged = self.merged.max(1) * 2;
        }
    }

    pub const fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub const fn first(&self) -> Option<(u64, f64)> {
        self.first
    }

    pub fn last(&self) -> Option<(u64, f64)> {
        self.recent.last().copied()
    }

    /// Returns the difference between the mean of the last values and of as many before. `None`:
    /// too few values.
    pub fn trend(&self) -> Option<f64> {
        let half = self.recent.len() / 2;
        let mean = |part: &[(u64, f64)]| {
            part.iter().map(|(_, value)| value).sum::<f64>() / part.len().max(1) as f64
        };
        let (before, last) = self.recent.split_at(self.recent.len() - half);
        (half >= 2).then(|| mean(last) - mean(&before[before.len() - half..]))
    }

    /// Returns the curve between two steps: a column for each step, or for several if there are
    /// more than `width`. A column without a value repeats the previous one.
    pub fn spark(&self, from: u64, to: u64, width: usize) -> String {
        let columns = ((to - from.min(to)).saturating_add(1)).min(width as u64);
        let mut points = self.points.iter().skip_while(|point| point.step < from).peekable();
        let mut level = None;
        let mut levels = Vec::new();
        for column in 0..columns {
            let end = from + (column + 1) * (to - from + 1) / columns;
            let mut here = None;
            while let Some(point) = points.next_if(|point| point.step < end) {
                here.get_or_insert(Point { sum: 0.0, count: 0, ..*point }).add(point);
            }
            level = here.map(|point| point.mean()).or(level);
            levels.push(level);
        }
        bars(&levels)
    }
}

impl Point {
    fn merged(points: &[Self]) -> Self {
        let mut all = Self { step: 0, sum: 0.0, count: 0 };
        points.iter().for_each(|point| all.add(point));
        all
    }

    fn add(&mut self, other: &Self) {
        self.merge(other.step, other.sum, other.count);
    }

    const fn merge(&mut self, step: u64, sum: f64, count: u32) {
        self.step = step;
        self.sum += sum;
        self.count += count;
    }

    fn mean(&self) -> f64 {
        self.sum / f64::from(self.count.max(1))
    }
}

/// Draws levels as bars; where there is none yet, as a gap.
fn bars(levels: &[Option<f64>]) -> String {
    let known = || levels.iter().flatten().copied();
    let (low, high) = (known().fold(f64::MAX, f64::min), known().fold(f64::MIN, f64::max));
    // The baseline is zero unless the curve is far above it.
    let low = if low > 0.0 && low < high / 2.0 { 0.0 } else { low };
    let bar = |level: f64| {
        let height = (level - low) / (high - low);
        // All equal: half height.
        let height = if height.is_finite() { height } else { 0.5 };
        BARS[((height * 8.0) as usize).min(7)]
    };
    levels.iter().map(|level| level.map_or(' ', bar)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RISING: &str = "▁▂▃▄▅▆▇█";

    fn series(values: impl IntoIterator<Item = (u64, f64)>) -> Series {
        let mut series = Series::default();
        values.into_iter().for_each(|(step, value)| series.push(step, value));
        series
    }

    #[test]
    fn long_curves_are_merged_without_losing_values() {
        let line = |count: u64| series((1..=count).map(|step| (step, (step - 1) as f64)));
        assert_eq!(line(8).spark(1, 8, 50), RISING);
        let long = line(100_000);
        assert_eq!(long.spark(1, 100_000, 8), RISING);
        assert_eq!(long.first().zip(long.last()), Some(((1, 0.0), (100_000, 99_999.0))));
        assert!(long.points.len() < 2 * MERGED_POINTS);
        let sum: f64 = long.points.iter().map(|point| point.sum).sum();
        assert_eq!(sum, 4_999_950_000.0, "no value is lost");
    }

    #[test]
    fn sparse_curves_are_aligned_with_dense_ones() {
        let evals = series([(0, 0.0), (4, 0.5), (8, 1.0)]);
        assert_eq!(evals.spark(0, 9, 50), "▁▁▁▁▅▅▅▅██");
        assert_eq!(evals.spark(0, 9, 5), "▁▁▅▅█");
        assert_eq!(series([(3, 1.0)]).spark(0, 4, 50), "   ▅▅");
    }

    #[test]
    fn short_and_flat_curves_are_visible() {
        let spark = |values: &[f64]| {
            let steps = 1..=values.len() as u64;
            series(steps.zip(values.iter().copied())).spark(1, values.len() as u64, 8)
        };
        assert_eq!(spark(&[0.5]), "▅");
        assert_eq!(spark(&[0.5, f64::NAN, 0.5]), "▅▅▅");
        assert_eq!(spark(&[0.9, 1.0]), "▁█", "far above zero, the baseline rises");
        assert_eq!(spark(&[0.2, 1.0]), "▂█");
        assert_eq!(series([]).spark(1, 3, 8), "   ");
        assert_eq!(series([(1, 2.0)]).spark(1, 1, 0), "");
    }

    #[test]
    fn trend_compares_the_last_values_with_those_before() {
        let trend = |values: &[f64]| series((1..).zip(values.iter().copied())).trend();
        assert_eq!(trend(&[1.0, 2.0, 3.0]), None);
        assert_eq!(trend(&[1.0, 1.0, 2.0, 2.0]), Some(1.0));
        assert_eq!(trend(&[9.0, 1.0, 1.0, 2.0, 2.0]), Some(1.0));
        let rising: Vec<f64> = (0..100).map(f64::from).collect();
        assert_eq!(trend(&rising), Some(8.0));
    }
}
