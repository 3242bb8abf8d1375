// Gathers the keys and values of selected tokens in device memory, in the order of their lists. They come from a prefix, which may be in
// host memory; from a cache of its tokens in device memory; and from the tail. The kernel runs at the same time as attention, on few
// blocks, because the requests of a few keep the bus busy.
#include <cuda_runtime.h>

#include "token_cache.cuh"

constexpr int THREADS = 256;
// Pieces that a thread loads before it writes the first.
constexpr int UNROLL = 8;

// Keys and values, `[kv_head][stride]` in pieces of 16 bytes.
struct Rows {
    const uint4* keys;
    const uint4* values;
    unsigned long long stride;
};

// Blocks: parts of a list (x), lists (y); a block takes several lists in turn if there are more. Tokens are `[list][most]`, and `counts`
// `[list]` of them are valid; a KV head has `lists_each` lists. A key and a value take `pieces` pieces each. Without `slot_of` there is no
// cache; tokens that the cache lacks are read from the prefix. Writes keys and values, each `[list][most][pieces]`.
extern "C" __global__ void __launch_bounds__(THREADS) fetch_tokens(const uint32_t* tokens, uint32_t most, const uint32_t* counts,
                                                                   uint32_t lists, uint32_t lists_each, const Rows prefix,
                                                                   uint32_t prefix_tokens, const Rows tail, uint32_t pieces,
                                                                   const TokenCache cache, uint4* keys, uint4* values) {
    for (uint64_t list = blockIdx.y; list < lists; list += gridDim.y) {
        const uint64_t kv_head = list / lists_each, first = list * most * pieces;
        const uint32_t* own = tokens + list * most;
        const uint32_t half = min(counts[list], most) * pieces, all = 2 * half, step = gridDim.x * THREADS;
        for (uint32_t start = blockIdx.x * THREADS + threadIdx.x; start < all; start += UNROLL * step) {
            uint4 piece[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                const uint32_t i = start + u * step;
                if (i >= all) continue;
                const bool is_value = i >= half;
                const uint32_t at = is_value ? i - half : i, token = own[at / pieces];
                const bool is_behind = token >= prefix_tokens;
                const uint32_t slot = is_behind || !cache.slot_of ? 0 : cache.slot_of[kv_head * cache.tokens + token];
                const uint4* rows = is_value ? (is_behind ? tail.values : prefix.values) : (is_behind ? tail.keys : prefix.keys);
                uint64_t row = is_behind ? token - prefix_tokens : token, stride = is_behind ? tail.stride : prefix.stride;
                if (slot != 0) {
                    rows = is_value ? cache.values : cache.keys;
                    row = slot - 1, stride = static_cast<uint64_t>(cache.slots) * pieces;
                }
                piece[u] = rows[kv_head * stride + row * pieces + at % pieces];
            }
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                const uint32_t i = start + u * step;
                if (i >= all) continue;
                uint4* to = i >= half ? values + first + (i - half) : keys + first + i;
                *to = piece[u];
            }
        }
    }
}
