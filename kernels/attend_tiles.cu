// Decode attention over any selection on tensor cores, for 16-bit keys and values and heads 64 or 128 wide: what attend.cu
// does, with the queries of a group as one side of matrix products, so that memory alone sets the pace.
//
// The work comes as units (attend.cuh). A warp takes 16 tokens at a time and talks to no other warp until its span ends.
// Both products are mma.m16n8k16; lane 4g + t of a warp holds
//   scores, queries x tokens: A is the queries (rows 8 to 15 are zero), B the keys. Channels are taken in such an order that
//     the 16 bytes which a lane reads of a row are its operands of two products.
//   outputs, channels x queries: A is the values, whose channels are rows and tokens the contraction, B the weights, which
//     lie as the scores came out. A lane reads rows 2t, 2t + 1, 2t + 8 and 2t + 9 and pairs their channels.
// A weight enters as the sum of two 16-bit numbers, so that nothing is lost against f32 arithmetic.
#include "attend.cuh"
#include "mma.cuh"
#include "numbers.cuh"

constexpr int WARPS = 4;
// Tokens of a warp's tile, and queries that a unit may have.
constexpr int TILE = 16, QUERIES = 8;
// Marks a row of the tail.
constexpr uint32_t IN_TAIL = 1u << 31;

// Two numbers as pairs of 16-bit numbers whose sums they are.
template <typename T> __device__ __forceinline__ void split(float x, float y, uint32_t& high, uint32_t& low);
template <> __device__ __forceinline__ void split<__nv_bfloat16>(float x, float y, uint32_t& high, uint32_t& low) {
    high = numbers::Pair<__nv_bfloat16>::pack(x, y);
    low = numbers::Pair<__nv_bfloat16>::pack(x - __uint_as_float(high << 16), y - __uint_as_float(high & 0xffff0000u));
}
template <> __device__ __forceinline__ void split<__half>(float x, float y, uint32_t& high, uint32_t& low) {
    high = numbers::Pair<__half>::pack(x, y);
    const float2 rounded = __half22float2(reinterpret_cast<__half2&>(high));
    low = numbers::Pair<__half>::pack(x - rounded.x, y - rounded.y);
}

// One KV head's rows: tokens of the prefix, and of the tail behind them.
template <typename T, int D> struct Sequence {
    const T* prefix;
    const T* tail;
    __device__ __forceinline__ const T* row(uint32_t row) const {
        return (row & IN_TAIL ? tail : prefix) + static_cast<uint64_t>(row & ~IN_TAIL) * D;
    }
};

template <typename T, int D>
__device__ void attend(const Unit& unit, int span_index, const Prefix<T>& prefix, const T* queries, uint32_t heads,
                       uint64_t row_stride, float scale, float* partials) {
    // Pieces of 16 bytes that a lane reads of a key, and of a value.
    constexpr int KEY_PIECES = D / 32, VALUE_PIECES = D / 64;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const bool given = unit.weighting == GIVEN;
    Halves q[KEY_PIECES];
#pragma unroll
    for (int c = 0; c < KEY_PIECES; ++c) {
        if (g < unit.queries) {
            const uint32_t query = unit.first_query + g;
            const T* from = queries + query / heads * row_stride + static_cast<uint64_t>(query % heads) * D;
            q[c] = *reinterpret_cast<const Halves*>(from + (c * 4 + t) * PIECE);
        } else {
            q[c] = Halves{0, 0, 0, 0};
        }
    }
    const uint64_t tail_head = static_cast<uint64_t>(unit.tail_capacity) * D;
    const T* tail = static_cast<const T*>(unit.tail) + (2ull * prefix.layer * prefix.kv_heads + unit.kv_head) * tail_head;
    const Sequence<T, D> keys{prefix.keys + unit.kv_head * prefix.stride, tail};
    const Sequence<T, D> values{prefix.values + unit.kv_head * prefix.stride, tail + prefix.kv_heads * tail_head};
    const uint32_t fixed = unit.sink + unit.total - unit.recent;
    const uint2 own = tokens_of_span(unit, span_index);
    const uint32_t end = own.y;
    // Lanes beyond the end read the last token and leave it out.
    auto row_of = [&](uint32_t i) {
        i = min(i, end - 1);
        const uint32_t token = i < unit.sink ? i : i < fixed ? unit.recent + i - unit.sink : unit.tokens[i - fixed];
        return token < prefix.tokens ? token : (token - prefix.tokens) | IN_TAIL;
    };
    auto extra_of = [&](uint32_t i) {
        i = min(i, end - 1);
        return unit.weights && i >= fixed ? unit.weights[i - fixed] : 0.0f;
    };

    // Of query g, in powers of two; `sum` of the tokens that this lane holds.
    float most = -CUDART_INF_F, sum = 0.0f;
    // Of channels 8 (8p + g) + 2e (0 and 1) and the next (2 and 3), for queries 2t and 2t + 1.
    float out[VALUE_PIECES][4][4] = {};
    const float factor = scale * numbers::LOG2_E;
    uint32_t start = own.x + warp * TILE;
    uint32_t row = start < end ? row_of(start + lane % TILE) : 0;
    for (; start < end; start += WARPS * TILE) {
        Halves key[2][KEY_PIECES], value[4][VALUE_PIECES];
        if (!given) {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const T* from = keys.row(__shfl_sync(~0u, row, 8 * j + g));
#pragma unroll
                for (int c = 0; c < KEY_PIECES; ++c) key[j][c] = load_once(from + (c * 4 + t) * PIECE);
            }
        }
#pragma unroll
        for (int x = 0; x < 4; ++x) {
            const T* from = values.row(__shfl_sync(~0u, row, 2 * t + x % 2 + x / 2 * 8));
#pragma unroll
            for (int p = 0; p < VALUE_PIECES; ++p) value[x][p] = load_once(from + (p * 8 + g) * PIECE);
        }
        float extra = 0.0f;
        if (unit.weights) extra = extra_of(start + lane % TILE);
        // The next tile's rows are on their way while this one is worked on.
        if (start + WARPS * TILE < end) row = row_of(start + WARPS * TILE + lane % TILE);

        // Tokens 8j + 2t and the next.
        float weight[2][2];
        if (given) {
#pragma unroll
            for (int j = 0; j < 2; ++j)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int token = 8 * j + 2 * t + i;
                    const float of_token = __shfl_sync(~0u, extra, token);
                    weight[j][i] = start + token < end ? of_token : 0.0f;
                }
        } else {
            float top = -CUDART_INF_F;
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                float scores[4] = {};
#pragma unroll
                for (int c = 0; c < KEY_PIECES; ++c) {
                    multiply<T>(scores, q[c].words[0], 0, q[c].words[1], 0, key[j][c].words[0], key[j][c].words[1]);
                    multiply<T>(scores, q[c].words[2], 0, q[c].words[3], 0, key[j][c].words[2], key[j][c].words[3]);
                }
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int token = 8 * j + 2 * t + i;
                    float logit = scores[i] * factor;
                    if (unit.weights) logit -= __shfl_sync(~0u, extra, token) * numbers::LOG2_E;
                    weight[j][i] = start + token < end ? logit : -CUDART_INF_F;
                    top = fmaxf(top, weight[j][i]);
                }
            }
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
            top = fmaxf(top, most);
            if (__any_sync(~0u, top > most)) {
                const float shrink = top == -CUDART_INF_F ? 1.0f : numbers::exp2_fast(most - top);
                sum *= shrink, most = top;
                const float first = __shfl_sync(~0u, shrink, 8 * t), second = __shfl_sync(~0u, shrink, 8 * t + 4);
#pragma unroll
                for (int p = 0; p < VALUE_PIECES; ++p)
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        out[p][e][0] *= first, out[p][e][1] *= second;
                        out[p][e][2] *= first, out[p][e][3] *= second;
                    }
            }
