use super::*;
use spattn_attention::{SoftmaxScale, expand_grid};

fn sampler(spec: &str) -> Result<Sampler, UsageError> {
    Sampler::new(expand_grid(spec).unwrap().remove(0), &Policy { sink: 2, local: 3, ..Policy::default() })
}

/// Returns a head of random keys and values, with one query at the end.
fn head(tokens: usize, d: usize) -> Head {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let mut draw = |count: usize| (0..count).map(|_| rng.random_range(-2.0f32..2.0)).collect::<Vec<f32>>();
    let (keys, values, vector) = (draw(tokens * d), draw(tokens * d), draw(d));
    let query = Query { head: 0, in_group: 0, step: 0, tokens, vector };
    Head { layer: 0, kv_head: 0, d, scale: SoftmaxScale::inverse_root(d), keys, values, queries: vec![query] }
}

#[test]
fn a_sample_of_everything_is_exact_and_one_of_nothing_is_static() {
    let (head, sampler) = (head(40, 8), sampler("magicpig").unwrap());
    let candidates = sampler.candidates(39);
    assert_eq!(candidates, 2..36);
    let centred = Centred::new(&sampler, &head, candidates.clone());
    let geometry = Geometry::new(&sampler, &head, &head.queries[0], candidates.clone(), &centred);
    let all = geometry.error(&[1.0; 34], &[0.5; 34], 0.0);
    assert!(all < 1e-12, "{all}");
    let none = geometry.error(&[0.0; 34], &[0.5; 34], 0.0);
    let static_only = {
        let weights = softmax(&head.logits(&head.queries[0]));
        let kept: Vec<usize> = (0..2).chain(36..40).collect();
        let mass: f64 = kept.iter().map(|t| weights[*t]).sum();
        let out = head.weighted(kept.iter().map(|t| (*t, weights[*t] / mass)));
        distance(&out, &head.output(&weights)) / norm(&head.output(&weights))
    };
    assert!((none - static_only).abs() < 1e-12 && none > 0.1, "{none} {static_only}");
}

#[test]
fn agreements_are_those_of_centred_keys() {
    let (head, sampler) = (head(40, 8), sampler("magicpig").unwrap());
    let candidates = sampler.candidates(39);
    let centred = Centred::new(&sampler, &head, candidates.clone());
    let geometry = Geometry::new(&sampler, &head, &head.queries[0], candidates.clone(), &centred);
    // The agreement of one token, computed by hand.
    let (token, d) = (7, 8);
    let mean = |c: usize| candidates.clone().map(|t| f64::from(head.key(t)[c])).sum::<f64>() / 34.0;
    let key: Vec<f64> = (0..d).map(|c| f64::from(head.key(token)[c]) - mean(c)).collect();
    let query = wide(&head.queries[0].vector);
    let expected = 1.0 - cosine(&query, &key).acos() / std::f64::consts::PI;
    assert!((geometry.agreements[token - 2] - expected).abs() < 1e-9);
}

#[test]
fn targets_are_read_as_they_are_written() {
    for text in ["density=0.03", "error=0.1"] {
        assert_eq!(text.parse::<Target>().unwrap().to_string(), text);
    }
    for text in ["", "0.1", "density", "density=0", "density=1", "error=x", "error=-1", "cost=0.1", "density=NaN"] {
        assert!(text.parse::<Target>().unwrap_err().hint.is_some(), "{text}");
    }
}

#[test]
fn what_has_no_shape_to_find_is_refused() {
    assert!(sampler("quest").unwrap_err().what.contains("no parameters K and L"));
    assert!(sampler("magicpig:K=9").unwrap_err().what.contains("sets `K` already"));
    assert!(sampler("magicpig:density=0.1").unwrap_err().what.contains("sets `density` already"));
}

fn predicted(bits: usize, density: f64, error: f64, bytes: f64) -> Predicted {
    Predicted { shape: Shape { bits, tables: 100 }, density, error, bytes, table_bits: bits as f64 }
}

#[test]
fn the_cheapest_that_meets_the_target_is_tried_first_and_then_checked() {
    let all = [
        predicted(6, 0.05, 0.10, 50.0),
        predicted(7, 0.04, 0.12, 40.0),
        predicted(8, 0.03, 0.101, 45.0),
        predicted(9, 0.02, 0.30, 10.0),
    ];
    assert_eq!(order(&all, Target::Error(0.15)), [1, 2, 0]);
    assert_eq!(order(&all, Target::Density(0.035)), [2, 3]);
    assert_eq!(order(&all, Target::Density(0.06)), [0, 2, 1, 3], "errors within 2 % leave it to the tables");
    assert_eq!((order(&all, Target::Error(0.05)), nearest(&all, Target::Error(0.05))), (vec![], Some(0)));
    // Three shapes are checked. The answer is the cheapest one whose measured error meets the target.
    let of = |shape: &Shape| vec![[0.03, if shape.bits == 7 { 0.2 } else { 0.14 }], [0.03, 0.14]];
    let checked = check(&all, Target::Error(0.15), |shapes| Ok(shapes.iter().map(of).collect())).unwrap();
    let found: Vec<_> = checked.iter().map(|c| (c.predicted.shape.bits, c.meets)).collect();
    assert_eq!(found, [(7, false), (8, true), (6, true)]);
    assert!((checked[0].error.mean - 0.17).abs() < 1e-12 && checked[0].error.high.unwrap() > 0.2);
    assert_eq!((chosen(&checked, Target::Error(0.15)), chosen(&checked[..1], Target::Error(0.15))), (Some(1), None));
    assert_eq!(chosen(&checked, Target::Density(0.05)), Some(1), "the first of equal errors");
}

#[test]
fn what_was_measured_corrects_what_is_predicted() {
    // Errors are twice the predicted ones: the cheap shapes fail, and then only shapes whose predicted error is at most half the target
    // are tried.
    let all: Vec<Predicted> =
        (4..12).map(|bits| predicted(bits, 0.05, 0.02 * bits as f64, 100.0 - bits as f64)).collect();
    let mut readings = Vec::new();
    let checked = check(&all, Target::Error(0.21), |shapes| {
        readings.push(shapes.iter().map(|shape| shape.bits).collect::<Vec<_>>());
        Ok(shapes.iter().map(|shape| vec![[0.05, 0.04 * shape.bits as f64]]).collect())
    })
    .unwrap();
    assert_eq!(readings, [vec![10, 9, 8], vec![5, 4]]);
    assert_eq!(chosen(&checked, Target::Error(0.21)), Some(3));
    // If no shape meets the target, only the nearest is checked.
    let none = check(&all, Target::Error(0.01), |shapes| Ok(vec![vec![[0.05, 0.08]]; shapes.len()])).unwrap();
    assert_eq!((none.len(), none[0].predicted.shape.bits, none[0].meets), (1, 4, false));
}
