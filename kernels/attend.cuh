// Shared by the decode attention kernels: units of work, the prefix, and the merging of partial softmaxes.
//
// The work of a step is a list of units. A unit is a set of tokens of one KV head that some queries of its group attend: the static tokens
// [0, sink) and [recent, total) of a sequence, then selected ones. The sequence is a prefix that all rows share, `[kv_head][capacity][d]`,
// and a tail for each row, `[layer][keys, values][kv_head][capacity][d]`. Units name no layer, so what is equal at all layers is copied to
// the device once. A unit is cut into spans of tokens, one block each, so that one long row fills the GPU. Each span leaves a partial
// softmax: the maximum, the sum, and d sums of values. The block that writes the last partial of a head merges all of them.
#pragma once

#include "common.cuh"

enum Weighting : uint32_t {
    // Ordinary logits, from which the tokens' weights, if any, are subtracted.
    SOFTMAX = 0,
    // Given weights, whose mass is exp(log_mass) in total.
    GIVEN = 1,
};

struct Unit {
    // The row's tail, for all layers; `tail_capacity` is how many tokens it has room for.
    const void* tail;
    // The selected tokens, and a number for each: a weight, or what is subtracted from its logit; null for none.
    const uint32_t* tokens;
    const float* weights;
    // How many tokens are selected, if the device selected them; null if `picked` says so.
    const uint32_t* count;
    // Keys and values of the selected tokens, `[picked][d]` in their order, if they were copied beforehand; null if not.
    const void* fetched_keys;
    const void* fetched_values;
    uint32_t tail_capacity;
    uint32_t kv_head;
    uint32_t sink;
    uint32_t recent;
    uint32_t total;
    // How many tokens are selected, or may be at most.
    uint32_t picked;
    // The first query head that attends, counted over all rows, and how many there are.
    uint32_t first_query;
    uint32_t queries;
    uint32_t weighting;
    float log_mass;
    // The unit's first block, and its first partial.
    uint32_t first_block;
    uint32_t first_partial;
    // Tokens of a span. If only the device knows the number of tokens, `spans` is the number of spans that they are cut into; otherwise 0.
    uint32_t span;
    uint32_t spans;
};

// One layer's keys and values of the prefix.
template <typename T> struct Prefix {
    const T* keys;
    const T* values;
    // Elements between KV heads.
    unsigned long long stride;
    uint32_t tokens;
    uint32_t layer;
    uint32_t kv_heads;
};

// The unit of this block's span: the last one whose first block is at or before it. All threads of the block search together, because every
// look-up waits for memory.
__device__ __forceinline__ int unit_of_block(const Unit* units, int count) {
    int first = 0;
    for (int left = count; left > 1;) {
        const int stride = (left + blockDim.x - 1) / blockDim.x, at = threadIdx.x * stride;
        const int begun = __syncthreads_count(at < left && units[first + at].first_block <= blockIdx.x);
        first += (begun - 1) * stride, left = min(stride, left - (begun - 1) * stride);
    }
    return first;
}

// How many tokens a unit attends.
__device__ __forceinline__ uint32_t attended(const Unit& unit) {
    const uint32_t picked = unit.count ? min(*unit.count, unit.picked) : unit.picked;
    return unit.sink + unit.total - unit.recent + picked;
}

// The tokens [x, y) of a span of a unit.
__device__ __forceinline__ uint2 tokens_of_span(const Unit& unit, uint32_t index) {
    constexpr uint32_t WHOLE = 64;
    const uint32_t all = attended(unit);
    const uint32_t span = unit.spans ? ((all + unit.spans - 1) / unit.spans + WHOLE - 1) / WHOLE * WHOLE : unit.span;
    return make_uint2(min(all, index * span), min(all, (index + 1) * span));
}

// What the output of one query head is merged from.
struct Head {
    // Partials of up to two units: the first one's number, how many there are, and their distance.
    uint32_t first[2];
    uint32_t count[2];
    uint32_t stride[2];
    // The share of the second unit's candidates' mass that was not selected, and the number of the vector that represents those tokens'
    // values. A negative share means none.
    float share;
    uint32_t vector;
    // Share and vector, if the device computed them; else null.
    const float* rest_share;
    const float* rest_vector;
    // A partial softmax that was computed elsewhere, in the same layout; null for none.
    const float* given;
};

// Where partials are written, and what they are merged into: outputs `[head][d]`, and also in f32 unless `wide` is null.
template <typename T> struct Merging {
    const Head* heads;
    float* partials;
    // How many partials of each head have been written; zero before and after a launch.
    uint32_t* done;
    const float* vectors;
    T* out;
    float* wide;
    // A sink logit, which has no value, for each of a row's `row_heads` query heads; null for none.
    const float* sinks;
    uint32_t row_heads;
};

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
    return x;
}

