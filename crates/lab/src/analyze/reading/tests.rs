use super::super::head::{dot, softmax};
use super::super::picked::estimate;
use super::super::{Method, Setup, select};
use super::*;
use spattn_attention::Policy;

fn request<'a>(tasks: &'a [String], layers: &'a [usize]) -> Request<'a> {
    Request {
        model: "builtin",
        device: Device::Cpu,
        dtype: None,
        tasks,
        text: None,
        system: None,
        data: None,
        length: 900,
        samples: 1,
        queries: 3,
        layers,
        seed: 5,
    }
}

fn loaded(layers: &[usize]) -> Loaded {
    DocumentReader::open(&request(&["ruler/vt".to_owned()], layers)).unwrap().load().unwrap()
}

#[test]
fn heads_hold_what_the_model_computes_in_one_go() {
    let loaded = loaded(&[7, 2, 7]);
    let document = loaded.read(0, 0, &BTreeSet::new()).unwrap();
    assert_eq!((&document.layers[..], document.at(7), document.steps()), (&[2, 7][..], 1, 3));
    let tokens = document.ids.len();
    let mut queries = vec![Vec::new(); 10];
    let mut keep = |chunk: &PrefillChunk<'_>| {
        queries[chunk.layer].extend_from_slice(chunk.queries()?);
        Ok(())
    };
    let prefix = loaded.model.decoder.prefill_observed(&document.ids, tokens, &mut keep).unwrap().prefix;
    let heads = document.each_head(Head::clone).unwrap();
    assert_eq!(heads.iter().map(|h| (h.layer, h.kv_head)).collect::<Vec<_>>(), [(2, 0), (2, 1), (7, 0), (7, 1)]);
    for head in heads {
        let kv = prefix.layer(head.layer).unwrap();
        assert_eq!(head.keys, kv.keys.head(head.kv_head).to_f32());
        assert_eq!(head.values, kv.values.head(head.kv_head).to_f32());
        assert_eq!(head.queries.len(), 6);
        for query in &head.queries {
            let at = tokens - 3 + query.step;
            assert_eq!((query.tokens, query.head), (at + 1, 2 * head.kv_head + query.in_group));
            assert_eq!(query.vector, queries[head.layer][(at * 4 + query.head) * 64..][..64]);
            let logits = head.logits(query);
            assert!((logits[9] - dot(&query.vector, &head.keys[9 * 64..10 * 64]) / 8.0).abs() < 1e-9);
        }
    }
}

#[test]
fn weights_of_picks_give_what_the_engine_gives() {
    let loaded = loaded(&[4]);
    let specs = [
        "topk:k=40",
        "oracle_sampling:budget=50",
        "oracle_sampling:budget=50,proposal=value_norm",
        "oracle_sampling:budget=50,draw_from=all,proposal=value_norm",
        "oracle_sampling:budget=50,draw_from=all",
        "topk:k=40,schedule=linear",
        "magicpig:K=6,L=40",
        "sparq:k=32",
        "hash_attention:k=20",
        "quest:page=16,k=64",
        "snapkv:k=60",
        "tova:k=100",
        "full",
    ];
    let specs = specs.map(str::to_owned);
    let methods = Method::read_all(&specs, &Policy::default(), &loaded.model).unwrap();
    let needs = methods.iter().flat_map(|method| method.configured.method.prompt_needs()).collect();
    let document = loaded.read(0, 0, &needs).unwrap();
    for method in methods {
        let name = method.configured.label();
        let choices = document.choices(&method.configured, &mut document.cache()).unwrap();
        let outputs = document.outputs(&method.configured, &mut document.cache()).unwrap();
        for head in document.each_head(Head::clone).unwrap() {
            for query in &head.queries {
                let logits = head.logits(query);
                let found = estimate(&logits, &choices[0][query.step][head.kv_head], query.in_group);
                let out = &outputs[(query.step * 4 + query.head) * 64..][..64];
                let own = found.output(&head);
                let far = own.iter().zip(out).map(|(a, b)| (a - f64::from(*b)).abs());
                let far = far.fold(0.0, f64::max);
                assert!(far < 2e-3, "{name}: {far}");
                let all = found.weights.iter().map(|w| w.1).sum::<f64>() + found.rest.as_ref().map_or(0.0, |r| r.0);
                // Direct weights are in single precision, and those of `value_norm` sum to 1 only on average.
                let off = if name.starts_with("oracle_sampling") { 1e-6 } else { 1e-9 };
                assert!((all - 1.0).abs() < off || name.contains("value_norm"), "{name}: {all}");
                if name == "full" {
                    let exact = head.output(&softmax(&logits));
                    assert!(exact.iter().zip(found.output(&head)).all(|(a, b)| (a - b).abs() < 1e-9));
                }
            }
        }
    }
}

