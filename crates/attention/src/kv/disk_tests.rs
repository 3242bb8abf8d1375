use std::fs::File;
use std::io::{self, ErrorKind};
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

use super::*;
use crate::kv::shape::KvDtype;
use spattn_kernels::Rows;

const SHAPE: KvShape = KvShape { kv_heads: 2, d: 8, dtype: KvDtype::F16 };
/// More than one extent of pages; the last page is not full.
const TOKENS: usize = 70 * PAGE + 5;
const LAYERS: usize = 3;
const MEMORY: usize = 1 << 20;

/// Layers in which every number encodes its place, as far as the type can represent it.
fn layers_of(shape: KvShape, tokens: usize, salt: usize) -> Vec<LayerKv> {
    let row = |layer: usize, token: usize, part: usize| -> Vec<f32> {
        let number =
            |i: usize| ((salt * 7919 + layer * 104_729 + token * 1299 + part * 31 + i * 17) as f32 * 0.37).sin();
        (0..shape.kv_heads * shape.d).map(number).collect()
    };
    let layer = |layer: usize| {
        let mut kv = LayerKv::new(shape.dtype, shape.kv_heads, shape.d, tokens);
        (0..tokens).for_each(|token| kv.append(&row(layer, token, 0), &row(layer, token, 1)));
        kv
    };
    (0..LAYERS).map(layer).collect()
}

/// Adds the tokens of `layers` that are still missing, chunk by chunk and layer by layer.
pub(super) fn add_all(prefill: &mut DiskPrefill, layers: &[LayerKv], chunk: usize) -> Result<(), KvError> {
    let tokens = layers[0].tokens();
    while prefill.tokens() < tokens {
        let (first, end) = (prefill.tokens(), (prefill.tokens() + chunk).min(tokens));
        for (number, own) in layers.iter().enumerate() {
            let kv = prefill.load(number)?;
            assert_eq!(kv.tokens(), first);
            let d = own.keys.d();
            for token in first..end {
                let row = |store: &crate::kv::KvStore| -> Vec<f32> {
                    (0..store.kv_heads())
                        .flat_map(|head| store.head(head).slice(token..token + 1, d).to_f32())
                        .collect()
                };
                kv.append(&row(&own.keys), &row(&own.values));
            }
            prefill.store(number)?;
        }
        prefill.end_chunk(end);
    }
    Ok(())
}

fn bits(rows: Rows<'_>) -> Vec<u32> {
    rows.to_f32().iter().map(|x| x.to_bits()).collect()
}

/// Reads keys and values of tokens of a KV head, as bits.
fn read(kv: &DiskKv, at: KvPlace, tokens: Range<usize>) -> Result<[Vec<u32>; 2], KvError> {
    let mut read = [Vec::new(), Vec::new()];
    kv.scan(at, tokens, &mut |keys, values| {
        read[0].extend(bits(keys));
        read[1].extend(bits(values));
    })?;
    Ok(read)
}

fn assert_holds(kv: &DiskKv, layers: &[LayerKv]) {
    let shape = kv.shape();
    assert_eq!((kv.tokens(), kv.layers()), (layers[0].tokens(), layers.len()));
    for (layer, own) in layers.iter().enumerate() {
        for kv_head in 0..shape.kv_heads {
            let expected = [&own.keys, &own.values].map(|store| bits(store.head(kv_head)));
            let read = read(kv, KvPlace { layer, kv_head }, 0..kv.tokens()).unwrap();
            assert!(read == expected, "layer {layer}, KV head {kv_head}");
        }
    }
}

#[test]
fn what_is_read_has_the_bits_that_were_written_in_every_type_and_chunk_and_under_every_cap() {
    for dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Bf16] {
        let layers = layers_of(KvShape { dtype, ..SHAPE }, TOKENS, 1);
        for (chunk, memory) in [(TOKENS, MEMORY), (64, 1), (PAGE * 64, 20_000), (37, 5000)] {
            let (_, kv) = on_disk(&layers, chunk, memory);
            (0..2).for_each(|_| assert_holds(&kv, &layers));
            let back = Box::new(kv).into_layers().unwrap();
            for (back, layer) in back.iter().zip(&layers) {
                for head in 0..SHAPE.kv_heads {
                    assert_eq!(bits(back.keys.head(head)), bits(layer.keys.head(head)));
                    assert_eq!(bits(back.values.head(head)), bits(layer.values.head(head)));
                }
            }
        }
    }
}

