// Tree search for the key blocks that some queries score highest (HiP, Algorithm 1), one round per launch.
//
// Candidates are cut into blocks, and blocks into as many chunks as are to be kept. A round halves each chunk into two branches (the first
// is empty if the chunk is one block) and scores each branch by one of its blocks. A top-k kernel then keeps as many branches as there were
// chunks; these are the next round's chunks.
//
// If the prefix is in host memory, keys can be read through a cache in device memory.
#include "common.cuh"
#include "key_cache.cuh"
#include "mma.cuh"
#include "tree.cuh"

constexpr int THREADS = 128, WARPS = THREADS / 32;
// The most queries whose products with a key are summed together.
constexpr int MOST_QUERIES = 8;
// Branches of a block, and branches that the lanes which hold a key process at a time.
constexpr uint32_t BRANCHES = 64;
constexpr int UNROLL = 2;
// Marks a round's count of keys.
constexpr uint32_t MARK = 1u << 31;

// The candidates of a row if some follow the prefix: how many, and the keys `[kv_head][stride]` of the row's tail.
struct TreeRow {
    const void* keys;
    unsigned long long stride;
    uint32_t tokens, unused;
};

// Candidates from `bound` on follow the prefix; without rows, none do.
struct Behind {
    const TreeRow* rows;
    uint32_t bound;
};

// The tree of a row.
__device__ __forceinline__ Tree tree_of(const Tree& tree, const Behind& behind, uint32_t row) {
    Tree own = tree;
    if (behind.rows) own.tokens = behind.rows[row].tokens;
    return own;
}

// Keys of a KV head, of the prefix and of a row's own sequence.
template <typename T>
struct Keys {
    const T* prefix;
    const T* tail;
    uint32_t bound;

    __device__ __forceinline__ Keys(const T* keys, uint64_t head_stride, const Behind& behind, uint32_t row, int kv_head)
        : prefix(keys + kv_head * head_stride), tail(nullptr), bound(~0u) {
        if (!behind.rows) return;
        tail = static_cast<const T*>(behind.rows[row].keys) + kv_head * behind.rows[row].stride;
        bound = behind.bound;
    }

    __device__ __forceinline__ const T* of(uint32_t key, int d) const {
        return key < bound ? prefix + static_cast<uint64_t>(key) * d : tail + static_cast<uint64_t>(key - bound) * d;
    }
};

// Reads keys, through a cache if `CACHED`.
template <typename T, bool CACHED> struct Reader {
    __device__ __forceinline__ Reader(const Keys<T>&, const KeyCache&, uint64_t, uint32_t, int) {}
};

template <typename T> struct Reader<T, true> {
    const Keys<T>& keys;
    CachedKeys<T> cached;

    __device__ __forceinline__ Reader(const Keys<T>& keys, const KeyCache& cache, uint64_t kv_head, uint32_t round, int d)
        : keys(keys), cached(cache, kv_head, round, d) {}

    // Where a key is if it `counts`; nowhere otherwise.
    __device__ __forceinline__ KeyPlace<T> place(uint32_t key, bool counts) const {
        if (!counts) return {nullptr, nullptr, false};
        const T* from = keys.of(key, cached.d);
        return key < keys.bound ? cached.look_up(key, from) : KeyPlace<T>{from, nullptr, false};
    }
};

// Branch `i` of the kept chunks; in the first round, where `kept` is null, of all blocks cut into `keep` chunks.
__device__ __forceinline__ Span branch(const Tree& tree, const Span* spans, const uint32_t* kept, uint32_t keep, uint32_t i) {
    const uint32_t j = i / 2;
    if (kept) return half_of(spans[kept[j]], i);
    const uint32_t first = chunk_bound(tree, keep, j);
    return half_of(Span{first, chunk_bound(tree, keep, j + 1) - first}, i);
}

