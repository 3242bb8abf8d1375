// A tree search for the blocks of keys that some queries score highest (HiP, Algorithm 1), a round at a time.
//
// Candidates are cut into blocks, and these into as many chunks as blocks are to be kept. A round halves each chunk into two branches,
// of which the first is empty where the chunk is one block, and scores each branch by one block; whoever finds the largest scores
// keeps as many branches, and they are the next round's chunks.
#include "common.cuh"

constexpr int THREADS = 128, WARPS = THREADS / 32;
// Most queries whose products with a key are summed together.
constexpr int MOST_QUERIES = 8;
// Branches of a block, and those that lanes which hold a row of keys take at a time.
constexpr uint32_t BRANCHES = 64;
constexpr int UNROLL = 2;

// What is searched: blocks of `size` of `tokens` candidates, a key of each `stride` of them scored, the first or the last; and which
// block of a branch stands for it.
struct Tree {
    uint32_t tokens, size, stride, last;
    double representative;
};

// Blocks [first, first + count).
struct Span { uint32_t first, count; };

__device__ __forceinline__ uint32_t blocks_of(const Tree& tree) { return (tree.tokens + tree.size - 1) / tree.size; }

// Branch `i` of the chunks that were kept, or, without any, of all blocks cut into `keep`.
__device__ __forceinline__ Span branch(const Tree& tree, const Span* spans, const uint32_t* kept, uint32_t keep, uint32_t i) {
    const uint64_t blocks = blocks_of(tree), j = i / 2;
    Span chunk;
    if (kept) {
        chunk = spans[kept[j]];
    } else {
        const uint32_t first = (2 * j * blocks + keep) / (2 * keep), end = (2 * (j + 1) * blocks + keep) / (2 * keep);
        chunk = {first, end - first};
    }
    const uint32_t half = chunk.count / 2;
    return i % 2 == 0 ? Span{chunk.first, half} : Span{chunk.first + half, chunk.count - half};
}

