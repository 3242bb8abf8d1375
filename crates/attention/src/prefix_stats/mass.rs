//! The attention mass that each token receives from the queries of the prefix.

use rayon::prelude::*;

use super::piece::Piece;
use crate::calibration::collector::HostChunk;
use crate::kv::KvError;
use crate::types::scores::score_into;
use spattn_kernels::softmax::softmax;

/// The attention mass `[token]` of one query head. Sums are taken block by block: within a block first, then over blocks.
#[derive(Debug, Clone)]
pub(super) struct HeadMass {
    /// The sum over the queries of finished blocks.
    pub(super) closed: Vec<f32>,
    /// The sum over the queries of the block that is not finished; empty if there is none.
    pub(super) open: Vec<f32>,
    /// `closed` plus `open`, where the prefix ends within a block that a longer prefix continues.
    pub(super) both: Option<Vec<f32>>,
}

/// Number of queries whose logits are held at a time.
const MASS_ROWS: usize = 16;

/// Adds the softmax weights of the piece's queries, over the tokens that each one sees, to the mass of each query head.
pub(super) fn add_attention_mass(piece: &Piece<'_>, lengths: &[usize], heads: &mut [HeadMass]) -> Result<(), KvError> {
    // A block is summed on its own first, so that small weights are not lost when added to the mass of a long prefix.
    match piece.chunk.device() {
        Some(device) => {
            let end = piece.tokens.end;
            let mut of_block = vec![0.0; heads.len() * end];
            for (of_block, mass) in of_block.chunks_exact_mut(end).zip(&*heads) {
                of_block[..mass.open.len()].copy_from_slice(&mass.open);
            }
            let added = device.add_attention_mass(piece.tokens.clone(), &mut of_block);
            added.map_err(|failure| piece.chunk.error(failure))?;
            let of_heads = of_block.chunks_exact(end).zip(heads);
            of_heads.for_each(|(of_block, mass)| mass.take(of_block.to_vec(), piece, lengths));
        }
        None => {
            let chunk = piece.chunk.on_host()?;
            heads.par_iter_mut().enumerate().for_each(|(head, mass)| {
                let mut of_block = std::mem::take(&mut mass.open);
                of_block.resize(piece.tokens.end, 0.0);
                add_head_mass(piece, &chunk, head, &mut of_block);
                mass.take(of_block, piece, lengths);
            });
        }
    }
    Ok(())
}

/// Adds the softmax weights of the piece's queries of one query head to `of_block`, on the host.
fn add_head_mass(piece: &Piece<'_>, chunk: &HostChunk<'_>, head: usize, of_block: &mut [f32]) {
    let (d, end, group) = (chunk.d(), piece.tokens.end, piece.group());
    let scale = chunk.scale().factor();
    let keys = chunk.kv().keys.head(head / group);
    let mut logits = vec![0.0; MASS_ROWS * end];
    for begin in piece.tokens.clone().step_by(MASS_ROWS) {
        let tokens = begin..(begin + MASS_ROWS).min(end);
        let visible = tokens.end;
        let scaled: Vec<f32> =
            tokens.clone().flat_map(|t| chunk.query(t - chunk.first, head)).map(|q| q * scale).collect();
        let logits = &mut logits[..tokens.len() * visible];
        score_into(&scaled, keys.slice(0..visible, d), d, logits);
        for (token, logits) in tokens.zip(logits.chunks_exact_mut(visible)) {
            let seen = &mut logits[..token + 1];
            softmax(seen);
            of_block.iter_mut().zip(&*seen).for_each(|(m, w)| *m += w);
        }
    }
}

impl HeadMass {
    /// Takes the sum `of_block` of a block up to the piece's end: adds it to the mass if the block is finished, otherwise keeps it
    /// open.
    fn take(&mut self, of_block: Vec<f32>, piece: &Piece<'_>, lengths: &[usize]) {
        let add = |to: &mut Vec<f32>| to.iter_mut().zip(&of_block).for_each(|(m, w)| *m += w);
        let last = *lengths.last().expect("the prefix has a length");
        if piece.ends_block(last) {
            add(&mut self.closed);
            return;
        }
        if piece.ends_block(lengths[0]) {
            let mut both = self.closed.clone();
            add(&mut both);
            self.both = Some(both);
        }
        self.open = of_block;
    }

    /// The mass `[token]` of the prefix read so far.
    pub(super) fn of_prefix(&self) -> &[f32] {
        self.both.as_ref().unwrap_or(&self.closed)
    }
}