// Rows that keep fewer blocks have fewer branches: the rest gets -infinity, so it is never selected.
__device__ __forceinline__ void leave_out(uint32_t all, uint32_t most, float* scores) {
    const uint32_t i = blockIdx.x * BRANCHES + threadIdx.x;
    if (threadIdx.x < BRANCHES && i >= all && i < most) scores[i] = -CUDART_INF_F;
}

// Whether branch `i` shows that its chunk is longer than a block.
__device__ __forceinline__ bool divides(const Span& span, uint32_t i) { return span.count > (i % 2 == 0 ? 0 : 1); }

// Adds the keys that a warp's lanes counted to the round's count, and marks it if a chunk was longer than a block. Otherwise this list's
// search is over, and the round runs for other lists.
__device__ __forceinline__ void add_up(uint32_t counted, bool is_long, uint32_t* sum) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) counted += __shfl_xor_sync(~0u, counted, step);
    const bool marks = __any_sync(~0u, is_long);
    if (threadIdx.x % 32 != 0) return;
    if (counted > 0) atomicAdd(sum, counted);
    if (marks) atomicOr(sum, MARK);
}

// Adds the keys that a warp's lanes found in a cache to the round's count.
__device__ __forceinline__ void add_found(uint32_t found, uint32_t* sum) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) found += __shfl_xor_sync(~0u, found, step);
    if (threadIdx.x % 32 == 0 && found > 0) atomicAdd(sum, found);
}

