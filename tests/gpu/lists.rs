//! Lists of tokens on a GPU: uploaded once, counted side by side, and joined with lines; and the queries and votes that they are made from.

use std::collections::BTreeSet;

use spattn::attention::calibration::PrefillChunk;
use spattn::kernels::cuda::{
    BlockLists, BlockShape, Buffer, CountedLists, HostDeviceVec, LayerRule, Pages, Rows, Run, Storage, TokenLists,
    VerticalLines,
};
use spattn::model::device::Device;

use super::golden_model::load;
use super::{
    CUDA, Kv, assert_alike, assert_close, assert_near, cache, dot, fetch, gpu, method, noise, pick_there, run_in_steps,
    scale, scores_like, send, stored,
};

/// Lists of these lengths, with tokens below `end`, ascending, that differ from list to list.
fn lists_of(lengths: &[usize], end: usize, seed: u64) -> Vec<Vec<u32>> {
    let of_list = |(list, count): (usize, &usize)| {
        let draws = noise(end, seed + list as u64);
        let mut order: Vec<u32> = (0..end as u32).collect();
        order.sort_by(|a, b| draws[*a as usize].total_cmp(&draws[*b as usize]));
        order.truncate(*count);
        order.sort_unstable();
        order
    };
    lengths.iter().enumerate().map(of_list).collect()
}

#[test]
#[ignore = "needs a GPU"]
fn uploaded_lists_are_those_of_the_host() {
    let gpu = gpu();
    for lengths in [&[7, 0, 300, 1][..], &[0, 0], &[5], &[1, 1, 1]] {
        let lists = lists_of(lengths, 500, 400);
        let there = TokenLists::upload(&gpu, &lists, 500).unwrap();
        assert_eq!((there.lists(), there.end()), (lists.len(), 500));
        assert_eq!(there.most(), lengths.iter().copied().max().unwrap().max(1), "room for the longest of {lengths:?}");
        assert_eq!(there.expected(), lengths.iter().sum::<usize>().div_ceil(lengths.len()), "the mean of {lengths:?}");
        for (list, expected) in lists.iter().enumerate() {
            assert_eq!(&there.download(&gpu, 0, list).unwrap(), expected, "list {list} of {lengths:?}");
        }
    }
}

#[test]
#[should_panic(expected = "token Some(9) is beyond 9 tokens")]
#[ignore = "needs a GPU"]
fn lists_with_tokens_beyond_the_end_are_not_uploaded() {
    drop(TokenLists::upload(&gpu(), &[vec![3], vec![4, 9]], 9));
}

/// Adds to counters what lists hold: distinct tokens of each KV head, tokens of each query head.
fn count(lists: &[Vec<u32>], (kv_heads, heads): (usize, usize), times: u64, counters: &mut [u64]) {
    let of_kv_head = lists.len() / kv_heads;
    for kv_head in 0..kv_heads {
        let own = &lists[kv_head * of_kv_head..][..of_kv_head];
        counters[kv_head] += times * own.iter().flatten().collect::<BTreeSet<_>>().len() as u64;
        let group = heads / kv_heads;
        for head in 0..group {
            counters[kv_heads + kv_head * group + head] += times * own[head * of_kv_head / group].len() as u64;
        }
    }
}

