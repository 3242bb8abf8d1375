// Gives selected tokens slots in a cache in device memory, and copies those that the cache lacks from host memory. The least recently used
// tokens are evicted. What a cache holds depends only on the selections, not on the order in which threads run.
#include "slots.cuh"
#include "token_cache.cuh"

// The slot of a token that will get one in this step.
constexpr uint32_t PENDING = ~0u;
// Threads of a block that copies, and pieces that each loads before it writes the first.
constexpr int COPYING = 256;
constexpr int UNROLL = 8;

// Blocks: KV heads, which have `lists_each` lists. Tokens are `[list][most]`, ascending in each list, and `counts` `[list]` of them are
// valid. Tokens beyond the prefix are ignored. If a step selects more tokens than there are slots, the last ones get none.
extern "C" __global__ void __launch_bounds__(THREADS) place_tokens(const uint32_t* tokens, uint32_t most, const uint32_t* counts,
                                                                   uint32_t lists_each, const TokenCache cache) {
    __shared__ uint32_t shared[33];
    __shared__ uint32_t ages[AGES];
    const uint64_t kv_head = blockIdx.x;
    uint32_t* slot_of = cache.slot_of + kv_head * cache.tokens;
    uint32_t* token_in = cache.token_in + kv_head * cache.slots;
    uint32_t* used_in = cache.used_in + kv_head * cache.slots;
    uint2* to_fetch = cache.missing + kv_head * cache.slots;
    const uint32_t* own = tokens + kv_head * lists_each * most;
    const uint32_t now = cache.steps[kv_head] + 1;

    // Cached tokens are marked as used now; a token in several lists counts once.
    uint32_t found = 0;
    for (uint32_t list = 0; list < lists_each; ++list) {
        const uint32_t count = min(counts[kv_head * lists_each + list], most);
        for (uint32_t i = threadIdx.x; i < count; i += THREADS) {
            const uint32_t token = own[list * most + i];
            const uint32_t slot = token < cache.tokens ? slot_of[token] : 0;
            if (slot != 0) found += atomicExch(&used_in[slot - 1], now) != now;
        }
    }
    uint32_t hits;
    block_scan(found, shared, hits);

    // The tokens that the cache lacks, in the order of the lists, while slots are left.
    const uint32_t room = cache.slots - hits;
    uint32_t missing = 0;
    for (uint32_t list = 0; list < lists_each; ++list) {
        const uint32_t count = min(counts[kv_head * lists_each + list], most);
        for (uint32_t start = 0; start < count; start += THREADS) {
            const uint32_t i = start + threadIdx.x;
            const uint32_t token = i < count ? own[list * most + i] : cache.tokens;
            const bool is_new = token < cache.tokens && slot_of[token] == 0;
            uint32_t here;
            const uint32_t place = missing + block_scan(is_new, shared, here);
            if (is_new && place < room) {
                to_fetch[place].x = token;
                slot_of[token] = PENDING;
            }
            missing = min(missing + here, room);
            // The next list may have the same token.
            __syncthreads();
        }
    }
    if (threadIdx.x == 0) {
        cache.steps[kv_head] = now;
        cache.missing_counts[kv_head] = missing;
        cache.hits[kv_head] += hits;
    }
    if (missing == 0) return;

    count_ages(used_in, cache.slots, now, ages);
    take_oldest(used_in, cache.slots, now, missing, ages, shared, [&](uint32_t place, uint32_t slot) {
        const uint32_t token = to_fetch[place].x, evicted = token_in[slot];
        if (evicted != 0) slot_of[evicted - 1] = 0;
        token_in[slot] = token + 1;
        used_in[slot] = now;
        slot_of[token] = slot + 1;
        to_fetch[place].y = slot;
    });
}

// Keys and values, `[kv_head][stride]` in pieces of 16 bytes.
struct Rows {
    const uint4* keys;
    const uint4* values;
    unsigned long long stride;
};

// Copies the keys and values of the tokens that a cache lacks to their slots. Blocks: parts of a KV head's tokens (x), KV heads (y); a
// block takes several KV heads in turn if there are more. A key and a value take `pieces` pieces each. The kernel runs at the same time as
// attention, on few blocks, because the requests of a few keep the bus busy.
extern "C" __global__ void __launch_bounds__(COPYING) fetch_missing(const TokenCache cache, uint32_t kv_heads, const Rows prefix,
                                                                    uint32_t pieces) {
    for (uint64_t kv_head = blockIdx.y; kv_head < kv_heads; kv_head += gridDim.y) {
        const uint2* to_fetch = cache.missing + kv_head * cache.slots;
        const uint64_t first = kv_head * cache.slots * pieces;
        const uint32_t half = cache.missing_counts[kv_head] * pieces, all = 2 * half, step = gridDim.x * COPYING;
        for (uint32_t start = blockIdx.x * COPYING + threadIdx.x; start < all; start += UNROLL * step) {
            uint4 piece[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                const uint32_t i = start + u * step;
                if (i >= all) continue;
                const uint32_t at = i >= half ? i - half : i;
                const uint4* rows = i >= half ? prefix.values : prefix.keys;
                piece[u] = rows[kv_head * prefix.stride + static_cast<uint64_t>(to_fetch[at / pieces].x) * pieces + at % pieces];
            }
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                const uint32_t i = start + u * step;
                if (i >= all) continue;
                const uint32_t at = i >= half ? i - half : i;
                uint4* rows = i >= half ? cache.values : cache.keys;
                rows[first + static_cast<uint64_t>(to_fetch[at / pieces].y) * pieces + at % pieces] = piece[u];
            }
        }
    }
}
