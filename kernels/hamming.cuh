// The order among tokens at one Hamming distance: a permutation of places that a seed draws, cut to some levels.
#pragma once

#include <cstdint>

// None if there are no levels.
struct Ties {
    uint32_t low, high;
    uint32_t levels;
    float unit;
};

// The finishing step of MurmurHash3 for 32 bits.
__device__ __forceinline__ uint32_t mixed(uint32_t x) {
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x = (x ^ x >> 13) * 0xc2b2ae35u;
    return x ^ x >> 16;
}

// The level of a place: of two at one distance the one on the higher level is nearer.
__device__ __forceinline__ uint32_t level_of(const Ties& ties, uint32_t place) {
    return ties.levels == 0 ? 0 : mixed(mixed(place ^ ties.low) ^ ties.high) >> (32 - ties.levels);
}
