//! Suggestions for misspelt words.

/// True if one word may be a misspelling of the other: at most one edit for each three letters.
pub(crate) fn is_like(a: &str, b: &str) -> bool {
    strsim::damerau_levenshtein(a, b) <= a.chars().count().max(b.chars().count()) / 3
}

/// Returns the one of `names` with the fewest edits to `wrong`, if it may be meant.
pub(crate) fn nearest<'n>(wrong: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let nearest = names.into_iter().min_by_key(|name| strsim::damerau_levenshtein(wrong, name));
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