// Blocks: branches by 64, lists, rows. A list is of a query head, or, where `shared`, of a KV head with all heads of its group. Spans
// are `[row][list][most]`, what was kept `[row][list][kept_most]`, scores `[row][list][stride]`. A row keeps keeps[row] blocks, all
// if there are no more.
template <typename T, int LANES>
__device__ void branches(const uint32_t* rows, const T* queries, uint64_t row_stride, int group, bool shared, const T* keys,
                         uint64_t head_stride, int d, const Tree& tree, const uint32_t* keeps, const Span* before,
                         const uint32_t* kept, uint32_t kept_most, Span* after, uint32_t most, float* scores, uint64_t stride) {
    constexpr int SLOTS = 32 / LANES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, place = lane % LANES, slot = lane / LANES;
    const uint32_t keep = keeps[blockIdx.z];
    const int count = shared ? group : 1, kv_head = shared ? blockIdx.y : blockIdx.y / group, channel = place * PIECE;
    const int first_head = shared ? blockIdx.y * group : blockIdx.y;
    const uint64_t list = static_cast<uint64_t>(blockIdx.z) * gridDim.y + blockIdx.y;
    const bool holds = channel < d;
    before += list * most, after += list * most;
    const uint32_t* own_kept = kept ? kept + list * kept_most : nullptr;
    float* to = scores + list * stride;
    const T* own_keys = keys + kv_head * head_stride + channel;
    const T* own_queries = queries + rows[blockIdx.z] * row_stride + static_cast<uint64_t>(first_head) * d + channel;
    const bool searches = keep < blocks_of(tree);
    const uint32_t all = searches ? 2 * keep : 0, begin = blockIdx.x * BRANCHES;
    for (uint32_t start = begin; start < min(all, begin + BRANCHES); start += WARPS * SLOTS * UNROLL) {
        Span span[UNROLL];
        uint32_t token[UNROLL], end[UNROLL], wide = 0;
        float top[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const uint32_t i = min(start + (warp * SLOTS + slot) * UNROLL + u, all - 1);
            span[u] = branch(tree, before, own_kept, keep, i);
            top[u] = -CUDART_INF_F;
            const uint32_t length = max(span[u].count, 1u) - 1;
            const uint32_t block = span[u].first + static_cast<uint32_t>(tree.representative * length + 0.5);
            token[u] = block * tree.size, end[u] = min(token[u] + tree.size, tree.tokens);
            wide = max(wide, end[u] - token[u]);
            if (tree.last) token[u] = min(token[u] + tree.stride, end[u]) - 1;
            if (span[u].count == 0) end[u] = token[u];
        }
        // Lanes of one warp look at as many keys as the one with most.
#pragma unroll
        for (int step = LANES; step < 32; step *= 2) wide = max(wide, __shfl_xor_sync(~0u, wide, step));
        for (uint32_t offset = 0; offset < wide; offset += tree.stride) {
            Piece<T> piece[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                const uint32_t key = min(token[u] + offset, tree.tokens - 1);
                if (holds) piece[u] = load_piece(own_keys + static_cast<uint64_t>(key) * d);
            }
            for (int first = 0; first < count; first += MOST_QUERIES) {
                float dots[UNROLL][MOST_QUERIES] = {};
                if (holds) {
                    float key[UNROLL][PIECE];
#pragma unroll
                    for (int u = 0; u < UNROLL; ++u) widen_piece(piece[u], key[u]);
#pragma unroll
                    for (int h = 0; h < MOST_QUERIES; ++h) {
                        if (first + h >= count) break;
                        float q[PIECE];
                        widen(own_queries + static_cast<uint64_t>(first + h) * d, q);
#pragma unroll
                        for (int u = 0; u < UNROLL; ++u)
#pragma unroll
                            for (int c = 0; c < PIECE; ++c) dots[u][h] = fmaf(q[c], key[u][c], dots[u][h]);
                    }
                }
#pragma unroll
                for (int h = 0; h < MOST_QUERIES; ++h) {
                    if (first + h >= count) break;
#pragma unroll
                    for (int u = 0; u < UNROLL; ++u) {
                        float sum = dots[u][h];
#pragma unroll
                        for (int step = LANES / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
                        if (token[u] + offset < end[u]) top[u] = fmaxf(top[u], sum);
                    }
                }
            }
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const uint32_t i = start + (warp * SLOTS + slot) * UNROLL + u;
            if (place == 0 && i < min(all, begin + BRANCHES)) to[i] = top[u], after[i] = span[u];
        }
    }
}

// Blocks: lists, rows. The tokens of the blocks that were kept last, `[row][list][token_most]`, ascending, and how many; all
// candidates where no search was needed. Candidates begin with token `first`.
extern "C" __global__ void __launch_bounds__(1024) found_tokens(const Tree tree, const uint32_t* keeps, const Span* spans, uint32_t most,
                                                                const uint32_t* kept, uint32_t kept_most, uint32_t first,
                                                                uint32_t* tokens, uint32_t token_most, uint32_t* counts) {
    const uint64_t list = static_cast<uint64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
    const uint32_t keep = keeps[blockIdx.y], blocks = blocks_of(tree);
    uint32_t* to = tokens + list * token_most;
    if (keep >= blocks) {
        for (uint32_t i = threadIdx.x; i < tree.tokens; i += blockDim.x) to[i] = first + i;
        if (threadIdx.x == 0) counts[list] = tree.tokens;
        return;
    }
    if (keep == 0 && threadIdx.x == 0) counts[list] = 0;
    spans += list * most, kept += list * kept_most;
    for (uint32_t i = threadIdx.x; i < keep; i += blockDim.x) {
        const uint32_t begin = spans[kept[i]].first * tree.size, end = min(begin + tree.size, tree.tokens);
        for (uint32_t token = begin; token < end; ++token) to[i * tree.size + token - begin] = first + token;
        // Of all blocks only the last can be short, and what comes last is the last.
        if (i == keep - 1) counts[list] = i * tree.size + end - begin;
    }
}

#define SEARCH(T, NAME, LANES)                                                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS) branches_##NAME##_##LANES(                                    \
        const uint32_t* rows, const T* queries, unsigned long long row_stride, int group, int shared, const T* keys,    \
        unsigned long long head_stride, int d, const Tree tree, const uint32_t* keeps, const Span* before,              \
        const uint32_t* kept, uint32_t kept_most, Span* after, uint32_t most, float* scores,                            \
        unsigned long long stride) {                                                                                    \
        branches<T, LANES>(rows, queries, row_stride, group, shared != 0, keys, head_stride, d, tree, keeps, before,    \
                           kept, kept_most, after, most, scores, stride);                                               \
    }

#define WIDTHS(T, NAME) SEARCH(T, NAME, 8) SEARCH(T, NAME, 16) SEARCH(T, NAME, 32)

WIDTHS(float, f32)
WIDTHS(__half, f16)
WIDTHS(__nv_bfloat16, bf16)
