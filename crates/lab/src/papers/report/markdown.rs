//! The report as a page of the documentation.

use super::Section;

/// Width of the documentation's lines.
const WIDTH: usize = 100;

const HEAD: &str = "# The papers' figures

`evener-lab paper report docs/points` writes this page, and beside it CSV, SVG and HTML, of the \
points in docs/points/points.jsonl. `evener-lab paper list` shows the experiments, and `evener-lab \
paper NAME` measures one, on one machine, as root; it goes on where it stopped.

A point counts if the experiment left 15 % of the processors (others' use of the machine apart), \
its clients used less than 80 % of one, and at most one request in 1,000 failed. Tables have \
medians, in parentheses what doesn't count; a verdict is on what the paper's text says, with the \
tolerance that is named. Nothing is read off the papers' plots.
";

pub(super) fn page(sections: &[Section]) -> String {
    let mut text = HEAD.split('\n').map(|line| wrapped(line) + "\n").collect::<String>();
    for Section { experiment, figures } in sections {
        text += &format!(
            "\n## {}\n\n{}\n",
            experiment.name.to_ascii_uppercase(),
            wrapped(&format!("*{}*. {}", experiment.paper, experiment.setup))
        );
        for drawn in figures {
            let (figure, verdict) = (drawn.figure, drawn.verdict().name());
            text += &format!("\n### Figure {}: {}\n\n", figure.number, figure.title);
            text += &wrapped(&format!(
                "**{}.** {}: by line and place. {}",
                capitalised(verdict),
                capitalised(figure.y),
                drawn.origin
            ));
            text += "\n\n";
            for (number, row) in drawn.rows().iter().enumerate() {
                text += &format!("| {} |\n", row.join(" | "));
                if number == 0 {
                    text += &format!("|{}\n", "---|".repeat(row.len()));
                }
            }
            text += &format!("\n![{}]({}.svg)\n", figure.title, drawn.name(experiment));
            text += "\n| the paper | here | holds |\n|---|---|---|\n";
            for claim in &drawn.claims {
                text += &format!("| {} | {} | {} |\n", claim.paper, claim.ours, claim.outcome());
            }
        }
    }
    text
}

pub(super) fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// Breaks a paragraph into lines.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        if let Some(line) = lines.last_mut() {
            if line.is_empty() {
                line.push_str(word);
            } else if line.chars().count() + 1 + word.chars().count() <= WIDTH {
                line.push(' ');
                line.push_str(word);
            } else {
                lines.push(word.to_owned());
            }
        }
    }
    lines.join("\n")
}
