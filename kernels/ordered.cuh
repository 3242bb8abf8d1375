// Shared by kernels that select the largest scores: scores as words that sort in the same order, and prefix sums over a warp.
#pragma once

#include <cstdint>
#include <cuda_runtime.h>
#include <math_constants.h>

// Words that sort as the numbers do. NaN sorts with negative infinity.
__device__ __forceinline__ uint32_t ordered(float score) {
    const uint32_t bits = __float_as_uint(isnan(score) ? -CUDART_INF_F : score);
    return bits >> 31 ? ~bits : bits | 1u << 31;
}

// Inclusive prefix sum over the lanes of a warp.
__device__ __forceinline__ uint32_t warp_scan(uint32_t x) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const uint32_t before = __shfl_up_sync(~0u, x, step);
        if (threadIdx.x % 32 >= step) x += before;
    }
    return x;
}