// Blocks: 64 branches, lists, rows. A list is for a query head or, if `shared`, for a KV head with all heads of its group. Spans are
// `[row][list][most]`, the kept branches `[row][list][kept_most]`, scores `[row][list][stride]`. A row keeps keeps[row] blocks, or all if
// there are no more. The number of scored keys is added to `scored` `[row][list][ROUNDS]`, which begins at this round. If `CACHED`, keys of the
// prefix are read through `cache` in round `round`, and the number of those found there is added to `found`, which is like `scored`.
template <typename T, int LANES, bool CACHED>
__device__ void branches(const uint32_t* rows, const T* queries, uint64_t row_stride, int group, bool shared, const T* keys,
                         uint64_t head_stride, int d, const Tree& shared_tree, const Behind& behind, const uint32_t* keeps,
                         const Span* before, const uint32_t* kept, uint32_t kept_most, Span* after, uint32_t most, float* scores,
                         uint64_t stride, uint32_t* scored, const KeyCache& cache, uint32_t round, uint32_t* found) {
    constexpr int SLOTS = 32 / LANES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, place = lane % LANES, slot = lane / LANES;
    const Tree tree = tree_of(shared_tree, behind, blockIdx.z);
    const uint32_t keep = keeps[blockIdx.z];
    const int count = shared ? group : 1, kv_head = shared ? blockIdx.y : blockIdx.y / group, channel = place * PIECE;
    const int first_head = shared ? blockIdx.y * group : blockIdx.y;
    const uint64_t list = static_cast<uint64_t>(blockIdx.z) * gridDim.y + blockIdx.y;
    const bool holds = channel < d;
    before += list * most, after += list * most;
    const uint32_t* own_kept = kept ? kept + list * kept_most : nullptr;
    float* to = scores + list * stride;
    const Keys<T> own_keys(keys, head_stride, behind, blockIdx.z, kv_head);
    const Reader<T, CACHED> reader(own_keys, cache, kv_head, round, d);
    const T* own_queries = queries + rows[blockIdx.z] * row_stride + static_cast<uint64_t>(first_head) * d + channel;
    const bool searches = keep < blocks_of(tree);
    const uint32_t all = searches ? 2 * keep : 0, begin = blockIdx.x * BRANCHES;
    leave_out(all, most, to);
    uint32_t counted = 0, found_here = 0;
    bool is_long = false;
    for (uint32_t start = begin; start < min(all, begin + BRANCHES); start += WARPS * SLOTS * UNROLL) {
        Span span[UNROLL];
        uint32_t token[UNROLL], end[UNROLL], wide = 0;
        float top[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const uint32_t i = min(start + (warp * SLOTS + slot) * UNROLL + u, all - 1);
            span[u] = branch(tree, before, own_kept, keep, i);
            top[u] = -CUDART_INF_F;
            const uint32_t block = representative_of(tree, span[u]);
            token[u] = block * tree.size, end[u] = min(token[u] + tree.size, tree.tokens);
            wide = max(wide, end[u] - token[u]);
            if (tree.last) token[u] = min(token[u] + tree.stride, end[u]) - 1;
            if (span[u].count == 0) end[u] = token[u];
            // Lanes beyond the last branch repeat it, and must not look up its keys again.
            if (CACHED && start + (warp * SLOTS + slot) * UNROLL + u >= min(all, begin + BRANCHES)) end[u] = token[u];
        }
        // All lanes of a warp loop as often as the one with most keys.
#pragma unroll
        for (int step = LANES; step < 32; step *= 2) wide = max(wide, __shfl_xor_sync(~0u, wide, step));
        for (uint32_t offset = 0; offset < wide; offset += tree.stride) {
            Piece<T> piece[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                const uint32_t key = min(token[u] + offset, tree.tokens - 1);
                if constexpr (CACHED) {
                    const KeyPlace<T> own = reader.place(key, place == 0 && token[u] + offset < end[u]);
                    const T* from = of_lane(own.from, slot * LANES);
                    T* to = of_lane(own.to, slot * LANES);
                    found_here += own.is_found;
                    piece[u] = Piece<T>{};
                    if (holds && from) piece[u] = load_piece(from + channel);
                    if (holds && to) *reinterpret_cast<Piece<T>*>(to + channel) = piece[u];
                } else {
                    if (holds) piece[u] = load_piece(own_keys.of(key, d) + channel);
                }
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
            if (place != 0 || i >= min(all, begin + BRANCHES)) continue;
            to[i] = top[u], after[i] = span[u];
            counted += keys_of(token[u], end[u], tree.stride);
            is_long |= divides(span[u], i);
        }
    }
    add_up(counted, is_long, scored + list * ROUNDS);
    if constexpr (CACHED) add_found(found_here, found + list * ROUNDS);
}

// Branches of a warp on tensor cores.
constexpr uint32_t TILE = 16;

// As `branches`, for 16-bit keys, heads 64 or 128 wide, and up to 16 queries in a list. Lane i below 16 holds branch i of a warp. Lane 4g +
// t reads the keys of two of them, 16 bytes at a time, and gets the scores of queries g and g + 8.
template <typename T, int D, bool CACHED>
__device__ void branches_tiles(const uint32_t* rows, const T* queries, uint64_t row_stride, int group, bool shared, const T* keys,
                               uint64_t head_stride, const Tree& shared_tree, const Behind& behind, const uint32_t* keeps,
                               const Span* before, const uint32_t* kept, uint32_t kept_most, Span* after, uint32_t most,
                               float* scores, uint64_t stride, uint32_t* scored, const KeyCache& cache, uint32_t round,
                               uint32_t* found) {
    constexpr int PIECES = D / 32;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const Tree tree = tree_of(shared_tree, behind, blockIdx.z);
    const uint32_t keep = keeps[blockIdx.z];
    const int count = shared ? group : 1, kv_head = shared ? blockIdx.y : blockIdx.y / group;
    const int first_head = shared ? blockIdx.y * group : blockIdx.y;
    const uint64_t list = static_cast<uint64_t>(blockIdx.z) * gridDim.y + blockIdx.y;
    const uint32_t all = keep < blocks_of(tree) ? 2 * keep : 0, start = blockIdx.x * BRANCHES + warp * TILE;
    leave_out(all, most, scores + list * stride);
    if (start >= all) return;
    const uint32_t own = min(start + lane % TILE, all - 1);
    const Span span = branch(tree, before + list * most, kept ? kept + list * kept_most : nullptr, keep, own);
    const uint32_t block = representative_of(tree, span);
    uint32_t token = block * tree.size, end = min(token + tree.size, tree.tokens), wide = end - token;
    if (tree.last) token = min(token + tree.stride, end) - 1;
    if (span.count == 0) end = token;
    const bool is_own = lane < TILE && start + lane < all;
    add_up(is_own ? keys_of(token, end, tree.stride) : 0, is_own && divides(span, own), scored + list * ROUNDS);
#pragma unroll
    for (int step = 1; step < 16; step *= 2) wide = max(wide, __shfl_xor_sync(~0u, wide, step));
    const T* own_queries = queries + rows[blockIdx.z] * row_stride + static_cast<uint64_t>(first_head) * D;
    Halves q[2][PIECES];
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int c = 0; c < PIECES; ++c)
            q[h][c] = g + 8 * h < count ? *reinterpret_cast<const Halves*>(own_queries + (g + 8 * h) * D + (c * 4 + t) * PIECE)
                                        : Halves{0, 0, 0, 0};
    const Keys<T> own_keys(keys, head_stride, behind, blockIdx.z, kv_head);
    const Reader<T, CACHED> reader(own_keys, cache, kv_head, round, D);
    uint32_t found_here = 0;
    // Branches 8j + 2t and 8j + 2t + 1.
    float top[2][2] = {{-CUDART_INF_F, -CUDART_INF_F}, {-CUDART_INF_F, -CUDART_INF_F}};
    for (uint32_t offset = 0; offset < wide; offset += tree.stride) {
        const uint32_t key = min(token + offset, tree.tokens - 1);
        const bool counts = token + offset < end;
        Halves piece[2][PIECES];
        if constexpr (CACHED) {
            const KeyPlace<T> own = reader.place(key, is_own && counts);
            found_here += own.is_found;
            T* to[2];
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const T* from = of_lane(own.from, 8 * j + g);
                to[j] = of_lane(own.to, 8 * j + g);
#pragma unroll
                for (int c = 0; c < PIECES; ++c)
                    piece[j][c] = from ? load_once(from + (c * 4 + t) * PIECE) : Halves{0, 0, 0, 0};
            }
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                if (!to[j]) continue;
#pragma unroll
                for (int c = 0; c < PIECES; ++c) *reinterpret_cast<Halves*>(to[j] + (c * 4 + t) * PIECE) = piece[j][c];
            }
        } else {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const T* from = own_keys.of(__shfl_sync(~0u, key, 8 * j + g), D);
#pragma unroll
                for (int c = 0; c < PIECES; ++c) piece[j][c] = load_once(from + (c * 4 + t) * PIECE);
            }
        }
        const uint32_t counted = __ballot_sync(~0u, counts);
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
            for (int i = 0; i < 2; ++i) {
                float x = fmaxf(g < count ? products[i] : -CUDART_INF_F, g + 8 < count ? products[i + 2] : -CUDART_INF_F);
#pragma unroll
                for (int step = 4; step < 32; step *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
                if (counted >> (8 * j + 2 * t + i) & 1) top[j][i] = fmaxf(top[j][i], x);
            }
        }
    }
    if (g == 0) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const uint32_t i = start + 8 * j + 2 * t;
            // The number of branches is even.
            if (i < all) *reinterpret_cast<float2*>(scores + list * stride + i) = make_float2(top[j][0], top[j][1]);
        }
    }
    if (lane < TILE && start + lane < all) after[list * most + start + lane] = span;
    if constexpr (CACHED) add_found(found_here, found + list * ROUNDS);
}

