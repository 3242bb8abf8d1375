// Sums of rows and of their products, the linear and quadratic forms of keys, and the norms of values, all in f64.
//
// Products of two matrices are computed in tiles, one by each block, whose threads hold a square of sums each. Every sum has an order that
// depends on the shapes alone, so the bits are the same each time.
#include "common.cuh"

constexpr int THREADS = 256;
// Side of a tile, threads along it, and sums of a thread along it.
constexpr int TILE = 64, SIDE = 16, EACH = TILE / SIDE;
// Terms of a product that are loaded at a time.
constexpr int STAGE = 16;
// What a block computes for a chunk of rows: the products of two tiles of channels, and the sums of the channels of the first.
constexpr int PART = TILE * TILE + TILE;
// Threads of a block that computes norms, each of one value, and channels that are loaded at a time.
constexpr int NORM_THREADS = 128, NORM_CHANNELS = 32;

static_assert(SIDE * SIDE == THREADS, "a thread for each square of sums");

// `[term][place in the tile]`. Each row has one number more, so that the terms of a place lie in different banks.
using Stage = double[STAGE][TILE + 1];

// Adds the products of two stages to a thread's sums: of places `threadIdx.x / SIDE + SIDE * i` and `threadIdx.x % SIDE + SIDE * j`.
__device__ __forceinline__ void add_products(const Stage& left, const Stage& right, double (&sums)[EACH][EACH]) {
    const int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
#pragma unroll 4
    for (int term = 0; term < STAGE; ++term) {
        double a[EACH], b[EACH];
#pragma unroll
        for (int i = 0; i < EACH; ++i) a[i] = left[term][y + SIDE * i], b[i] = right[term][x + SIDE * i];
#pragma unroll
        for (int i = 0; i < EACH; ++i)
#pragma unroll
            for (int j = 0; j < EACH; ++j) sums[i][j] += a[i] * b[j];
    }
}

// For `count` rows `[row][head][d]`, a `PART` for each chunk of a head's rows and each pair of tiles of channels, `[head][chunk][pair]`.
// The first tile of a pair does not follow the second; pairs are ordered by the second, then by the first. Blocks: heads, chunks, pairs.
extern "C" __global__ void __launch_bounds__(THREADS) chunk_moments(const float* rows, uint32_t count, int d, double* parts) {
    __shared__ Stage left, right;
    const int pair = blockIdx.z;
    int second = 0;
    while ((second + 1) * (second + 2) / 2 <= pair) ++second;
    const int first = pair - second * (second + 1) / 2;
    // Then both tiles are the same, and it is loaded once.
    const bool is_diagonal = first == second;
    const float* own = rows + blockIdx.x * d;
    const uint64_t stride = static_cast<uint64_t>(gridDim.x) * d;
    const uint32_t chunk = (count + gridDim.y - 1) / gridDim.y, begin = blockIdx.y * chunk, end = min(count, begin + chunk);
    double products[EACH][EACH] = {}, sum = 0.0;
    for (uint32_t row = begin; row < end; row += STAGE) {
        for (int i = threadIdx.x; i < STAGE * TILE; i += THREADS) {
            const int term = i / TILE, place = i % TILE, a = first * TILE + place, b = second * TILE + place;
            const bool holds = row + term < end;
            const float* from = own + (row + term) * stride;
            left[term][place] = holds && a < d ? from[a] : 0.0f;
            if (!is_diagonal) right[term][place] = holds && b < d ? from[b] : 0.0f;
        }
        __syncthreads();
        add_products(left, is_diagonal ? left : right, products);
        if (is_diagonal && threadIdx.x < TILE)
            for (int term = 0; term < STAGE; ++term) sum += left[term][threadIdx.x];
        __syncthreads();
    }
    double* to = parts + ((static_cast<uint64_t>(blockIdx.x) * gridDim.y + blockIdx.y) * gridDim.z + pair) * PART;
    const int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
#pragma unroll
    for (int i = 0; i < EACH; ++i)
#pragma unroll
        for (int j = 0; j < EACH; ++j) to[(y + SIDE * i) * TILE + x + SIDE * j] = products[i][j];
    if (threadIdx.x < TILE) to[TILE * TILE + threadIdx.x] = sum;
}

// Adds up the parts of a head's chunks: its sums `[d]`, followed by its sums of products `[d][d]`. Blocks: heads, THREADS of these numbers.
extern "C" __global__ void __launch_bounds__(THREADS) moments_of_chunks(const double* parts, uint32_t chunks, int d, double* out) {
    const int number = blockIdx.y * THREADS + threadIdx.x, product = number - d;
    if (number >= d + d * d) return;
    const int row = product < 0 ? number : product / d, column = product < 0 ? number : product % d;
    // Products below the diagonal equal those above it.
    if (row > column) return;
    const int tiles = (d + TILE - 1) / TILE, pairs = tiles * (tiles + 1) / 2;
    const int first = row / TILE, second = column / TILE, pair = second * (second + 1) / 2 + first;
    const int place = product < 0 ? TILE * TILE + row % TILE : row % TILE * TILE + column % TILE;
    const double* from = parts + (static_cast<uint64_t>(blockIdx.x) * chunks * pairs + pair) * PART + place;
    double sum = 0.0;
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) sum += from[static_cast<uint64_t>(chunk) * pairs * PART];
    double* to = out + static_cast<uint64_t>(blockIdx.x) * (d + d * d);
    if (product < 0) {
        to[row] = sum;
    } else {
        to[d + row * d + column] = sum;
        to[d + column * d + row] = sum;
    }
}

