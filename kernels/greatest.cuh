// The greatest number of a row, found by all threads of a block.
#pragma once
#include "ordered.cuh"

// The first column with the greatest number of a row, and whether all numbers are finite; the same for every thread.
struct Greatest {
    uint32_t column;
    bool all_finite;
};

// Finds `Greatest` for a row of at least one column. All threads of the block call it; a block has whole warps.
__device__ __forceinline__ Greatest greatest_of(const float* row, uint32_t columns) {
    __shared__ unsigned long long of_warps[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    // A key that sorts by number, then by column, earlier columns larger.
    unsigned long long best = 0;
    bool finite = true;
    for (uint32_t i = threadIdx.x; i < columns; i += blockDim.x) {
        const float number = row[i];
        finite = finite && isfinite(number);
        // Zeros of both signs are equal.
        const unsigned long long key = static_cast<unsigned long long>(ordered(number + 0.0f)) << 32 | (~0u - i);
        best = key > best ? key : best;
    }
    const auto greatest_of_warp = [&] {
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            const unsigned long long other = __shfl_xor_sync(~0u, best, step);
            best = other > best ? other : best;
        }
    };
    greatest_of_warp();
    if (lane == 0) of_warps[warp] = best;
    const bool all_finite = __syncthreads_and(finite);
    best = lane < warps ? of_warps[lane] : 0;
    greatest_of_warp();
    return {~0u - static_cast<uint32_t>(best), all_finite};
}
