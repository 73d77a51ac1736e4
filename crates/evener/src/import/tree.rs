//! Statements and blocks in braces, as nginx and keepalived have them.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::Path;

use super::scanner::{Scanner, Token, UNFINISHED};
use super::source::{ImportError, Includes, Source};

/// How deep blocks may stand in each other.
const DEPTH: usize = 64;

/// How a program separates its statements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Syntax {
    /// By semicolons; `#` begins a comment.
    Semicolons,
    /// By the ends of lines; `#` and `!` begin a comment.
    Lines,
}

/// A statement, perhaps with a block.
#[derive(Clone, Debug, Default)]
pub(super) struct Statement {
    pub(super) words: Vec<String>,
    /// Its places up to the brace.
    pub(super) first: usize,
    pub(super) last: usize,
    pub(super) block: Option<Vec<Statement>>,
    /// The place of the brace that closes the block, or the last one.
    pub(super) close: usize,
}

impl Statement {
    /// The word at this place; empty where there is none.
    pub(super) fn word(&self, at: usize) -> &str {
        self.words.get(at).map_or("", String::as_str)
    }

    /// The statements of its block.
    pub(super) fn inner(&self) -> &[Statement] {
        self.block.as_deref().unwrap_or_default()
    }

    /// Its own places, without those of the block.
    pub(super) fn lines(&self) -> RangeInclusive<usize> {
        self.first..=self.last
    }

    /// All of its places.
    pub(super) fn whole(&self) -> RangeInclusive<usize> {
        self.first..=self.close.max(self.last)
    }
}

/// The statements of a source, with the files that it includes.
#[derive(Debug, Default)]
pub(super) struct Tree {
    /// All places: a part of a line for each statement.
    pub(super) source: Source,
    pub(super) statements: Vec<Statement>,
    /// The places that have a word.
    pub(super) significant: BTreeSet<usize>,
}

/// Reads the statements of a file. Included files are looked for in `folder`; without one, none is
/// read.
///
/// # Errors
/// Where quotations, braces or statements don't end, and where a file includes itself.
pub(super) fn read(source: &Source, syntax: Syntax, folder: Option<&Path>) -> Result<Tree, ImportError> {
    let mut scanner = Scanner::new(syntax, Includes::of(source, folder, syntax == Syntax::Lines));
    let name = source.files.first().cloned().unwrap_or_default();
    scanner.file(&name, source.lines.iter().map(|line| line.text.as_str()))?;
    let Scanner { out, tokens, significant, .. } = scanner;
    let statements = Builder { source: &out, syntax }.build(tokens)?;
    Ok(Tree { statements, source: out, significant })
}

struct Builder<'s> {
    source: &'s Source,
    syntax: Syntax,
}

impl Builder<'_> {
    fn build(&self, tokens: Vec<(usize, Token)>) -> Result<Vec<Statement>, ImportError> {
        // Open blocks with the statement that each belongs to; the file itself is the first.
        let mut open: Vec<(Statement, Vec<Statement>)> = vec![(Statement::default(), Vec::new())];
        let mut current: Option<Statement> = None;
        for (line, token) in tokens {
            match token {
                Token::Word(word) => {
                    let statement =
                        current.get_or_insert_with(|| Statement { first: line, ..Statement::default() });
                    statement.words.push(word);
                    statement.last = line;
                    statement.close = line;
                }
                Token::End => Self::end(&mut current, &mut open),
                Token::Open => {
                    if open.len() > DEPTH {
                        let why = format!("blocks stand more than {DEPTH} deep: this is no configuration");
                        return Err(self.source.error(line, why));
                    }
                    let header = self.header(&mut current, &mut open, line);
                    open.push((header, Vec::new()));
                }
                Token::Close => {
                    if self.syntax == Syntax::Semicolons
                        && let Some(unfinished) = &current
                    {
                        return Err(self.source.error(unfinished.first, UNFINISHED));
                    }
                    Self::end(&mut current, &mut open);
                    self.close(&mut open, line)?;
                }
            }
        }
        if let (Some(unfinished), Syntax::Semicolons) = (&current, self.syntax) {
            return Err(self.source.error(unfinished.first, UNFINISHED));
        }
        Self::end(&mut current, &mut open);
        match open.pop() {
            Some((_, statements)) if open.is_empty() => Ok(statements),
            Some((header, _)) => {
                let why = "the block that begins here isn't closed: add its closing brace";
                Err(self.source.error(header.first, why))
            }
            None => Ok(Vec::new()),
        }
    }

    fn end(current: &mut Option<Statement>, open: &mut [(Statement, Vec<Statement>)]) {
        if let (Some(statement), Some((_, block))) = (current.take(), open.last_mut()) {
            block.push(statement);
        }
    }

    /// The statement that a brace belongs to: with ends of lines it may stand on the line before.
    fn header(
        &self,
        current: &mut Option<Statement>,
        open: &mut [(Statement, Vec<Statement>)],
        line: usize,
    ) -> Statement {
        let before = || {
            let (_, block) = open.last_mut().filter(|_| self.syntax == Syntax::Lines)?;
            block.pop_if(|last| last.block.is_none())
        };
        let nameless = Statement { first: line, last: line, close: line, ..Statement::default() };
        current.take().or_else(before).unwrap_or(nameless)
    }

    fn close(&self, open: &mut Vec<(Statement, Vec<Statement>)>, line: usize) -> Result<(), ImportError> {
        let closed = if open.len() > 1 { open.pop() } else { None };
        let Some((mut header, block)) = closed else {
            return Err(self.source.error(line, "a brace is closed here that none has opened: remove it"));
        };
        header.block = Some(block);
        header.close = line;
        if let Some((_, outer)) = open.last_mut() {
            outer.push(header);
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;

    fn statements(text: &str, syntax: Syntax) -> Result<Vec<Statement>, (usize, String)> {
        let source = Source::read(text.as_bytes(), "f").unwrap();
        read(&source, syntax, None).map(|tree| tree.statements).map_err(|error| (error.line, error.why))
    }

    #[test]
    fn statements_keep_their_lines() {
        let read = statements("a b\n  'c d';\ne { f; # g\n}\n", Syntax::Semicolons).unwrap();
        assert_eq!(read[0].words, ["a", "b", "c d"]);
        assert_eq!((read[0].lines(), read[1].whole()), (1..=2, 3..=6));
        assert_eq!(read[1].inner()[0].words, ["f"]);
        let read = statements("a 1\n{\nb 2 ! c\n}\nd { e { f g } h 3 }\n", Syntax::Lines).unwrap();
        assert_eq!((read[0].words.len(), read[0].inner()[0].words.len()), (2, 2));
        assert_eq!(read[1].inner()[0].inner()[0].words, ["f", "g"]);
        assert_eq!(read[1].inner()[1].words, ["h", "3"]);
    }

    #[test]
    fn broken_text_names_its_line() {
        let broken = |text: &str| statements(text, Syntax::Semicolons).unwrap_err();
        assert!(matches!(broken("a;\nb {\n c;\n"), (2, why) if why.contains("isn't closed")));
        assert!(matches!(broken("a;\n}\n"), (2, why) if why.contains("none has opened")));
        assert!(matches!(broken("a;\nb"), (2, why) if why.contains("semicolon")));
        assert!(matches!(broken("a;\nb 'c\n"), (2, why) if why.contains("quotation")));
        assert!(matches!(broken(&"a {\n".repeat(100)), (65, why) if why.contains("64 deep")));
    }
}
