// Shared by the kernels for matrices in quantised blocks: where fields of blocks are, and activations and results of any storage type.
#pragma once

#include "common.cuh"

// Field i of all blocks, see quantised.cu.
struct Fields { const uint8_t* field[4]; };

// Numbers as in the launchers.
enum Stored { F32 = 0, F16 = 1, BF16 = 2 };
enum Into { NARROW = 0, WIDE_OUT = 1, ADD = 2 };

__device__ __forceinline__ float4 four_at(const void* x, int stored, size_t at) {
    if (stored == F32) return *reinterpret_cast<const float4*>(static_cast<const float*>(x) + at);
    const uint2 raw = *reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(x) + at);
    if (stored == F16) {
        const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&raw.x));
        const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&raw.y));
        return make_float4(low.x, low.y, high.x, high.y);
    }
    return make_float4(__uint_as_float(raw.x << 16), __uint_as_float(raw.x & 0xffff0000u), __uint_as_float(raw.y << 16),
                       __uint_as_float(raw.y & 0xffff0000u));
}

__device__ __forceinline__ void put(void* out, int stored, size_t at, float number) {
    if (stored == F32) static_cast<float*>(out)[at] = number;
    else if (stored == F16) static_cast<__half*>(out)[at] = __float2half_rn(number);
    else static_cast<__nv_bfloat16*>(out)[at] = __float2bfloat16_rn(number);
}

// Scales and offsets of groups 2 part and 2 part + 1 of a block of 256 numbers. The 16 bytes are the scale of scales, that of offsets,
// and codes of six bits. The low six bits of bytes 0 to 7 are the codes of scales 0 to 3 and of offsets 0 to 3. Of the other scales and
// offsets, the nibbles of bytes 8 to 11 are the low four bits, and the high two bits of bytes 0 to 7 the high two.
__device__ __forceinline__ void grouped_scales(uint4 head, int part, float (&scale)[2], float (&offset)[2]) {
    const float2 of = __half22float2(*reinterpret_cast<const __half2*>(&head.x));
    const bool first = part < 2;
    const int shift = 16 * (part % 2);
    const uint32_t a = head.y >> shift, b = head.z >> shift, c = head.w >> shift;
    const uint32_t scales = first ? a & 0x3f3fu : (c & 0x0f0fu) | (a >> 2 & 0x3030u);
    const uint32_t offsets = first ? b & 0x3f3fu : (c >> 4 & 0x0f0fu) | (b >> 2 & 0x3030u);
    scale[0] = of.x * static_cast<float>(scales & 0xffu), scale[1] = of.x * static_cast<float>(scales >> 8 & 0xffu);
    offset[0] = -of.y * static_cast<float>(offsets & 0xffu), offset[1] = -of.y * static_cast<float>(offsets >> 8 & 0xffu);
}
