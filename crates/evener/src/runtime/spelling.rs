//! Suggestions for misspelt words.

/// Minimum similarity at which a word counts as a misspelling of another.
const LIKE: f64 = 0.8;

/// True if one word may be a misspelling of the other.
pub(crate) fn is_like(a: &str, b: &str) -> bool {
    strsim::jaro_winkler(a, b) >= LIKE
}

/// Returns the most similar name in `names`, if any is similar enough.
pub(crate) fn nearest<'n>(wrong: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let likeness = |name: &str| strsim::jaro_winkler(wrong, name);
    let nearest = names.into_iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    nearest.filter(|name| is_like(wrong, name))
}

/// Maximum number of names listed if none is similar.
const NAMES: usize = 10;

/// Returns a hint for an unknown name: the similar name if there is one, else the known `names`.
pub(crate) fn meant<'n>(wrong: &str, names: impl Iterator<Item = &'n str> + Clone) -> String {
    if let Some(name) = nearest(wrong, names.clone()) {
        return format!("did you mean {name}?");
    }
    let listed: Vec<&str> = names.clone().take(NAMES).collect();
    let more = if names.count() > NAMES { ", ..." } else { "" };
    match listed.is_empty() {
        true => "there is none".to_owned(),
        false => format!("there are: {}{more}", listed.join(", ")),
    }
}
