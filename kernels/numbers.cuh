// Small numeric helpers for kernels over 16-bit elements with f32 arithmetic.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cstdint>

namespace numbers {

// Packs two f32 as two 16-bit elements in a word, the first in the low half.
template <typename T> struct Pair;
template <> struct Pair<__nv_bfloat16> {
    static __device__ __forceinline__ uint32_t pack(float low, float high) {
        __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        return *reinterpret_cast<uint32_t*>(&pair);
    }
};
template <> struct Pair<__half> {
    static __device__ __forceinline__ uint32_t pack(float low, float high) {
        __half2 pair = __floats2half2_rn(low, high);
        return *reinterpret_cast<uint32_t*>(&pair);
    }
};

// 2^x, to within 2 units in the last place; denormal results become zero.
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

constexpr float LOG2_E = 1.4426950408889634f;

}  // namespace numbers
