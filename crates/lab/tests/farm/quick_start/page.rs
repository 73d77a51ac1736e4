//! Parses the page into files and commands: code blocks, and code spans in sentences.

use std::net::Ipv4Addr;

use anyhow::{Context, Result, bail};

/// The host of a command. The first words of its sentence, or of an earlier sentence in the same
/// step or paragraph, determine the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// All hosts with the file, before Evener runs there.
    BeforeUse,
    Director,
    Servers,
    Server(Ipv4Addr),
    OneHost,
    Router,
    Client,
}

const PLACES: [(&str, Place); 8] = [
    ("On each of these hosts", Place::BeforeUse),
    ("On a director", Place::Director),
    ("On the director", Place::Director),
    ("On each server", Place::Servers),
    ("On every host", Place::Servers),
    ("On one host", Place::OneHost),
    ("On the router", Place::Router),
    ("On a client", Place::Client),
];

#[derive(Clone, Debug)]
pub(crate) struct Command {
    pub(crate) place: Place,
    pub(crate) text: String,
    /// Lines of output on the page, empty if there are none.
    pub(crate) shown: Vec<String>,
}

/// The commands of a step or paragraph.
#[derive(Clone, Debug, Default)]
pub(crate) struct Step {
    pub(crate) commands: Vec<Command>,
    /// Manual alternatives to the commands.
    pub(crate) by_hand: Vec<Command>,
}

/// A configuration file and the steps after it.
#[derive(Clone, Debug, Default)]
pub(crate) struct QuickStart {
    /// The heading, with a number from the second quick start under the same heading on.
    pub(crate) name: String,
    pub(crate) file: String,
    pub(crate) steps: Vec<Step>,
}

/// Parses the quick starts of a page. The first has no file: its steps apply to all.
pub(crate) fn read(page: &str) -> Result<Vec<QuickStart>> {
    let mut reader = Reader::default();
    reader.starts.push(QuickStart::default());
    let mut lines = page.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        reader.number = number + 1;
        let Some(language) = line.trim_start().strip_prefix("```") else {
            reader.prose(line)?;
            continue;
        };
        reader.end_paragraph()?;
        let indent = line.len() - line.trim_start().len();
        let inside = lines.by_ref().map(|(_, line)| line.get(indent..).unwrap_or_default());
        let block: Vec<&str> = inside.take_while(|line| *line != "```").collect();
        reader.block(language, &block).with_context(|| format!("line {}", number + 1))?;
    }
    reader.end_paragraph()?;
    Ok(reader.starts)
}

#[derive(Default)]
struct Reader {
    starts: Vec<QuickStart>,
    /// Number of the current line, counted from 1.
    number: usize,
    paragraph: String,
    /// Place of the current step or paragraph.
    place: Option<Place>,
    is_by_hand: bool,
}

impl Reader {
    fn start(&mut self) -> &mut QuickStart {
        self.starts.last_mut().expect("the first is for all")
    }

    fn prose(&mut self, line: &str) -> Result<()> {
        if let Some(heading) = line.strip_prefix("## ") {
            self.starts.push(QuickStart { name: heading.to_owned(), ..QuickStart::default() });
            return Ok(());
        }
        if line.is_empty() {
            return self.end_paragraph();
        }
        let is_step = line.split_once(". ").is_some_and(|(number, _)| number.parse::<u8>().is_ok());
        if is_step {
            self.end_paragraph()?;
        }
        if is_step || (self.paragraph.is_empty() && !line.starts_with(' ')) {
            self.start().steps.push(Step::default());
            (self.place, self.is_by_hand) = (None, false);
        }
        let text = if is_step { line.split_once(". ").unwrap_or_default().1 } else { line.trim_start() };
        self.paragraph += &format!("{text} ");
        Ok(())
    }

    fn end_paragraph(&mut self) -> Result<()> {
        let paragraph = std::mem::take(&mut self.paragraph);
        for sentence in sentences(&paragraph) {
            self.place = place(sentence)?.or(self.place);
            self.is_by_hand |= sentence.starts_with("By hand");
            for span in sentence.split('`').skip(1).step_by(2).filter(|span| is_command(span)) {
                self.command(span, Vec::new()).context("in the paragraph above")?;
            }
        }
        Ok(())
    }

