// Scores of candidates on tensor cores, for 16-bit rows 32, 64 or 128 wide. Does what scores.cu does, with the queries of several rows as
// one side of matrix products, so that candidates are read once for all of them.
//
// A warp takes 16 candidates at a time. Lane 4g + t reads two of their rows, 16 bytes at a time; channels are permuted so that these bytes
// are its operands of two products. An upper bound takes two products: the positive parts of the queries with the maxima, and the negative
// parts with the minima. f32 queries come as sums of two 16-bit numbers.
#include "mma.cuh"

constexpr int WARPS = 4;
// Candidates of a warp's tile, and of a block.
constexpr uint32_t TILE = 16, BLOCK = 1024;
// Queries of a product, over all rows.
constexpr int QUERIES = 16;

// What is computed: products with rows; upper bounds of the products with rows within bounds; products with queries in two parts.
enum Kind { DOTS, BOUNDS, SPLIT };
template <typename T> __device__ __forceinline__ uint32_t part(uint32_t pair, bool positive);
template <> __device__ __forceinline__ uint32_t part<__nv_bfloat16>(uint32_t pair, bool positive) {
    const __nv_bfloat162 zero = __float2bfloat162_rn(0.0f), x = reinterpret_cast<__nv_bfloat162&>(pair);
    const __nv_bfloat162 kept = positive ? __hmax2(x, zero) : __hmin2(x, zero);
    return reinterpret_cast<const uint32_t&>(kept);
}
template <> __device__ __forceinline__ uint32_t part<__half>(uint32_t pair, bool positive) {
    const __half2 zero = __float2half2_rn(0.0f), x = reinterpret_cast<__half2&>(pair);
    const __half2 kept = positive ? __hmax2(x, zero) : __hmin2(x, zero);
    return reinterpret_cast<const uint32_t&>(kept);
}

// Loads the rows of `from` at two offsets.
template <typename T, int PIECES>
__device__ __forceinline__ void load(Halves (&rows)[2][PIECES], const T* from, const uint64_t (&offsets)[2], int t) {
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int c = 0; c < PIECES; ++c) rows[j][c] = load_once(from + offsets[j] + (c * 4 + t) * PIECE);
}

// scores += q · rows.
template <typename T, int PIECES>
__device__ __forceinline__ void add(float (&scores)[2][4], const Halves (&q)[2][PIECES], const Halves (&rows)[2][PIECES]) {
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int c = 0; c < PIECES; ++c)
#pragma unroll
            for (int half = 0; half < 4; half += 2)
                multiply<T>(scores[j], q[0][c].words[half], q[1][c].words[half], q[0][c].words[half + 1],
                            q[1][c].words[half + 1], rows[j][c].words[half], rows[j][c].words[half + 1]);
}

// Reduces the scores of each group. Lane 4g + t holds those of queries g and g + 8 at its tokens. A group takes `places` of the queries, a
// power of two; every lane of a group gets the result.
template <int COUNT>
__device__ __forceinline__ void reduce(float (&scores)[COUNT][4], int places, int group, int g, bool sum) {
    auto pair = [&](float a, float b) { return sum ? a + b : fmaxf(a, b); };
#pragma unroll
    for (int j = 0; j < COUNT; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            // Places beyond the group have score 0.
            const bool beyond = !sum && (g + i / 2 * 8) % places >= group;
            float x = beyond ? -CUDART_INF_F : scores[j][i];
#pragma unroll
            for (int step = 1; step < 8; step *= 2)
                if (step < places) x = pair(x, __shfl_xor_sync(~0u, x, 4 * step));
            scores[j][i] = x;
        }
        if (places == QUERIES) {
            scores[j][0] = scores[j][2] = pair(scores[j][0], scores[j][2]);
            scores[j][1] = scores[j][3] = pair(scores[j][1], scores[j][3]);
        }
    }
}

