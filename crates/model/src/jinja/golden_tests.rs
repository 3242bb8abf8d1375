//! Every construct in `tests/golden/jinja.json` prints what jinja2 prints, or is refused with an error that names it.

use serde_json::{Map, Value};

use super::{Fault, Template};

/// The names of constructs that jinja2 prints and this interpreter refuses. Nothing else may be refused.
const REFUSED: [&str; 38] = [
    "N escape",
    "wordwrap",
    "striptags",
    "strftime3",
    "huge integer",
    "macro printed",
    "markup added",
    "markup in a list",
    "slice of none",
    "slice of a dict",
    "slice by strings",
    "title of sharp s",
    "isdigit of a fraction",
    "isdigit of a superscript",
    "encode (2)",
    "format map",
    "translate",
    "number methods",
    "float method",
    "int of a base",
    "round to tens",
    "str.format nested",
    "urlencode of a dict",
    "unsupported filters",
    "filesizeformat",
    "xmlattr (2)",
    "unknown filter unused",
    "loop printed",
    "namespace in a namespace",
    "namespace in itself",
    "self",
    "autoescape",
    "subscript with commas",
    "names beyond ASCII",
    "dates unknown",
    "dates of the machine",
    "dates with a flag",
    "lipsum (2)",
];

fn golden() -> Value {
    serde_json::from_str(include_str!("../../../../tests/golden/jinja.json")).unwrap()
}

fn variables(golden: &Value) -> Map<String, Value> {
    let given = serde_json::json!({
        "messages": golden["messages"],
        "tools": null,
        "documents": null,
        "add_generation_prompt": true,
        "bos_token": "<s>",
        "eos_token": "</s>",
    });
    given.as_object().unwrap().clone()
}

/// Whether an error names what is not supported.
fn is_named(fault: &Fault) -> bool {
    ["is not supported", "no filter named"].iter().any(|named| fault.what.contains(named))
}

#[test]
fn constructs_print_what_jinja2_prints_or_are_refused_by_name() {
    let golden = golden();
    let variables = variables(&golden);
    let mut wrong = Vec::new();
    let mut refused = Vec::new();
    for case in golden["cases"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let template = case["template"].as_str().unwrap();
        let ours = Template::parse(template).and_then(|read| read.render(&variables));
        match (case["expected"].as_str(), ours) {
            (Some(expected), Ok(text)) if text == expected => {}
            (None, Err(_)) => {}
            (Some(_), Err(fault)) if is_named(&fault) => refused.push(name.to_owned()),
            (expected, ours) => wrong.push(format!("{name}: {template:?}\n  jinja2 {expected:?}\n  ours   {ours:?}")),
        }
    }
    assert!(wrong.is_empty(), "{} constructs differ:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(refused, REFUSED);
}
