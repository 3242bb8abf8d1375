// Scores of keys that are represented by a centroid in each run of channels (product quantisation): a table of the query's products with
// all centroids, and for each key a sum of table entries.
#include "common.cuh"

constexpr int THREADS = 256;
// Tokens of a thread, and heads that it processes at a time.
constexpr int EACH = 4, MOST_HEADS = 4;

// The first channel of a part.
__device__ __forceinline__ int begin_of(int part, int parts, int d) { return part * d / parts; }

// Blocks: query heads, rows. Centroids are f32, `[kv_head][centroid][d]`; a centroid's channels of each part are that part's centroid.
// Tables are `[row][head][part][centroid]`.
template <typename T>
__device__ __forceinline__ void centroid_products(const uint32_t* rows, const T* queries, uint64_t row_stride, int group,
                                                  const float* centroids, int count, int parts, int d, float* tables) {
    __shared__ float query[256];
    const uint32_t head = blockIdx.x;
    const T* from = queries + rows[blockIdx.y] * row_stride + static_cast<uint64_t>(head) * d;
    for (int i = threadIdx.x; i < d; i += THREADS) query[i] = to_f32(from[i]);
    __syncthreads();
    const float* own = centroids + static_cast<uint64_t>(head / group) * count * d;
    float* to = tables + (static_cast<uint64_t>(blockIdx.y) * gridDim.x + head) * parts * count;
    for (int i = threadIdx.x; i < parts * count; i += THREADS) {
        const int part = i / count;
        float sum = 0.0f;
        for (int c = begin_of(part, parts, d), end = begin_of(part + 1, parts, d); c < end; ++c)
            sum += query[c] * own[static_cast<uint64_t>(i % count) * d + c];
        to[i] = sum;
    }
}

#define PRODUCTS(NAME, T)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS) centroid_products_##NAME(                                       \
        const uint32_t* rows, const T* queries, unsigned long long row_stride, int group, const float* centroids, int count, \
        int parts, int d, float* tables) {                                                                                 \
        centroid_products<T>(rows, queries, row_stride, group, centroids, count, parts, d, tables);                        \
    }
PRODUCTS(f32, float)
PRODUCTS(f16, __half)
PRODUCTS(bf16, __nv_bfloat16)

// Blocks: EACH * THREADS tokens, KV heads, rows. Codes are `[kv_head][part][key_stride]`, with a stride that is a multiple of four; scores
// are `[row][head][stride]`. Shared memory holds the tables of at most `at_once` heads.
extern "C" __global__ void __launch_bounds__(THREADS) code_scores(const float* tables, const uint8_t* codes, unsigned long long key_stride,
                                                                  uint32_t columns, int heads, int group, int count, int parts,
                                                                  int at_once, float* out, unsigned long long stride) {
    extern __shared__ float own[];
    const uint32_t column = (blockIdx.x * THREADS + threadIdx.x) * EACH, kv_head = blockIdx.y, row = blockIdx.z;
    const uint8_t* of_keys = codes + static_cast<uint64_t>(kv_head) * parts * key_stride + column;
    const int table = parts * count;
    for (int first = 0; first < group; first += at_once) {
        const int some = min(at_once, group - first);
        const uint64_t head = static_cast<uint64_t>(row) * heads + kv_head * group + first;
        __syncthreads();
        for (int i = threadIdx.x; i < some * table; i += THREADS) own[i] = tables[head * table + i];
        __syncthreads();
        if (column >= columns) continue;
        float sums[MOST_HEADS][EACH] = {};
        for (int part = 0; part < parts; ++part) {
            const uchar4 code = *reinterpret_cast<const uchar4*>(of_keys + part * key_stride);
#pragma unroll
            for (int h = 0; h < MOST_HEADS; ++h) {
                if (h >= some) break;
                const float* entries = own + h * table + part * count;
                sums[h][0] += entries[code.x], sums[h][1] += entries[code.y];
                sums[h][2] += entries[code.z], sums[h][3] += entries[code.w];
            }
        }
#pragma unroll
        for (int h = 0; h < MOST_HEADS; ++h) {
            if (h >= some) break;
            float* to = out + (head + h) * stride + column;
            *reinterpret_cast<float4*>(to) = make_float4(sums[h][0], sums[h][1], sums[h][2], sums[h][3]);
        }
    }
}