#[test]
fn draws_of_hyperplanes_differ_and_a_given_one_stays() {
    let loaded = loaded(&[4]);
    let read = |spec: &str| Method::read_all(&[spec.to_owned()], &Policy::default(), &loaded.model).unwrap().remove(0);
    let document = loaded.read(0, 0, &BTreeSet::new()).unwrap();
    let of = |method: &Method, draw: usize| {
        document.choices(&method.drawn_anew(draw, &loaded.model).unwrap(), &mut document.cache()).unwrap()
    };
    // The calibration stays the same; only the order of ties is random.
    let learned = read("hash_attention:k=30");
    assert_ne!(of(&learned, 0), of(&learned, 1));
    let [free, fixed] = ["magicpig:K=6,L=40", "magicpig:K=6,L=40,seed=9"].map(read);
    assert_ne!(of(&free, 0), of(&free, 1));
    assert_eq!(of(&fixed, 0), of(&fixed, 1));
    assert_eq!(of(&read("magicpig:K=6,L=40,seed=2"), 0), of(&free, 1));
}

#[test]
fn the_first_key_is_that_of_a_prompt_of_one_token() {
    let loaded = loaded(&[0]);
    let keys = loaded.first_keys(&[17, 900]).unwrap();
    let prefix = loaded.model.decoder.prefill(&[900], 1).unwrap().prefix;
    assert_eq!(keys[1][3][1], prefix.layer(3).unwrap().keys.head(1).to_f32());
    assert_ne!(keys[0][3][1], keys[1][3][1]);
}

#[test]
fn analyses_run_on_a_document_and_say_the_same_twice() {
    let loaded = loaded(&[0, 5]);
    let run = || {
        let setup = Setup { loaded: &loaded, sink: 4, methods: &[], draws: 2, seed: 1 };
        let mut running = super::super::Running::start(&select(&[]).unwrap(), &setup).unwrap();
        let document = loaded.read(0, 0, running.needs()).unwrap();
        running.observe(&document).unwrap();
        running.finish()
    };
    let (first, second) = (run(), run());
    for (one, other) in first.iter().zip(&second) {
        assert_eq!(one.findings, other.findings, "{}", one.analysis.name);
        for table in &one.findings.tables {
            // These prompts have no numbered documents, so the analysis of documents has no rows.
            assert_eq!(table.rows.is_empty(), one.analysis.name == "documents", "{}", table.name);
            for row in &table.rows {
                assert_eq!((row.keys.len(), row.numbers.len()), (table.keys.len(), table.columns.len()));
            }
        }
    }
    let number = |analysis: &str, table: &str, row: usize, column: &str| {
        let found = first.iter().find(|found| found.analysis.name == analysis).unwrap();
        let table = found.findings.tables.iter().find(|t| t.name == table).unwrap();
        table.rows[row].numbers[table.columns.iter().position(|c| c.name == column).unwrap()].unwrap()
    };
    // Exact top-k with 32 to 64 tokens of this context finds all of the top 32, but not all of the top 64.
    assert_eq!(number("recall", "recall", 0, "recall@32"), 1.0);
    assert!(number("recall", "recall", 0, "recall@64") < 1.0);
    // The cosines of each layer with the next, computed directly. The next layer need not be an examined one.
    let document = loaded.read(0, 0, &BTreeSet::new()).unwrap();
    let cosine = |a: &[f32], b: &[f32]| {
        let sum = |a: &[f32], b: &[f32]| -> f64 { (0..a.len()).map(|i| f64::from(a[i]) * f64::from(b[i])).sum() };
        sum(a, b) / (sum(a, a) * sum(b, b)).sqrt()
    };
    let mean = |cosines: Vec<f64>| cosines.iter().sum::<f64>() / cosines.len() as f64;
    for (row, layer) in [0, 5].into_iter().enumerate() {
        let [own, next] = [layer, layer + 1].map(|layer| document.inputs(layer).collect::<Vec<_>>());
        let inputs = mean((0..3).map(|step| cosine(own[step], next[step])).collect());
        let [own, next] = [layer, layer + 1].map(|layer| document.queries(layer));
        let queries = mean((0..3 * 4).map(|at| cosine(&own[at * 64..][..64], &next[at * 64..][..64])).collect());
        assert!((number("layers", "layers", row, "inputs") - inputs).abs() < 1e-6, "{layer}: {inputs}");
        assert!((number("layers", "layers", row, "queries") - queries).abs() < 1e-6, "{layer}: {queries}");
    }
    // A larger budget has a smaller error.
    let errors = [0, 5].map(|row| number("estimation", "estimation", row, "error"));
    assert!(errors[0] > errors[1], "{errors:?}");
}

#[test]
fn what_cannot_be_read_is_said() {
    let tasks = ["ruler/vt".to_owned()];
    let said = |request: Request<'_>| DocumentReader::open(&request).err().unwrap().to_string();
    assert!(said(Request { length: 18, ..request(&tasks, &[]) }).contains("too short for the queries"));
    assert!(said(Request { length: 40_000, ..request(&tasks, &[]) }).contains("beyond the context of builtin"));
    assert_eq!(said(request(&tasks, &[3, 12])), "builtin has no layer 12");
    assert_eq!(layers_of(&[4, 1, 4], 5, "m").unwrap(), [1, 4]);
}
