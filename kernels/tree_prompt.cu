// Tree search for the key blocks that a prompt's row blocks score highest (HiP, Algorithm 1). One launch does all rounds; tree_search.cu
// does them one by one, for decode steps.
//
// A block of threads searches for one list: for the rows of a block, of one query head or of all heads that share a list. The kept chunks
// and the scores of their branches are in shared memory. A branch's score is the largest product of a sampled row with a sampled key. The
// branches with the `keep` largest scores are kept; among equal ones the first win. A warp scores 16 branches at a time on tensor cores, 16
// rows against 8 branches per product (mma.m16n8k16), and reads each key once for all rows.
//
// Blocks that run at the same time belong to one list, so its keys stay in the second-level cache.
#include "mma.cuh"
#include "ordered.cuh"
#include "tree.cuh"

constexpr int THREADS = 128, WARPS = THREADS / 32;
// Branches of a warp, and rows of a product.
constexpr uint32_t BRANCHES = 16, SAMPLES = 16;
// Padding between the rows in shared memory, so that rows read together lie in different banks.
constexpr int GAP = 32;

// The candidates of a row block: `tokens` of them from `begin` on; `keep` key blocks are kept.
struct Searched { uint32_t begin, tokens, keep; };

// Which rows of a block of `rows` are sampled: of every `stride` rows, the first or the last.
struct Sampling {
    uint32_t rows, stride, last;

    __device__ __forceinline__ uint32_t first(uint32_t here) const { return last ? min(stride, here) - 1 : 0; }
    __device__ __forceinline__ uint32_t count(uint32_t here) const { return (here - first(here) + stride - 1) / stride; }
};

// How many words are at least `bound`, returned to every thread. `counts` has room for one number per warp; no thread may still read its
// old content.
__device__ __forceinline__ uint32_t count_from(const uint32_t* words, uint32_t all, uint32_t bound, uint32_t* counts) {
    uint32_t count = 0;
    for (uint32_t i = threadIdx.x; i < all; i += THREADS) count += words[i] >= bound;
    count = __reduce_add_sync(~0u, count);
    if (threadIdx.x % 32 == 0) counts[threadIdx.x / 32] = count;
    __syncthreads();
    uint32_t sum = 0;
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) sum += counts[warp];
    return sum;
}

// Keeps the branches with the `keep` largest words, in order, as chunks. Returns whether one of them is longer than a block.
__device__ bool keep_largest(const uint32_t* words, uint32_t keep, const Span* chunks, Span* kept, uint32_t (&counts)[2][WARPS]) {
    const uint32_t all = 2 * keep, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // The largest bound that at least `keep` words reach, found from its highest bit down.
    uint32_t bound = 0, reach = all;
    int turn = 0;
    for (uint32_t bit = 1u << 31; bit > 0 && reach > keep; bit >>= 1, turn ^= 1) {
        const uint32_t count = count_from(words, all, bound | bit, counts[turn]);
        if (count >= keep) bound |= bit, reach = count;
    }
    // Without ties, all words that reach it are kept; with ties, those above it and the first equal ones.
    const bool ties = reach > keep;
    uint32_t above = ties ? count_from(words, all, bound + 1, counts[turn]) : 0;
    const uint32_t left = ties ? keep - above : 0;
    turn ^= ties;
    uint32_t larger = 0, equal = 0;
    bool is_long = false;
    for (uint32_t start = 0; start < all; start += THREADS, turn ^= 1) {
        const uint32_t i = start + threadIdx.x, word = i < all ? words[i] : 0;
        const bool is_larger = i < all && (ties ? word > bound : word >= bound), is_equal = i < all && ties && word == bound;
        const uint32_t who_larger = __ballot_sync(~0u, is_larger), who_equal = __ballot_sync(~0u, is_equal);
        if (lane == 0) counts[turn][warp] = __popc(who_larger) << 16 | __popc(who_equal);
        __syncthreads();
        uint32_t before = 0, total = 0;
#pragma unroll
        for (uint32_t w = 0; w < WARPS; ++w) {
            before += w < warp ? counts[turn][w] : 0;
            total += counts[turn][w];
        }
        const uint32_t below = (1u << lane) - 1;
        const uint32_t own_larger = larger + (before >> 16) + __popc(who_larger & below);
        const uint32_t own_equal = equal + (before & 0xffffu) + __popc(who_equal & below);
        if (is_larger || is_equal && own_equal < left) {
            const Span span = half_of(chunks[i / 2], i);
            kept[own_larger + min(own_equal, left)] = span;
            is_long |= span.count > 1;
        }
        larger += total >> 16, equal += total & 0xffffu;
    }
    return __syncthreads_or(is_long);
}