// For keys `[token][d]` and each query head of their group, with a mean `[d]` and a matrix `[d][d]`: the product of mean and key, and the
// quadratic form of the matrix, `[head][token][2]`. Without matrices the quadratic forms are 0. Blocks: tiles of tokens, heads.
template <typename T>
__device__ void key_forms(const T* keys, uint32_t tokens, int d, const double* means, const double* matrices, double* out) {
    __shared__ Stage left, right;
    const uint32_t first = blockIdx.x * TILE;
    const int head = blockIdx.y, count = min(tokens - first, static_cast<uint32_t>(TILE));
    const T* own = keys + static_cast<uint64_t>(first) * d;
    const bool has_matrix = matrices != nullptr;
    const double* mean = means + static_cast<uint64_t>(head) * d;
    const double* matrix = has_matrix ? matrices + static_cast<uint64_t>(head) * d * d : nullptr;
    const int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
    double linear = 0.0, quadratic[EACH] = {};
    // The keys times a tile of the matrix's columns. Without a matrix, they are loaded once, for the linear forms.
    for (int column = 0; column < (has_matrix ? d : 1); column += TILE) {
        double products[EACH][EACH] = {};
        for (int channel = 0; channel < d; channel += STAGE) {
            for (int i = threadIdx.x; i < STAGE * TILE; i += THREADS) {
                const int term = i % STAGE, token = i / STAGE;
                const bool holds = token < count && channel + term < d;
                left[term][token] = holds ? to_f32(own[token * d + channel + term]) : 0.0f;
            }
            for (int i = threadIdx.x; has_matrix && i < STAGE * TILE; i += THREADS) {
                const int term = i / TILE, place = i % TILE;
                const bool holds = channel + term < d && column + place < d;
                right[term][place] = holds ? matrix[(channel + term) * d + column + place] : 0.0;
            }
            __syncthreads();
            if (column == 0 && threadIdx.x < TILE)
                for (int term = 0; term < min(STAGE, d - channel); ++term) linear += mean[channel + term] * left[term][threadIdx.x];
            if (has_matrix) add_products(left, right, products);
            __syncthreads();
        }
#pragma unroll
        for (int i = 0; i < EACH; ++i)
#pragma unroll
            for (int j = 0; j < EACH; ++j) {
                const int token = y + SIDE * i, place = column + x + SIDE * j;
                if (has_matrix && token < count && place < d) quadratic[i] += products[i][j] * to_f32(own[token * d + place]);
            }
    }
    double* to = out + (static_cast<uint64_t>(head) * tokens + first) * 2;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        // The columns of a token are those of SIDE neighbouring threads, half a warp.
        double sum = quadratic[i];
#pragma unroll
        for (int step = SIDE / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
        const int token = y + SIDE * i;
        if (x == 0 && token < count) to[2 * token + 1] = sum;
    }
    if (threadIdx.x < count) to[2 * threadIdx.x] = linear;
}

// Norms of values `[token][d]`. Squares are f32 numbers and are added in the order of the channels, as on the host. Blocks: tokens, one for
// each thread.
template <typename T>
__device__ void value_norms(const T* values, uint32_t tokens, int d, double* norms) {
    __shared__ float staged[NORM_THREADS][NORM_CHANNELS + 1];
    const uint32_t first = blockIdx.x * NORM_THREADS;
    const int count = min(tokens - first, static_cast<uint32_t>(NORM_THREADS));
    const T* own = values + static_cast<uint64_t>(first) * d;
    double sum = 0.0;
    for (int channel = 0; channel < d; channel += NORM_CHANNELS) {
        const int channels = min(NORM_CHANNELS, d - channel);
        for (int i = threadIdx.x; i < NORM_THREADS * NORM_CHANNELS; i += NORM_THREADS) {
            const int place = i % NORM_CHANNELS, token = i / NORM_CHANNELS;
            if (token < count && place < channels) staged[token][place] = to_f32(own[token * d + channel + place]);
        }
        __syncthreads();
        if (threadIdx.x < count)
            for (int place = 0; place < channels; ++place) sum += __fmul_rn(staged[threadIdx.x][place], staged[threadIdx.x][place]);
        __syncthreads();
    }
    if (threadIdx.x < count) norms[first + threadIdx.x] = sqrt(sum);
}

#define FORMS(T, NAME)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS) key_forms_##NAME(                                             \
        const T* keys, uint32_t tokens, int d, const double* means, const double* matrices, double* out) {              \
        key_forms(keys, tokens, d, means, matrices, out);                                                               \
    }                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(NORM_THREADS) value_norms_##NAME(                                      \
        const T* values, uint32_t tokens, int d, double* norms) {                                                       \
        value_norms(values, tokens, d, norms);                                                                          \
    }

FORMS(float, f32)
FORMS(__half, f16)
FORMS(__nv_bfloat16, bf16)
