//! What the host needs from the GPU for a step in which it [attends what it selects](spattn_attention::LayerStep::HostAttendsPart): the
//! queries, and the codes that the GPU makes of them.

use super::host::download_wide;
use super::kv::shared;
use super::model::Segment;
use super::workspace::{AskedRoom, Workspace};
use crate::engine::Stream;
use spattn_cuda::{GpuError, Queries};

/// The queries of a stream's rows in host memory.
pub(super) struct Asked {
    /// `[row][heads * d]`; empty if the host also needs keys and values, which are downloaded in whole rows.
    pub(super) queries: Vec<f32>,
    /// The codes that the device made of the queries of each row; empty if the method does not hash on the device.
    pub(super) codes: Vec<Vec<u16>>,
}

impl Segment {
    /// Hashes the queries of streams of which the host attends a part at a layer, and downloads what it needs; `None` for other streams.
    pub(super) fn ask(
        &self,
        workspace: &mut Workspace,
        layer: usize,
        streams: &[Stream<'_>],
    ) -> Result<Vec<Option<Asked>>, GpuError> {
        let mut first = 0;
        let number = |(number, stream): (usize, &Stream<'_>)| {
            let begin = first;
            first += stream.tokens.len();
            stream.fork.attends_part_on_host(layer).then(|| self.ask_stream(workspace, layer, stream, (number, begin)))
        };
        streams.iter().enumerate().map(number).map(Option::transpose).collect()
    }

    /// Does what [`ask`](Self::ask) does for one stream, whose rows begin at `first`.
    fn ask_stream(
        &self,
        workspace: &mut Workspace,
        layer: usize,
        stream: &Stream<'_>,
        (number, first): (usize, usize),
    ) -> Result<Asked, GpuError> {
        let ((width, stacked), count, bytes) = (self.widths(), stream.tokens.len(), self.storage().bytes());
        let Workspace { qkv, scratch, asked, .. } = workspace;
        asked.resize_with(asked.len().max(number + 1), AskedRoom::default);
        let AskedRoom { rows, queries: room } = &mut asked[number];
        let mut codes = Vec::new();
        let builder = stream.fork.method().method.index_builder();
        if let Some(builder) = builder.filter(|builder| builder.fits(self.shape())) {
            rows.set(&self.gpu, (first as u32..(first + count) as u32).collect())?;
            let queries = Queries { queries: qkv, stride: stacked, heads: self.config.heads, rows };
            let cache = shared(stream.fork.prefix()).cache(layer);
            let all = builder.hash_queries(&queries, (&self.gpu, cache), scratch)?;
            codes = all.chunks(all.len().div_ceil(count).max(1)).map(<[u16]>::to_vec).collect();
        }
        codes.resize(count, Vec::new());
        let queries = match (stream.fork.takes_queries_alone(layer), count) {
            (false, _) => Vec::new(),
            (true, 1) => download_wide(&self.gpu, qkv, first * stacked, width, self.storage())?,
            (true, _) => {
                let to = self.gpu.reserved(room, count * width * bytes)?;
                let from = (&*qkv, first * stacked * bytes, stacked * bytes);
                self.gpu.copy_pieces(from, (&mut *to, 0, width * bytes), count, width * bytes)?;
                download_wide(&self.gpu, to, 0, count * width, self.storage())?
            }
        };
        Ok(Asked { queries, codes })
    }
}
