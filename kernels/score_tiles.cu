// Scores of candidates on tensor cores, for 16-bit keys and heads 64 or 128 wide: what scores.cu does, with the queries of
// several rows as one side of matrix products, so that keys are read once for all of them.
//
// A warp takes 16 candidates at a time; lane 4g + t reads 16 bytes at a time of two of their rows, in such an order of
// channels that these are its operands of two products. Upper bounds are two products: the positive parts of the queries with
// the maxima, and the negative ones with the minima.
#include "mma.cuh"

constexpr int WARPS = 4;
// Candidates of a warp's tile, and of a block.
constexpr uint32_t TILE = 16, BLOCK = 512;
// Queries of all rows that one product takes.
constexpr int QUERIES = 16;

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

// scores += q · rows of `from`, of which `offsets` are two.
template <typename T, int PIECES>
__device__ __forceinline__ void add(float (&scores)[2][4], const Halves (&q)[2][PIECES], const T* from,
                                    const uint64_t (&offsets)[2], int t) {
    Halves key[2][PIECES];
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int c = 0; c < PIECES; ++c) key[j][c] = load_once(from + offsets[j] + (c * 4 + t) * PIECE);
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int c = 0; c < PIECES; ++c)
#pragma unroll
            for (int half = 0; half < 4; half += 2)
                multiply<T>(scores[j], q[0][c].words[half], q[1][c].words[half], q[0][c].words[half + 1],
                            q[1][c].words[half + 1], key[j][c].words[half], key[j][c].words[half + 1]);
}

// Blocks: candidates, KV heads, as many rows as have 16 queries of a KV head. Row r of `count` is row rows[r] of the queries;
// scores are f32, `[row][query head][stride]`, with a stride that is a multiple of four.
template <typename T, int D, bool BOUNDS>
__device__ void score(const uint32_t* rows, uint32_t count, const T* queries, uint64_t row_stride, int heads, int group,
                      const T* upper, const T* lower, uint64_t head_stride, uint32_t columns, float* out, uint64_t stride) {
    constexpr int PIECES = D / 32;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int rows_a_tile = QUERIES / group, kv_head = blockIdx.y;
    Halves q[2][PIECES], negative[2][BOUNDS ? PIECES : 1];
    // Where the scores of queries g and g + 8 go.
    float* to[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int own = g + 8 * h;
        const uint32_t row = blockIdx.z * rows_a_tile + own / group;
        const bool is_there = own < rows_a_tile * group && row < count;
        const int head = kv_head * group + own % group;
        to[h] = is_there ? out + (static_cast<uint64_t>(row) * heads + head) * stride : nullptr;
        const T* from = queries + (is_there ? rows[row] * row_stride + static_cast<uint64_t>(head) * D : 0);
#pragma unroll
        for (int c = 0; c < PIECES; ++c) {
            q[h][c] = is_there ? *reinterpret_cast<const Halves*>(from + (c * 4 + t) * PIECE) : Halves{0, 0, 0, 0};
            if (!BOUNDS) continue;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                negative[h][c].words[i] = part<T>(q[h][c].words[i], false);
                q[h][c].words[i] = part<T>(q[h][c].words[i], true);
            }
        }
    }
    upper += kv_head * head_stride;
    if (BOUNDS) lower += kv_head * head_stride;
    const uint32_t begin = blockIdx.x * BLOCK, end = min(columns, begin + BLOCK);
    for (uint32_t start = begin + warp * TILE; start < end; start += WARPS * TILE) {
        uint64_t offsets[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) offsets[j] = static_cast<uint64_t>(min(start + 8 * j + g, columns - 1)) * D;
        float scores[2][4] = {};
        add<T, PIECES>(scores, q, upper, offsets, t);
        if constexpr (BOUNDS) add<T, PIECES>(scores, negative, lower, offsets, t);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const uint32_t column = start + 8 * j + 2 * t;
            if (column >= columns) continue;
#pragma unroll
            for (int h = 0; h < 2; ++h)
                if (to[h]) *reinterpret_cast<float2*>(to[h] + column) = make_float2(scores[j][2 * h], scores[j][2 * h + 1]);
        }
    }
}

#define SCORE(KIND, BOUNDS, T, NAME, D)                                                                                 \
    extern "C" __global__ void __launch_bounds__(32 * WARPS) KIND##_tiles_##NAME##_##D(                                 \
        const uint32_t* rows, uint32_t count, const T* queries, unsigned long long row_stride, int heads, int group,    \
        const T* upper, const T* lower, unsigned long long head_stride, uint32_t columns, float* out,                   \
        unsigned long long stride) {                                                                                    \
        score<T, D, BOUNDS>(rows, count, queries, row_stride, heads, group, upper, lower, head_stride, columns, out,    \
                            stride);                                                                                    \
    }

#define SCORES(T, NAME)                                                                                                 \
    SCORE(dots, false, T, NAME, 64) SCORE(dots, false, T, NAME, 128)                                                    \
    SCORE(bounds, true, T, NAME, 64) SCORE(bounds, true, T, NAME, 128)

SCORES(__half, f16)
SCORES(__nv_bfloat16, bf16)
