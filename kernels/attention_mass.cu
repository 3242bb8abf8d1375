// The softmax weight that each key, or each distance between a row and a key, receives from the rows of a prompt, summed over the rows.
//
//   w[h, i, j] = exp(scale * q[i, h] . k[h / group, j] - lse[h, i]),   for the rows i that see key j: j <= first + i
//   by key:        mass[h, j] += sum_i w[h, i, j]
//   by distance:   mass[h, t] += sum_i w[h, i, first + i - t]
//
// Kernels: attention_mass_{f32,bf16,f16} by key, distance_mass_{bf16,f16} by distance; sm_80 and up; d a multiple of 8, from 8 to 256. Products
// as in prefill_attention_any.cu. Weights are added in the order of the rows, so a sum does not depend on how the rows are split over launches.
//
// Arrays (elements of the kernel's type unless said otherwise, every base address a multiple of 16 bytes)
//   q     [rows][q_stride], head h at h * d; q_stride >= heads * d, a multiple of 8. Row i is at position first + i.
//   k     [kv_heads][capacity][d], heads kv_stride elements apart (a multiple of 8).
//   lse   f32 [heads][lse_stride], from row 0 on: the natural logarithm of a row's sum of exp(scale * q . k).
//   mass  f32 [heads][mass_stride], one for each of the keys or distances 0..first + rows.
//
// Launch
//   grid    x = ceil((first + rows) / 64), y = heads
//   block   128 threads (bf16, f16), 256 threads (f32)
//   shared  dynamic; with w the least of 64, 128 and 256 that is not below d: bf16, f16: 384 * w + 16640 bytes; f32: 512 * (w + 4) + 16640
//   bytes
//
// How it works. A block owns 64 keys of a head and visits the rows that see them in tiles of 64. A tile's weights are written to shared
// memory, where each thread adds those of one key. By distance, a block owns 64 distances. At these, the rows of a tile see 127 keys, which
// it visits in two tiles of 64; row r sees the keys of smaller distances later, so each thread adds its distance's weights in the order of rows.
#include "tiles.cuh"

namespace attention_mass {

using namespace tiles;
using numbers::exp2_fast;
using numbers::LOG2_E;

// Weights are [row][key]. With this stride, neither neighbours in a row nor rows 4 apart share a bank.
constexpr int WEIGHT_STRIDE = ROWS + 1;

template <typename T> struct Problem {
    const T *q, *k;
    const float* lse;
    float* mass;
    int d, q_stride, rows, first, heads, kv_heads, lse_stride;
    long long kv_stride, mass_stride;
    float scale;
};

// Adds the weights of a tile's rows to this thread's key. Rows that do not exist or do not see the key have weight 0.
__device__ __forceinline__ float add_rows(float sum, const float* weights) {
#pragma unroll 8
    for (int r = 0; r < ROWS; ++r) sum += weights[r * WEIGHT_STRIDE + threadIdx.x];
    return sum;
}

// Writes the weights of a tile's rows, from `row0` on, at the keys of a tile, from `key0` on, which may be negative. Rows and keys that do not
// exist have weight 0, and so have keys that a row does not see.
template <typename T, int WIDTH>
__device__ __forceinline__ void write_weights(float* weights, const Problem<T>& problem, const float* lse, uint32_t q_tile,
                                              uint32_t k_tile, int row0, int key0) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float scale_log2 = problem.scale * LOG2_E;
    float s[ROWS / 2];
    score_tiles<T, WIDTH>(s, q_tile, k_tile, 16 * warp, 0, lane);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int in_tile = 16 * warp + lane / 4 + 8 * r, row = row0 + in_tile;
        const bool is_there = row < problem.rows;
        const float base = is_there ? lse[row] * LOG2_E : 0.f;
        // The last key of the tile that the row sees.
        const int last = is_there ? problem.first + row - key0 : -1;
        float* line = weights + in_tile * WEIGHT_STRIDE;
#pragma unroll
        for (int n = 0; n < ROWS / 8; ++n) {
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const int key = 8 * n + 2 * (lane % 4) + c;
                const bool sees = key <= last && key + key0 >= 0;
                line[key] = sees ? exp2_fast(s[4 * n + 2 * r + c] * scale_log2 - base) : 0.f;
            }
        }
    }
}

