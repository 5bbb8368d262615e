//! Suggestions for misspelled names.

/// Distance of a word from a name that contains it or that it contains.
const CONTAINED_DISTANCE: usize = 100;

/// Maximum number of names listed if none is similar.
const MAX_LISTED: usize = 12;

/// Returns the most similar name.
pub fn nearest<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    names.filter_map(|name| Some((distance(word, name)?, name))).min().map(|(_, name)| name)
}

/// Returns a hint: the most similar name, or else the available names.
pub fn instead<'a>(word: &str, names: impl Iterator<Item = &'a str> + Clone) -> String {
    if let Some(name) = nearest(word, names.clone()) {
        return format!("did you mean `{name}`?");
    }
    let all: Vec<&str> = names.collect();
    match all.len() {
        0 => "none is available".to_owned(),
        count if count <= MAX_LISTED => format!("available: {}", all.join(", ")),
        count => {
            format!("available: {} and {} more", all[..MAX_LISTED].join(", "), count - MAX_LISTED)
        }
    }
}

/// Returns a list in words: `a, b or c`.
pub fn either<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    match names.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

/// Tells whether a word can be a misspelling of a name.
pub fn is_misspelled(word: &str, name: &str) -> bool {
    distance(word, name).is_some_and(|distance| distance < CONTAINED_DISTANCE)
}

/// Returns the distance of a word from a name. `None`: they are not similar.
fn distance(word: &str, name: &str) -> Option<usize> {
    let (word, name) = (folded(word), folded(name));
    let edits = strsim::osa_distance(&word, &name);
    let longest = word.chars().count().max(name.chars().count());
    if edits <= (longest / 3).max(1) && longest > 1 {
        return Some(edits);
    }
    let shortest = word.len().min(name.len());
    (shortest >= 4 && (name.contains(&word) || word.contains(&name)))
        .then_some(CONTAINED_DISTANCE + edits)
}

/// Normalizes case and separators: `maxTimeout`, `max-timeout` and `max_timeout` are the same.
fn folded(word: &str) -> String {
    word.chars().filter(|c| !matches!(c, '_' | '-' | ' ')).flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_found() {
        let names = ["max_timeout", "max_retry_times", "name", "batch_size", "env_vars"];
        for (word, expected) in [
            ("max_timout", Some("max_timeout")),
            ("maxTimeout", Some("max_timeout")),
            ("retry_times", Some("max_retry_times")),
            ("timeout", Some("max_timeout")),
            ("batchsize", Some("batch_size")),
            ("env", None),
            ("colour", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, names.into_iter()), expected, "{word}");
        }
    }
}