#[test]
fn tokens_come_in_the_order_in_which_they_are_asked_for() {
    let layers = layers_of(SHAPE, TOKENS, 1);
    let (_, kv) = on_disk(&layers, 512, 4000);
    let at = KvPlace { layer: 2, kv_head: 1 };
    let tokens = [0, 1, 17, 3, 1124, 1124, 1024, 1023, 16];
    let mut out = LayerKv::new(SHAPE.dtype, 1, SHAPE.d, 0);
    let fetched = kv.gather(at, &tokens, &mut out).unwrap();
    let expected = |store: &crate::kv::KvStore| -> Vec<u32> {
        let row = |token: &u32| bits(store.head(1).slice(*token as usize..*token as usize + 1, SHAPE.d));
        tokens.iter().flat_map(row).collect()
    };
    assert_eq!(bits(out.keys.head(0)), expected(&layers[2].keys));
    assert_eq!(bits(out.values.head(0)), expected(&layers[2].values));
    // Pages 0, 1, 0, 70, 64, 63, 1: consecutive ones form a run.
    assert_eq!(fetched, Fetched::pages(vec![0..2, 0..1, 70..71, 64..65, 63..64, 1..2]));
    let scanned = kv.scan(at, 15..33, &mut |_, _| {}).unwrap();
    assert_eq!(scanned, Fetched::pages(std::iter::once(0..3).collect()));
    assert_eq!(kv.scan(at, 15..15, &mut |_, _| {}).unwrap(), Fetched::default());
}

/// The next prompt starts like the last one, and diverges within a page.
#[test]
fn a_prefix_that_is_gone_on_with_has_no_page_of_the_one_before() {
    let (before, after) = (layers_of(SHAPE, TOKENS, 1), layers_of(SHAPE, TOKENS + 30, 2));
    for kept in [5, PAGE, 3 * PAGE + 7, 66 * PAGE + 1, TOKENS - 1] {
        // The first tokens of `before`, the rest of `after`.
        let joined: Vec<LayerKv> = before
            .iter()
            .zip(&after)
            .map(|(before, after)| {
                let mut kv = before.clone();
                kv.truncate(kept, TOKENS + 30);
                let row = |store: &crate::kv::KvStore, token: usize| -> Vec<f32> {
                    let of_head = |head| store.head(head).slice(token..token + 1, SHAPE.d).to_f32();
                    (0..SHAPE.kv_heads).flat_map(of_head).collect()
                };
                (kept..TOKENS + 30).for_each(|t| kv.append(&row(&after.keys, t), &row(&after.values, t)));
                kv
            })
            .collect();
        let (tier, kv) = on_disk(&before, 512, MEMORY);
        // All pages are in memory now.
        assert_holds(&kv, &before);
        assert_holds(&kv, &before);
        assert!(tier.used().hits > 0);
        let mut prefill = DiskPrefill::after(kv, kept, TOKENS + 30);
        assert_eq!(prefill.tokens(), kept);
        add_all(&mut prefill, &joined, 512).unwrap();
        assert_holds(&prefill.finish(), &joined);
    }
}

#[test]
fn prefixes_of_one_tier_do_not_see_each_others_pages_and_leave_none_behind() {
    let (one, other) = (layers_of(SHAPE, 300, 1), layers_of(SHAPE, 300, 2));
    let (tier, kv) = on_disk(&one, 300, MEMORY);
    let mut prefill = tier.begin(300).unwrap();
    add_all(&mut prefill, &other, 300).unwrap();
    let second = prefill.finish();
    (0..2).for_each(|_| {
        assert_holds(&kv, &one);
        assert_holds(&second, &other);
    });
    let pages = LAYERS * SHAPE.kv_heads * 300_usize.div_ceil(PAGE);
    assert_eq!(tier.shared.cache.len(), 2 * pages);
    drop(kv);
    assert_eq!(tier.shared.cache.len(), pages);
    drop(second);
    assert_eq!(tier.shared.cache.len(), 0);
}

