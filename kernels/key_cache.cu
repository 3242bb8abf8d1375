// Gives the keys that a search has staged slots in a cache in device memory. The least recently used keys are evicted. What a cache holds
// depends only on the searches, not on the order in which threads run.
#include "key_cache.cuh"
#include "slots.cuh"

// Threads of a block that copies.
constexpr int COPYING = 256;

// Blocks: KV heads. Runs after a search. If more keys are staged than slots are left beside those used in this search, the keys of the
// last tokens get none.
extern "C" __global__ void __launch_bounds__(THREADS) place_keys(const KeyCache cache) {
    __shared__ uint32_t shared[33];
    __shared__ uint32_t ages[AGES];
    const uint64_t kv_head = blockIdx.x;
    uint32_t* place_of = cache.place_of + kv_head * cache.tokens;
    uint32_t* token_in = cache.token_in + kv_head * cache.slots;
    uint32_t* used_in = cache.used_in + kv_head * cache.slots;
    uint32_t* read = cache.read + kv_head * cache.words();
    uint2* taken = cache.taken + kv_head * cache.slots;
    const uint32_t now = cache.steps[kv_head] + 1, kept = staged_before(cache, kv_head, ROUNDS).count;

    count_ages(used_in, cache.slots, now, ages);
    uint32_t room;
    block_scan(ages[threadIdx.x], shared, room);

    // The staged keys that are kept, by token.
    const auto is_kept = [&](uint32_t token) { return (place_of[token] & STAGED) && (place_of[token] & ~STAGED) < kept; };
    uint32_t wanted = 0;
    for (uint32_t start = 0; start < cache.words(); start += THREADS) {
        const uint32_t word = start + threadIdx.x, bits = word < cache.words() ? read[word] : 0;
        uint32_t own = 0, here;
        for (uint32_t left = bits; left != 0; left &= left - 1) own += is_kept(32 * word + __ffs(left) - 1);
        uint32_t place = wanted + block_scan(own, shared, here);
        for (uint32_t left = bits; left != 0; left &= left - 1) {
            const uint32_t token = 32 * word + __ffs(left) - 1;
            if (is_kept(token) && place++ < room) {
                taken[place - 1] = make_uint2(place_of[token] & ~STAGED, token);
            } else {
                place_of[token] = 0;
            }
        }
        if (bits != 0) read[word] = 0;
        wanted += here;
    }
    wanted = min(wanted, room);
    // All threads have read the counts, and what some have written to `taken` is read by others.
    __syncthreads();
    if (threadIdx.x < ROUNDS) cache.counts[kv_head * ROUNDS + threadIdx.x] = 0;
    if (threadIdx.x == 0) {
        cache.steps[kv_head] = now;
        cache.taken_counts[kv_head] = wanted;
    }
    if (wanted == 0) return;
    take_oldest(used_in, cache.slots, now, wanted, ages, shared, [&](uint32_t place, uint32_t slot) {
        const uint32_t token = taken[place].y, evicted = token_in[slot];
        if (evicted != 0) place_of[evicted - 1] = 0;
        token_in[slot] = token + 1;
        used_in[slot] = now;
        place_of[token] = slot + 1;
        taken[place].y = slot;
    });
}

// Copies staged keys to the slots that they got; a key takes `pieces` pieces. Blocks: parts of a KV head's keys (x), KV heads (y).
extern "C" __global__ void __launch_bounds__(COPYING) copy_staged(const KeyCache cache, uint32_t pieces) {
    const uint64_t kv_head = blockIdx.y, first = kv_head * cache.slots;
    const uint2* taken = cache.taken + first;
    const uint32_t all = cache.taken_counts[kv_head] * pieces;
    for (uint32_t i = blockIdx.x * COPYING + threadIdx.x; i < all; i += gridDim.x * COPYING) {
        const uint2 own = taken[i / pieces];
        cache.keys[(first + own.y) * pieces + i % pieces] = cache.staged[(first + own.x) * pieces + i % pieces];
    }
}
