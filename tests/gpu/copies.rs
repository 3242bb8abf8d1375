//! Copies of a model on one GPU share its weights and give the bits that one copy gives.

use spattn::attention::IndexCache;
use spattn::kernels::cpu::topk::argmax;
use spattn::kv::KvDtype;
use spattn::model::decoder::Decoder;
use spattn::model::device::Device;
use spattn::model::engine::Stream;

use super::golden_model::decoder;
use super::several::{assert_same, small_models, tokens};
use super::{CUDA, method};

/// Logits of a text and of some steps after it, in which two methods select.
fn read_and_decode(decoder: &Decoder, text: &[u32]) -> Vec<f32> {
    let prefill = decoder.prefill(text, text.len()).unwrap();
    let (mut next, mut all) = ([argmax(&prefill.logits) as u32; 2], prefill.logits);
    let mut cache = IndexCache::new(prefill.prefix, decoder.dtype(), 0);
    let mut forks = ["quest:k=32", "topk:k=16"].map(|spec| cache.fork(&method(spec), false).unwrap());
    for _ in 0..12 {
        let streams = forks.iter_mut().zip(next.chunks(1));
        let mut streams: Vec<Stream<'_>> = streams.map(|(fork, tokens)| Stream { fork, tokens }).collect();
        let logits = decoder.step(&mut streams, text.len()).unwrap();
        next = [argmax(&logits[0]) as u32, argmax(&logits[1]) as u32];
        all.extend(logits.concat());
    }
    all
}

#[test]
#[ignore = "needs a GPU"]
fn copies_at_work_at_the_same_time_give_what_one_gives() {
    for (name, dimensions, weights) in small_models() {
        let texts: Vec<Vec<u32>> = (0..3).map(|seed| tokens(400 + 100 * seed as usize, seed)).collect();
        let one = Decoder::load(&dimensions, &weights, CUDA).unwrap();
        let expected: Vec<Vec<f32>> = texts.iter().map(|text| read_and_decode(&one, text)).collect();
        let copies = [one.beside().unwrap(), one.beside().unwrap(), one];
        std::thread::scope(|scope| {
            for (first, copy) in copies.iter().enumerate() {
                let (texts, expected) = (&texts, &expected);
                scope.spawn(move || {
                    for turn in 0..6 {
                        let at = (first + turn) % texts.len();
                        let what = format!("{name}: copy {first}, turn {turn}");
                        assert_same(&read_and_decode(copy, &texts[at]), &expected[at], &what);
                    }
                });
            }
        });
        // The copy that loaded the weights is dropped first.
        let [second, _, first] = copies;
        drop(first);
        assert_same(
            &read_and_decode(&second, &texts[0]),
            &expected[0],
            &format!("{name}: weights outlive their loader"),
        );
    }
}

#[test]
#[ignore = "needs a GPU"]
fn a_copy_takes_no_memory_for_weights() {
    let one = decoder("llama3", KvDtype::F32, CUDA);
    let held = |decoder: &Decoder| decoder.gpu_use().unwrap().most_bytes;
    let (weights, copy) = (one.weight_bytes(), one.beside().unwrap());
    assert!(held(&one) >= weights && weights > 100_000, "{} bytes for {weights} of weights", held(&one));
    assert!(held(&copy) < weights / 10, "{} bytes beside {weights} of weights", held(&copy));
    assert!(decoder("llama3", KvDtype::F32, Device::Cpu).beside().is_err(), "a CPU has one copy");
}