template <typename T, int WIDTH> __device__ __forceinline__ void sum_16(const Problem<T>& problem) {
    constexpr uint32_t TILE = ROWS * ((WIDTH + 63) / 64 * 128);
    extern __shared__ __align__(1024) uint8_t shared_raw[];
    const uint32_t k_tile = shared_address(shared_raw), q_tiles = k_tile + TILE;
    float* weights = reinterpret_cast<float*>(shared_raw + 3 * TILE);

    const int head = blockIdx.y, key0 = blockIdx.x * ROWS;
    const int total = problem.first + problem.rows, d = problem.d;
    const T* q = problem.q + static_cast<size_t>(head) * d;
    const T* k = problem.k + static_cast<size_t>(head / (problem.heads / problem.kv_heads)) * problem.kv_stride;
    const float* lse = problem.lse + static_cast<size_t>(head) * problem.lse_stride;

    const int begin = max(0, key0 - problem.first);
    copy_tile<T, WIDTH>(k_tile, k, d, key0, total, d);
    copy_tile<T, WIDTH>(q_tiles, q, problem.q_stride, begin, problem.rows, d);
    copy_commit();

    const int own = key0 + threadIdx.x;
    const bool sums = threadIdx.x < ROWS && own < total;
    float* to = problem.mass + static_cast<size_t>(head) * problem.mass_stride + own;
    float sum = sums ? *to : 0.f;
    for (int row0 = begin, i = 0; row0 < problem.rows; row0 += ROWS, ++i) {
        const uint32_t q_tile = q_tiles + (i & 1) * TILE;
        copy_wait<0>();
        __syncthreads();  // the rows are there, and nobody reads the last ones or the last weights any more
        if (row0 + ROWS < problem.rows) {
            copy_tile<T, WIDTH>(q_tiles + (~i & 1) * TILE, q, problem.q_stride, row0 + ROWS, problem.rows, d);
        }
        copy_commit();

        write_weights<T, WIDTH>(weights, problem, lse, q_tile, k_tile, row0, key0);
        __syncthreads();
        if (sums) sum = add_rows(sum, weights);
    }
    if (sums) *to = sum;
}

template <typename T, int WIDTH> __device__ __forceinline__ void sum_distances(const Problem<T>& problem) {
    constexpr uint32_t TILE = ROWS * ((WIDTH + 63) / 64 * 128);
    extern __shared__ __align__(1024) uint8_t shared_raw[];
    const uint32_t k_tile = shared_address(shared_raw), q_tile = k_tile + TILE;
    float* weights = reinterpret_cast<float*>(shared_raw + 2 * TILE);

    const int head = blockIdx.y, distance0 = blockIdx.x * ROWS;
    const int total = problem.first + problem.rows, d = problem.d, thread = threadIdx.x;
    const T* q = problem.q + static_cast<size_t>(head) * d;
    const T* k = problem.k + static_cast<size_t>(head / (problem.heads / problem.kv_heads)) * problem.kv_stride;
    const float* lse = problem.lse + static_cast<size_t>(head) * problem.lse_stride;

    const bool sums = thread < ROWS && distance0 + thread < total;
    float* to = problem.mass + static_cast<size_t>(head) * problem.mass_stride + distance0 + thread;
    float sum = sums ? *to : 0.f;
    for (int row0 = 0; row0 < problem.rows; row0 += ROWS) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            // In the first half, row r sees key r - thread + ROWS - 1 of the tile, in the second r - thread - 1.
            const int shift = half == 0 ? ROWS - 1 : -1;
            const int key0 = problem.first + row0 - distance0 - shift;
            if (key0 + ROWS <= 0 || key0 >= total) continue;
            __syncthreads();  // nobody reads the last tiles or their weights any more
            copy_tile<T, WIDTH>(k_tile, k, d, key0, total, d);
            copy_tile<T, WIDTH>(q_tile, q, problem.q_stride, row0, problem.rows, d);
            copy_commit();
            copy_wait<0>();
            __syncthreads();
            write_weights<T, WIDTH>(weights, problem, lse, q_tile, k_tile, row0, key0);
            __syncthreads();
            if (!sums) continue;
#pragma unroll 8
            for (int r = 0; r < ROWS; ++r) {
                const int key = r - thread + shift;
                if (key >= 0 && key < ROWS) sum += weights[r * WEIGHT_STRIDE + key];
            }
        }
    }
    if (sums) *to = sum;
}

