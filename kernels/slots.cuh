// Which slots of a cache in device memory get new tokens: those used least recently. The choice depends only on the steps in which slots
// were used, not on the order in which threads run.
#pragma once

#include "picks.cuh"

// Slots last used fewer than this many steps ago are ordered by age; older ones count as equally old. One bin for each thread.
constexpr uint32_t AGES = THREADS;

// How many steps ago a slot was used; 0 is this step. A slot that was never used counts as oldest.
__device__ __forceinline__ uint32_t age_of(const uint32_t* used_in, uint32_t slot, uint32_t now) {
    return used_in[slot] == 0 ? AGES - 1 : min(now - used_in[slot], AGES - 1);
}

// Counts the slots by age, except those used in this step. `ages` is shared by the block.
__device__ __forceinline__ void count_ages(const uint32_t* used_in, uint32_t slots, uint32_t now, uint32_t* ages) {
    ages[threadIdx.x] = 0;
    __syncthreads();
    for (uint32_t slot = threadIdx.x; slot < slots; slot += THREADS) {
        const uint32_t age = age_of(used_in, slot, now);
        if (age > 0) atomicAdd(&ages[age], 1);
    }
    __syncthreads();
}

// Calls `take(place, slot)` for the `wanted` oldest slots, each with a place below `wanted`; older slots come first, and slots of equal age
// are taken in their order. `ages` counts slots by age, and no fewer than `wanted` are counted. `shared` has room for 33 numbers.
template <typename Take>
__device__ __forceinline__ void take_oldest(const uint32_t* used_in, uint32_t slots, uint32_t now, uint32_t wanted,
                                            const uint32_t* ages, uint32_t* shared, Take take) {
    __shared__ uint32_t oldest_taken, older;
    // The age down to which all slots are taken, and how many older ones there are.
    const uint32_t age = AGES - 1 - threadIdx.x, here = ages[age];
    uint32_t all;
    const uint32_t before = block_scan(here, shared, all);
    if (before < wanted && before + here >= wanted) oldest_taken = age, older = before;
    __syncthreads();

    // Of the slots of that age, the first are taken.
    uint32_t above = 0, equal = 0;
    for (uint32_t start = 0; start < slots; start += THREADS) {
        const uint32_t slot = start + threadIdx.x;
        const uint32_t own_age = slot < slots ? age_of(used_in, slot, now) : 0;
        const bool is_older = own_age > oldest_taken, is_equal = own_age == oldest_taken;
        uint32_t total;
        const uint32_t ahead = block_scan(is_older ? 1u << 16 : is_equal ? 1u : 0u, shared, total);
        const uint32_t place = is_older ? above + (ahead >> 16) : older + equal + (ahead & 0xffffu);
        if (is_older || is_equal && place < wanted) take(place, slot);
        above += total >> 16, equal += total & 0xffffu;
    }
}
