//! Access patterns of the server groups' paper, section 4.3: combinations of small, medium and
//! large files, of a page, a picture and a film.

use super::{Step, Workload, files};

/// Lengths in bytes.
const SMALL: usize = 4_000;
const MEDIUM: usize = 100_000;
const LARGE: usize = 2_000_000;

/// Ten patterns of files that a client requests one after another, again and again. The paper says
/// that there are ten and does not list them.
pub const PATTERNS: [(&str, &[usize]); 10] = [
    ("small", &[SMALL]),
    ("medium", &[MEDIUM]),
    ("large", &[LARGE]),
    ("small, medium", &[SMALL, MEDIUM]),
    ("small, large", &[SMALL, LARGE]),
    ("medium, large", &[MEDIUM, LARGE]),
    ("all", &[SMALL, MEDIUM, LARGE]),
    ("a page with pictures", &[SMALL, MEDIUM, MEDIUM, MEDIUM]),
    ("several pages with a picture", &[SMALL, SMALL, SMALL, SMALL, MEDIUM]),
    ("pages with pictures and a film", &[SMALL, MEDIUM, SMALL, MEDIUM, LARGE]),
];

/// One of the patterns.
#[derive(Clone, Copy, Debug)]
pub struct Pattern(&'static [usize]);

impl Pattern {
    /// Returns a pattern by its number in [`PATTERNS`].
    pub fn new(number: usize) -> Option<Pattern> {
        PATTERNS.get(number).map(|(_, files)| Pattern(files))
    }
}

impl Workload for Pattern {
    fn files(&self) -> Vec<Step> {
        files(vec![SMALL, MEDIUM, LARGE])
    }

    fn steps(&self, _client: usize) -> Box<dyn Iterator<Item = Step> + Send + '_> {
        Box::new(self.0.iter().cycle().map(|len| Step::Request(*len)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_is_repeated_in_order() {
        let pattern = Pattern::new(6).into_iter();
        let steps: Vec<Step> = pattern.flat_map(|it| it.steps(0).take(4).collect::<Vec<_>>()).collect();
        assert_eq!(steps, [SMALL, MEDIUM, LARGE, SMALL].map(Step::Request));
        assert!(Pattern::new(10).is_none());
    }
}
