//! The report as one HTML file without references.

use super::Section;
use super::markdown::capitalised;

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}\
                     svg{max-width:100%;height:auto}table{border-collapse:collapse;margin:1rem 0;display:block;\
                     overflow-x:auto}td,th{border:1px solid #bbb;padding:.2rem .5rem;text-align:right}\
                     td:first-child,th:first-child,.claims td{text-align:left}.verdict{font-weight:bold}";

pub(super) fn page(sections: &[Section]) -> String {
    let mut text = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>The papers' figures</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style>\n\
         <h1>The papers' figures</h1>\n"
    );
    for Section { experiment, figures } in sections {
        let (paper, setup) = (escaped(experiment.paper), escaped(experiment.setup));
        text += &format!("<h2>{}</h2>\n<p><i>{paper}</i>. {setup}</p>\n", escaped(experiment.name));
        for drawn in figures {
            let figure = drawn.figure;
            text += &format!("<h3>Figure {}: {}</h3>\n", figure.number, escaped(figure.title));
            let verdict = capitalised(drawn.verdict().name());
            text += &format!("<p><span class=\"verdict\">{verdict}.</span> {}</p>\n", escaped(&drawn.origin));
            text += &drawn.svg;
            text += &table("", drawn.rows().into_iter());
            let claims = drawn.claims.iter();
            let claims =
                claims.map(|claim| [claim.paper, &claim.ours, claim.outcome()].map(str::to_owned).to_vec());
            let heading = ["the paper", "here", "holds"].map(str::to_owned).to_vec();
            text += &table(" class=\"claims\"", std::iter::once(heading).chain(claims));
        }
    }
    text + "</html>\n"
}

/// Returns a table whose first row is the heading.
fn table(class: &str, rows: impl Iterator<Item = Vec<String>>) -> String {
    let row = |(number, cells): (usize, Vec<String>)| {
        let tag = if number == 0 { "th" } else { "td" };
        let cells = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell)));
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    format!("<table{class}>\n{}</table>\n", rows.enumerate().map(row).collect::<String>())
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