// Blocks: candidates, KV heads, and as many rows as have 16 queries of a KV head. Row r of `count` is row rows[r] of the queries. Of each
// `group` heads, the `some` from `first_head` on take `places` of the 16 queries, a power of two; all heads, if scores are reduced. Scores
// are f32, `[row][query head][stride]`, or `[row][KV head][stride]` if reduced, with a stride that is a multiple of four. `rest` is the
// second part of split queries.
template <typename T, int D, Kind KIND>
__device__ void score(const uint32_t* rows, uint32_t count, const T* queries, const T* rest, uint64_t row_stride, int heads,
                      int group, int first_head, int some, int places, const T* upper, const T* lower, uint64_t head_stride,
                      uint32_t columns, int reduction, float* out, uint64_t stride) {
    constexpr int PIECES = D / 32;
    constexpr bool HAS_SECOND = KIND != DOTS;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int rows_a_tile = QUERIES / places, kv_head = blockIdx.y;
    Halves q[2][PIECES], second[2][HAS_SECOND ? PIECES : 1];
    // Where the scores of queries g and g + 8 are written; null for none.
    float* to[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int own = g + 8 * h, of_group = own % places;
        const uint32_t row = blockIdx.z * rows_a_tile + own / places;
        const bool is_there = of_group < some && row < count;
        const int head = kv_head * group + first_head + of_group;
        const uint64_t list = reduction == NONE ? static_cast<uint64_t>(row) * heads + head
                                                : static_cast<uint64_t>(row) * (heads / group) + kv_head;
        to[h] = is_there && (reduction == NONE || of_group == 0) ? out + list * stride : nullptr;
        const uint64_t at = is_there ? rows[row] * row_stride + static_cast<uint64_t>(head) * D : 0;
#pragma unroll
        for (int c = 0; c < PIECES; ++c) {
            const Halves none = {0, 0, 0, 0};
            q[h][c] = is_there ? *reinterpret_cast<const Halves*>(queries + at + (c * 4 + t) * PIECE) : none;
            if constexpr (KIND == SPLIT)
                second[h][c] = is_there ? *reinterpret_cast<const Halves*>(rest + at + (c * 4 + t) * PIECE) : none;
            if constexpr (KIND == BOUNDS) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    second[h][c].words[i] = part<T>(q[h][c].words[i], false);
                    q[h][c].words[i] = part<T>(q[h][c].words[i], true);
                }
            }
        }
    }
    upper += kv_head * head_stride;
    if (KIND == BOUNDS) lower += kv_head * head_stride;
    // Rows of the next tiles are loaded before the current ones are used.
    constexpr int TILES = 4 / PIECES, STEP = WARPS * TILE * TILES;
    constexpr bool HAS_LOWER = KIND == BOUNDS;
    const uint32_t begin = blockIdx.x * BLOCK, end = min(columns, begin + BLOCK);
    Halves own[TILES][2][PIECES], other[HAS_LOWER ? TILES : 1][2][PIECES];
    auto ask = [&](uint32_t start) {
#pragma unroll
        for (int i = 0; i < TILES; ++i) {
            uint64_t offsets[2];
#pragma unroll
            for (int j = 0; j < 2; ++j)
                offsets[j] = static_cast<uint64_t>(min(start + i * TILE + 8 * j + g, columns - 1)) * D;
            load<T, PIECES>(own[i], upper, offsets, t);
            if constexpr (HAS_LOWER) load<T, PIECES>(other[i], lower, offsets, t);
        }
    };
    uint32_t start = begin + warp * TILE * TILES;
    if (start < end) ask(start);
    for (; start < end; start += STEP) {
        float scores[TILES][2][4] = {};
#pragma unroll
        for (int i = 0; i < TILES; ++i) {
            add<T, PIECES>(scores[i], q, own[i]);
            if constexpr (KIND == SPLIT) add<T, PIECES>(scores[i], second, own[i]);
            if constexpr (HAS_LOWER) add<T, PIECES>(scores[i], second, other[i]);
        }
        if (start + STEP < end) ask(start + STEP);
#pragma unroll
        for (int i = 0; i < TILES; ++i) {
            if (reduction != NONE) reduce(scores[i], places, some, g, reduction == SUM);
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const uint32_t column = start + i * TILE + 8 * j + 2 * t;
                if (column >= columns) continue;
#pragma unroll
                for (int h = 0; h < 2; ++h)
                    if (to[h])
                        *reinterpret_cast<float2*>(to[h] + column) =
                            make_float2(scores[i][j][2 * h], scores[i][j][2 * h + 1]);
            }
        }
    }
}

#define SCORE(NAME, KIND, T, TYPE, D)                                                                                   \
    extern "C" __global__ void __launch_bounds__(32 * WARPS) NAME##_tiles_##TYPE##_##D(                                 \
        const uint32_t* rows, uint32_t count, const T* queries, const T* rest, unsigned long long row_stride,           \
        int heads, int group, int first_head, int some, int places, const T* upper, const T* lower,                     \
        unsigned long long head_stride, uint32_t columns, int reduction, float* out, unsigned long long stride) {       \
        score<T, D, KIND>(rows, count, queries, rest, row_stride, heads, group, first_head, some, places, upper, lower, \
                          head_stride, columns, reduction, out, stride);                                                \
    }

#define KINDS(T, TYPE, D)                                                                                               \
    SCORE(dots, DOTS, T, TYPE, D) SCORE(bounds, BOUNDS, T, TYPE, D) SCORE(split, SPLIT, T, TYPE, D)

#define WIDTHS(T, TYPE) KINDS(T, TYPE, 32) KINDS(T, TYPE, 64) KINDS(T, TYPE, 128)

WIDTHS(__half, f16)
WIDTHS(__nv_bfloat16, bf16)
