// Tiles of 64 rows in shared memory: asynchronous copies into them, and their products on tensor cores.
#pragma once

#include "numbers.cuh"

namespace tiles {

// Rows of a tile.
constexpr int ROWS = 64;

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Copies 16 bytes to shared memory; writes zeros if not `valid`.
__device__ __forceinline__ void copy_16(uint32_t to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
// Copies 4 bytes to shared memory.
__device__ __forceinline__ void copy_4(uint32_t to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}

// c += a b, 16 x 8 x 16.
template <typename T>
__device__ __forceinline__ void multiply(float* c, const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <>
__device__ __forceinline__ void multiply<__nv_bfloat16>(float* c, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void multiply<__half>(float* c, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The address of a 16-byte piece of a tile. Within each 128 bytes, the pieces of a row are permuted by the row's number, so that the pieces
// of one column of eight rows lie in different banks.
template <int WIDTH> __device__ __forceinline__ uint32_t piece(uint32_t tile, int row, int column) {
    constexpr int STRIDE = (WIDTH + 63) / 64 * 128;
    return tile + row * STRIDE + ((column ^ (row & 7)) << 4);
}

// Copies rows row..row + 64 of a matrix into a tile, with zeros before row 0 and beyond `rows` and `d`.
template <typename T, int WIDTH>
__device__ __forceinline__ void copy_tile(uint32_t tile, const T* from, size_t stride, int row, int rows, int d) {
    constexpr int PIECES = WIDTH / 8;
#pragma unroll 4
    for (int i = 0; i < ROWS * PIECES / 128; ++i) {
        const int at = i * 128 + threadIdx.x;
        const int r = at / PIECES, c = at % PIECES;
        const bool valid = static_cast<unsigned>(row + r) < static_cast<unsigned>(rows) && 8 * c < d;
        copy_16(piece<WIDTH>(tile, r, c), valid ? from + (row + r) * stride + 8 * c : from, valid);
    }
}

// Scores of 16 query rows, from `row` on, against KEYS key rows, from `key` on. For every eight keys n, lane 4g + t holds the scores of row
// g with keys 2t and 2t + 1 in s[4n] and s[4n + 1], and those of row g + 8 in s[4n + 2] and s[4n + 3].
template <typename T, int WIDTH, int KEYS = ROWS>
__device__ __forceinline__ void score_tiles(float (&s)[KEYS / 2], uint32_t q_tile, uint32_t k_tile, int row, int key, int lane) {
#pragma unroll
    for (int i = 0; i < KEYS / 2; ++i) s[i] = 0.f;
#pragma unroll
    for (int i = 0; i < WIDTH / 16; ++i) {
        uint32_t a[4];
        load_matrices(a, piece<WIDTH>(q_tile, row + lane % 16, 2 * i + lane / 16));
#pragma unroll
        for (int n = 0; n < KEYS / 16; ++n) {
            uint32_t b[4];
            load_matrices(b, piece<WIDTH>(k_tile, key + 16 * n + lane / 16 * 8 + lane % 8, 2 * i + lane / 8 % 2));
            multiply<T>(s + 8 * n, a, b[0], b[1]);
            multiply<T>(s + 8 * n + 4, a, b[2], b[3]);
        }
    }
}

// The running softmax of a lane's two rows: the largest score so far, the sum of exponentials below it, and sums of values.
template <typename T, int WIDTH> struct RowSums {
    float o[WIDTH / 2];
    float maximum[2], sum[2];

    __device__ __forceinline__ void begin() {
#pragma unroll
        for (int i = 0; i < WIDTH / 2; ++i) o[i] = 0.f;
#pragma unroll
        for (int r = 0; r < 2; ++r) maximum[r] = -INFINITY, sum[r] = 0.f;
    }

    // Turns a tile's scores, in the layout of `score_tiles`, into weights. With SOME, a row may have seen no key so far.
    template <bool SOME, int KEYS> __device__ __forceinline__ void weigh(float (&s)[KEYS / 2], float scale_log2) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float m = maximum[r];
#pragma unroll
            for (int i = 0; i < KEYS / 8; ++i) m = fmaxf(m, fmaxf(s[4 * i + 2 * r], s[4 * i + 2 * r + 1]));
            m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, 1));
            m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, 2));
            const float base = SOME && m == -INFINITY ? 0.f : m * scale_log2;
            // Computed from the difference, so that it is exactly 1 while the maximum stays.
            const float factor = SOME && maximum[r] == m ? 1.f : numbers::exp2_fast((maximum[r] - m) * scale_log2);
            maximum[r] = m;
            float part = 0.f;
#pragma unroll
            for (int i = 0; i < KEYS / 8; ++i) {
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    float& x = s[4 * i + 2 * r + c];
                    x = numbers::exp2_fast(x * scale_log2 - base);
                    part += x;
                }
            }
            sum[r] = sum[r] * factor + part;
#pragma unroll
            for (int i = 0; i < WIDTH / 8; ++i) {
                o[4 * i + 2 * r] *= factor;
                o[4 * i + 2 * r + 1] *= factor;
            }
        }
    }

    // Adds the weighted values of KEYS keys, from key `key` of a tile on.
    template <int KEYS> __device__ __forceinline__ void add(const float (&s)[KEYS / 2], uint32_t v_tile, int key, int lane) {
#pragma unroll
        for (int i = 0; i < KEYS / 16; ++i) {
            uint32_t a[4];
#pragma unroll
            for (int c = 0; c < 4; ++c) a[c] = numbers::Pair<T>::pack(s[8 * i + 2 * c], s[8 * i + 2 * c + 1]);
#pragma unroll
            for (int n = 0; n < WIDTH / 16; ++n) {
                uint32_t b[4];
                load_matrices_transposed(b, piece<WIDTH>(v_tile, key + 16 * i + lane % 16, 2 * n + lane / 16));
                multiply<T>(o + 8 * n, a, b[0], b[1]);
                multiply<T>(o + 8 * n + 4, a, b[2], b[3]);
            }
        }
    }

    // Sums the parts that the lanes of a row hold.
    __device__ __forceinline__ void join_lanes() {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            sum[r] += __shfl_xor_sync(0xffffffff, sum[r], 1);
            sum[r] += __shfl_xor_sync(0xffffffff, sum[r], 2);
        }
    }

    // Writes row r of the two; `line` is where the lane's columns begin.
    __device__ __forceinline__ void store(int r, T* line, int d) const {
        const float inverse = 1.f / sum[r];
#pragma unroll
        for (int i = 0; i < WIDTH / 8; ++i) {
            if (8 * i < d) {
                *reinterpret_cast<uint32_t*>(line + 8 * i) =
                    numbers::Pair<T>::pack(o[4 * i + 2 * r] * inverse, o[4 * i + 2 * r + 1] * inverse);
            }
        }
    }
};

// Copies COUNT rows of a matrix, from `row` on, into shared memory, WIDTH + 4 numbers apart, with zeros beyond `rows` and `d`.
template <int WIDTH, int COUNT>
__device__ __forceinline__ void copy_tile_f32(float* tile, const float* from, size_t stride, int row, int rows, int d) {
    constexpr int PIECES = WIDTH / 4;
#pragma unroll 2
    for (int at = threadIdx.x; at < COUNT * PIECES; at += 256) {
        const int r = at / PIECES, c = at % PIECES;
        const bool valid = row + r < rows && 4 * c < d;
        copy_16(shared_address(tile + r * (WIDTH + 4) + 4 * c), valid ? from + (row + r) * stride + 4 * c : from,
                valid);
    }
}

}  // namespace tiles
