// Shared by all kernels: storage types, widening loads, rounding stores, and sums over a warp or a block.
//
// Every kernel exists for f32, f16 and bf16 storage; arithmetic is f32 throughout. Kernels have C names that end in the type's name, by
// which the launchers in crates/cuda find them.
#pragma once

#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math_constants.h>

// Elements that are loaded together: 16 bytes of a 16-bit type, 32 of f32.
constexpr int PIECE = 8;

struct alignas(16) Halves { uint32_t words[4]; };

// How the scores of a group's heads are reduced to one. Numbers as in the launchers.
enum Reduction { NONE = 0, SUM = 1, MAX = 2 };

__device__ __forceinline__ void widen(const float* from, float (&to)[PIECE]) {
    const float4 a = *reinterpret_cast<const float4*>(from), b = *reinterpret_cast<const float4*>(from + 4);
    to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w, to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
}

__device__ __forceinline__ void widen(const __half* from, float (&to)[PIECE]) {
    const Halves raw = *reinterpret_cast<const Halves*>(from);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 pair = __half22float2(reinterpret_cast<const __half2*>(raw.words)[i]);
        to[2 * i] = pair.x, to[2 * i + 1] = pair.y;
    }
}

__device__ __forceinline__ void widen(const __nv_bfloat16* from, float (&to)[PIECE]) {
    const Halves raw = *reinterpret_cast<const Halves*>(from);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        to[2 * i] = __uint_as_float(raw.words[i] << 16);
        to[2 * i + 1] = __uint_as_float(raw.words[i] & 0xffff0000u);
    }
}

// A piece in its storage type, for loads that should be in flight before the first is used.
template <typename T> struct Piece { Halves raw; };
template <> struct Piece<float> { float4 raw[2]; };

template <typename T> __device__ __forceinline__ Piece<T> load_piece(const T* from) {
    return *reinterpret_cast<const Piece<T>*>(from);
}

__device__ __forceinline__ void widen_piece(const Piece<float>& piece, float (&to)[PIECE]) {
    widen(reinterpret_cast<const float*>(piece.raw), to);
}
template <typename T> __device__ __forceinline__ void widen_piece(const Piece<T>& piece, float (&to)[PIECE]) {
    widen(reinterpret_cast<const T*>(piece.raw.words), to);
}

__device__ __forceinline__ float to_f32(float x) { return x; }
__device__ __forceinline__ float to_f32(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_f32(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T> __device__ __forceinline__ T from_f32(float x);
template <> __device__ __forceinline__ float from_f32<float>(float x) { return x; }
template <> __device__ __forceinline__ __half from_f32<__half>(float x) { return __float2half_rn(x); }
template <> __device__ __forceinline__ __nv_bfloat16 from_f32<__nv_bfloat16>(float x) { return __float2bfloat16_rn(x); }

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    return x;
}

// The sum over a block of up to 1,024 threads, returned to every thread. `shared` has room for 32 numbers.
__device__ __forceinline__ float block_sum(float x, float* shared) {
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    const int warps = (blockDim.x + 31) / 32;
    x = warp_sum(threadIdx.x % 32 < warps ? shared[threadIdx.x % 32] : 0.0f);
    __syncthreads();
    return x;
}
