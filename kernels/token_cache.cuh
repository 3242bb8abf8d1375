// A cache in device memory for tokens of a prefix that is in host memory, as kernels see it.
#pragma once

#include <cstdint>

// Each KV head has its own slots. Stored numbers of slots and tokens are one larger; 0 means none.
struct TokenCache {
    // [kv_head][tokens]: the slot of each token of the prefix.
    uint32_t* slot_of;
    // [kv_head][slots]: the token in each slot, and the step in which it was used last.
    uint32_t* token_in;
    uint32_t* used_in;
    // [kv_head][slots]: tokens to fetch in this step, and their slots; [kv_head]: how many.
    uint2* missing;
    uint32_t* missing_counts;
    // [kv_head]: steps so far; and tokens found in the cache, over all steps.
    uint32_t* steps;
    unsigned long long* hits;
    // Keys and values, [kv_head][slots] in pieces of 16 bytes.
    uint4* keys;
    uint4* values;
    uint32_t tokens;
    uint32_t slots;
};
