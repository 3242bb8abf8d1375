// Decode attention over any selection: exact ranges, picked tokens, whose logits may be lowered, given weights, a vector that
// stands for what was not picked. All of it ends in one softmax.
//
// The work comes as units (attend.cuh). Within a warp `LANES` lanes hold a token's row in pieces of 8 channels and the other
// lanes other tokens. Each keeps its own maximum and sums, so lanes talk to each other only to sum a dot product.
#include "attend.cuh"

constexpr int WARPS = 4;
// Tokens that each slot of a warp reads before it looks at the first. Four take so many registers that fewer blocks fit, which
// was slower.
constexpr int UNROLL = 2;

// What one query head's output is merged from.
struct Head {
    // Partials of up to two units: where the first is, how many there are, and how far apart.
    uint32_t first[2];
    uint32_t count[2];
    uint32_t stride[2];
    // Share of a vector that stands for what the second unit leaves out of its candidates, and which vector; a negative
    // share for none.
    float share;
    uint32_t vector;
    // The same where the device has worked it out: a share and a vector; null where it has not.
    const float* rest_share;
    const float* rest_vector;
};

template <typename T, int QUERIES, int LANES, int PIECES>
__device__ void attend(const Unit& unit, int span_index, const Prefix<T>& prefix, const T* queries, uint32_t heads,
                       uint64_t row_stride, int d, float scale, float* partials) {
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
    for (uint32_t start = own.x; start < end; start += WARPS * SLOTS * UNROLL) {
        Piece<T> keys[UNROLL][PIECES], values[UNROLL][PIECES];
        float extra[UNROLL];
        bool valid[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const uint32_t i = start + (u * WARPS + warp) * SLOTS + slot;
            valid[u] = i < end;
            // Lanes beyond the end read the span's first token and leave it out.
            const uint32_t at = valid[u] ? i : start;
            const uint32_t token = at < unit.sink ? at : at < fixed ? unit.recent + at - unit.sink : unit.tokens[at - fixed];
            extra[u] = unit.weights && at >= fixed ? unit.weights[at - fixed] : 0.0f;
            const bool behind = token >= prefix.tokens;
            const uint64_t offset = static_cast<uint64_t>(behind ? token - prefix.tokens : token) * d;
            const T* key = (behind ? tail_keys : prefix_keys) + offset;
            const T* value = (behind ? tail_values : prefix_values) + offset;
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
                for (int h = 0; h < QUERIES; ++h) weight[u][h] = valid[u] ? dots[h] - extra[u] : -CUDART_INF_F;
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
    if (given) {
        // The weights of all spans together stand for the mass once.
        const bool counts = span_index == 0 && threadIdx.x / LANES == 0;
#pragma unroll
        for (int h = 0; h < QUERIES; ++h) most[h] = unit.log_mass, sum[h] = counts ? 1.0f : 0.0f;
    }
    // Slots of a warp, then warps of the block.
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
    store_partials(unit, span_index, merged, d, partials);
}

// One block a span of a unit; queries `[row][row_stride]` with head h at h * d.
template <typename T, int QUERIES, int LANES, int PIECES>
__device__ void attend_block(const Unit* units, int count, const Prefix<T>& prefix, const T* queries, uint32_t heads,
                             uint64_t row_stride, int d, float scale, float* partials) {
    const Unit unit = units[unit_of_block(units, count)];
    const int span = blockIdx.x - unit.first_block;
    attend<T, QUERIES, LANES, PIECES>(unit, span, prefix, queries, heads, row_stride, d, scale, partials);
}

// Threads of a block that merges, which are partials whose weights it works out at a time.
constexpr int MERGE_THREADS = 512;
// Values that a thread of it reads before it knows their weights.
constexpr int EARLY = 12;

// The largest number of a block, for every thread; `shared` has room for 32 numbers.
__device__ __forceinline__ float block_max(float x, float* shared) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    x = threadIdx.x % 32 < MERGE_THREADS / 32 ? shared[threadIdx.x % 32] : -CUDART_INF_F;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
    __syncthreads();
    return x;
}

// Merges partials into one head's output; one block a head, `[head][d]`, as T and, where asked for, as f32.
//
// Threads look at a partial's maximum and sum each; groups of threads, a channel each, add up the values of some partials
// each, and the groups are added. The first values are on their way before any weight is known.
template <typename T>
__device__ void combine(const Head* all, const float* partials, const float* vectors, T* out, float* wide, int d) {
    __shared__ float shared[32], weights[MERGE_THREADS], sums[MERGE_THREADS];
    const Head head = all[blockIdx.x];
    const int parts = head.count[0] + head.count[1], width = d + 2;
    const float share = head.rest_share ? *head.rest_share : head.share;
    auto partial = [&](int i) {
        const int part = i >= static_cast<int>(head.count[0]);
        const uint32_t s = part ? i - head.count[0] : i;
        return partials + static_cast<uint64_t>(head.first[part] + s * head.stride[part]) * width;
    };
    const int channels = d <= 64 ? 64 : d <= 128 ? 128 : 256, groups = MERGE_THREADS / channels;
    const int channel = threadIdx.x % channels, group = threadIdx.x / channels;
    float early[EARLY], own_most = -CUDART_INF_F, own_sum = 0.0f;
#pragma unroll
    for (int e = 0; e < EARLY; ++e) {
        const int j = e * groups + group;
        early[e] = j < parts && channel < d ? partial(j)[2 + channel] : 0.0f;
    }
    if (threadIdx.x < parts) own_most = partial(threadIdx.x)[0], own_sum = partial(threadIdx.x)[1];
    float most = own_most, picked_most = threadIdx.x >= head.count[0] ? own_most : -CUDART_INF_F;
    for (int i = MERGE_THREADS + threadIdx.x; i < parts; i += MERGE_THREADS) {
        const float top = partial(i)[0];
        most = fmaxf(most, top);
        if (i >= static_cast<int>(head.count[0])) picked_most = fmaxf(picked_most, top);
    }
    most = block_max(most, shared);
    // ln of what the picked tokens weigh, and from it that of what was not picked.
    float rest = -CUDART_INF_F;
    if (share >= 0.0f) {
        picked_most = block_max(picked_most, shared);
        float sum = 0.0f;
        for (int i = head.count[0] + threadIdx.x; i < parts; i += MERGE_THREADS) {
            const float* from = partial(i);
            sum += from[0] == -CUDART_INF_F ? 0.0f : from[1] * expf(from[0] - picked_most);
        }
        sum = block_sum(sum, shared);
        if (sum > 0.0f) rest = picked_most + logf(sum) + logf(share / (1.0f - share));
        most = fmaxf(most, rest);
    }
    float sum = 0.0f, total = 0.0f;
    for (int start = 0; start < parts; start += MERGE_THREADS) {
        const int i = start + threadIdx.x, here = min(parts - start, MERGE_THREADS);
        float weight = 0.0f;
        if (i < parts) {
            if (start > 0) own_most = partial(i)[0], own_sum = partial(i)[1];
            weight = own_most == -CUDART_INF_F ? 0.0f : expf(own_most - most);
            sum += own_sum * weight;
        }
        weights[threadIdx.x] = weight;
        __syncthreads();
        int j = group;
        if (start == 0) {
#pragma unroll
            for (int e = 0; e < EARLY; ++e, j += groups) total += j < here ? weights[j] * early[e] : 0.0f;
        }
        if (channel < d) {
#pragma unroll 4
            for (; j < here; j += groups) total += weights[j] * partial(start + j)[2 + channel];
        }
        __syncthreads();
    }
    sum = block_sum(sum, shared);
    sums[threadIdx.x] = total;
    __syncthreads();
    if (group > 0 || channel >= d) return;
    for (int g = 1; g < groups; ++g) total += sums[g * channels + channel];
    if (rest != -CUDART_INF_F) {
        const float weight = expf(rest - most);
        const float* vector = head.rest_share ? head.rest_vector : vectors + static_cast<uint64_t>(head.vector) * d;
        sum += weight, total += weight * vector[channel];
    }
    // Nothing attended is a zero vector; NaN stays NaN.
    const float result = sum == 0.0f ? 0.0f : total / sum;
    out[static_cast<uint64_t>(blockIdx.x) * d + channel] = from_f32<T>(result);
    if (wide) wide[static_cast<uint64_t>(blockIdx.x) * d + channel] = result;
}

#define ATTEND(T, NAME, QUERIES, LANES, PIECES)                                                                         \
    extern "C" __global__ void __launch_bounds__(32 * WARPS) attend_##NAME##_##QUERIES##_##LANES##_##PIECES(            \
        const Unit* units, int count, const Prefix<T> prefix, const T* queries, uint32_t heads,                         \
        unsigned long long row_stride, int d, float scale, float* partials) {                                           \
        attend_block<T, QUERIES, LANES, PIECES>(units, count, prefix, queries, heads, row_stride, d, scale, partials);  \
    }

// For heads up to 64, 128 and 256 wide.
#define ATTEND_QUERIES(T, NAME, QUERIES)                                                                                \
    ATTEND(T, NAME, QUERIES, 8, 1) ATTEND(T, NAME, QUERIES, 16, 1) ATTEND(T, NAME, QUERIES, 32, 1)

#define ATTEND_ALL(T, NAME)                                                                                             \
    ATTEND_QUERIES(T, NAME, 1) ATTEND_QUERIES(T, NAME, 2) ATTEND_QUERIES(T, NAME, 4)                                    \
    ATTEND_QUERIES(T, NAME, 8)                                                                                          \
    extern "C" __global__ void __launch_bounds__(MERGE_THREADS) combine_##NAME(const Head* heads, const float* partials, const float* vectors, T* out,   \
                                              float* wide, int d) {                                                     \
        combine(heads, partials, vectors, out, wide, d);                                                                \
    }

ATTEND_ALL(float, f32)
ATTEND_ALL(__half, f16)
ATTEND_ALL(__nv_bfloat16, bf16)