// Merges the partials of a head. One warp does it, each lane for some pairs of channels. The partials were written by other blocks of this
// launch, so they are read from the second-level cache.
template <typename T> __device__ __forceinline__ void merge_head(const Merging<T>& to, uint32_t number, int d) {
    constexpr int MOST = 4;
    const Head& head = to.heads[number];
    const int lane = threadIdx.x % 32, width = d + 2, split = head.count[0], parts = split + head.count[1];
    const float share = head.rest_share ? *head.rest_share : head.share;
    auto partial = [&](int i) {
        const int part = i >= split;
        return to.partials + static_cast<uint64_t>(head.first[part] + (part ? i - split : i) * head.stride[part]) * width;
    };
    float most = -CUDART_INF_F, picked_most = -CUDART_INF_F;
    for (int i = lane; i < parts; i += 32) {
        const float top = __ldcg(partial(i));
        most = fmaxf(most, top);
        if (i >= split) picked_most = fmaxf(picked_most, top);
    }
    most = warp_max(most);
    // The log of the selected tokens' mass, and from it that of the tokens that were not selected.
    float rest = -CUDART_INF_F;
    if (share >= 0.0f) {
        picked_most = warp_max(picked_most);
        float sum = 0.0f;
        for (int i = split + lane; i < parts; i += 32) {
            const float2 from = __ldcg(reinterpret_cast<const float2*>(partial(i)));
            sum += from.x == -CUDART_INF_F ? 0.0f : from.y * expf(from.x - picked_most);
        }
        sum = warp_sum(sum);
        if (sum > 0.0f) rest = picked_most + logf(sum) + logf(share / (1.0f - share));
        most = fmaxf(most, rest);
    }
    const float sink = to.sinks ? to.sinks[number % to.row_heads] : -CUDART_INF_F;
    most = fmaxf(most, sink);
    const float given_most = head.given ? head.given[0] : -CUDART_INF_F;
    most = fmaxf(most, given_most);
    float sum = 0.0f;
    float2 total[MOST] = {};
    for (int start = 0; start < parts; start += 32) {
        const int here = min(32, parts - start);
        float weight = 0.0f;
        if (lane < here) {
            const float2 own = __ldcg(reinterpret_cast<const float2*>(partial(start + lane)));
            weight = own.x == -CUDART_INF_F ? 0.0f : expf(own.x - most);
            sum += own.y * weight;
        }
#pragma unroll 8
        for (int i = 0; i < here; ++i) {
            const float of_part = __shfl_sync(~0u, weight, i);
            const float2* from = reinterpret_cast<const float2*>(partial(start + i) + 2);
#pragma unroll
            for (int m = 0; m < MOST; ++m) {
                const int pair = m * 32 + lane;
                if (2 * pair >= d) continue;
                const float2 own = __ldcg(from + pair);
                total[m].x += of_part * own.x, total[m].y += of_part * own.y;
            }
        }
    }
    sum = warp_sum(sum);
    if (sink != -CUDART_INF_F) sum += expf(sink - most);
    if (given_most != -CUDART_INF_F) {
        const float weight = expf(given_most - most);
        sum += weight * head.given[1];
#pragma unroll
        for (int m = 0; m < MOST; ++m) {
            const int channel = 2 * (m * 32 + lane);
            if (channel >= d) continue;
            total[m].x += weight * head.given[2 + channel], total[m].y += weight * head.given[3 + channel];
        }
    }
    float rest_weight = 0.0f;
    const float* vector = nullptr;
    if (rest != -CUDART_INF_F) {
        rest_weight = expf(rest - most);
        vector = head.rest_share ? head.rest_vector : to.vectors + static_cast<uint64_t>(head.vector) * d;
        sum += rest_weight;
    }
#pragma unroll
    for (int m = 0; m < MOST; ++m) {
        const int channel = 2 * (m * 32 + lane);
        if (channel >= d) continue;
        float2 result = total[m];
        if (vector) result.x += rest_weight * vector[channel], result.y += rest_weight * vector[channel + 1];
        // If nothing was attended, the output is zero; NaN stays NaN.
        if (sum == 0.0f) result = make_float2(0.0f, 0.0f);
        else result.x /= sum, result.y /= sum;
        const uint64_t at = static_cast<uint64_t>(number) * d + channel;
        to.out[at] = from_f32<T>(result.x), to.out[at + 1] = from_f32<T>(result.y);
        if (to.wide) to.wide[at] = result.x, to.wide[at + 1] = result.y;
    }
}

// Merges the warps' results for a span, `[warp][query][maximum, sum, d sums of values]`, into its partials. Then merges the partials of
// each head for which these were the last.
template <typename T, int WARPS, int QUERIES, int WIDTH>
__device__ __forceinline__ void store_partials(const Unit& unit, int span_index, const float (&merged)[WARPS][QUERIES][WIDTH],
                                               int d, const Merging<T>& to) {
    const int queries = unit.queries;
    for (int h = 0; h < queries; ++h) {
        float top = -CUDART_INF_F;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) top = fmaxf(top, merged[w][h][0]);
        float* partial = to.partials + static_cast<uint64_t>(unit.first_partial + span_index * queries + h) * (d + 2);
        for (int i = threadIdx.x; i < d + 2; i += blockDim.x) {
            float total = 0.0f;
#pragma unroll
            for (int w = 0; w < WARPS; ++w) {
                const float shrink = merged[w][h][0] == -CUDART_INF_F ? 0.0f : __expf(merged[w][h][0] - top);
                total += i == 0 ? 0.0f : merged[w][h][i] * shrink;
            }
            partial[i] = i == 0 ? top : total;
        }
    }
    __shared__ uint32_t last;
    __threadfence();
    if (threadIdx.x == 0) last = 0;
    __syncthreads();
    if (threadIdx.x < queries) {
        const uint32_t number = unit.first_query + threadIdx.x;
        const Head& head = to.heads[number];
        if (atomicAdd(&to.done[number], 1) + 1 == head.count[0] + head.count[1]) {
            atomicOr(&last, 1u << threadIdx.x);
            to.done[number] = 0;
        }
    }
    __syncthreads();
    __threadfence();
    for (int h = threadIdx.x / 32; h < queries; h += WARPS)
        if (last >> h & 1) merge_head(to, unit.first_query + h, d);
}
