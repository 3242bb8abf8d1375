//! Templates that would run forever, fill the memory or overflow the stack are stopped soon, with a short reason.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::{Fault, Template};

/// Far longer than any of them takes (a second), since tests share the machine.
const LONGEST: Duration = Duration::from_secs(30);

fn run(template: &str) -> Result<String, Fault> {
    let variables: Map<String, Value> =
        json!({"messages": [{"role": "user", "content": "hi"}]}).as_object().unwrap().clone();
    Template::parse(template)?.render(&variables)
}

fn looped(start: &str, step: &str, end: &str) -> String {
    format!(
        "{{% set ns = namespace(x={start}) %}}{{% for i in range(100000) %}}{{% set ns.x = {step} %}}{{% endfor %}}{end}"
    )
}

fn nested(before: &str, middle: &str, after: &str, times: usize) -> String {
    format!("{{{{ {}{middle}{} }}}}", before.repeat(times), after.repeat(times))
}

/// Hostile templates, each with a text that the error must contain.
fn hostile() -> Vec<(&'static str, String)> {
    const STEPS: &str = "too many steps";
    const BYTES: &str = "too much text";
    const DEEP: &str = "deep";
    const NESTED: &str = "nested more than";
    const ROW: &str = "in sequence";
    const CYCLE: &str = "in a namespace is not supported";
    let s = str::to_owned;
    vec![
        // Values that contain themselves.
        (CYCLE, s("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}")),
        (CYCLE, s("{% set ns = namespace() %}{% set ns.x = [{'a': ns}] %}{{ ns|tojson }}")),
        (CYCLE, s("{% set a = namespace() %}{% set b = namespace() %}{% set a.x = b %}{% set b.x = a %}{{ a == b }}")),
        (CYCLE, s("{% set ns = namespace() %}{% set ns.x = cycler(ns) %}{{ ns }}")),
        (CYCLE, s("{% set ns = namespace() %}{% set ns.x = [ns]|select %}")),
        (CYCLE, s("{% set ns = namespace() %}{% for x in [1] %}{% set ns.x = loop %}{% endfor %}")),
        ("`loop.changed` of a value that may change", s("{% for x in [1] %}{{ loop.changed(loop) }}{% endfor %}")),
        // Deep values.
        (DEEP, looped("[]", "[ns.x]", "{{ ns.x }}")),
        (DEEP, looped("{}", "{'a': ns.x}", "{{ ns.x|tojson }}")),
        (DEEP, looped("()", "(ns.x,)", "{{ ns.x == ns.x }}")),
        (DEEP, looped("[]", "[ns.x]|batch(1)|list", "{{ ns.x }}")),
        // Wide values: a list of two lists of two lists, and so on.
        (
            STEPS,
            s(
                "{% set ns = namespace(x=['']) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
            ),
        ),
        (
            STEPS,
            s(
                "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
            ),
        ),
        // Deep expressions and tags.
        (NESTED, nested("not ", "1", "", 30_000)),
        (NESTED, nested("-", "1", "", 30_000)),
        (NESTED, nested("(", "1", ")", 30_000)),
        (NESTED, nested("[", "1", "]", 30_000)),
        (NESTED, nested("{1: ", "1", "}", 30_000)),
        (NESTED, nested("1 if 1 else ", "1", "", 30_000)),
        (NESTED, nested("f(", "1", ")", 30_000)),
        (NESTED, nested("x[", "1", "]", 30_000)),
        (NESTED, nested("1 is eq [", "1", "]", 30_000)),
        (ROW, nested("", "x", "|upper", 30_000)),
        (ROW, nested("", "x", ".x", 30_000)),
        (ROW, nested("", "x", "()", 30_000)),
        (ROW, nested("", "1", "+1", 30_000)),
        (ROW, nested("", "1", " if 1", 30_000)),
        (ROW, nested("", "1", " and 1", 30_000)),
        ("chain multiple tests", nested("", "1", " is number", 30_000)),
        (NESTED, "{% if 1 %}".repeat(20_000)),
        (NESTED, "{% for x in [1] %}".repeat(20_000)),
        ("more than", "{# #}".repeat(300_000)),
        // Endless loops.
        (BYTES, s("{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}")),
        (
            "too m",
            s(
                "{% set r = range(1000)|list %}{% for i in r %}{% for j in r %}{% for k in r %}{% endfor %}{% endfor %}{% endfor %}",
            ),
        ),
        (DEEP, s("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}")),
        (DEEP, s("{% macro f(a=f()) %}{% endmacro %}{{ f() }}")),
        (
            DEEP,
            s(
                "{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{{ caller() }}{% endmacro %}{% call f() %}{% endcall %}",
            ),
        ),
        (DEEP, s("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}")),
        ("too m", s("{% macro f(n) %}{% if n > 1 %}{{ f(n - 1) }}{{ f(n - 2) }}{% endif %}{% endmacro %}{{ f(90) }}")),
        (
            BYTES,
            s(
                "{% for i in range(100000) %}{% for j in [1,2,3,4,5,6,7,8,9] %}{% macro f() %}{% endmacro %}{% endfor %}{% endfor %}",
            ),
        ),
        // Values that fill the memory.
        (BYTES, looped("'ab'", "ns.x ~ ns.x", "{{ ns.x }}")),
        (BYTES, looped("'ab'", "ns.x + ns.x", "{{ ns.x }}")),
        (BYTES, looped("'ab'", "[ns.x, ns.x]|join(ns.x)", "{{ ns.x }}")),
        (BYTES, looped("'ab'", "ns.x.replace('a', ns.x)", "{{ ns.x }}")),
        (BYTES, looped("'ab'", "'%s%s' % (ns.x, ns.x)", "{{ ns.x }}")),
        (BYTES, looped("'ab'", "'{0}{0}'.format(ns.x)", "{{ ns.x }}")),
        (BYTES, looped("'ab\\n'", "(ns.x ~ ns.x)|indent(99)", "{{ ns.x }}")),
        (BYTES, looped("['ab']", "ns.x + ns.x", "{{ ns.x }}")),
        (BYTES, looped("['ab']", "ns.x * 3", "{{ ns.x }}")),
        (BYTES, looped("'<'", "(ns.x ~ ns.x)|e|string ~ ''", "{{ ns.x }}")),
        (BYTES, looped("1", "ns.x", "{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}")),
        (BYTES, s("{{ {'a': 1}|tojson(indent=9999999999) }}")),
        (BYTES, s("{{ 'a\nb'|indent(9999999999) }}")),
        (BYTES, s("{{ 'a'|center(9999999999) }}{{ 'a' }}")),
        (BYTES, s("{{ 'a'.ljust(999999999999999999999999) }}")),
        (BYTES, s("{{ 'a'.zfill(9999999999) }}")),
        (BYTES, s("{{ 'a\\tb'.expandtabs(9999999999) }}")),
        (BYTES, s("{{ '%999999999s'|format('a') }}")),
        (BYTES, s("{{ '%0999999999d' % 1 }}")),
        (BYTES, s("{{ '%*d' % (999999999, 1) }}")),
        ("a precision above", s("{{ '%.999999999f' % 1 }}")),
        (BYTES, s("{{ '%.999999999d' % 1 }}")),
        (BYTES, s("{{ '{:>999999999}'.format('a') }}")),
        (BYTES, s("{{ 'a' * 10**15 }}")),
        (BYTES, s("{{ [0] * 10**15 }}")),
        (BYTES, s("{{ [1]|batch(10**12, 'x')|list }}")),
        (BYTES, s("{{ [1]|slice(10**12)|list }}")),
        (BYTES, s("{{ (range(100000)|list * 9)|join('x' * 1000) }}")),
        (BYTES, s("{{ strftime_now('%c' * 9000000) }}")),
        (BYTES, s("{{ ('a,' * 9000000).split(',')|length }}")),
        ("range too big", s("{{ range(10**18)|list }}")),
        ("more than 127 bits", s("{{ 10**1000000 }}")),
        ("more than 127 bits", s("{{ 9 * 10**37 * 10 * 10 }}")),
        // Much work for few bytes.
        (
            "too m",
            looped("'a' * 1000000", "ns.x", "{% for i in range(100000) %}{% if 'b' in ns.x %}{% endif %}{% endfor %}"),
        ),
        ("too m", s("{% for i in range(100) %}{{ ('a' * 200000).strip('b' * 200000 ~ 'a')|length }}{% endfor %}")),
        ("too m", s("{% set r = range(50000)|list %}{% for i in r %}{{ r|sort|last }}{% endfor %}")),
        ("too m", s("{% set r = range(50000)|list %}{% for i in r %}{{ -1 in r }}{% endfor %}")),
    ]
}