    fn block(&mut self, language: &str, block: &[&str]) -> Result<()> {
        match language {
            // A picture.
            "" => Ok(()),
            "toml" => {
                let QuickStart { name, file, .. } = self.start();
                if !file.is_empty() {
                    let name = format!("{name} 2");
                    self.starts.push(QuickStart { name, ..QuickStart::default() });
                }
                self.start().file = block.iter().map(|line| format!("{line}\n")).collect();
                Ok(())
            }
            "sh" => {
                block.iter().filter(|line| !line.is_empty()).try_for_each(|l| self.command(l, Vec::new()))
            }
            "console" => {
                let text = block.join("\n");
                let (before, commands) = text.split_once("$ ").context("no command begins with `$ `")?;
                if !before.is_empty() {
                    bail!("there is output before the first command");
                }
                commands.split("\n$ ").try_for_each(|part| {
                    let mut lines = part.lines().map(str::to_owned);
                    self.command(&lines.next().unwrap_or_default(), lines.collect())
                })
            }
            language => bail!("nothing is known here of a block of {language}"),
        }
    }

    fn command(&mut self, text: &str, shown: Vec<String>) -> Result<()> {
        let (number, is_by_hand) = (self.number, self.is_by_hand);
        let place = self.place.with_context(|| {
            let places = PLACES.map(|(words, _)| words).join(", ");
            format!(
                "line {number}: where does `{text}` run? Begin a sentence of its step by one of: {places}, On the server ADDRESS"
            )
        })?;
        let step = self.start().steps.last_mut().context("no text is above the block")?;
        let commands = if is_by_hand { &mut step.by_hand } else { &mut step.commands };
        commands.push(Command { place, text: text.to_owned(), shown });
        Ok(())
    }
}

/// Splits a paragraph into sentences. A period within code ends no sentence.
fn sentences(paragraph: &str) -> Vec<&str> {
    let mut sentences = Vec::new();
    let (mut from, mut is_code) = (0, false);
    for (at, c) in paragraph.char_indices() {
        is_code ^= c == '`';
        if c == '.' && !is_code && paragraph[at + 1..].starts_with(' ') {
            sentences.push(paragraph[from..at].trim_start());
            from = at + 1;
        }
    }
    sentences.push(paragraph[from..].trim_start());
    sentences
}

fn place(sentence: &str) -> Result<Option<Place>> {
    if let Some(rest) = sentence.strip_prefix("On the server ") {
        let address: String = rest.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
        let address = address.parse().with_context(|| format!("which server is it in {sentence:?}?"))?;
        return Ok(Some(Place::Server(address)));
    }
    Ok(PLACES.iter().find(|(words, _)| sentence.starts_with(words)).map(|(_, place)| *place))
}

/// True if a code span is a command: a program's name with arguments. A configuration key has an
/// equals sign after it, and a line of output has a colon in its first word.
fn is_command(span: &str) -> bool {
    let mut words = span.split(' ');
    let is_program = |word: &str| word.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    words.next().is_some_and(is_program) && words.next().is_some_and(|second| second != "=")
}

#[test]
fn command_without_place_is_an_error() {
    for page in [
        "Here `evener run` is run.\n",
        "On the director nothing runs.\n\nHere `evener run` is run.\n",
        "Here:\n\n```sh\nevener run\n```\n",
        "On the server `web1` `evener agent` runs.\n",
        "On the director:\n\n```fish\nevener run\n```\n",
    ] {
        assert!(read(page).is_err(), "{page}");
    }
}

#[test]
fn commands_have_place_and_output() {
    let page = "On each server `lo` is up, `a = 1`, and `ip link` runs. By hand:\n\n```sh\nip route\n```\n\n## x\n\n```toml\n\
                y = 1\n```\n\n1. On the server 192.0.2.1: `evener agent`.\n\n   ```console\n   $ a b\n   c\n   $ d\n   ```\n";
    let starts = read(page).unwrap();
    let [all, start] = &starts[..] else { panic!("{starts:?}") };
    let texts = |commands: &[Command]| commands.iter().map(|one| one.text.clone()).collect::<Vec<_>>();
    assert_eq!(texts(&all.steps[0].commands), ["ip link"]);
    assert_eq!(texts(&all.steps[0].by_hand), ["ip route"]);
    assert_eq!(all.steps[0].by_hand[0].place, Place::Servers);
    assert_eq!((start.name.as_str(), start.file.as_str()), ("x", "y = 1\n"));
    let commands = &start.steps[0].commands;
    assert_eq!(texts(commands), ["evener agent", "a b", "d"]);
    assert!(commands.iter().all(|one| one.place == Place::Server([192, 0, 2, 1].into())));
    assert_eq!(commands[1].shown, ["c"]);
}
