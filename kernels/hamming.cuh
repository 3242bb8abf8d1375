// The order among tokens at the same Hamming distance: a seeded permutation of places, reduced to a few levels.
#pragma once

#include <cstdint>

// With `levels` = 0 there is no order. The place of a column is the column itself or, with a period, `first` and the column modulo that.
struct Ties {
    uint32_t low, high;
    uint32_t levels;
    float unit;
    uint32_t first, period;
};

__device__ __forceinline__ uint32_t place_of(const Ties& ties, uint32_t column) {
    return ties.period == 0 ? column : ties.first + column % ties.period;
}

// The finalizer of 32-bit MurmurHash3.
__device__ __forceinline__ uint32_t mixed(uint32_t x) {
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x = (x ^ x >> 13) * 0xc2b2ae35u;
    return x ^ x >> 16;
}

// The level of a place. Of two tokens at the same distance, the one on the higher level counts as nearer.
__device__ __forceinline__ uint32_t level_of(const Ties& ties, uint32_t place) {
    return ties.levels == 0 ? 0 : mixed(mixed(place ^ ties.low) ^ ties.high) >> (32 - ties.levels);
}
