//! Statements and blocks in braces, as nginx and keepalived have them.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use super::source::{ImportError, Source};

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
    /// Its lines up to the brace, by their places in the source.
    pub(super) first: usize,
    pub(super) last: usize,
    pub(super) block: Option<Vec<Statement>>,
    /// The line of the brace that closes the block, or the last one.
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

    /// Its own lines, without those of the block.
    pub(super) fn lines(&self) -> RangeInclusive<usize> {
        self.first..=self.last
    }

    /// All of its lines.
    pub(super) fn whole(&self) -> RangeInclusive<usize> {
        self.first..=self.close.max(self.last)
    }
}

/// A part of a text.
#[derive(Debug, PartialEq)]
enum Token {
    Word(String),
    Open,
    Close,
    End,
}

/// The statements of a source, and the lines that have a word of one.
pub(super) fn read(
    source: &Source,
    syntax: Syntax,
) -> Result<(Vec<Statement>, BTreeSet<usize>), ImportError> {
    let tokens = tokens(source, syntax)?;
    let significant =
        tokens.iter().filter(|(_, token)| matches!(token, Token::Word(_))).map(|(line, _)| *line).collect();
    let statements = Builder { source, syntax }.build(tokens)?;
    Ok((statements, significant))
}

/// The tokens with their lines.
fn tokens(source: &Source, syntax: Syntax) -> Result<Vec<(usize, Token)>, ImportError> {
    let mut tokens = Vec::new();
    let mut quote: Option<(char, usize)> = None;
    let mut word: Option<String> = None;
    for (at, line) in source.lines.iter().enumerate() {
        let place = at + 1;
        let mut chars = line.text.chars().peekable();
        while let Some(c) = chars.next() {
            match (c, quote) {
                ('\\', _) => {
                    let word = word.get_or_insert_default();
                    word.push(c);
                    word.extend(chars.next());
                }
                (c, Some((open, _))) if c == open => quote = None,
                (c, Some(_)) => word.get_or_insert_default().push(c),
                ('"' | '\'', None) if word.is_none() => {
                    quote = Some((c, place));
                    word = Some(String::new());
                }
                ('#', None) if word.is_none() => break,
                ('!', None) if word.is_none() && syntax == Syntax::Lines => break,
                (c, None) if c.is_whitespace() => end_word(&mut word, place, &mut tokens),
                ('$', None) if chars.peek() == Some(&'{') => {
                    let word = word.get_or_insert_default();
                    word.push(c);
                    word.extend(chars.by_ref().take_while(|c| *c != '}'));
                    word.push('}');
                }
                ('{' | '}', None) => {
                    end_word(&mut word, place, &mut tokens);
                    tokens.push((place, if c == '{' { Token::Open } else { Token::Close }));
                }
                (';', None) if syntax == Syntax::Semicolons => {
                    end_word(&mut word, place, &mut tokens);
                    tokens.push((place, Token::End));
                }
                (c, None) => word.get_or_insert_default().push(c),
            }
        }
        match quote {
            // A quoted word goes on; a part of it makes this line one of its statement's.
            Some(_) => tokens.push((place, Token::Word(word.take().unwrap_or_default()))),
            None => end_word(&mut word, place, &mut tokens),
        }
        if quote.is_none() && syntax == Syntax::Lines {
            tokens.push((place, Token::End));
        }
    }
    match quote {
        Some((_, line)) => Err(source.error(line, "a quotation begins here and doesn't end: close it")),
        None => Ok(tokens),
    }
}

fn end_word(word: &mut Option<String>, place: usize, tokens: &mut Vec<(usize, Token)>) {
    if let Some(word) = word.take() {
        tokens.push((place, Token::Word(word)));
    }
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
                        let why = "a statement has no semicolon at its end: add it";
                        return Err(self.source.error(unfinished.first, why));
                    }
                    Self::end(&mut current, &mut open);
                    self.close(&mut open, line)?;
                }
            }
        }
        if let (Some(unfinished), Syntax::Semicolons) = (&current, self.syntax) {
            let why = "a statement has no semicolon at its end: add it";
            return Err(self.source.error(unfinished.first, why));
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
        let source = Source::read(text.as_bytes(), "f", None).unwrap();
        read(&source, syntax).map(|(found, _)| found).map_err(|error| (error.line, error.why))
    }

    #[test]
    fn statements_keep_their_lines() {
        let read = statements("a b\n  'c d';\ne { f; # g\n}\n", Syntax::Semicolons).unwrap();
        assert_eq!(read[0].words, ["a", "b", "c d"]);
        assert_eq!((read[0].lines(), read[1].whole()), (1..=2, 3..=4));
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
