// Matrix products of a warp on tensor cores (m16n8k16, 16-bit operands, f32 sums), and loads of their operands.
#pragma once

#include "common.cuh"

// c += a · b. Lane 4g + t holds
//   of a: rows g (a0, a2) and g + 8 (a1, a3), columns 2t and 2t + 1 (a0, a1), and the columns 8 further on (a2, a3);
//   of b: column g, rows 2t and 2t + 1 (b0), and the rows 8 further on (b1);
//   of c: columns 2t and 2t + 1 of row g, then of row g + 8.
template <typename T>
__device__ __forceinline__ void multiply(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                         uint32_t b1);
template <>
__device__ __forceinline__ void multiply<__nv_bfloat16>(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                                        uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void multiply<__half>(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                                 uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Loads 16 bytes that no other block reads, without caching them in L1.
__device__ __forceinline__ Halves load_once(const void* from) {
    Halves halves;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(halves.words[0]), "=r"(halves.words[1]), "=r"(halves.words[2]), "=r"(halves.words[3])
                 : "l"(from));
    return halves;
}