#pragma unroll
            for (int j = 0; j < 2; ++j)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    weight[j][i] = weight[j][i] == -CUDART_INF_F ? 0.0f : numbers::exp2_fast(weight[j][i] - most);
                    sum += weight[j][i];
                }
        }
        uint32_t high[2], low[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) split<T>(weight[j][0], weight[j][1], high[j], low[j]);
#pragma unroll
        for (int p = 0; p < VALUE_PIECES; ++p)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const uint32_t a0 = __byte_perm(value[0][p].words[e], value[1][p].words[e], 0x5410);
                const uint32_t a1 = __byte_perm(value[0][p].words[e], value[1][p].words[e], 0x7632);
                const uint32_t a2 = __byte_perm(value[2][p].words[e], value[3][p].words[e], 0x5410);
                const uint32_t a3 = __byte_perm(value[2][p].words[e], value[3][p].words[e], 0x7632);
                multiply<T>(out[p][e], a0, a1, a2, a3, high[0], high[1]);
                multiply<T>(out[p][e], a0, a1, a2, a3, low[0], low[1]);
            }
    }
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (given) {
        // The weights of all spans together stand for the mass once.
        most = unit.log_mass * numbers::LOG2_E;
        sum = span_index == 0 && warp == 0 ? 1.0f : 0.0f;
    }
    // Warps of the block; maxima as natural logarithms from here on.
    __shared__ float merged[WARPS][QUERIES][D + 2];
    if (t == 0) merged[warp][g][0] = most * (1.0f / numbers::LOG2_E), merged[warp][g][1] = sum;
#pragma unroll
    for (int p = 0; p < VALUE_PIECES; ++p)
#pragma unroll
        for (int e = 0; e < 4; ++e)
#pragma unroll
            for (int i = 0; i < 4; ++i) merged[warp][2 * t + i % 2][2 + (p * 8 + g) * PIECE + 2 * e + i / 2] = out[p][e][i];
    __syncthreads();
    store_partials(unit, span_index, merged, D, partials);
}

// One block a span of a unit; queries `[row][row_stride]` with head h at h * D.
#define ATTEND(T, NAME, D)                                                                                              \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, 3) attend_tiles_##NAME##_##D(                              \
        const Unit* units, int count, const Prefix<T> prefix, const T* queries, uint32_t heads,                         \
        unsigned long long row_stride, float scale, float* partials) {                                                  \
        __shared__ Unit unit;                                                                                           \
        if (threadIdx.x == 0) unit = units[unit_of_block(units, count)];                                                \
        __syncthreads();                                                                                                \
        attend<T, D>(unit, blockIdx.x - unit.first_block, prefix, queries, heads, row_stride, scale, partials);         \
    }

ATTEND(__half, f16, 64)
ATTEND(__half, f16, 128)
ATTEND(__nv_bfloat16, bf16, 64)
ATTEND(__nv_bfloat16, bf16, 128)
