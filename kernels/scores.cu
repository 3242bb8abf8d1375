// Scores of candidates for the queries of a step: dot products with keys, or upper bounds of these from a page's minima and maxima.
//
// The candidates of a KV head are contiguous, and each is read once for up to eight heads of its group. `LANES` lanes hold a row in pieces
// of 8 channels, `UNROLL` rows at a time, and then sum the dot products of all heads together. Scores are f32, `[row][query head][stride]`,
// with a stride that is a multiple of four.
#include "common.cuh"

constexpr int WARPS = 4;
// Neighbouring candidates that each slot of a warp loads before it uses the first. Their scores are written with one store.
constexpr int UNROLL = 4;
// Candidates of a block.
constexpr uint32_t TILE = 256;

// Sums N numbers over `LANES` lanes; returns the sum of number place / (LANES / N).
template <int N, int LANES> __device__ __forceinline__ float spread_sum(float (&x)[N], int place) {
#pragma unroll
    for (int half = N / 2; half > 0; half /= 2) {
        const int step = LANES * half / N;
        const bool upper = place & step;
#pragma unroll
        for (int i = 0; i < half; ++i) {
            const float send = upper ? x[i] : x[i + half], keep = upper ? x[i + half] : x[i];
            x[i] = keep + __shfl_xor_sync(~0u, send, step);
        }
    }
#pragma unroll
    for (int step = LANES / N / 2; step > 0; step /= 2) x[0] += __shfl_xor_sync(~0u, x[0], step);
    return x[0];
}

// Blocks: tiles of candidates, groups of QUERIES heads of each KV head, rows. Row r of the launch is row rows[r] of the queries.
template <typename T, int QUERIES, int LANES, bool BOUNDS>
__device__ void score(const uint32_t* rows, const T* queries, uint64_t row_stride, int heads, int group, const T* upper,
                      const T* lower, uint64_t head_stride, uint32_t columns, int d, float* out, uint64_t stride) {
    constexpr int SLOTS = 32 / LANES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, place = lane % LANES, slot = lane / LANES;
    const int chunks = (group + QUERIES - 1) / QUERIES;
    const int kv_head = blockIdx.y / chunks, first = blockIdx.y % chunks * QUERIES;
    const int count = min(group - first, QUERIES), channel = place * PIECE;
    const bool holds = channel < d;
    float q[QUERIES][PIECE] = {};
    if (holds) {
#pragma unroll
        for (int h = 0; h < QUERIES; ++h) {
            const int head = kv_head * group + first + min(h, count - 1);
            widen(queries + rows[blockIdx.z] * row_stride + static_cast<uint64_t>(head) * d + channel, q[h]);
        }
    }
    upper += kv_head * head_stride + channel;
    if (BOUNDS) lower += kv_head * head_stride + channel;
    const int own = place / (LANES / QUERIES);
    const bool writes = place % (LANES / QUERIES) == 0 && own < count;
    float* to = out + (static_cast<uint64_t>(blockIdx.z) * heads + kv_head * group + first + own) * stride;
    const uint32_t begin = blockIdx.x * TILE, end = min(columns, begin + TILE);
    for (uint32_t start = begin; start < end; start += WARPS * SLOTS * UNROLL) {
        const uint32_t i = start + (warp * SLOTS + slot) * UNROLL;
        Piece<T> high[UNROLL], low[BOUNDS ? UNROLL : 1];
        if (holds) {
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                // Beyond the end, the last row is read again; its scores go to the padding or nowhere.
                const uint64_t offset = static_cast<uint64_t>(min(i + u, end - 1)) * d;
                high[u] = load_piece(upper + offset);
                if (BOUNDS) low[u] = load_piece(lower + offset);
            }
        }
        float scores[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            float dots[QUERIES] = {};
            if (holds) {
                float key[PIECE], least[PIECE];
                widen_piece(high[u], key);
                if (BOUNDS) widen_piece(low[u], least);
#pragma unroll
                for (int h = 0; h < QUERIES; ++h)
#pragma unroll
                    for (int c = 0; c < PIECE; ++c)
                        dots[h] += q[h][c] * (BOUNDS ? q[h][c] > 0.0f ? key[c] : least[c] : key[c]);
            }
            scores[u] = spread_sum<QUERIES, LANES>(dots, place);
        }
        if (writes && i < end) *reinterpret_cast<float4*>(to + i) = make_float4(scores[0], scores[1], scores[2], scores[3]);
    }
}

