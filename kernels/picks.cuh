// Writes the selected pages of a list: those whose score is above a cut.
#pragma once

#include "ordered.cuh"

// Threads of a block, and scores that a thread reads at a time.
constexpr int THREADS = 1024;
constexpr int WIDE = 4;

// Exclusive prefix sum over the threads of a block, and the total. `shared` has room for 33 numbers.
__device__ __forceinline__ uint32_t block_scan(uint32_t x, uint32_t* shared, uint32_t& total) {
    const uint32_t up_to = warp_scan(x);
    if (threadIdx.x % 32 == 31) shared[threadIdx.x / 32] = up_to;
    __syncthreads();
    if (threadIdx.x < 32) {
        const uint32_t own = shared[threadIdx.x], sums = warp_scan(own);
        shared[threadIdx.x] = sums - own;
        if (threadIdx.x == 31) shared[32] = sums;
    }
    __syncthreads();
    const uint32_t before = shared[threadIdx.x / 32] + up_to - x;
    total = shared[32];
    __syncthreads();
    return before;
}

// What is selected of a list: everything, or all scores above `word` and the first `left` equal to it.
struct Cut {
    uint32_t word;
    uint32_t left;
    bool all;
};

// Writes the tokens of the selected pages to `to`, ascending. Pages cover the tokens [first, end). Returns how many tokens the last page
// lacks if it is selected, else 0. `shared` has room for 33 numbers.
__device__ __forceinline__ uint32_t write_pages(const float* scores, uint32_t columns, const Cut& cut, uint32_t page,
                                                uint32_t first, uint32_t end, uint32_t* to, uint32_t* shared) {
    __shared__ uint32_t missing;
    if (threadIdx.x == 0) missing = 0;
    uint32_t above = 0, equal = 0;
    for (uint32_t start = 0; start < columns; start += THREADS * WIDE) {
        const uint32_t i = start + threadIdx.x * WIDE;
        float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (i < columns) four = *reinterpret_cast<const float4*>(scores + i);
        const uint32_t some[WIDE] = {ordered(four.x), ordered(four.y), ordered(four.z), ordered(four.w)};
        uint32_t here = 0;
#pragma unroll
        for (int j = 0; j < WIDE; ++j) {
            if (i + j >= columns) continue;
            here += cut.all || some[j] > cut.word ? 1u << 16 : some[j] == cut.word ? 1u : 0u;
        }
        uint32_t total;
        const uint32_t before = block_scan(here, shared, total);
        uint32_t larger = above + (before >> 16), same = equal + (before & 0xffffu);
#pragma unroll
        for (int j = 0; j < WIDE; ++j) {
            if (i + j >= columns) continue;
            const bool is_larger = cut.all || some[j] > cut.word, is_same = !is_larger && some[j] == cut.word;
            if (is_larger || is_same && same < cut.left) {
                const uint32_t begin = first + (i + j) * page, size = min(page, end - begin);
                const uint64_t at = static_cast<uint64_t>(larger + min(same, cut.left)) * page;
                for (uint32_t t = 0; t < size; ++t) to[at + t] = begin + t;
                if (size < page) missing = page - size;
            }
            larger += is_larger, same += is_same;
        }
        above += total >> 16, equal += total & 0xffffu;
    }
    __syncthreads();
    return missing;
}
