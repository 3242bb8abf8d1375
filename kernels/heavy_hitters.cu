// Heavy hitters and a sliding window (H2O): the tokens that a run holds, by the attention that each has received, step by step.
//
// What is held at a layer is one buffer: `[list]` counts of heavy hitters, `[list][room]` their tokens, `[list][room]` their masses, and
// `[list][window]` the masses of the window, with token t at t % window. Lists are by query head or by KV head. A step takes three
// launches: the token that leaves the window competes with the heavy hitters; logits of all held tokens are computed; and their weights are
// added to the masses. Rows of the same run are launched one after the other.
#include "common.cuh"
#include "ordered.cuh"

// A row of a step, as the launcher packs it: what its run holds, with room for `room` heavy hitters; the run's keys after the prefix (of KV
// head 0), and the elements between KV heads; tokens in context; the row in the queries, and in the lists.
struct HoldingRow {
    uint32_t* held;
    unsigned long long room;
    const void* tail;
    unsigned long long tail_stride;
    unsigned long long total;
    unsigned long long query;
    unsigned long long list;
};

struct Held {
    uint32_t* count;
    uint32_t* tokens;
    float* masses;
    float* window;
};

__device__ __forceinline__ Held held_of(const HoldingRow& row, uint32_t lists, uint32_t list, uint32_t window) {
    uint32_t* tokens = row.held + lists;
    float* masses = reinterpret_cast<float*>(tokens + lists * row.room);
    float* of_window = masses + lists * row.room;
    const uint64_t at = list * row.room;
    return {row.held + list, tokens + at, masses + at, of_window + static_cast<uint64_t>(list) * window};
}

constexpr int EVICTING = 1024;

// A key for eviction; the smallest goes first: the lighter token, and among equals the later one.
__device__ __forceinline__ unsigned long long staying(float mass, uint32_t token) {
    return static_cast<unsigned long long>(ordered(mass)) << 32 | static_cast<uint32_t>(~token);
}

// Blocks: lists, rows. The token that leaves the window becomes a heavy hitter if fewer than `budget` are held; otherwise it replaces the
// lightest, if that is lighter. The heavy hitters are then written as the row's selected tokens, `[row][list][most]`. The window's new
// token gets mass 0.
extern "C" __global__ void __launch_bounds__(EVICTING) evict(const HoldingRow* rows, uint32_t budget, uint32_t window,
                                                             uint32_t* picks, uint32_t most, uint32_t* counts) {
    __shared__ unsigned long long lightest[EVICTING / 32];
    const HoldingRow row = rows[blockIdx.y];
    const uint32_t lists = gridDim.x, list = blockIdx.x;
    const Held held = held_of(row, lists, list, window);
    const uint32_t leaving = static_cast<uint32_t>(row.total) - window - 1, place = leaving % window;
    const float mass = held.window[place];
    const uint32_t before = *held.count;
    unsigned long long own = staying(mass, leaving);
    for (uint32_t i = threadIdx.x; i < before; i += EVICTING) own = min(own, staying(held.masses[i], held.tokens[i]));
#pragma unroll
    for (int step = 16; step > 0; step /= 2) own = min(own, __shfl_xor_sync(~0u, own, step));
    if (threadIdx.x % 32 == 0) lightest[threadIdx.x / 32] = own;
    __syncthreads();
    for (int i = 0; i < EVICTING / 32; ++i) own = min(own, lightest[i]);
    const bool is_full = before >= budget;
    const uint32_t gone = ~static_cast<uint32_t>(own), after = is_full ? before : before + 1;
    uint32_t* to = picks + (row.list * lists + list) * most;
    for (uint32_t i = threadIdx.x; i < after; i += EVICTING) {
        const bool is_new = i == before || is_full && held.tokens[i] == gone;
        if (is_new) held.tokens[i] = leaving, held.masses[i] = mass;
        to[i] = held.tokens[i];
    }
    // All threads have read the values that change here.
    if (threadIdx.x == 0) *held.count = after, counts[row.list * lists + list] = after, held.window[place] = 0.0f;
}

// Tokens of a tile, threads of a block, the most query heads that a block processes, and keys that a thread loads at a time.
constexpr int TILE = 64, WEIGHING = 128, MOST_HEADS = 8, AHEAD = 4;