// Reduces the scores of a group's heads, `[row][kv_head][stride]`: to their maximum, or to their sum in the order of heads.
extern "C" __global__ void __launch_bounds__(256) reduce_scores(const float* scores, unsigned long long stride, int group,
                                                                uint32_t columns, int largest, float* out) {
    const uint32_t column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= columns) return;
    const uint64_t list = static_cast<uint64_t>(blockIdx.z) * gridDim.y + blockIdx.y;
    const float* from = scores + list * group * stride + column;
    float reduced = from[0];
    for (int h = 1; h < group; ++h) {
        const float score = from[h * stride];
        reduced = largest ? fmaxf(reduced, score) : reduced + score;
    }
    out[list * stride + column] = reduced;
}

// The sums of runs of `size` scores, `[list][stride]`. The sum of a shorter last run is scaled up as if it had `size` scores.
extern "C" __global__ void __launch_bounds__(256) sum_runs(const float* scores, unsigned long long from_stride, uint32_t columns,
                                                           uint32_t size, float* out, unsigned long long stride) {
    const uint32_t run = blockIdx.x * blockDim.x + threadIdx.x, begin = run * size;
    if (begin >= columns) return;
    const uint32_t count = min(size, columns - begin);
    const float* from = scores + blockIdx.y * from_stride + begin;
    float sum = 0.0f;
    for (uint32_t i = 0; i < count; ++i) sum += from[i];
    out[blockIdx.y * stride + run] = sum * static_cast<float>(size) / static_cast<float>(count);
}

#define SCORE(T, NAME, QUERIES, LANES)                                                                                  \
    extern "C" __global__ void __launch_bounds__(32 * WARPS) dots_##NAME##_##QUERIES##_##LANES(                         \
        const uint32_t* rows, const T* queries, unsigned long long row_stride, int heads, int group, const T* keys,     \
        const T* lower, unsigned long long head_stride, uint32_t columns, int d, float* out,                            \
        unsigned long long stride) {                                                                                    \
        score<T, QUERIES, LANES, false>(rows, queries, row_stride, heads, group, keys, lower, head_stride, columns, d,  \
                                        out, stride);                                                                   \
    }                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(32 * WARPS) bounds_##NAME##_##QUERIES##_##LANES(                       \
        const uint32_t* rows, const T* queries, unsigned long long row_stride, int heads, int group, const T* upper,    \
        const T* lower, unsigned long long head_stride, uint32_t columns, int d, float* out,                            \
        unsigned long long stride) {                                                                                    \
        score<T, QUERIES, LANES, true>(rows, queries, row_stride, heads, group, upper, lower, head_stride, columns, d,  \
                                       out, stride);                                                                    \
    }

// For heads up to 64, 128 and 256 wide.
#define SCORE_LANES(T, NAME, QUERIES) SCORE(T, NAME, QUERIES, 8) SCORE(T, NAME, QUERIES, 16) SCORE(T, NAME, QUERIES, 32)

#define SCORE_ALL(T, NAME)                                                                                              \
    SCORE_LANES(T, NAME, 1) SCORE_LANES(T, NAME, 2) SCORE_LANES(T, NAME, 4) SCORE_LANES(T, NAME, 8)

SCORE_ALL(float, f32)
SCORE_ALL(__half, f16)
SCORE_ALL(__nv_bfloat16, bf16)
