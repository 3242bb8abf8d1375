// Decode attention over any selection: contiguous ranges; selected tokens, whose logits may be lowered; given weights; and a vector that
// represents the tokens that were not selected. All of these end in one softmax.
//
// The work comes as units, whose partial sums are merged (attend.cuh). Within a warp, `LANES` lanes hold one token's row in pieces of 8
// channels, and the other lanes hold other tokens. Each such slot keeps its own maximum and sums, so lanes exchange data only for dot
// products. If cap > 0, a scaled product x becomes cap * tanh(x / cap).
#include "attend.cuh"
#include "early.cuh"

constexpr int WARPS = 4;
// Tokens that each slot of a warp loads before it uses the first. Four take so many registers that fewer blocks fit, which was slower.
constexpr int UNROLL = 2;

template <typename T, int QUERIES, int LANES, int PIECES>
__device__ void attend(const Unit& unit, int span_index, const Prefix<T>& prefix, const T* queries, uint32_t heads,
                       uint64_t row_stride, int d, float scale, float cap, const Merging<T>& to) {
    constexpr int SLOTS = 32 / LANES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, place = lane % LANES, slot = lane / LANES;
    float q[QUERIES][PIECES][PIECE], out[QUERIES][PIECES][PIECE] = {}, most[QUERIES], sum[QUERIES];
#pragma unroll
    for (int h = 0; h < QUERIES; ++h) {
        most[h] = -CUDART_INF_F, sum[h] = 0.0f;
        const uint32_t query = unit.first_query + min(h, static_cast<int>(unit.queries) - 1);
        const T* from = queries + query / heads * row_stride + static_cast<uint64_t>(query % heads) * d;
#pragma unroll
        for (int p = 0; p < PIECES; ++p) {
            const int at = (p * LANES + place) * PIECE;
            if (at < d) {
                widen(from + at, q[h][p]);
#pragma unroll
                for (int i = 0; i < PIECE; ++i) q[h][p][i] *= scale;
            } else {
#pragma unroll
                for (int i = 0; i < PIECE; ++i) q[h][p][i] = 0.0f;
            }
        }
    }
    const uint32_t fixed = unit.sink + unit.total - unit.recent;
    const uint2 own = tokens_of_span(unit, span_index);
    const uint32_t end = own.y;
    const bool given = unit.weighting == GIVEN;
    const T* prefix_keys = prefix.keys + unit.kv_head * prefix.stride;
    const T* prefix_values = prefix.values + unit.kv_head * prefix.stride;
    const uint64_t tail_head = static_cast<uint64_t>(unit.tail_capacity) * d;
    const T* tail_keys = static_cast<const T*>(unit.tail) + (2ull * prefix.layer * prefix.kv_heads + unit.kv_head) * tail_head;
    const T* tail_values = tail_keys + prefix.kv_heads * tail_head;
    const uint32_t first_fetched = unit.fetched_keys ? fixed : ~0u;
    for (uint32_t start = own.x; start < end; start += WARPS * SLOTS * UNROLL) {
        Piece<T> keys[UNROLL][PIECES], values[UNROLL][PIECES];
        float extra[UNROLL];
        bool valid[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const uint32_t i = start + (u * WARPS + warp) * SLOTS + slot;
            valid[u] = i < end;
            // Slots beyond the end read the span's first token and ignore it.
            const uint32_t at = valid[u] ? i : start;
            extra[u] = unit.weights && at >= fixed ? unit.weights[at - fixed] : 0.0f;
            const T *key, *value;
            if (at >= first_fetched) {
                const uint64_t offset = static_cast<uint64_t>(at - fixed) * d;
                key = static_cast<const T*>(unit.fetched_keys) + offset, value = static_cast<const T*>(unit.fetched_values) + offset;
            } else {
                const uint32_t token = at < unit.sink ? at : at < fixed ? unit.recent + at - unit.sink : unit.tokens[at - fixed];
                const bool behind = token >= prefix.tokens;
                const uint64_t offset = static_cast<uint64_t>(behind ? token - prefix.tokens : token) * d;
                key = (behind ? tail_keys : prefix_keys) + offset, value = (behind ? tail_values : prefix_values) + offset;
            }
#pragma unroll
            for (int p = 0; p < PIECES; ++p) {
                const int channel = (p * LANES + place) * PIECE;
                if (channel >= d) continue;
                if (!given) keys[u][p] = load_piece(key + channel);
                values[u][p] = load_piece(value + channel);
            }
        }
        float weight[UNROLL][QUERIES];
        if (given) {
#pragma unroll
            for (int u = 0; u < UNROLL; ++u)
#pragma unroll
                for (int h = 0; h < QUERIES; ++h) weight[u][h] = valid[u] ? extra[u] : 0.0f;
        } else {
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                float dots[QUERIES] = {};
#pragma unroll
                for (int p = 0; p < PIECES; ++p) {
                    if ((p * LANES + place) * PIECE >= d) continue;
                    float key[PIECE];
                    widen_piece(keys[u][p], key);
#pragma unroll
                    for (int h = 0; h < QUERIES; ++h)
#pragma unroll
                        for (int i = 0; i < PIECE; ++i) dots[h] += q[h][p][i] * key[i];
                }
#pragma unroll
                for (int step = LANES / 2; step > 0; step /= 2)
#pragma unroll
                    for (int h = 0; h < QUERIES; ++h) dots[h] += __shfl_xor_sync(~0u, dots[h], step);
#pragma unroll
                for (int h = 0; h < QUERIES; ++h) {
                    if (cap > 0.0f) dots[h] = cap * tanhf(dots[h] / cap);
                    weight[u][h] = valid[u] ? dots[h] - extra[u] : -CUDART_INF_F;
                }
            }
#pragma unroll
            for (int h = 0; h < QUERIES; ++h) {
                float top = most[h];
#pragma unroll
                for (int u = 0; u < UNROLL; ++u) top = fmaxf(top, weight[u][h]);
                if (top > most[h]) {
                    const float shrink = __expf(most[h] - top);
                    sum[h] *= shrink;
#pragma unroll
                    for (int p = 0; p < PIECES; ++p)
#pragma unroll
                        for (int i = 0; i < PIECE; ++i) out[h][p][i] *= shrink;
                    most[h] = top;
                }
#pragma unroll
                for (int u = 0; u < UNROLL; ++u) {
                    weight[u][h] = weight[u][h] == -CUDART_INF_F ? 0.0f : __expf(weight[u][h] - top);
                    sum[h] += weight[u][h];
                }
            }
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
#pragma unroll
            for (int p = 0; p < PIECES; ++p) {
                if ((p * LANES + place) * PIECE >= d) continue;
                float value[PIECE];
                widen_piece(values[u][p], value);
#pragma unroll
                for (int h = 0; h < QUERIES; ++h)
#pragma unroll
                    for (int i = 0; i < PIECE; ++i) out[h][p][i] += weight[u][h] * value[i];
            }
    }
    let_next_start();
    if (given) {
        // The mass of given weights counts once for all spans together.
        const bool counts = span_index == 0 && threadIdx.x / LANES == 0;
#pragma unroll
        for (int h = 0; h < QUERIES; ++h) most[h] = unit.log_mass, sum[h] = counts ? 1.0f : 0.0f;
    }
    // Merges the slots of a warp, then the warps of the block.
#pragma unroll
    for (int h = 0; h < QUERIES; ++h) {
        float top = most[h];
#pragma unroll
        for (int step = LANES; step < 32; step *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
        const float shrink = most[h] == -CUDART_INF_F ? 0.0f : __expf(most[h] - top);
        most[h] = top, sum[h] *= shrink;
#pragma unroll
        for (int step = LANES; step < 32; step *= 2) sum[h] += __shfl_xor_sync(~0u, sum[h], step);
#pragma unroll
        for (int p = 0; p < PIECES; ++p)
#pragma unroll
            for (int i = 0; i < PIECE; ++i) {
                out[h][p][i] *= shrink;
#pragma unroll
                for (int step = LANES; step < 32; step *= 2) out[h][p][i] += __shfl_xor_sync(~0u, out[h][p][i], step);
            }
    }
    __shared__ float merged[WARPS][QUERIES][LANES * PIECES * PIECE + 2];
    if (slot == 0) {
#pragma unroll
        for (int h = 0; h < QUERIES; ++h) {
            if (place == 0) merged[warp][h][0] = most[h], merged[warp][h][1] = sum[h];
#pragma unroll
            for (int p = 0; p < PIECES; ++p)
#pragma unroll
                for (int i = 0; i < PIECE; ++i) merged[warp][h][2 + (p * LANES + place) * PIECE + i] = out[h][p][i];
        }
    }
    __syncthreads();
    store_partials<T>(unit, span_index, merged, d, to);
}

// One block for each span of a unit. Queries are `[row][row_stride]`, head h at h * d.
template <typename T, int QUERIES, int LANES, int PIECES>
__device__ void attend_block(const Unit* units, int count, const Prefix<T>& prefix, const T* queries, uint32_t heads,
                             uint64_t row_stride, int d, float scale, float cap, const Merging<T>& to) {
    // Registers limit how many blocks fit a multiprocessor, so the unit is not in these.
    __shared__ Unit unit;
    const int own = unit_of_block(units, count);
    if (threadIdx.x < sizeof(Unit) / 4)
        reinterpret_cast<uint32_t*>(&unit)[threadIdx.x] = reinterpret_cast<const uint32_t*>(units + own)[threadIdx.x];
    __syncthreads();
    const int span = blockIdx.x - unit.first_block;
    attend<T, QUERIES, LANES, PIECES>(unit, span, prefix, queries, heads, row_stride, d, scale, cap, to);
}

#define ATTEND(T, NAME, QUERIES, LANES, PIECES)                                                                         \
    extern "C" __global__ void __launch_bounds__(32 * WARPS) attend_##NAME##_##QUERIES##_##LANES##_##PIECES(            \
        const Unit* units, int count, const Prefix<T> prefix, const T* queries, uint32_t heads,                         \
        unsigned long long row_stride, int d, float scale, float cap, const Merging<T> to) {                            \
        wait_for_earlier();                                                                                             \
        attend_block<T, QUERIES, LANES, PIECES>(units, count, prefix, queries, heads, row_stride, d, scale, cap, to);   \
    }

// For heads up to 64, 128 and 256 wide.
#define ATTEND_QUERIES(T, NAME, QUERIES)                                                                                \
    ATTEND(T, NAME, QUERIES, 8, 1) ATTEND(T, NAME, QUERIES, 16, 1) ATTEND(T, NAME, QUERIES, 32, 1)

#define ATTEND_ALL(T, NAME)                                                                                             \
    ATTEND_QUERIES(T, NAME, 1) ATTEND_QUERIES(T, NAME, 2) ATTEND_QUERIES(T, NAME, 4)                                    \
    ATTEND_QUERIES(T, NAME, 8)

ATTEND_ALL(float, f32)
ATTEND_ALL(__half, f16)
ATTEND_ALL(__nv_bfloat16, bf16)
