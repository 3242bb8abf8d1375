// The positive and the negative parts of queries, to be multiplied by the maxima and the minima of pages; and sums of two lists of scores.
#include "common.cuh"

// One thread for each channel of each head of each row: row r of the launch is row rows[r] of the queries. Both outputs are
// `[row][head][d]`; a channel that does not belong to a part is zero there.
template <typename T>
__device__ void signed_parts(const uint32_t* rows, const T* queries, uint64_t row_stride, uint32_t width, T* positive, T* negative) {
    const uint32_t channel = blockIdx.x * blockDim.x + threadIdx.x;
    if (channel >= width) return;
    const T x = queries[rows[blockIdx.y] * row_stride + channel], zero = from_f32<T>(0.0f);
    const bool is_positive = to_f32(x) > 0.0f;
    const uint64_t to = static_cast<uint64_t>(blockIdx.y) * width + channel;
    positive[to] = is_positive ? x : zero, negative[to] = is_positive ? zero : x;
}

// Adds the scores of `from` to those of `to`, `[list][stride]` both; a block for 256 columns of a list.
extern "C" __global__ void __launch_bounds__(256) add_scores(const float* from, unsigned long long from_stride, uint32_t columns,
                                                             float* to, unsigned long long stride) {
    const uint32_t column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column < columns) to[blockIdx.y * stride + column] += from[blockIdx.y * from_stride + column];
}

#define PARTS(T, NAME)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256) signed_parts_##NAME(                                              \
        const uint32_t* rows, const T* queries, unsigned long long row_stride, uint32_t width, T* positive, T* negative) { \
        signed_parts(rows, queries, row_stride, width, positive, negative);                                             \
    }

PARTS(float, f32)
PARTS(__half, f16)
PARTS(__nv_bfloat16, bf16)