#[test]
fn the_cap_bounds_the_pages_and_counts_all_that_they_take() {
    let layers = layers_of(SHAPE, TOKENS, 1);
    for memory in [1, 5000, 40_000] {
        let (tier, kv) = on_disk(&layers, 512, memory);
        assert_holds(&kv, &layers);
        let (pages, page) = (tier.shared.cache.len(), PageFile::page_bytes(SHAPE));
        assert!(pages >= 1 && (pages == 1 || pages * page < memory), "{pages} pages in {memory} bytes");
        assert!(pages * 2 * page > memory.min(page), "a page of {page} bytes takes as much again: {pages}");
        assert_eq!(kv.paging().unwrap(), Paging { page_bytes: page as u64, in_memory: pages });
        let need = DiskNeed::new(SHAPE, LAYERS, TOKENS, memory);
        assert_eq!(need.disk as u64, (LAYERS * SHAPE.kv_heads * 71 * page) as u64);
        assert!(need.pages <= memory && need.of_sequence >= 20 * pages, "{need:?}");
    }
    let all = DiskNeed::new(SHAPE, LAYERS, TOKENS, 1 << 30);
    assert!(all.pages > all.disk && all.pages < 2 * all.disk, "no more than there is: {all:?}");
}

#[test]
fn what_was_written_and_read_is_counted() {
    let layers = layers_of(SHAPE, 40 * PAGE, 1);
    let (tier, kv) = on_disk(&layers, 16 * PAGE, MEMORY);
    let (page, heads) = (PageFile::page_bytes(SHAPE) as u64, (LAYERS * SHAPE.kv_heads) as u64);
    let written = DiskUse {
        written: 40 * heads * page,
        read_back: (16 + 32) * heads * page,
        pages: 0,
        hits: 0,
        page_bytes: page,
    };
    assert_eq!(tier.used(), written);
    (0..3).for_each(|_| drop(read(&kv, KvPlace { layer: 0, kv_head: 1 }, 0..50).unwrap()));
    assert_eq!(tier.used(), DiskUse { pages: 12, hits: 8, ..written });
}

// ---- failures ----

/// Bytes in memory whose calls can fail.
#[derive(Debug, Default)]
struct Failing {
    bytes: Mutex<Vec<u8>>,
    calls: [AtomicUsize; 2],
    /// The numbers, from 0, of the read and the write that fail.
    fails: [Option<usize>; 2],
}

impl Failing {
    fn call(&self, kind: usize, error: ErrorKind) -> io::Result<()> {
        let number = self.calls[kind].fetch_add(1, Ordering::Relaxed);
        if self.fails[kind] == Some(number) { Err(error.into()) } else { Ok(()) }
    }
}

impl Storage for Failing {
    fn read_at(&self, bytes: &mut [u8], place: u64) -> io::Result<()> {
        self.call(0, ErrorKind::HostUnreachable)?;
        bytes.copy_from_slice(&self.bytes.lock().unwrap()[place as usize..][..bytes.len()]);
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], place: u64) -> io::Result<()> {
        self.call(1, ErrorKind::StorageFull)?;
        let mut all = self.bytes.lock().unwrap();
        let end = place as usize + bytes.len();
        let length = all.len().max(end);
        all.resize(length, 0);
        all[place as usize..end].copy_from_slice(bytes);
        Ok(())
    }
}

fn filled(storage: Box<dyn Storage>, layers: &[LayerKv]) -> Result<DiskKv, KvError> {
    let tier = DiskTier::new(Path::new("nowhere"), MEMORY, SHAPE, LAYERS);
    let mut prefill = tier.begin_in(storage, layers[0].tokens());
    add_all(&mut prefill, layers, 100)?;
    Ok(prefill.finish())
}

#[test]
fn a_disk_that_is_full_is_an_error_that_names_layer_and_tier() {
    let layers = layers_of(SHAPE, 300, 1);
    // Two KV heads per layer, three layers, three chunks.
    for (write, layer) in [(0, 0), (3, 1), (5, 2), (6, 0), (17, 2)] {
        let failing = Failing { fails: [None, Some(write)], ..Failing::default() };
        let error = filled(Box::new(failing), &layers).unwrap_err();
        let KvError::Unwritten { layer: found, tier: Tier::Disk, why } = &error else { panic!("{error}") };
        assert_eq!(*found, layer, "write {write}");
        assert!(why.contains(&format!(" of KV head {}: ", write % 2)), "{why}");
        assert!(
            error.to_string().starts_with(&format!("the KV cache of layer {layer} could not be written to disk: page"))
        );
    }
    assert!(filled(Box::new(Failing::default()), &layers).is_ok(), "18 writes");
}

