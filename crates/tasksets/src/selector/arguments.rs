//! The arguments of `difficulty_based`.

use serde_json::Value;

use rollway_base::suggest::instead;
use rollway_config::Args;

/// How difficulties are estimated and rows chosen by them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DifficultyArguments {
    /// How many runs an estimate stands for.
    pub(super) m: f64,
    /// How fast old estimates are forgotten.
    pub(super) lamb: f64,
    /// How much the features count beside what is observed.
    pub(super) rho: f64,
    /// The pass rate that is looked for.
    pub(super) target_reward: f64,
    /// 0: the nearest rows. Above: how far from them choices go.
    pub(super) tau: f64,
    /// Whether a pass rate is drawn from its distribution instead of its mean.
    pub(super) do_sample: bool,
    /// Whether `rho` is halved when the features mislead.
    pub(super) adaptive_rho: bool,
}

const NAMES: [&str; 7] = ["m", "lamb", "rho", "target_reward", "tau", "do_sample", "adaptive_rho"];

/// Reads them; what is wrong comes with its remedy.
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
