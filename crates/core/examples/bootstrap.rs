//! Computes metrics from lines of standard input, so that Python can compare them with NumPy.
//! Numbers are the bits of a float64 in hexadecimal.
//!
//! ```text
//! bootstrap <seed> <draws> <subset size> <function,…> [<number> …]  → <mean> <std> … | error …
//! task train|<planned>|- [<run> …]  with a run = <key>=<number>,…  → <key>=<number> …
//! ```

use std::error::Error;
use std::io::{BufRead, BufWriter, Write};

use rollway_core::metrics::{
    Metrics, Purpose, Reduce, Stat, bootstrap_metric, calculate_task_level_metrics,
};

fn main() -> Result<(), Box<dyn Error>> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let mut fields = line.split_ascii_whitespace();
        let result = match fields.next() {
            Some("bootstrap") => bootstrap(fields)?,
            Some("task") => task(fields)?,
            Some(_) | None => return Err(format!("unknown command: {line}").into()),
        };
        writeln!(out, "{result}")?;
    }
    out.flush()?;
    Ok(())
}

fn bootstrap<'a>(mut fields: impl Iterator<Item = &'a str>) -> Result<String, Box<dyn Error>> {
    let mut field = || fields.next().ok_or("line too short");
    let (seed, draws, subset_size) = (field()?.parse()?, field()?.parse()?, field()?.parse()?);
    let reduce_fns = field()?.split(',').map(reduce).collect::<Result<Vec<_>, _>>()?;
    let data = fields.map(number).collect::<Result<Vec<_>, _>>()?;
    Ok(match bootstrap_metric(&data, subset_size, &reduce_fns, draws, seed) {
        Ok(estimates) => {
            let bits = |(mean, std): &(f64, f64)| {
                format!("{:016x} {:016x}", mean.to_bits(), std.to_bits())
            };
            estimates.iter().map(bits).collect::<Vec<_>>().join(" ")
        }
        Err(error) => format!("error {error}"),
    })
}

fn task<'a>(mut fields: impl Iterator<Item = &'a str>) -> Result<String, Box<dyn Error>> {
    let purpose = match fields.next().ok_or("line too short")? {
        "train" => Purpose::Train,
        "-" => Purpose::Eval { planned: None },
        planned => Purpose::Eval { planned: Some(planned.parse()?) },
    };
    let runs = fields.map(run).collect::<Result<Vec<_>, _>>()?;
    let metrics = calculate_task_level_metrics(&runs, purpose);
    let pairs = metrics.iter().map(|(key, value)| format!("{key}={:016x}", value.to_bits()));
    Ok(pairs.collect::<Vec<_>>().join(" "))
}

fn run(field: &str) -> Result<Metrics, Box<dyn Error>> {
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=').ok_or("no value")?;
        Ok::<_, Box<dyn Error>>((key.to_owned(), number(value)?))
    };
    field.split(',').map(pair).collect()
}

fn reduce(name: &str) -> Result<Reduce<'static>, String> {
    let stat = Stat::ALL.into_iter().find(|stat| stat.name() == name);
    stat.map(Reduce::Stat).ok_or_else(|| format!("unknown function: {name}"))
}

fn number(field: &str) -> Result<f64, std::num::ParseIntError> {
    u64::from_str_radix(field, 16).map(f64::from_bits)
}
