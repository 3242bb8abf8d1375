// Scores as words that order as they do, and sums over the lanes of a warp up to each: what those who choose the largest share.
#pragma once

#include <cstdint>
#include <cuda_runtime.h>
#include <math_constants.h>

// Words that order as numbers do; not-a-number is smallest.
__device__ __forceinline__ uint32_t ordered(float score) {
    const uint32_t bits = __float_as_uint(isnan(score) ? -CUDART_INF_F : score);
    return bits >> 31 ? ~bits : bits | 1u << 31;
}

// The sum over the lanes of a warp up to each.
__device__ __forceinline__ uint32_t warp_scan(uint32_t x) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const uint32_t before = __shfl_up_sync(~0u, x, step);
        if (threadIdx.x % 32 >= step) x += before;
    }
    return x;
}