// Blocks: lists, rows. Writes the tokens of the blocks kept last, `[row][list][token_most]`, ascending, and their number; all candidates if
// no search was needed. Candidates begin with token `first`. Sums the keys `scored` in marked rounds into `entries`, and clears `scored`. If
// there is a cache, adds the keys `found` in those rounds to `hits` of the list's KV head, each of which has `lists_each` lists, and clears
// `found`.
extern "C" __global__ void __launch_bounds__(1024) found_tokens(const Tree shared_tree, const Behind behind, const uint32_t* keeps,
                                                                const Span* spans, uint32_t most, const uint32_t* kept,
                                                                uint32_t kept_most, uint32_t first, uint32_t* tokens,
                                                                uint32_t token_most, uint32_t* counts, uint32_t* scored,
                                                                uint32_t* entries, uint32_t* found,
                                                                unsigned long long* hits, uint32_t lists_each) {
    const uint64_t list = static_cast<uint64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
    const Tree tree = tree_of(shared_tree, behind, blockIdx.y);
    if (threadIdx.x < ROUNDS) {
        uint32_t& of_round = scored[list * ROUNDS + threadIdx.x];
        const bool is_marked = of_round & MARK;
        uint32_t sum = is_marked ? of_round & ~MARK : 0, sum_found = 0;
        of_round = 0;
        if (found) {
            sum_found = is_marked ? found[list * ROUNDS + threadIdx.x] : 0;
            found[list * ROUNDS + threadIdx.x] = 0;
        }
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            sum += __shfl_xor_sync(~0u, sum, step);
            sum_found += __shfl_xor_sync(~0u, sum_found, step);
        }
        if (threadIdx.x == 0) entries[list] = sum;
        if (threadIdx.x == 0 && sum_found > 0) atomicAdd(hits + blockIdx.x / lists_each, sum_found);
    }
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
        // Only the last of all blocks can be short, and if it was kept, it is last in the list.
        if (i == keep - 1) counts[list] = i * tree.size + end - begin;
    }
}

