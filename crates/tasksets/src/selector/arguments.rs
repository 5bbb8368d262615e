//! Arguments of `difficulty_based`.

use serde_json::Value;

use rollway_base::suggest::instead;
use rollway_config::Args;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct DifficultyArguments {
    /// Number of runs that an estimate stands for.
    pub(super) m: f64,
    /// Decay of old estimates.
    pub(super) lamb: f64,
    /// Weight of the features relative to observations.
    pub(super) rho: f64,
    /// Target pass rate.
    pub(super) target_reward: f64,
    /// Temperature; 0 selects the nearest rows.
    pub(super) tau: f64,
    /// Draws pass rates from their distribution instead of using the mean.
    pub(super) do_sample: bool,
    /// Halves `rho` when the features mislead.
    pub(super) adaptive_rho: bool,
}

const NAMES: [&str; 7] = ["m", "lamb", "rho", "target_reward", "tau", "do_sample", "adaptive_rho"];

/// Parses the arguments; an error is a problem and its remedy.
pub(super) fn read(args: &Args) -> Result<DifficultyArguments, (String, String)> {
    if let Some(name) = args.keys().find(|name| !NAMES.contains(&name.as_str())) {
        let hint = instead(name, NAMES.into_iter());
        return Err((format!("kwargs has no `{name}`"), hint));
    }
    let number = |name: &str, default: f64, least: f64, most: f64| match args.get(name) {
        None => Ok(default),
        Some(value) => {
            let number = value.as_f64().filter(|it| (least..=most).contains(it));
            let hint = match most.is_finite() {
                true => format!("give a number from {least} to {most}"),
                false => format!("give a number that is not below {least}"),
            };
            number.ok_or_else(|| (format!("kwargs.{name} is {value}"), hint))
        }
    };
    let flag = |name: &str| match args.get(name) {
        None => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(other) => Err((format!("kwargs.{name} is {other}"), "give true or false".to_owned())),
    };
    Ok(DifficultyArguments {
        m: number("m", 16.0, 1.0, 1e9)?,
        lamb: number("lamb", 0.2, 0.0, 1.0)?,
        rho: number("rho", 0.2, 0.0, 1.0)?,
        target_reward: number("target_reward", 1.0, 0.0, 1.0)?,
        tau: number("tau", 1.0, 0.0, f64::INFINITY)?,
        do_sample: flag("do_sample")?,
        adaptive_rho: flag("adaptive_rho")?,
    })
}