// Scores the branches of all chunks, as words that sort as the scores do; 0 for an empty branch. Returns the number of keys that this
// thread counted.
template <typename T, int D>
__device__ uint32_t score(const Tree& tree, const Span* chunks, uint32_t all, const T* queries, uint32_t query_tiles, const T* keys,
                          uint32_t* words) {
    constexpr int PIECES = D / 32, STRIDE = D + GAP;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    Halves q[2][PIECES];
    auto load_rows = [&](uint32_t tile) {
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int c = 0; c < PIECES; ++c)
                q[h][c] = *reinterpret_cast<const Halves*>(queries + (tile * SAMPLES + g + 8 * h) * STRIDE + (c * 4 + t) * PIECE);
    };
    load_rows(0);
    uint32_t counted = 0;
    for (uint32_t start = warp * BRANCHES; start < all; start += WARPS * BRANCHES) {
        const uint32_t own = min(start + lane % BRANCHES, all - 1);
        const Span span = half_of(chunks[own / 2], own);
        uint32_t token = representative_of(tree, span) * tree.size, end = min(token + tree.size, tree.tokens), wide = end - token;
        if (tree.last) token = min(token + tree.stride, end) - 1;
        if (span.count == 0) end = token;
        if (lane < BRANCHES && start + lane < all) counted += keys_of(token, end, tree.stride);
        const uint32_t empty = __ballot_sync(~0u, span.count == 0);
        wide = __reduce_max_sync(~0u, wide);
        // Branches 8j + 2t and 8j + 2t + 1, against rows g and g + 8.
        float top[2][2] = {{-CUDART_INF_F, -CUDART_INF_F}, {-CUDART_INF_F, -CUDART_INF_F}};
        for (uint32_t offset = 0; offset < wide; offset += tree.stride) {
            const uint32_t key = min(token + offset, tree.tokens - 1);
            const uint32_t counts = __ballot_sync(~0u, token + offset < end);
            Halves piece[2][PIECES];
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const T* from = keys + static_cast<uint64_t>(__shfl_sync(~0u, key, 8 * j + g)) * D;
#pragma unroll
                for (int c = 0; c < PIECES; ++c) piece[j][c] = *reinterpret_cast<const Halves*>(from + (c * 4 + t) * PIECE);
            }
            for (uint32_t tile = 0; tile < query_tiles; ++tile) {
                if (query_tiles > 1) load_rows(tile);
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    float products[4] = {};
#pragma unroll
                    for (int c = 0; c < PIECES; ++c)
#pragma unroll
                        for (int half = 0; half < 4; half += 2)
                            multiply<T>(products, q[0][c].words[half], q[1][c].words[half], q[0][c].words[half + 1],
                                        q[1][c].words[half + 1], piece[j][c].words[half], piece[j][c].words[half + 1]);
#pragma unroll
                    for (int i = 0; i < 2; ++i)
                        if (counts >> (8 * j + 2 * t + i) & 1)
                            top[j][i] = fmaxf(top[j][i], fmaxf(products[i], products[i + 2]));
                }
            }
        }
#pragma unroll
        for (int j = 0; j < 2; ++j)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                float x = top[j][i];
#pragma unroll
                for (int step = 4; step < 32; step *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
                const uint32_t at = 8 * j + 2 * t + i;
                if (g == 0 && start + at < all) words[start + at] = empty >> at & 1 ? 0 : ordered(x);
            }
    }
    return counted;
}