/// More selections than a launch counts, by KV head or by query head, of one row or of three, with other ranges of tokens.
#[test]
#[ignore = "needs a GPU"]
fn many_selections_are_counted_side_by_side() {
    let gpu = gpu();
    let (kv_heads, heads, offset) = (2, 6, 3);
    let width = kv_heads + heads + 1;
    for selections in [1, 16, 17, 40] {
        let mut host = Vec::new();
        for selection in 0..selections {
            let lengths: Vec<usize> = match selection % 3 {
                0 => vec![selection, 70],
                1 => (0..6).map(|list| 11 * list + selection).collect(),
                _ => vec![0; 6],
            };
            host.push(lists_of(&lengths, 200 + 7 * selection, selection as u64));
        }
        let end = |selection: usize| 200 + 7 * selection;
        let mut there: Vec<TokenLists> = Vec::new();
        for (selection, lists) in host.iter().enumerate() {
            there.push(TokenLists::upload(&gpu, lists, end(selection)).unwrap());
        }
        // One selection of three rows, by KV head.
        let pages = Pages { tokens: 4..1001, size: 16 };
        let of_rows = pick_there(&gpu, &scores_like("noise", 6 * pages.count(), 151), &[9, 63, 62], &pages);
        let counters: Vec<Buffer> =
            (0..selections + 3).map(|_| gpu.upload(&vec![5u64; offset + width]).unwrap()).collect();
        let mut rooms: Vec<HostDeviceVec<u64>> = (0..=selections).map(|_| HostDeviceVec::default()).collect();
        let mut counted = Vec::new();
        for (selection, (lists, workspace)) in there.iter().chain([&of_rows]).zip(&mut rooms).enumerate() {
            let is_last = selection == selections;
            let tokens = if is_last { pages.tokens.clone() } else { 0..end(selection) };
            let counters = match is_last {
                true => (0..3).map(|row| (&counters[selections + row], 1 + row as u64)).collect(),
                false => vec![(&counters[selection], 1 + selection as u64 % 2)],
            };
            counted.push(CountedLists { lists, tokens, counters, workspace });
        }
        gpu.count_all_picks(counted, (kv_heads, heads), offset).unwrap();
        for (number, buffer) in counters.iter().enumerate() {
            let mut found = vec![0u64; offset + width];
            gpu.download(buffer, 0, &mut found).unwrap();
            let mut expected = vec![5u64; offset + width];
            match number.checked_sub(selections) {
                Some(row) => {
                    let own: Vec<Vec<u32>> = (0..2).map(|list| of_rows.download(&gpu, row, list).unwrap()).collect();
                    count(&own, (kv_heads, heads), 1 + row as u64, &mut expected[offset..]);
                }
                None => count(&host[number], (kv_heads, heads), 1 + number as u64 % 2, &mut expected[offset..]),
            }
            assert_eq!(found, expected, "counters {number} of {selections} selections");
        }
    }
}