// What the kernels of a round take.
#define ROUND(T)                                                                                                        \
    const uint32_t *rows, const T *queries, unsigned long long row_stride, int group, int shared, const T *keys,        \
        unsigned long long head_stride, int d, const Tree tree, const Behind behind, const uint32_t *keeps,             \
        const Span *before, const uint32_t *kept, uint32_t kept_most, Span *after, uint32_t most, float *scores,        \
        unsigned long long stride, uint32_t *scored

#define SEARCH(T, NAME, LANES)                                                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS) branches_##NAME##_##LANES(ROUND(T)) {                         \
        branches<T, LANES, false>(rows, queries, row_stride, group, shared != 0, keys, head_stride, d, tree, behind,    \
                                  keeps, before, kept, kept_most, after, most, scores, stride, scored, KeyCache{}, 0,   \
                                  nullptr);                                                                             \
    }                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS) branches_cached_##NAME##_##LANES(                             \
        ROUND(T), const KeyCache cache, uint32_t round, uint32_t* found) {                                              \
        branches<T, LANES, true>(rows, queries, row_stride, group, shared != 0, keys, head_stride, d, tree, behind,     \
                                 keeps, before, kept, kept_most, after, most, scores, stride, scored, cache, round,     \
                                 found);                                                                                \
    }

#define WIDTHS(T, NAME) SEARCH(T, NAME, 8) SEARCH(T, NAME, 16) SEARCH(T, NAME, 32)

WIDTHS(float, f32)
WIDTHS(__half, f16)
WIDTHS(__nv_bfloat16, bf16)

#define TILES(T, NAME, D)                                                                                               \
    extern "C" __global__ void __launch_bounds__(THREADS) branches_tiles_##NAME##_##D(ROUND(T)) {                       \
        branches_tiles<T, D, false>(rows, queries, row_stride, group, shared != 0, keys, head_stride, tree, behind,     \
                                    keeps, before, kept, kept_most, after, most, scores, stride, scored, KeyCache{}, 0, \
                                    nullptr);                                                                           \
    }                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS) branches_tiles_cached_##NAME##_##D(                           \
        ROUND(T), const KeyCache cache, uint32_t round, uint32_t* found) {                                              \
        branches_tiles<T, D, true>(rows, queries, row_stride, group, shared != 0, keys, head_stride, tree, behind,      \
                                   keeps, before, kept, kept_most, after, most, scores, stride, scored, cache, round,   \
                                   found);                                                                              \
    }

TILES(__half, f16, 64)
TILES(__half, f16, 128)
TILES(__nv_bfloat16, bf16, 64)
TILES(__nv_bfloat16, bf16, 128)