// Output: logits `[row][head][stride]`, first those of sink and window, then those of heavy hitters; and `[row][head][tile]` pairs of the
// maximum and the sum of exponentials below it.
struct Logits {
    float* logits;
    float2* tiles;
    unsigned long long stride;
    uint32_t tile_stride;
};

// Blocks: tiles, KV heads (one block for every MOST_HEADS of its heads), rows. The first `end_tiles` tiles are the sink and the window, for
// all heads of the group. Then come tiles of up to `most` heavy hitters, list by list, for the heads of the list. KV heads of the prefix's
// keys are `prefix_stride` elements apart.
template <typename T, int LANES>
__device__ void weigh(const HoldingRow* rows, const T* queries, uint64_t query_stride, int heads, int lists, int kv_heads,
                      const T* prefix, uint64_t prefix_stride, uint32_t prefix_tokens, uint32_t sink, uint32_t most,
                      uint32_t window, int d, float scale, const Logits& out) {
    __shared__ float asked[MOST_HEADS][LANES * PIECE];
    __shared__ float logits[MOST_HEADS][TILE];
    constexpr int SLOTS = WEIGHING / LANES;
    const HoldingRow row = rows[blockIdx.z];
    const int group = heads / kv_heads, runs = (group + MOST_HEADS - 1) / MOST_HEADS, kv_head = blockIdx.y / runs;
    const int of_list = heads / lists;
    const uint32_t ends = sink + window, end_tiles = (ends + TILE - 1) / TILE, heavy_tiles = (most + TILE - 1) / TILE;
    const bool is_end = blockIdx.x < end_tiles;
    // Lists of this KV head, numbered within it.
    const int own = is_end ? 0 : (blockIdx.x - end_tiles) / heavy_tiles, list = kv_head * (group / of_list) + own;
    const uint32_t tile = is_end ? blockIdx.x : (blockIdx.x - end_tiles) % heavy_tiles;
    const int first = kv_head * group + (is_end ? 0 : own * of_list) + (blockIdx.y % runs) * MOST_HEADS;
    const int last = kv_head * group + (is_end ? group : (own + 1) * of_list), count = min(MOST_HEADS, last - first);
    if (count <= 0) return;
    const Held held = held_of(row, lists, list, window);
    const uint32_t all = is_end ? ends : *held.count, begin = tile * TILE, end = min(all, begin + TILE);
    const T* query = queries + row.query * query_stride + static_cast<uint64_t>(first) * d;
    for (int i = threadIdx.x; i < count * LANES * PIECE; i += WEIGHING) {
        const int h = i / (LANES * PIECE), c = i % (LANES * PIECE);
        asked[h][c] = c < d ? scale * to_f32(query[h * d + c]) : 0.0f;
    }
    __syncthreads();
    const T* prefix_keys = prefix + kv_head * prefix_stride;
    const T* tail_keys = static_cast<const T*>(row.tail) + kv_head * row.tail_stride;
    const int lane = threadIdx.x % LANES, slot = threadIdx.x / LANES;
    const uint32_t first_of_window = static_cast<uint32_t>(row.total) - window;
    // All lanes of a warp loop equally often. Beyond the last token or the head's width, they read a valid piece.
    const int channel = lane * PIECE < d ? lane * PIECE : 0;
    for (uint32_t start = begin; start < end; start += AHEAD * SLOTS) {
        Piece<T> pieces[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) {
            const uint32_t i = min(start + a * SLOTS + slot, end - 1);
            const uint32_t token = !is_end ? held.tokens[i] : i < sink ? i : first_of_window + i - sink;
            const bool behind = token >= prefix_tokens;
            const T* from = behind ? tail_keys + static_cast<uint64_t>(token - prefix_tokens) * d
                                   : prefix_keys + static_cast<uint64_t>(token) * d;
            pieces[a] = load_piece(from + channel);
        }
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) {
            const uint32_t i = start + a * SLOTS + slot;
            float key[PIECE];
            widen_piece(pieces[a], key);
            for (int h = 0; h < count; ++h) {
                float dot = 0.0f;
                // Queries are zero beyond the head's width.
#pragma unroll
                for (int c = 0; c < PIECE; ++c) dot += asked[h][lane * PIECE + c] * key[c];
#pragma unroll
                for (int step = LANES / 2; step > 0; step /= 2) dot += __shfl_xor_sync(~0u, dot, step);
                if (lane == 0 && i < end) logits[h][i - begin] = dot;
            }
        }
    }
    __syncthreads();
    const uint32_t here = end > begin ? end - begin : 0;
    for (int h = threadIdx.x / 32; h < count; h += WEIGHING / 32) {
        const uint64_t head = static_cast<uint64_t>(blockIdx.z) * heads + first + h;
        float* to = out.logits + head * out.stride + (is_end ? 0 : ends) + begin;
        float top = -CUDART_INF_F, sum = 0.0f;
        for (uint32_t i = threadIdx.x % 32; i < here; i += 32) top = fmaxf(top, to[i] = logits[h][i]);
#pragma unroll
        for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
        for (uint32_t i = threadIdx.x % 32; i < here; i += 32) sum += expf(logits[h][i] - top);
        sum = warp_sum(sum);
        if (threadIdx.x % 32 == 0) out.tiles[head * out.tile_stride + (is_end ? 0 : end_tiles) + tile] = make_float2(top, sum);
    }
}

