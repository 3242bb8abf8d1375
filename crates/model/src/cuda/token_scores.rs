//! Next-token distributions on a GPU, and the scores of tokens under them. Logits stay on the device. The scores have the same bits as
//! those that the host computes from the same logits.

use super::gpus::Cuda;
use super::model::Segment;
use crate::engine::{EngineError, NotFinite};
use crate::token_scores::{Compared, Distributions, PredictingRows, RowLogits, ScoredPart, TokenScore};
use spattn_cuda::{Buffer, NormalizedRows, RowSum};

/// Distributions on the last GPU.
struct DeviceRows {
    logits: Buffer,
    /// `ln Σ exp(logit)` of each row.
    log_z: Vec<f64>,
    /// The most probable token of each row.
    top: Vec<u32>,
}

impl DeviceRows {
    fn normalized(&self, first: usize, rows: usize) -> NormalizedRows<'_> {
        NormalizedRows { logits: &self.logits, first, log_z: &self.log_z[first..first + rows] }
    }

    /// Returns the negative log-likelihood of a token with this logit in row `row`.
    fn nll(&self, row: usize, of_target: f32) -> f64 {
        self.log_z[row] - f64::from(of_target)
    }
}

impl Cuda {
    /// Returns the distributions of rows, kept on the device, with the score of each row's target, compared with itself.
    pub(super) fn distributions_of(
        &self,
        logits: RowLogits,
        rows: PredictingRows<'_>,
    ) -> Result<(Distributions, Vec<TokenScore>), EngineError> {
        let (own, of_targets) = self.device_rows(logits, &[rows])?;
        let itself = Some(Compared { kl: 0.0, same_top: true });
        let score = |(row, of_target): (usize, &f32)| TokenScore { nll: own.nll(row, *of_target), compared: itself };
        let scores = of_targets.iter().enumerate().map(score).collect();
        Ok((Distributions::on_device(own), scores))
    }

    /// Returns the scores of the targets of each part's rows, compared with the part's distributions under `full`. `logits` are those of
    /// all parts.
    pub(super) fn scores_of(
        &self,
        logits: RowLogits,
        parts: &[ScoredPart<'_>],
    ) -> Result<Vec<Vec<TokenScore>>, EngineError> {
        let rows: Vec<PredictingRows<'_>> = parts.iter().map(|(rows, _)| *rows).collect();
        let (own, of_targets) = self.device_rows(logits, &rows)?;
        let (mut first, mut scores) = (0, Vec::with_capacity(parts.len()));
        for (rows, full) in parts {
            let count = rows.targets.len();
            let compared = match full {
                Some(full) if count > 0 => self.last().compared(&own, first, full, count)?,
                _ => vec![None; count],
            };
            let score = |(row, compared)| TokenScore { nll: own.nll(row, of_targets[row]), compared };
            scores.push((first..).zip(compared).map(score).collect());
            first += count;
        }
        Ok(scores)
    }

    /// Returns the distributions of the rows of all parts, and the logit of each row's target.
    fn device_rows(
        &self,
        logits: RowLogits,
        parts: &[PredictingRows<'_>],
    ) -> Result<(DeviceRows, Vec<f32>), EngineError> {
        let logits: Buffer = logits.into_device().expect("what a GPU scores by, it has computed");
        let targets: Vec<u32> = parts.iter().flat_map(|part| part.targets).copied().collect();
        let last = self.last();
        let sums = last.gpu.row_sums(&logits, last.end().1.outputs, &targets)?;
        let positions = parts.iter().flat_map(|part| part.positions);
        let of_row = |(sum, position): (Option<RowSum>, &usize)| sum.ok_or(NotFinite::Logits { position: *position });
        let sums: Vec<RowSum> = sums.into_iter().zip(positions).map(of_row).collect::<Result<_, _>>()?;
        let log_z = sums.iter().map(RowSum::log_sum_exp).collect();
        let top = sums.iter().map(|sum| sum.top).collect();
        Ok((DeviceRows { logits, log_z, top }, sums.iter().map(|sum| sum.of_target).collect()))
    }
}

impl Segment {
    /// Compares rows `first..first + count` of `own` with the rows of `full`.
    fn compared(
        &self,
        own: &DeviceRows,
        first: usize,
        full: &Distributions,
        count: usize,
    ) -> Result<Vec<Option<Compared>>, EngineError> {
        let full: &DeviceRows = full.device().expect("what a GPU compares with, it has made");
        let rows = (full.normalized(0, count), own.normalized(first, count));
        let divergences = self.gpu.row_divergences(rows.0, rows.1, self.end().1.outputs)?;
        let tops = full.top.iter().zip(&own.top[first..]);
        // Rounding errors below 0 count as 0.
        let compared = |(kl, (top, other)): (f64, (&u32, &u32))| Compared { kl: kl.max(0.0), same_top: top == other };
        Ok(divergences.into_iter().zip(tops).map(compared).map(Some).collect())
    }
}