#[test]
fn hostile_templates_end_soon_with_a_reason() {
    let mut wrong = Vec::new();
    let all = hostile();
    assert!(all.len() > 60);
    for (reason, template) in all {
        let shown: String = template.chars().take(100).collect();
        let start = Instant::now();
        let result = run(&template);
        if start.elapsed() > LONGEST {
            wrong.push(format!("{shown}: took {:?}", start.elapsed()));
        }
        match result {
            Err(fault) if fault.what.contains(reason) && fault.what.len() < 200 => {}
            Err(fault) => wrong.push(format!("{shown}: {} (not: {reason})", fault.what)),
            Ok(text) => wrong.push(format!("{shown}: printed {} bytes", text.len())),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_message_of_50_megabytes_can_be_raised() {
    let fault = run("{{ raise_exception('x' * 50000000) }}").unwrap_err();
    assert_eq!(fault.what.len(), 50_000_000);
}

#[test]
fn long_templates_and_prompts_of_good_will_pass() {
    // A long chain of `~`, which is one node; and a prompt of 10 MB, which is tested and trimmed.
    let joined = format!("{{{{ 'a' {} }}}}", "~'b'".repeat(34_000));
    assert_eq!(run(&joined).unwrap().len(), 34_001);
    let long = json!({"messages": [{"role": "user", "content": format!(" {} ", "word ".repeat(2_000_000))}]});
    let template = "{% for m in messages %}{% if m.content is string and 'z' not in m.content %}<{{ m['content']|trim }}>{{ m.content.split('</think>')[-1].strip()|length }}{% endif %}{% endfor %}";
    let text = Template::parse(template).unwrap().render(long.as_object().unwrap()).unwrap();
    assert!(text.starts_with("<word word") && text.ends_with(">9999999"));
}