#define WEIGH(T, NAME, LANES)                                                                                          \
    extern "C" __global__ void __launch_bounds__(WEIGHING) weigh_held_##NAME##_##LANES(                                \
        const HoldingRow* rows, const T* queries, unsigned long long query_stride, int heads, int lists, int kv_heads, \
        const T* prefix, unsigned long long prefix_stride, uint32_t prefix_tokens, uint32_t sink, uint32_t most,       \
        uint32_t window, int d, float scale, const Logits out) {                                                       \
        weigh<T, LANES>(rows, queries, query_stride, heads, lists, kv_heads, prefix, prefix_stride, prefix_tokens,     \
                        sink, most, window, d, scale, out);                                                            \
    }

// For heads up to 64, 128 and 256 wide.
#define WEIGH_ALL(T, NAME) WEIGH(T, NAME, 8) WEIGH(T, NAME, 16) WEIGH(T, NAME, 32)
WEIGH_ALL(float, f32)
WEIGH_ALL(__half, f16)
WEIGH_ALL(__nv_bfloat16, bf16)

constexpr int ADDING = 256;

// Blocks: stretches of held tokens, lists, rows. Adds the weights of the list's heads to the masses, in the order of the heads.
extern "C" __global__ void __launch_bounds__(ADDING) add_weights(const HoldingRow* rows, int heads, uint32_t sink,
                                                                 uint32_t most, uint32_t window, const Logits from) {
    // For each head, the largest logit and the sum of exponentials below it.
    extern __shared__ float2 of_heads[];
    const HoldingRow row = rows[blockIdx.z];
    const int lists = gridDim.y, list = blockIdx.y, of_list = heads / lists, lane = threadIdx.x % 32;
    const uint32_t ends = sink + window, tiles = (ends + TILE - 1) / TILE + (most + TILE - 1) / TILE;
    const uint64_t first = static_cast<uint64_t>(blockIdx.z) * heads + list * of_list;
    for (int h = threadIdx.x / 32; h < of_list; h += ADDING / 32) {
        const float2* own = from.tiles + (first + h) * from.tile_stride;
        float top = -CUDART_INF_F, sum = 0.0f;
        for (uint32_t i = lane; i < tiles; i += 32) top = fmaxf(top, own[i].x);
#pragma unroll
        for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
        for (uint32_t i = lane; i < tiles; i += 32) sum += own[i].x == -CUDART_INF_F ? 0.0f : own[i].y * expf(own[i].x - top);
        sum = warp_sum(sum);
        if (lane == 0) of_heads[h] = make_float2(top, sum);
    }
    __syncthreads();
    const Held held = held_of(row, lists, list, window);
    const uint32_t i = sink + blockIdx.x * ADDING + threadIdx.x;
    if (i >= ends + *held.count) return;
    float* mass = i >= ends ? held.masses + (i - ends) : held.window + (static_cast<uint32_t>(row.total) - window + i - sink) % window;
    float sum = *mass;
    for (int h = 0; h < of_list; ++h) {
        const float2 head = of_heads[h];
        sum += expf(from.logits[(first + h) * from.stride + i] - head.x) / head.y;
    }
    *mass = sum;
}