template <int WIDTH> __device__ __forceinline__ void sum_f32(const Problem<float>& problem) {
    constexpr int STRIDE = WIDTH + 4;
    extern __shared__ __align__(1024) uint8_t shared_raw[];
    float* k_tile = reinterpret_cast<float*>(shared_raw);
    float* q_tile = k_tile + ROWS * STRIDE;
    float* weights = q_tile + ROWS * STRIDE;

    const int head = blockIdx.y, key0 = blockIdx.x * ROWS;
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;
    const int total = problem.first + problem.rows, d = problem.d;
    const float* q = problem.q + static_cast<size_t>(head) * d;
    const float* k = problem.k + static_cast<size_t>(head / (problem.heads / problem.kv_heads)) * problem.kv_stride;
    const float* lse = problem.lse + static_cast<size_t>(head) * problem.lse_stride;

    copy_tile_f32<WIDTH, ROWS>(k_tile, k, d, key0, total, d);
    const int own = key0 + threadIdx.x;
    const bool sums = threadIdx.x < ROWS && own < total;
    float* to = problem.mass + static_cast<size_t>(head) * problem.mass_stride + own;
    float sum = sums ? *to : 0.f;
    for (int row0 = max(0, key0 - problem.first); row0 < problem.rows; row0 += ROWS) {
        __syncthreads();  // nobody reads the last rows or their weights any more
        copy_tile_f32<WIDTH, ROWS>(q_tile, q, problem.q_stride, row0, problem.rows, d);
        copy_commit();
        copy_wait<0>();
        __syncthreads();

        float s[4][4] = {};
#pragma unroll 4
        for (int c = 0; c < WIDTH; c += 4) {
            float4 a[4], b[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) a[i] = *reinterpret_cast<const float4*>(q_tile + (y + 16 * i) * STRIDE + c);
#pragma unroll
            for (int j = 0; j < 4; ++j) b[j] = *reinterpret_cast<const float4*>(k_tile + (x + 16 * j) * STRIDE + c);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    s[i][j] = fmaf(a[i].x, b[j].x, s[i][j]);
                    s[i][j] = fmaf(a[i].y, b[j].y, s[i][j]);
                    s[i][j] = fmaf(a[i].z, b[j].z, s[i][j]);
                    s[i][j] = fmaf(a[i].w, b[j].w, s[i][j]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int in_tile = y + 16 * i, row = row0 + in_tile;
            const bool is_there = row < problem.rows;
            const float base = is_there ? lse[row] : 0.f;
            const int last = is_there ? problem.first + row - key0 : -1;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int key = x + 16 * j;
                weights[in_tile * WEIGHT_STRIDE + key] = key <= last ? expf(s[i][j] * problem.scale - base) : 0.f;
            }
        }
        __syncthreads();
        if (sums) sum = add_rows(sum, weights);
    }
    if (sums) *to = sum;
}

template <typename T> __device__ __forceinline__ void sum(const Problem<T>& problem) {
    const int d = problem.d;
    if constexpr (sizeof(T) == 4) {
        if (d <= 64) {
            sum_f32<64>(problem);
        } else if (d <= 128) {
            sum_f32<128>(problem);
        } else {
            sum_f32<256>(problem);
        }
    } else {
        if (d <= 64) {
            sum_16<T, 64>(problem);
        } else if (d <= 128) {
            sum_16<T, 128>(problem);
        } else {
            sum_16<T, 256>(problem);
        }
    }
}

template <typename T> __device__ __forceinline__ void sum_by_distance(const Problem<T>& problem) {
    if (problem.d <= 64) {
        sum_distances<T, 64>(problem);
    } else if (problem.d <= 128) {
        sum_distances<T, 128>(problem);
    } else {
        sum_distances<T, 256>(problem);
    }
}

}  // namespace attention_mass

#define ATTENTION_MASS(NAME, T, BLOCK, SUM)                                                                           \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                               \
        NAME(const T* q, const T* k, const float* lse, float* mass, int d, int q_stride, int rows, int first,         \
             int heads, int kv_heads, int lse_stride, long long kv_stride, long long mass_stride, float scale) {      \
        attention_mass::SUM<T>(attention_mass::Problem<T>{q, k, lse, mass, d, q_stride, rows, first, heads, kv_heads, \
                                                          lse_stride, kv_stride, mass_stride, scale});                \
    }

ATTENTION_MASS(attention_mass_f32, float, 256, sum)
ATTENTION_MASS(attention_mass_bf16, __nv_bfloat16, 128, sum)
ATTENTION_MASS(attention_mass_f16, __half, 128, sum)
ATTENTION_MASS(distance_mass_bf16, __nv_bfloat16, 128, sum_by_distance)
ATTENTION_MASS(distance_mass_f16, __half, 128, sum_by_distance)
