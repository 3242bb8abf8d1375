// A cache in device memory for the keys that a search scores, of a prefix that is in host memory. Shared by the search, which reads through
// the cache, and by the kernels that then give new keys slots.
//
// During a search the cache stays as it is. A key that it lacks is read over the bus, and the thread that reads a token's key first also
// stages it: copies it to a common place, from which later rounds read it. After the search, staged keys replace the least recently used
// ones. Whether a key is found depends on the round in which it is read, not on the order in which threads run: keys that are staged in a
// round count as found from the next round on. If the keys of a round do not all fit among the staged ones, none of that round and of later
// rounds are kept.
#pragma once

#include <cstdint>

// The most rounds of a search.
constexpr int ROUNDS = 32;
// Marks the place of a key that is staged.
constexpr uint32_t STAGED = 1u << 31;

// Each KV head has its own slots. Stored numbers of slots and tokens are one larger; 0 means none.
struct KeyCache {
    // [kv_head][tokens]: the slot of each token's key, or STAGED and its place among the staged keys.
    uint32_t* place_of;
    // [kv_head][slots]: the token in each slot, and the search in which it was used last.
    uint32_t* token_in;
    uint32_t* used_in;
    // [kv_head][words]: a bit for each token whose key this search read from the prefix; zero between searches.
    uint32_t* read;
    // [kv_head][ROUNDS]: keys that each round of this search read first; zero between searches.
    uint32_t* counts;
    // [kv_head][slots]: of keys that get a slot, the place among the staged ones and the slot; [kv_head]: how many.
    uint2* taken;
    uint32_t* taken_counts;
    // [kv_head]: searches so far; and scored keys that were found, over all searches.
    uint32_t* steps;
    unsigned long long* hits;
    // Keys, [kv_head][slots] in pieces of 16 bytes.
    uint4* keys;
    uint4* staged;
    // Tokens of the prefix, and the first of them that is searched.
    uint32_t tokens;
    uint32_t first;
    uint32_t slots;

    __device__ __forceinline__ uint32_t words() const { return (tokens + 31) / 32; }
};

// How many keys are staged that may be read and kept, and whether more may be staged.
struct StagedKeys {
    uint32_t count;
    bool is_open;
};

// The keys that the rounds before `round` have staged for a KV head.
__device__ __forceinline__ StagedKeys staged_before(const KeyCache& cache, uint64_t kv_head, uint32_t round) {
    StagedKeys staged{0, true};
    for (uint32_t earlier = 0; earlier < round; ++earlier) {
        const uint32_t count = cache.counts[kv_head * ROUNDS + earlier];
        if (count > cache.slots - staged.count) {
            staged.is_open = false;
            break;
        }
        staged.count += count;
    }
    return staged;
}

// Where a key is read, and where a copy of it is staged, if it is.
template <typename T> struct KeyPlace {
    const T* from;
    T* to;
    bool is_found;
};

// The cached keys of a KV head, `d` numbers wide, in one round of a search.
template <typename T> struct CachedKeys {
    const KeyCache& cache;
    uint64_t kv_head;
    uint32_t round;
    int d;
    StagedKeys staged;
    uint32_t now;

    __device__ __forceinline__ CachedKeys(const KeyCache& cache, uint64_t kv_head, uint32_t round, int d)
        : cache(cache), kv_head(kv_head), round(round), d(d), staged(staged_before(cache, kv_head, round)),
          now(cache.steps[kv_head] + 1) {}

    // The row of a slot, or of a place among the staged keys.
    __device__ __forceinline__ T* row(uint4* rows, uint32_t place) const {
        return reinterpret_cast<T*>(rows) + (kv_head * cache.slots + place) * d;
    }

    // Looks up searched key `key`, which the prefix has at `in_prefix`, and marks it as used.
    __device__ __forceinline__ KeyPlace<T> look_up(uint32_t key, const T* in_prefix) const {
        const uint32_t token = cache.first + key;
        // Other threads of this round may write it at the same time. Both what was there and what they write mean that it is not found.
        volatile uint32_t* place_of = cache.place_of + kv_head * cache.tokens + token;
        const uint32_t place = *place_of;
        if (place & STAGED) {
            const uint32_t at = place & ~STAGED;
            const bool is_found = at < staged.count;
            return {is_found ? row(cache.staged, at) : in_prefix, nullptr, is_found};
        }
        if (place != 0) {
            cache.used_in[kv_head * cache.slots + place - 1] = now;
            return {row(cache.keys, place - 1), nullptr, true};
        }
        if (!staged.is_open) return {in_prefix, nullptr, false};
        const uint32_t bit = 1u << token % 32;
        if (atomicOr(cache.read + kv_head * cache.words() + token / 32, bit) & bit) return {in_prefix, nullptr, false};
        const uint32_t at = staged.count + atomicAdd(cache.counts + kv_head * ROUNDS + round, 1u);
        if (at >= cache.slots) return {in_prefix, nullptr, false};
        *place_of = STAGED | at;
        return {in_prefix, row(cache.staged, at), false};
    }
};

// A lane's pointer, given to all lanes of a warp.
template <typename T> __device__ __forceinline__ T* of_lane(T* own, int lane) {
    return reinterpret_cast<T*>(__shfl_sync(~0u, reinterpret_cast<unsigned long long>(own), lane));
}
