// Candidates of a row that the index of the shared prefix does not hold: the tokens of the tail, and those of the index's last, incomplete
// part. Their keys are gathered, indexed and scored as those of a prefix are; then their scores are joined to those of the prefix.
#include "common.cuh"

struct TailRow {
    // Keys of the row's tail, `[kv_head][capacity][d]`, and 16-byte pieces from one KV head to the next.
    const uint4* keys;
    unsigned long long stride;
    // The first of the candidates, and their number.
    uint32_t first, count;
    // The column of the first of their pages, and the number of pages.
    uint32_t column, pages;
    // A column whose page is always selected; tokens of a page.
    uint32_t open, page;
};

// Blocks: pieces of `room` keys, KV heads, rows. Writes `[kv_head][row][room][pieces]`. A row with fewer keys repeats its last key to the
// end of the last page, and then that page.
extern "C" __global__ void gather_tail(const TailRow* rows, const uint4* prefix, unsigned long long stride, uint32_t prefix_tokens,
                                       uint32_t pieces, uint32_t room, uint4* to) {
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= room * pieces) return;
    const TailRow row = rows[blockIdx.z];
    const uint32_t at = i / pieces, last = row.count > 0 ? row.count - 1 : 0, last_page = last / row.page * row.page;
    const uint32_t token = row.count > 0 ? row.first + (at < row.count ? at : last_page + min(at % row.page, last - last_page)) : 0;
    const bool is_behind = token >= prefix_tokens;
    const uint4* head = is_behind ? row.keys + blockIdx.y * row.stride : prefix + blockIdx.y * stride;
    const uint64_t place = is_behind ? token - prefix_tokens : token;
    to[(static_cast<uint64_t>(blockIdx.y) * gridDim.z + blockIdx.z) * room * pieces + i] = head[place * pieces + i % pieces];
}

// Blocks: lists, rows. Writes the columns of `to` from those of the row's own pages on: the scores of these pages, then -infinity. In
// `from`, the pages of row r begin at r * `room`. Both are `[row][list][stride]`. The open page gets +infinity.
extern "C" __global__ void join_scores(const TailRow* rows, const float* from, unsigned long long from_stride, uint32_t room, float* to,
                                       unsigned long long stride, uint32_t columns) {
    const TailRow row = rows[blockIdx.y];
    const uint64_t list = static_cast<uint64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
    const float* own = from + list * from_stride + static_cast<uint64_t>(blockIdx.y) * room;
    float* all = to + list * stride;
    for (uint32_t i = row.column + threadIdx.x; i < columns; i += blockDim.x) {
        const uint32_t page = i - row.column;
        all[i] = page < row.pages ? own[page] : -CUDART_INF_F;
    }
    __syncthreads();
    if (threadIdx.x == 0 && row.open < columns) all[row.open] = CUDART_INF_F;
}