#[test]
fn a_folder_that_is_gone_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let tier = DiskTier::new(&folder.path().join("gone"), MEMORY, SHAPE, LAYERS);
    let error = tier.begin(10).unwrap_err();
    let KvError::Unwritten { layer: 0, tier: Tier::Disk, why } = &error else { panic!("{error}") };
    assert!(why.starts_with("no file can be made in ") && why.contains("gone: "), "{why}");
}

#[test]
fn a_page_that_cannot_be_read_is_an_error_while_prompts_are_read_and_after() {
    let layers = layers_of(SHAPE, 300, 1);
    // The first chunk has nothing to read back; each later one reads two KV heads of three layers.
    for (call, layer) in [(0, 0), (3, 1), (10, 2)] {
        let failing = Failing { fails: [Some(call), None], ..Failing::default() };
        let error = filled(Box::new(failing), &layers).unwrap_err();
        assert!(
            matches!(error, KvError::Unread { layer: found, tier: Tier::Disk, .. } if found == layer),
            "{call}: {error}"
        );
    }
    let kv = filled(Box::new(Failing { fails: [Some(14), None], ..Failing::default() }), &layers).unwrap();
    let at = KvPlace { layer: 1, kv_head: 1 };
    let error = read(&kv, at, 0..300).unwrap_err();
    let KvError::Unread { layer: 1, tier: Tier::Disk, why } = error else { panic!("{error}") };
    assert!(why.starts_with("page 2 of KV head 1: "), "{why}");
    assert!(read(&kv, at, 0..300).is_ok(), "what failed is not kept: it is read again");
}

/// An open file of which the test keeps a handle.
fn in_file(layers: &[LayerKv]) -> (DiskKv, File) {
    let file = tempfile::tempfile().unwrap();
    let ours = file.try_clone().unwrap();
    (filled(Box::new(file), layers).unwrap(), ours)
}

#[test]
fn a_file_that_is_cut_off_is_an_error_in_words() {
    let layers = layers_of(SHAPE, TOKENS, 1);
    let (kv, ours) = in_file(&layers);
    let at = |layer, kv_head| KvPlace { layer, kv_head };
    assert!(read(&kv, at(2, 1), 0..TOKENS).is_ok());
    let pages = (EXTENT_PAGES * 5 + 3) as u64;
    ours.set_len(pages * PageFile::page_bytes(SHAPE) as u64 - 1).unwrap();
    // Pages in memory still hold what was written.
    assert!(read(&kv, at(2, 1), 0..TOKENS).is_ok());
    kv.shared.cache.forget(kv.id, 0);
    assert!(read(&kv, at(2, 0), 0..TOKENS).is_err());
    let error = read(&kv, at(2, 1), 0..TOKENS).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the KV cache of layer 2 could not be read from disk: page 2 of KV head 1: the file is shorter than what was written to it"
    );
    assert!(read(&kv, at(2, 1), 0..2 * PAGE).is_ok(), "what is before the end is there");
    let mut prefill = DiskPrefill::after(kv, TOKENS - 1, TOKENS);
    assert!(matches!(prefill.load(2), Err(KvError::Unread { layer: 2, tier: Tier::Disk, .. })));
    assert!(prefill.load(0).is_err(), "its last pages are in the second extent");
}

const EXTENT_PAGES: usize = 64;

#[test]
fn a_byte_that_changed_and_a_page_in_anothers_place_are_errors() {
    let layers = layers_of(SHAPE, 300, 1);
    let (kv, ours) = in_file(&layers);
    let page = PageFile::page_bytes(SHAPE);
    let (at, third) = (KvPlace { layer: 1, kv_head: 0 }, ((EXTENT_PAGES * 2 + 3) * page) as u64);
    let mut bytes = vec![0; page];
    ours.read_at(&mut bytes, third).unwrap();
    for byte in [0, 100, page - 1] {
        let mut changed = bytes.clone();
        changed[byte] ^= 4;
        ours.write_at(&changed, third).unwrap();
        kv.shared.cache.forget(kv.id, 0);
        let error = read(&kv, at, 0..300).unwrap_err();
        assert!(error.to_string().ends_with("page 3 of KV head 0: it is not what was written there"), "{error}");
    }
    ours.write_at(&bytes, third).unwrap();
    assert!(read(&kv, at, 0..300).is_ok());
    kv.shared.cache.forget(kv.id, 0);
    ours.write_at(&bytes, third + page as u64).unwrap();
    let error = read(&kv, at, 0..300).unwrap_err();
    assert!(error.to_string().ends_with("page 4 of KV head 0: it is not what was written there"), "{error}");
}