// Blocks: blocks of rows, lists. Queries are `[row][q_stride]`, head h at h * D; keys are `[kv_head][capacity][D]`, heads `kv_stride`
// apart. Lists are `[block][list][most]`: the tokens before the candidates, then those found, ascending; counts are `[block][list]`. Adds
// to the counters `[list][2]` the number of products computed, and the number of listed tokens times the rows that see them. `kept_most` is
// the most key blocks that a search keeps; `sample_tiles` the most tiles of 16 rows that are sampled for a list.
template <typename T, int D>
__device__ void search(const T* queries, uint32_t q_stride, uint32_t rows, uint32_t heads, const T* keys, uint64_t kv_stride,
                       uint32_t kv_heads, Tree tree, const Sampling& sampling, const Searched* searched, uint32_t kept_most,
                       uint32_t sample_tiles, uint32_t* tokens, uint32_t most, uint32_t* counts, unsigned long long* counters) {
    constexpr int STRIDE = D + GAP;
    extern __shared__ __align__(16) uint8_t shared_raw[];
    __shared__ uint32_t sums[2][WARPS];
    T* sampled = reinterpret_cast<T*>(shared_raw);
    Span* chunks = reinterpret_cast<Span*>(shared_raw + sample_tiles * SAMPLES * STRIDE * sizeof(T));
    Span* others = chunks + kept_most;
    uint32_t* words = reinterpret_cast<uint32_t*>(others + kept_most);
    const uint32_t block = blockIdx.x, list = blockIdx.y, lists = gridDim.y, sharing = heads / lists, head = list * sharing;
    const Searched own = searched[block];
    const uint32_t base = block * sampling.rows, here = min(sampling.rows, rows - base);
    const size_t index = static_cast<size_t>(block) * lists + list;
    uint32_t* to = tokens + index * most;
    tree.tokens = own.tokens;
    const uint32_t blocks = blocks_of(tree), keep = own.keep;
    const bool searches = 0 < keep && keep < blocks;
    const uint32_t front = own.begin + (keep >= blocks ? own.tokens : 0);
    for (uint32_t i = threadIdx.x; i < front; i += THREADS) to[i] = i;
    const uint32_t first = sampling.first(here), of_head = sampling.count(here), samples = of_head * sharing;
    uint32_t count = front, counted = 0;
    if (searches) {
        // The last tile is padded with the last row.
        const uint32_t query_tiles = (samples + SAMPLES - 1) / SAMPLES;
        for (uint32_t i = threadIdx.x; i < query_tiles * SAMPLES * (D / PIECE); i += THREADS) {
            const uint32_t sample = min(i / (D / PIECE), samples - 1), channel = i % (D / PIECE) * PIECE;
            const uint32_t row = base + first + sample % of_head * sampling.stride;
            const T* from = queries + static_cast<size_t>(row) * q_stride + (head + sample / of_head) * D + channel;
            *reinterpret_cast<Halves*>(sampled + i / (D / PIECE) * STRIDE + channel) = *reinterpret_cast<const Halves*>(from);
        }
        for (uint32_t j = threadIdx.x; j < keep; j += THREADS) {
            const uint32_t begin = chunk_bound(tree, keep, j);
            chunks[j] = Span{begin, chunk_bound(tree, keep, j + 1) - begin};
        }
        __syncthreads();
        const T* own_keys = keys + head / (heads / kv_heads) * kv_stride + static_cast<uint64_t>(own.begin) * D;
        // There are more blocks than chunks, so one chunk is longer than a block.
        for (bool is_long = true; is_long;) {
            counted += score<T, D>(tree, chunks, 2 * keep, sampled, query_tiles, own_keys, words);
            __syncthreads();
            is_long = keep_largest(words, keep, chunks, others, sums);
            Span* const swapped = chunks;
            chunks = others, others = swapped;
        }
        // Only the last of all blocks can be short, and if it was found, it is last in the list.
        const Span last = chunks[keep - 1];
        count = front + (keep - 1) * tree.size + min(tree.size, own.tokens - last.first * tree.size);
        for (uint32_t j = threadIdx.x; j < keep; j += THREADS) {
            const uint32_t begin = chunks[j].first * tree.size, end = min(begin + tree.size, own.tokens);
            for (uint32_t token = begin; token < end; ++token) to[front + j * tree.size + token - begin] = own.begin + token;
        }
    }
    counted = __reduce_add_sync(~0u, counted);
    if (threadIdx.x % 32 == 0 && counted > 0) atomicAdd(counters + 2 * list, static_cast<unsigned long long>(counted) * samples);
    if (threadIdx.x == 0) {
        counts[index] = count;
        atomicAdd(counters + 2 * list + 1, static_cast<unsigned long long>(count) * here);
    }
}

#define SEARCH(T, NAME, D)                                                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS, 4) search_prompt_##NAME##_##D(                                \
        const T* queries, uint32_t q_stride, uint32_t rows, uint32_t heads, const T* keys,                              \
        unsigned long long kv_stride, uint32_t kv_heads, const Tree tree, const Sampling sampling,                      \
        const Searched* searched, uint32_t kept_most, uint32_t sample_tiles, uint32_t* tokens, uint32_t most,           \
        uint32_t* counts, unsigned long long* counters) {                                                               \
        search<T, D>(queries, q_stride, rows, heads, keys, kv_stride, kv_heads, tree, sampling, searched, kept_most,    \
                     sample_tiles, tokens, most, counts, counters);                                                     \
    }

SEARCH(__half, f16, 64)
SEARCH(__half, f16, 128)
SEARCH(__nv_bfloat16, bf16, 64)
SEARCH(__nv_bfloat16, bf16, 128)
