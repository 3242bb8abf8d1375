// Softmax masses of scores, which are taken for logits: exp(scale * (score - largest)). NaN has no mass.
//
// Masses are whole multiples of 2^-40, so sums do not depend on the order of addition.
#pragma once

#include "picks.cuh"

// The mass of the largest score.
constexpr float ONE = 1099511627776.0f;

using Mass = unsigned long long;

__device__ __forceinline__ Mass mass_of(float score, float largest, float scale) {
    const float logit = scale * (score - largest);
    return isnan(logit) ? 0 : static_cast<Mass>(expf(logit) * ONE);
}

// Inclusive prefix sum over the lanes of a warp.
__device__ __forceinline__ Mass mass_scan(Mass x) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const Mass before = __shfl_up_sync(~0u, x, step);
        if (threadIdx.x % 32 >= step) x += before;
    }
    return x;
}

// The largest of a list of scores, returned to every thread of a block. `shared` has room for 32 numbers.
__device__ __forceinline__ float largest_of(const float* scores, uint32_t columns, float* shared) {
    float largest = -CUDART_INF_F;
    for (uint32_t i = threadIdx.x; i < columns; i += THREADS) largest = fmaxf(largest, scores[i]);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = largest;
    __syncthreads();
    largest = shared[threadIdx.x % 32];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
    return largest;
}
