//! The verdict at the top of the page, as markup. It can be read without the page's script, and printed.

use std::fmt::Write as _;

use spattn_base::text::in_line;
use spattn_eval::summary::verdicts::{JudgedSetting, VerdictTable};

use super::matrix::{VerdictMatrix, below, by_task, costs};
use super::sentence::sentence;
use super::{shown, words};

/// The markup; empty if there are no tables. `more` returns the lines below a table.
pub fn render(tables: &[VerdictTable], more: impl Fn(usize) -> Vec<String>) -> String {
    let (first, line) = shown(tables);
    let mut text = String::new();
    for (at, table) in first.iter().enumerate() {
        let title = format!("Verdict: {}", words::title(table, tables));
        let _ = write!(text, "<h3>{}</h3>\n<p class=\"lead\">{}</p>\n", safe(&title), named(&sentence(table)));
        text.push_str(&matrix(table, &title));
        let _ = writeln!(text, "<p class=\"hint\">{}</p>", safe(&below(table).join(" ")));
        text.push_str(&tasks(table, &title));
        let lines = more(at);
        if !lines.is_empty() {
            let lines: String = lines.iter().map(|line| format!("<li>{}</li>\n", named(line))).collect();
            let _ = write!(
                text,
                "<details><summary>Methods compared at each budget</summary><ul class=\"budgets\">\n{lines}</ul></details>\n"
            );
        }
    }
    line.iter().for_each(|line| text.push_str(&format!("<p>{}</p>\n", safe(line))));
    text
}

fn matrix(table: &VerdictTable, title: &str) -> String {
    let matrix = VerdictMatrix::of(table);
    let headings: String = matrix
        .budgets
        .iter()
        .map(|budget| format!("<th scope=\"col\">{}</th>", safe(&words::budget(*budget))))
        .collect();
    let row = |(name, cells): &(String, Vec<Vec<&JudgedSetting>>)| {
        let cells: String = cells.iter().map(|settings| cell(table, settings)).collect();
        format!("<tr><th scope=\"row\">{}</th>{cells}</tr>\n", safe(name))
    };
    let rows: String = matrix.rows.iter().map(row).collect();
    let title = safe(title);
    format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{title}\"><table class=\"verdict\">\n<caption class=\"hidden\">\
         {title}</caption>\n<thead><tr><th scope=\"col\">method / asked for</th>{headings}</tr></thead>\n<tbody>\n{rows}</tbody>\n\
         </table></div>\n"
    )
}

/// The verdicts on each task, which a click unfolds.
fn tasks(table: &VerdictTable, title: &str) -> String {
    let rows = by_task(table);
    if rows.is_empty() {
        return String::new();
    }
    let headings: String = table.tasks.iter().map(|task| format!("<th scope=\"col\">{}</th>", safe(task))).collect();
    let row = |(name, cells): &(String, Vec<String>)| {
        let cells: String = cells.iter().map(|cell| format!("<td>{}</td>", safe(cell))).collect();
        format!("<tr><th scope=\"row\">{}</th>{cells}</tr>\n", safe(name))
    };
    let rows: String = rows.iter().map(row).collect();
    let title = format!("{}, by task", safe(title));
    format!(
        "<details><summary>Verdict on each task</summary>\n<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{title}\">\
         <table>\n<caption class=\"hidden\">{title}</caption>\n<thead><tr><th scope=\"col\">method</th>{headings}</tr></thead>\n<tbody>\n\
         {rows}</tbody>\n</table></div>\n</details>\n"
    )
}

fn cell(table: &VerdictTable, settings: &[&JudgedSetting]) -> String {
    let Some(first) = settings.first() else { return "<td></td>".to_owned() };
    let one = |setting: &&JudgedSetting| {
        let said = words::finding(table, setting);
        let (word, rest) =
            said.split_once(':').map_or((said.as_str(), String::new()), |(word, rest)| (word, format!(":{rest}")));
        let difference = words::difference(table, setting);
        let difference = if difference.is_empty() { difference } else { format!("Δ {difference}") };
        let notes: String = [difference, costs(setting)]
            .iter()
            .filter(|note| !note.is_empty())
            .map(|note| format!("<span class=\"interval\">{}</span>", safe(note).replace(" %", "&nbsp;%")))
            .collect();
        format!("<strong>{}</strong>{}{notes}", safe(word), safe(&rest))
    };
    let body: Vec<String> = settings.iter().map(one).collect();
    format!("<td class=\"{}\">{}</td>", words::class(first), body.join("<br>"))
}

/// A text in which names are between backticks, as markup.
fn named(text: &str) -> String {
    let part = |(at, part): (usize, &str)| {
        if at % 2 == 1 { format!("<code>{}</code>", safe(part)) } else { safe(part) }
    };
    text.split('`').enumerate().map(part).collect()
}

/// A text without any markup.
fn safe(text: &str) -> String {
    in_line(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::verdict::testing::{run, table};

    #[test]
    fn the_word_stands_in_the_cell_and_names_are_no_markup() {
        let of = |method: &str, params: &str, lost| run("<b>vt", method, params, lost, 20);
        let tables = [table(&[of("full", "", 0), of("quest", "density=0.05", 15), of("topk", "density=0.05", 0)], 1.0)];
        let text = render(&tables, |_| Vec::new());
        assert!(text.contains("<h3>Verdict: &lt;b&gt;vt at 4K tokens</h3>") && !text.contains("<b>"), "{text}");
        assert!(text.contains("<td class=\"not-safe\"><strong>not safe</strong>: loses at least "), "{text}");
        assert!(text.contains("<td class=\"beside\"><strong>oracle, for comparison</strong>"), "{text}");
        assert!(text.contains("Proven worse: <code>quest 5 %</code> (−75, "), "{text}");
        assert_eq!(render(&[], |_| Vec::new()), "");
    }
}
