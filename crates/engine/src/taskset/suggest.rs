//! What somebody may have meant.

/// How far a word is from a name that only contains it, or that it contains.
const CONTAINED: usize = 100;

/// How many names are listed where none is near.
const LISTED: usize = 12;

/// Returns the name that was probably meant.
pub(super) fn nearest<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    names.filter_map(|name| Some((distance(word, name)?, name))).min().map(|(_, name)| name)
}

/// Returns the beginning of a hint: the nearest name, or else what there is.
pub(super) fn instead<'a>(word: &str, names: impl Iterator<Item = &'a str> + Clone) -> String {
    if let Some(name) = nearest(word, names.clone()) {
        return format!("did you mean `{name}`?");
    }
    let all: Vec<&str> = names.collect();
    match all.len() {
        0 => "there is none at all".to_owned(),
        count if count <= LISTED => format!("there is: {}", all.join(", ")),
        count => format!("there is: {} and {} more", all[..LISTED].join(", "), count - LISTED),
    }
}

fn distance(word: &str, name: &str) -> Option<usize> {
    let fold = |text: &str| -> String {
        let kept = text.chars().filter(|c| !matches!(c, '_' | '-' | ' '));
        kept.flat_map(char::to_lowercase).collect()
    };
    let (word, name) = (fold(word), fold(name));
    let edits = strsim::osa_distance(&word, &name);
    let longest = word.chars().count().max(name.chars().count());
    if edits <= (longest / 3).max(1) && longest > 1 {
        return Some(edits);
    }
    let shortest = word.len().min(name.len());
    (shortest >= 4 && (name.contains(&word) || word.contains(&name))).then_some(CONTAINED + edits)
}
