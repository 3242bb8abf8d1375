//! Commands that answer correctly, and commands that fail in many ways. All are shell scripts, which run everywhere;
//! `tests/commands/external.rs` has some in Python.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::super::tests::{configured, noise, prefix, random_kv, select};
use crate::kv::{KvDtype, KvError};
use crate::{IndexCache, Policy, Selection, StartError, expand_grid};
use spattn_base::error::UsageError;

/// Reads a message: its line is `$line`, and its numbers are thrown away.
const NEXT: &str = r#"
next() {
    IFS= read -r line || exit 0
    case $line in *'"forget"'*) next; return ;; esac
    bytes=${line##*'"bytes":'}
    head -c "${bytes%?}" > /dev/null
}
"#;

/// A script in a folder of its own.
struct Script {
    folder: tempfile::TempDir,
}

impl Script {
    fn new(body: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("scorer.sh"), format!("{NEXT}{body}")).unwrap();
        Self { folder }
    }

    /// A script that says what it answers, then runs `body`.
    fn of(answers: &str, body: &str) -> Self {
        Self::noting("", answers, body)
    }

    /// The script of [`of`](Self::of), which runs `before` first.
    fn noting(before: &str, answers: &str, body: &str) -> Self {
        let hello = format!(r#"{{"protocol":1,"name":"script","version":"3","answers":"{answers}"}}"#);
        Self::new(&format!("{before}\nnext; echo '{hello}'\n{body}"))
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    fn spec(&self, parameters: &str) -> String {
        format!("external:cmd=\"sh '{}'\"{parameters}", self.path("scorer.sh").display())
    }
}

/// The error of the first steps of two KV heads under a spec.
fn failure(spec: &str) -> String {
    let prefix = prefix(1, 2, 150, 32);
    let method = configured(spec, &Policy::default());
    let mut cache = IndexCache::new(prefix, KvDtype::F32, 1);
    let mut sequence = match cache.fork(&method, false) {
        Ok(sequence) => sequence,
        Err(StartError::Kv(KvError::Method(why))) => return why,
        Err(other) => panic!("{other}"),
    };
    let (queries, row) = (noise(4 * 32, 5), noise(2 * 32, 6));
    let mut out = vec![0.0; queries.len()];
    match sequence.step(0, &queries, &row, &row, &mut out) {
        Err(KvError::Method(why)) => why,
        other => panic!("{other:?}"),
    }
}

fn refused(spec: &str) -> UsageError {
    super::super::configure(&expand_grid(spec).unwrap()[0], &Policy::default()).unwrap_err()
}

#[test]
fn a_command_that_selects_is_attended_as_it_says() {
    // For two heads: the first three candidates, and the last.
    let of_heads =
        r#"while next; do case $line in *'"step"'*) echo '{"tokens":[[2,0,1],[274]]}' ;; *) echo '{}' ;; esac; done"#;
    let kv = random_kv(KvDtype::Bf16, 1, 300, 32, 3);
    let queries = noise(2 * 32, 8);
    let script = Script::of("tokens", of_heads);
    let (selection, cost) = select(&script.spec(",k=4"), &kv, &queries, 5..280);
    let Selection::PerHead(heads) = selection else { panic!("a set for each query head") };
    assert_eq!(heads.iter().map(|picks| picks.tokens.clone()).collect::<Vec<_>>(), [vec![5, 6, 7], vec![279]]);
    assert_eq!((cost.score_flops, cost.kv_bytes), (0, 0), "nothing is counted");
    // One list for the group.
    let script = Script::of("tokens", &of_heads.replace("[[2,0,1],[274]]", "[[7]]"));
    let (selection, _) = select(&script.spec(",k=4"), &kv, &queries, 5..280);
    let Selection::Shared(picks) = selection else { panic!("one set for the group") };
    assert_eq!(picks.tokens, [12]);
}

#[test]
fn scores_are_picked_from_as_those_of_any_method() {
    // The scores 0, 1, 2 and 3 of four candidates, for both heads: as bytes of 32-bit floats, octal.
    let scores = r#"printf '{"scores":[1,4]}\n\000\000\000\000\000\000\200\077\000\000\000\100\000\000\100\100'"#;
    let script = Script::of(
        "scores",
        &format!(r#"while next; do case $line in *'"step"'*) {scores} ;; *) echo '{{}}' ;; esac; done"#),
    );
    let (kv, queries) = (random_kv(KvDtype::F32, 1, 20, 32, 3), noise(2 * 32, 8));
    let picked = |parameters: &str| select(&script.spec(parameters), &kv, &queries, 10..14).0;
    let Selection::PerHead(heads) = picked(",k=2") else { panic!("a set for each query head") };
    assert!(heads.len() == 2 && heads.iter().all(|picks| picks.tokens == [12, 13]), "{heads:?}");
    let Selection::Shared(picks) = picked(",k=1,per=kv_head") else { panic!("one set for the group") };
    assert_eq!(picks.tokens, [13]);
}

#[test]
fn what_a_record_is_known_by_has_the_command_and_what_it_says_of_itself() {
    let script = Script::of("tokens", "while next; do :; done");
    let method = configured(&script.spec(",density=0.25,timeout=9"), &Policy::default());
    let command = format!("cmd=\"sh '{}'\"", script.path("scorer.sh").display());
    assert_eq!(method.label(), format!("external:{command},name=script,version=3,density=0.25"));
    assert!(!method.method.counts_costs() && configured("topk", &Policy::default()).method.counts_costs());
    // A label is a spec of the same method.
    assert_eq!(configured(&method.label(), &Policy::default()).label(), method.label());
    let error = refused(&script.spec(",version=2"));
    assert!(error.what.ends_with("says version `3`, not `2`"), "{}", error.what);
}

#[test]
fn a_command_that_does_not_say_what_it_is_is_refused_before_anything_runs() {
    for (body, said) in [
        ("echo 'loading model'", "it printed `loading model` on standard output, which is for answers alone"),
        (
            "echo 'no such weights' >&2; exit 3",
            "ended without an answer (exit status: 3); its standard error ends with: no such weights",
        ),
        (
            r#"next; echo '{"protocol":9,"name":"a","version":"1","answers":"tokens"}'"#,
            "it speaks protocol 9, and this program 1",
        ),
        ("kill -9 $$", "ended without an answer (signal: 9"),
        ("exec 1>&-; sleep 60", "closed its output without an answer"),
        ("sleep 60", "gave no answer within 0.5 s (timeout=SECONDS sets another limit)"),
        ("head -c 5000000 /dev/zero | tr '\\0' 'x'", "gave no answer within 0.5 s"),
    ] {
        let before = Instant::now();
        let limit = if body.starts_with("sleep") || body.starts_with("head") { ",timeout=0.5" } else { "" };
        let body = if limit.is_empty() { body.to_owned() } else { format!("{body}; sleep 60") };
        let error = refused(&Script::new(&body).spec(limit));
        assert!(error.what.contains(said) && error.hint.is_some(), "{body}: {}", error.what);
        assert!(!error.what.contains('\n') && before.elapsed() < Duration::from_secs(20), "{body}");
    }
    for (spec, said) in [
        ("external", "has no command"),
        ("external:cmd=no-such-program-here", "cannot be started"),
        ("external:\"sh 'a\"", "a single quote has no second one"),
        ("external:cmd=sh,timeout=0", "`timeout=0` is out of range"),
        ("external:cmd=sh,timeout=NaN", "`timeout=NaN` is out of range"),
    ] {
        assert!(refused(spec).what.contains(said), "{spec}: {}", refused(spec).what);
    }
}

#[test]
fn a_command_that_fails_is_one_clear_line_and_nothing_hangs() {
    let serve =
        |step: &str| format!(r#"while next; do case $line in *'"step"'*) {step} ;; *) echo '{{}}' ;; esac; done"#);
    for (answers, step, said) in [
        (
            "tokens",
            "echo 'Traceback' >&2; echo 'KeyError: 7' >&2; exit 1",
            "(exit status: 1); its standard error ends with: Traceback | KeyError: 7",
        ),
        ("tokens", "sleep 60", "gave no answer within 2 s"),
        ("tokens", r#"echo '{"tokens":[[0],[999]]}'"#, "it selected candidate 999 of 82, counted from 0"),
        ("tokens", r#"echo '{"tokens":[[0,0],[1]]}'"#, "it selected candidate 0 twice"),
        ("tokens", r#"echo '{"tokens":[[0],[1],[2]]}'"#, "it gave 3 lists for 2 query heads"),
        ("tokens", "echo step 1 done", "it printed `step 1 done` on standard output"),
        ("tokens", r#"echo '{"error":"out of memory"}'"#, "it reports: out of memory"),
        ("tokens", "printf '\\377\\376\\n'", "its answer is no line of text"),
        ("scores", r#"echo '{"scores":[2,7]}'"#, "it gave 7 scores for 82 candidates"),
        (
            "scores",
            r#"printf '{"scores":[1,82]}\n'; head -c 328 /dev/zero | tr '\0' '\377'"#,
            "its score of candidate 0 for query head 0 is NaN",
        ),
        ("scores", r#"printf '{"scores":[1,82]}\nshort'"#, "gave no answer within 2 s"),
    ] {
        let before = Instant::now();
        let error = failure(&Script::of(answers, &serve(step)).spec(",k=4,timeout=2"));
        assert!(error.contains(said) && !error.contains('\n'), "{step}: {error}");
        assert!(before.elapsed() < Duration::from_secs(20), "{step}");
    }
    let error = failure(&Script::of("tokens", "next; exit 4").spec(",k=4"));
    assert!(error.contains("ended without an answer (exit status: 4)"), "while the index is built: {error}");
}

#[test]
fn a_command_is_started_again_after_a_failure_and_ends_with_the_methods_that_ask_it() {
    let body = r#"
        while next; do case $line in *'"step"'*)
            if [ -e "$folder/once" ]; then echo '{"tokens":[[0]]}'; else touch "$folder/once"; exit 1; fi ;; *) echo '{}' ;; esac; done"#;
    // Notes its start before its hello, which the program waits for.
    let script = Script::noting("folder=${0%/*}; echo $$ >> \"$folder/started\"", "tokens", body);
    let started = || fs::read_to_string(script.path("started")).unwrap().lines().map(str::to_owned).collect::<Vec<_>>();
    let method = configured(&script.spec(",k=4"), &Policy::default());
    let of_another_budget = configured(&script.spec(",k=9"), &Policy::default());
    assert_eq!(started().len(), 1, "methods that differ in their budget ask one process");
    assert!(failure(&script.spec(",k=4")).contains("exit status: 1"));
    let (kv, queries) = (random_kv(KvDtype::F32, 1, 100, 32, 3), noise(2 * 32, 8));
    assert!(matches!(select(&script.spec(",k=4"), &kv, &queries, 5..80).0, Selection::Shared(_)));
    let processes = started();
    assert_eq!(processes.len(), 2);
    drop((method, of_another_budget));
    #[cfg(target_os = "linux")]
    processes.iter().for_each(|id| assert!(!PathBuf::from(format!("/proc/{id}")).exists(), "process {id} runs on"));
}

#[test]
fn prefixes_that_nobody_asks_for_are_forgotten() {
    let body = r#"folder=${0%/*}
        while IFS= read -r line; do
            echo "$line" >> "$folder/heard"
            bytes=${line##*'"bytes":'}
            head -c "${bytes%?}" > /dev/null
            case $line in *'"forget"'*) ;; *'"step"'*) echo '{"tokens":[[0]]}' ;; *) echo '{}' ;; esac
        done"#;
    let script = Script::of("tokens", body);
    let (kv, queries) = (random_kv(KvDtype::F32, 1, 100, 32, 3), noise(2 * 32, 8));
    let _kept = configured(&script.spec(",k=4"), &Policy::default());
    (0..2).for_each(|_| drop(select(&script.spec(",k=4"), &kv, &queries, 5..80)));
    let heard = fs::read_to_string(script.path("heard")).unwrap();
    let kinds: Vec<&str> = heard.lines().map(|line| line.split('"').nth(3).unwrap()).collect();
    assert_eq!(kinds, ["prefix", "step", "forget", "prefix", "step"]);
    let first = heard.lines().next().unwrap();
    for field in [r#""candidates":75"#, r#""dim":32"#, r#""arrays":{"keys":[75,32]}"#, r#""bytes":9600"#] {
        assert!(first.contains(field), "{field}: {first}");
    }
    let step = heard.lines().nth(1).unwrap();
    for field in [r#""prefix":0"#, r#""heads":2"#, r#""budget":4"#, r#""arrays":{"queries":[2,32]}"#] {
        assert!(step.contains(field), "{field}: {step}");
    }
}
