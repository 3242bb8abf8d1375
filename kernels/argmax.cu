// The likeliest token of each row of logits.
#include "ordered.cuh"

constexpr int THREADS = 1024;

// Blocks: rows. Of logits `[row][columns]` writes the first column with the greatest, and whether all of the row are finite (1) or not (0).
extern "C" __global__ void __launch_bounds__(THREADS) argmax(const float* logits, uint32_t columns, uint2* found) {
    __shared__ unsigned long long of_warps[32];
    const float* own = logits + static_cast<uint64_t>(blockIdx.x) * columns;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // A word that sorts as the logit, then the column, counted from the end.
    unsigned long long best = 0;
    bool finite = true;
    for (uint32_t i = threadIdx.x; i < columns; i += THREADS) {
        const float logit = own[i];
        finite = finite && isfinite(logit);
        // Zeros of both signs are equal.
        const unsigned long long key = static_cast<unsigned long long>(ordered(logit + 0.0f)) << 32 | (~0u - i);
        best = key > best ? key : best;
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        const unsigned long long other = __shfl_xor_sync(~0u, best, step);
        best = other > best ? other : best;
    }
    if (lane == 0) of_warps[warp] = best;
    const bool all_finite = __syncthreads_and(finite);
    if (warp > 0) return;
    best = of_warps[lane];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        const unsigned long long other = __shfl_xor_sync(~0u, best, step);
        best = other > best ? other : best;
    }
    if (lane == 0) found[blockIdx.x] = make_uint2(~0u - static_cast<uint32_t>(best), all_finite);
}
