//! Computes metrics from lines of standard input, so that Python can compare them with NumPy.
//!
//! One answer line for each line; numbers are the bits of a float64 in hexadecimal.
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
        let mut words = line.split_ascii_whitespace();
        let answer = match words.next() {
            Some("bootstrap") => bootstrap(words)?,
            Some("task") => task(words)?,
            Some(_) | None => return Err(format!("no such command: {line}").into()),
        };
        writeln!(out, "{answer}")?;
    }
    out.flush()?;
    Ok(())
}

fn bootstrap<'a>(mut words: impl Iterator<Item = &'a str>) -> Result<String, Box<dyn Error>> {
    let mut word = || words.next().ok_or("line too short");
    let (seed, draws, subset_size) = (word()?.parse()?, word()?.parse()?, word()?.parse()?);
    let reduce_fns = word()?.split(',').map(reduce).collect::<Result<Vec<_>, _>>()?;
    let data = words.map(number).collect::<Result<Vec<_>, _>>()?;
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

fn task<'a>(mut words: impl Iterator<Item = &'a str>) -> Result<String, Box<dyn Error>> {
    let purpose = match words.next().ok_or("line too short")? {
        "train" => Purpose::Train,
        "-" => Purpose::Eval { planned: None },
        planned => Purpose::Eval { planned: Some(planned.parse()?) },
    };
    let runs = words.map(run).collect::<Result<Vec<_>, _>>()?;
    let metrics = calculate_task_level_metrics(&runs, purpose);
    let pairs = metrics.iter().map(|(key, value)| format!("{key}={:016x}", value.to_bits()));
    Ok(pairs.collect::<Vec<_>>().join(" "))
}

fn run(word: &str) -> Result<Metrics, Box<dyn Error>> {
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=').ok_or("no value")?;
        Ok::<_, Box<dyn Error>>((key.to_owned(), number(value)?))
    };
    word.split(',').map(pair).collect()
}

fn reduce(name: &str) -> Result<Reduce<'static>, String> {
    let stat = Stat::ALL.into_iter().find(|stat| stat.name() == name);
    stat.map(Reduce::Stat).ok_or_else(|| format!("no such function: {name}"))
}

fn number(word: &str) -> Result<f64, std::num::ParseIntError> {
    u64::from_str_radix(word, 16).map(f64::from_bits)
}
