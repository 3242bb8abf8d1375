// What kernels that attend take: units of work, the prefix.
//
// The work of a step is a list of units. A unit is a set of tokens of one KV head that some queries of its group attend: the
// exact tokens [0, sink) and [recent, total) of a sequence, then picked ones. The sequence is a prefix that all rows share,
// `[kv_head][capacity][d]`, and a tail of the row's own, `[layer][keys, values][kv_head][capacity][d]`: units name no layer,
// so what is equal at all layers is sent once. A unit is cut into spans of tokens, one block each, so that one long row
// fills the chip; each leaves a partial softmax (maximum, sum, and d sums of values), which `combine` merges head by head.
#pragma once

#include "common.cuh"

enum Weighting : uint32_t {
    // Ordinary logits, lowered where there is something to lower them by.
    SOFTMAX = 0,
    // Given weights, which stand for exp(log_mass) together.
    GIVEN = 1,
};

struct Unit {
    // The row's tail, of all layers, and tokens that it has room for.
    const void* tail;
    // Picked tokens, and what each brings: what its logit is lowered by, a weight, or nothing (null).
    const uint32_t* tokens;
    const float* weights;
    // How many are picked, where the device chose them; null where `picked` says it.
    const uint32_t* count;
    uint32_t tail_capacity;
    uint32_t kv_head;
    uint32_t sink;
    uint32_t recent;
    uint32_t total;
    // Picked tokens, or the most that there can be.
    uint32_t picked;
    // The first query head of those that attend, counted over all rows, and how many there are.
    uint32_t first_query;
    uint32_t queries;
    uint32_t weighting;
    float log_mass;
    // The unit's first block, and its first partial.
    uint32_t first_block;
    uint32_t first_partial;
    // Tokens of a span; or, where only the device knows how many there are, into how many spans they are cut (else 0).
    uint32_t span;
    uint32_t spans;
};

// One layer's keys and values of the prefix.
template <typename T> struct Prefix {
    const T* keys;
    const T* values;
    // Elements from one KV head to the next.
    unsigned long long stride;
    uint32_t tokens;
    uint32_t layer;
    uint32_t kv_heads;
};

// The unit whose span this block takes: the last one that begins at or before it.
__device__ __forceinline__ int unit_of_block(const Unit* units, int count) {
    int low = 0, high = count - 1;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (units[middle].first_block <= blockIdx.x) low = middle;
        else high = middle - 1;
    }
    return low;
}

// Tokens that a unit attends.
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

// Merges what the warps of a block have of a span, `[warp][query][maximum, sum, d sums of values]`, into its partials.
template <int WARPS, int QUERIES, int WIDTH>
__device__ __forceinline__ void store_partials(const Unit& unit, int span_index, const float (&merged)[WARPS][QUERIES][WIDTH],
                                               int d, float* partials) {
    for (int h = 0; h < static_cast<int>(unit.queries); ++h) {
        float top = -CUDART_INF_F;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) top = fmaxf(top, merged[w][h][0]);
        float* to = partials + static_cast<uint64_t>(unit.first_partial + span_index * unit.queries + h) * (d + 2);
        for (int i = threadIdx.x; i < d + 2; i += blockDim.x) {
            float total = 0.0f;
#pragma unroll
            for (int w = 0; w < WARPS; ++w) {
                const float shrink = merged[w][h][0] == -CUDART_INF_F ? 0.0f : __expf(merged[w][h][0] - top);
                total += i == 0 ? 0.0f : merged[w][h][i] * shrink;
            }
            to[i] = i == 0 ? top : total;
        }
    }
}