/// Lists of found tokens and of vertical lines, with and without diagonals, and starts that ascend from row to row.
#[test]
#[ignore = "needs a GPU"]
fn lists_are_joined_with_lines() {
    let gpu = gpu();
    for (rows, first, block_rows, has_found, has_diagonals) in [
        (1, 0, 64, false, true),
        (130, 0, 64, false, false),
        (130, 0, 64, false, true),
        (200, 320, 32, true, true),
        (95, 64, 32, true, false),
        (9000, 0, 64, true, true),
        (300, 40_000, 48, false, true),
    ] {
        let (lists, total) = (3, first + rows);
        let shape = BlockShape { rows, block_rows, lists };
        let what = format!("{rows} rows from {first} on in blocks of {block_rows}, found {has_found}");
        // A search needs a common start of a block's rows; a window moves with each row.
        let start = |row: usize| {
            let position = if has_found { first + row / block_rows * block_rows } else { first + row };
            position.saturating_sub(if has_found { 5 } else { 20 })
        };
        let starts: Vec<u32> = (0..rows).map(|row| start(row) as u32).collect();
        let verticals: Vec<Vec<u32>> = lists_of(&[total.min(60), 0, total.min(400)], total, 410);
        let distances: Vec<Vec<usize>> = lists_of(&[total / 2, total.min(3), 0], total, 420)
            .into_iter()
            .map(|of_list| of_list.into_iter().map(|distance| distance as usize).collect())
            .collect();
        let last_start = |block: usize| start((block * block_rows + block_rows).min(rows) - 1);
        let found_of = |block: usize, list: usize| -> Vec<u32> {
            let end = last_start(block);
            lists_of(&[end.min(30 * (1 + (block + list) % 3))], end.max(1), (430 + block * lists + list) as u64)
                .remove(0)
                .into_iter()
                .filter(|token| (*token as usize) < end)
                .collect()
        };
        let all_found: Vec<Vec<u32>> =
            (0..shape.blocks() * lists).map(|index| found_of(index / lists, index % lists)).collect();
        let most_found = all_found.iter().map(Vec::len).max().unwrap();
        let mut found = BlockLists::default();
        found.resize(&gpu, shape, most_found, starts.clone()).unwrap();
        let runs: Vec<Vec<Run>> = all_found.iter().map(|tokens| Run::of(tokens)).collect();
        found.write(&gpu, &runs.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap();
        let mut lines = VerticalLines::default();
        lines.set(&gpu, &verticals.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap();
        let mut joined = BlockLists::default();
        joined.resize(&gpu, shape, (most_found + 400).min(total), starts).unwrap();
        if has_diagonals {
            let distances: Vec<&[usize]> = distances.iter().map(Vec::as_slice).collect();
            joined.set_diagonals(&gpu, &distances, total - 1).unwrap();
        }
        let mut counters = gpu.upload(&[9u64; 5]).unwrap();
        let with = has_found.then_some(&found);
        gpu.join_lines(first, with, &lines, &mut joined, (&mut counters, 8)).unwrap();
        let mut attended = [9u64; 5];
        for block in 0..shape.blocks() {
            for list in 0..lists {
                let end = last_start(block) as u32;
                let own = if has_found { &all_found[block * lists + list][..] } else { &[] };
                let union: BTreeSet<u32> =
                    verticals[list].iter().chain(own).copied().filter(|token| *token < end).collect();
                let expected: Vec<u32> = union.into_iter().collect();
                let there = joined.download(&gpu, block, list).unwrap();
                assert_eq!(there, expected, "{what}: list {list} of block {block}");
                let diagonals: BTreeSet<usize> =
                    if has_diagonals { distances[list].iter().copied().collect() } else { BTreeSet::new() };
                for row in block * block_rows..(block * block_rows + block_rows).min(rows) {
                    let attends = |token: &&u32| {
                        (**token as usize) < start(row) && !diagonals.contains(&(first + row - **token as usize))
                    };
                    attended[1 + list] += expected.iter().filter(attends).count() as u64;
                }
            }
        }
        let mut counted = [0u64; 5];
        gpu.download(&counters, 0, &mut counted).unwrap();
        assert_eq!(counted, attended, "{what}: attended tokens");
    }
}

#[test]
#[ignore = "needs a GPU"]
fn what_distances_receive_from_a_prompt() {
    let gpu = gpu();
    for storage in [Storage::F16, Storage::Bf16] {
        for (d, group) in [(16, 1), (64, 2), (80, 3), (128, 4), (256, 2)] {
            for (rows, first) in [(1, 0), (2, 61), (63, 1), (64, 500), (129, 77), (200, 300)] {
                let kv_heads = 2;
                let (heads, total, stride) = (kv_heads * group, first + rows, (kv_heads * group + 2 * kv_heads) * d);
                let kv = Kv::new(kv_heads, total, d, 83, storage);
                let buffers = kv.send(&gpu, total + 5, storage);
                let numbers = stored(&noise(rows * stride, 97), storage);
                let mut expected = vec![0.25; heads * total];
                for (row, head) in (0..rows).flat_map(|row| (0..heads).map(move |head| (row, head))) {
                    let query = &numbers[row * stride + head * d..][..d];
                    let logit = |t: usize| dot(query, kv.key(head / group, t)) / (d as f64).sqrt();
                    let weights: Vec<f64> = (0..=first + row).map(|t| logit(t).exp()).collect();
                    let sum: f64 = weights.iter().sum();
                    let by_distance = weights.iter().rev().map(|weight| weight / sum);
                    expected[head * total..].iter_mut().zip(by_distance).for_each(|(mass, weight)| *mass += weight);
                }
                let queries = send(&gpu, &numbers, storage);
                let (rule, scale) = (LayerRule::PLAIN, scale(d));
                let rows_of = Rows { queries: &queries, skip: 0, stride, count: rows, heads, first, scale, rule };
                let cache = cache(&buffers, total + 5, &kv, storage);
                let mut out = send(&gpu, &vec![f32::NAN; rows * heads * d], storage);
                let mut log_sums = send(&gpu, &vec![f32::NAN; rows * heads], Storage::F32);
                gpu.prefill_attention_and_sums(&rows_of, &cache, &mut out, &mut log_sums).unwrap();
                let mut there = gpu.upload(&vec![0.25f32; heads * total]).unwrap();
                gpu.add_distance_mass(&rows_of, &cache, &log_sums, 0..rows, &mut there).unwrap();
                let what = format!("{storage:?} d {d} group {group}, {rows} rows from {first}");
                assert_near(&fetch(&gpu, &there, heads * total, Storage::F32), &expected, 2e-5, &what);
            }
        }
    }
}

/// Returns, for each chunk of a prompt, the queries of some scattered tokens, and the same from all queries.
fn scattered_queries(name: &str) -> Vec<[Vec<f32>; 2]> {
    let g = load(name, CUDA);
    let width = g.decoder.config().heads * g.decoder.config().head_dim;
    let mut seen = Vec::new();
    let mut look = |chunk: &PrefillChunk<'_>| {
        let last = chunk.tokens() as u32 - 1;
        for tokens in [vec![last], vec![last, 0, 3], (0..=last).rev().step_by(2).collect(), vec![2, 2, 1], vec![]] {
            let some = chunk.queries_of(&tokens)?;
            let all = chunk.queries()?;
            let expected = tokens.iter().flat_map(|token| &all[*token as usize * width..][..width]).copied().collect();
            seen.push([some, expected]);
        }
        Ok(())
    };
    g.decoder.prefill_observed(&g.prompt, g.prompt.len(), &mut look).unwrap();
    seen
}

#[test]
#[ignore = "needs a GPU"]
fn queries_of_scattered_tokens_are_gathered() {
    for name in ["llama3", "qwen2"] {
        let seen = scattered_queries(name);
        assert!(seen.iter().any(|[some, _]| some.len() > 1), "{name}: nothing was compared");
        for (number, [some, expected]) in seen.into_iter().enumerate() {
            assert_eq!(some, expected, "{name}, request {number}");
        }
    }
}

/// Layers with a window of their own attend all of it; the others attend what was selected when the sequence started.
#[test]
#[ignore = "needs a GPU"]
fn methods_that_select_once_do_so_beside_layers_with_windows() {
    let specs = ["snapkv:k=30", "expected_attention:k=30", "ada_kv:k=30", "pyramid_kv:k=30"];
    for name in ["gemma3", "olmo3", "qwen2-sliding"] {
        let [cpu, cuda] = [Device::Cpu, CUDA].map(|device| load(name, device));
        let methods: Vec<_> = specs.iter().map(|spec| method(spec)).collect();
        for rows in [1, 30] {
            let of = |golden| run_in_steps(&cuda, golden, &methods, (false, false), (rows, false));
            let ((ours, forks), (expected, others)) = (of(&cuda), of(&cpu));
            for (step, (ours, expected)) in ours.iter().zip(&expected).enumerate() {
                for ((ours, expected), spec) in ours.iter().zip(expected).zip(specs) {
                    assert_close(ours, expected, 2e-3, &format!("{name} {spec}, step {step} of {rows} rows"));
                }
            }
            for ((ours, other), spec) in forks.iter().zip(&others).zip(specs) {
                assert_alike(ours.costs(), other.costs(), &format!("{name} {spec}, {rows} rows"));
            }
        }
    }
}
