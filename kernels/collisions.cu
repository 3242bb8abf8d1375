// Hash tables of keys by random hyperplanes, and the tokens that collide with queries in them, weighted by their probability of colliding
// (MagicPIG).
//
// A vector's code in a table has a bit for each of the table's planes: whether the vector lies on the side of the normal. A table holds all
// tokens sorted by code, and where each code begins. A query selects the tokens that share its bucket in enough tables. Two bit sets in
// shared memory find them: one of tokens met at least once, one of tokens met at least twice.
#include "common.cuh"

constexpr int WIDEST = 128;
constexpr int THREADS = 256;
// Vectors that a block hashes, and the most planes at a time; each thread processes EACH of both.
constexpr int TILE = 64, EACH = 4;
// Distance between channels of the tile, in numbers.
constexpr int STRIDE = TILE + 4;
// Tokens whose keys a block sums.
constexpr int SUMMED = 1024;
// Threads of a block that sorts or samples, its warps, and bucket entries that a lane loads at a time.
constexpr int SAMPLERS = 512, WARPS = SAMPLERS / 32, AHEAD = 4;
// Threads that process one key, 8 channels each, and keys that they load at a time.
constexpr int LANES = WIDEST / PIECE, KEYS_AHEAD = 4;

// The number of tables and of planes in each, and a table of the logarithms of probabilities, which are subtracted from logits: entries at
// equal steps of the sine of half the angle, up to `farthest`. Beyond that, the value is computed.
struct Sampling {
    uint32_t bits;
    uint32_t tables;
    // In how many tables a token must collide to be selected, 1 or 2.
    uint32_t least;
    uint32_t steps;
    double farthest;
    // Added to every probability.
    double floor;
    const float* log_probabilities;
};

// Blocks: pieces of SUMMED tokens, KV heads. Sums of keys, `[kv_head][piece][d]`.
template <typename T>
__device__ void sum_keys(const T* keys, uint64_t head_stride, uint32_t tokens, int d, double* sums) {
    __shared__ double parts[THREADS];
    const int channel = threadIdx.x % d, groups = THREADS / d, group = threadIdx.x / d;
    const uint32_t first = blockIdx.x * SUMMED, end = min(first + SUMMED, tokens);
    const T* own = keys + blockIdx.y * head_stride + channel;
    double sum = 0.0;
    for (uint32_t token = first + group; token < end && group < groups; token += groups)
        sum += static_cast<double>(to_f32(own[static_cast<uint64_t>(token) * d]));
    parts[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x >= d) return;
    for (int g = 1; g < groups; ++g) sum += parts[g * d + channel];
    sums[(static_cast<uint64_t>(blockIdx.y) * gridDim.x + blockIdx.x) * d + channel] = sum;
}

// Blocks: KV heads. The mean key, from the sums of the pieces.
extern "C" __global__ void mean_of_sums(const double* sums, uint32_t pieces, uint32_t tokens, int d, float* means) {
    if (threadIdx.x >= d) return;
    double sum = 0.0;
    for (uint32_t piece = 0; piece < pieces; ++piece)
        sum += sums[(static_cast<uint64_t>(blockIdx.x) * pieces + piece) * d + threadIdx.x];
    means[blockIdx.x * d + threadIdx.x] = static_cast<float>(sum / tokens);
}

// Codes of up to TILE vectors (channel `c` of vector `v` is `x[c][v]`) in the tables from `table` on. The code of vector v in table t is
// written to `out[t * table_stride + v * vector_stride]`.
__device__ void hash_tile(const float (*x)[STRIDE], float (*normals)[STRIDE], uint8_t (*sides)[TILE], int d, const float* planes,
                          uint32_t bits, uint32_t table, uint32_t tables, uint32_t vectors, uint16_t* out, uint64_t table_stride,
                          uint64_t vector_stride) {
    const uint32_t some = min(TILE / bits, tables - table), count = some * bits;
    const float* own = planes + static_cast<uint64_t>(table) * bits * d;
    for (int i = threadIdx.x; i < TILE * d; i += THREADS) {
        const int plane = i / d, channel = i % d;
        normals[channel][plane] = plane < count ? own[i] : 0.0f;
    }
    __syncthreads();
    const int v = threadIdx.x / (TILE / EACH) * EACH, p = threadIdx.x % (TILE / EACH) * EACH;
    float sums[EACH][EACH] = {};
#pragma unroll 4
    for (int c = 0; c < d; ++c) {
        const float4 a = *reinterpret_cast<const float4*>(&x[c][v]), b = *reinterpret_cast<const float4*>(&normals[c][p]);
        const float of_vector[EACH] = {a.x, a.y, a.z, a.w}, of_plane[EACH] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int i = 0; i < EACH; ++i)
#pragma unroll
            for (int j = 0; j < EACH; ++j) sums[i][j] = fmaf(of_vector[i], of_plane[j], sums[i][j]);
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i)
#pragma unroll
        for (int j = 0; j < EACH; ++j) sides[v + i][p + j] = sums[i][j] > 0.0f;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < some * TILE; i += THREADS) {
        const uint32_t own_table = i / TILE, vector = i % TILE;
        uint32_t code = 0;
        for (uint32_t bit = 0; bit < bits; ++bit) code |= sides[vector][own_table * bits + bit] << bit;
        if (vector < vectors) out[(table + own_table) * table_stride + vector * vector_stride] = code;
    }
}

struct Tile {
    float x[WIDEST][STRIDE];
    float normals[WIDEST][STRIDE];
    uint8_t sides[TILE][TILE];
};

// Blocks: tiles of tokens, groups of tables. Codes of one KV head's keys, `[table][token]`, and the keys' lengths. If there is a mean, it
// is subtracted first.
template <typename T>
__device__ void hash_keys(const T* keys, uint32_t tokens, int d, const float* mean, const float* planes, uint32_t bits,
                          uint32_t tables, uint16_t* codes, float* lengths) {
    extern __shared__ __align__(16) uint8_t shared[];
    Tile& tile = *reinterpret_cast<Tile*>(shared);
    const uint32_t first = blockIdx.x * TILE, some = min(TILE, tokens - first);
    for (int i = threadIdx.x; i < TILE * d; i += THREADS) {
        const int vector = i / d, channel = i % d;
        const float centre = mean ? mean[channel] : 0.0f;
        tile.x[channel][vector] = vector < some ? to_f32(keys[static_cast<uint64_t>(first) * d + i]) - centre : 0.0f;
    }
    __syncthreads();
    if (blockIdx.y == 0 && threadIdx.x < some) {
        double squares = 0.0;
        for (int c = 0; c < d; ++c) squares += static_cast<double>(tile.x[c][threadIdx.x]) * tile.x[c][threadIdx.x];
        lengths[first + threadIdx.x] = static_cast<float>(sqrt(squares));
    }
    hash_tile(tile.x, tile.normals, tile.sides, d, planes, bits, blockIdx.y * (TILE / bits), tables, some, codes + first, tokens, 1);
}

// Blocks: tiles of query heads over all rows, groups of tables. Codes of queries, `[row][head][table]`.
template <typename T>
__device__ void hash_queries(const uint32_t* rows, const T* queries, uint64_t row_stride, uint32_t heads, uint32_t count, int d,
                             const float* planes, uint32_t bits, uint32_t tables, uint16_t* codes) {
    extern __shared__ __align__(16) uint8_t shared[];
    Tile& tile = *reinterpret_cast<Tile*>(shared);
    const uint32_t first = blockIdx.x * TILE, some = min(TILE, count - first);
    for (int i = threadIdx.x; i < TILE * d; i += THREADS) {
        const uint32_t vector = i / d, channel = i % d, query = first + vector;
        const bool is_there = vector < some;
        const T* own = queries + (is_there ? rows[query / heads] * row_stride + static_cast<uint64_t>(query % heads) * d : 0);
        tile.x[channel][vector] = is_there ? to_f32(own[channel]) : 0.0f;
    }
    __syncthreads();
    hash_tile(tile.x, tile.normals, tile.sides, d, planes, bits, blockIdx.y * (TILE / bits), tables, some,
              codes + static_cast<uint64_t>(first) * tables, 1, tables);
}

// Exclusive prefix sum over the threads of a block, and the total in `all`. `shared` has room for 32 numbers.
__device__ __forceinline__ uint32_t sum_before(uint32_t own, uint32_t* shared, uint32_t& all) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t sum = own;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const uint32_t other = __shfl_up_sync(~0u, sum, step);
        if (lane >= step) sum += other;
    }
    if (lane == 31) shared[warp] = sum;
    __syncthreads();
    uint32_t before = 0;
    all = 0;
    for (int w = 0; w < WARPS; ++w) {
        if (w == warp) before = all;
        all += shared[w];
    }
    __syncthreads();
    return before + sum - own;
}

// Blocks: tables. Sorts one KV head's tokens by their codes, in no order within a code. `bounds` says where each code begins; its last
// entry is the number of tokens.
template <typename N>
__device__ void sort_codes(const uint16_t* codes, uint32_t tokens, uint32_t bits, N* bounds, N* sorted) {
    extern __shared__ uint32_t next[];
    __shared__ uint32_t sums[32];
    const uint32_t count = 1u << bits;
    codes += static_cast<uint64_t>(blockIdx.x) * tokens;
    sorted += static_cast<uint64_t>(blockIdx.x) * tokens;
    bounds += static_cast<uint64_t>(blockIdx.x) * (count + 1);
    for (uint32_t i = threadIdx.x; i < count; i += SAMPLERS) next[i] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < tokens; i += SAMPLERS) atomicAdd(&next[codes[i]], 1u);
    __syncthreads();
    const uint32_t each = (count + SAMPLERS - 1) / SAMPLERS, first = threadIdx.x * each;
    uint32_t own = 0, all;
    for (uint32_t i = first; i < min(first + each, count); ++i) own += next[i];
    uint32_t before = sum_before(own, sums, all);
    for (uint32_t i = first; i < min(first + each, count); ++i) {
        const uint32_t here = next[i];
        next[i] = before;
        bounds[i] = before;
        before += here;
    }
    if (threadIdx.x == 0) bounds[count] = tokens;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < tokens; i += SAMPLERS) sorted[atomicAdd(&next[codes[i]], 1u)] = i;
}

// The logarithm of the probability that a token at this cosine is sampled.
__device__ float log_probability(const Sampling& sampling, double cosine) {
    cosine = fmin(1.0, fmax(-1.0, cosine));
    const double at = sqrt(0.5 - 0.5 * cosine) * (sampling.steps / sampling.farthest);
    const uint32_t low = static_cast<uint32_t>(at);
    if (low + 1 <= sampling.steps) {
        const float from = sampling.log_probabilities[low], to = sampling.log_probabilities[low + 1];
        return from + static_cast<float>(at - low) * (to - from);
    }
    // f32 cannot distinguish angles closer to 180 degrees than this.
    const double pi = 3.14159265358979323846, least = sqrt(2.0 * 1.1920928955078125e-7) / pi;
    const double agreement = fmax(1.0 - acos(cosine) / pi, least), tables = sampling.tables;
    const double one = pow(agreement, static_cast<double>(sampling.bits));
    const double some = -expm1(tables * log1p(-one));
    double probability = some;
    if (sampling.least == 2)
        probability = tables * one < 1e-4 ? 0.5 * tables * (tables - 1.0) * one * one * (1.0 - 2.0 / 3.0 * (tables - 2.0) * one)
                                          : some - tables * one * exp((tables - 1.0) * log1p(-one));
    return static_cast<float>(log(sampling.floor + probability));
}

// Blocks: query heads, rows, ranges of 32 * `words` tokens. Writes a bit for each token that collides with a query, `marks`
// `[row][head][range][words]`; how many these are in each range, `[row][head][range]`; and how many bucket entries were read. Codes are
// `[row][head][table]`.
template <typename N>
__device__ void meet_collisions(const uint16_t* codes, int group, uint32_t tokens, const N* bounds, const N* sorted,
                                const Sampling& sampling, uint32_t words, uint32_t* marks, uint32_t* found, uint32_t* entries) {
    extern __shared__ uint32_t sets[];
    uint32_t *met = sets, *met_again = sets + words;
    __shared__ uint32_t sums[32];
    const int kv_head = blockIdx.x / group, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t list = blockIdx.y * gridDim.x + blockIdx.x, range = 32 * words, begin = blockIdx.z * range;
    const uint64_t table_bounds = (1u << sampling.bits) + 1;
    codes += static_cast<uint64_t>(list) * sampling.tables;
    bounds += kv_head * sampling.tables * table_bounds;
    sorted += static_cast<uint64_t>(kv_head) * sampling.tables * tokens;
    for (uint32_t i = threadIdx.x; i < 2 * words; i += SAMPLERS) sets[i] = 0;
    __syncthreads();
    uint32_t read = 0;
    for (uint32_t of = warp; of < sampling.tables; of += 32 * WARPS) {
        // Each lane loads the bounds of one of the warp's tables, so no bound waits for another table's tokens.
        const uint32_t table = of + lane * WARPS;
        uint32_t start = 0, end = 0;
        if (table < sampling.tables) {
            const N* at = bounds + table * table_bounds + codes[table];
            start = at[0], end = at[1];
        }
        read += end - start;
        const uint32_t here = min(32u, (sampling.tables - of + WARPS - 1) / WARPS);
        for (uint32_t i = 0; i < here; ++i) {
            const uint32_t from = __shfl_sync(~0u, start, i), to = __shfl_sync(~0u, end, i);
            const N* bucket = sorted + static_cast<uint64_t>(of + i * WARPS) * tokens;
            for (uint32_t j = from + lane; j < to; j += 32 * AHEAD) {
                // Tokens before the range wrap around to large numbers.
                uint32_t at[AHEAD];
#pragma unroll
                for (int a = 0; a < AHEAD; ++a) at[a] = j + 32 * a < to ? bucket[j + 32 * a] - begin : ~0u;
#pragma unroll
                for (int a = 0; a < AHEAD; ++a) {
                    if (at[a] >= range) continue;
                    const uint32_t word = at[a] / 32, bit = 1u << at[a] % 32;
                    if (atomicOr(&met[word], bit) & bit) atomicOr(&met_again[word], bit);
                }
            }
        }
    }
    __syncthreads();
    const uint32_t* chosen = sampling.least == 2 ? met_again : met;
    const uint64_t own = static_cast<uint64_t>(list) * gridDim.z + blockIdx.z;
    uint32_t count = 0, all, all_read;
    for (uint32_t i = threadIdx.x; i < words; i += SAMPLERS) {
        marks[own * words + i] = chosen[i];
        count += __popc(chosen[i]);
    }
    sum_before(count, sums, all);
    sum_before(read, sums, all_read);
    if (threadIdx.x == 0) found[own] = all;
    if (threadIdx.x == 0 && blockIdx.z == 0) entries[list] = all_read;
}

// Blocks: query heads, rows, ranges. Writes the marked tokens, ascending and counted from `first`; what is subtracted from their logits;
// and their number. Lists are `[row][head][most]`.
template <typename T>
__device__ void weigh_collisions(const uint32_t* rows, const T* queries, uint64_t row_stride, int group, const T* keys,
                                 uint64_t head_stride, uint32_t tokens, int d, const float* means, const float* lengths,
                                 const Sampling& sampling, uint32_t words, const uint32_t* marks, const uint32_t* found,
                                 uint32_t first, uint32_t* lists, float* weights, uint32_t most, uint32_t* counts) {
    __shared__ __align__(16) float query[WIDEST];
    __shared__ float shared[32];
    __shared__ uint32_t sums[32];
    const int head = blockIdx.x, kv_head = head / group;
    const uint32_t list = blockIdx.y * gridDim.x + head, begin = blockIdx.z * 32 * words;
    const uint64_t ranges = static_cast<uint64_t>(list) * gridDim.z;
    const T* of_head = queries + rows[blockIdx.y] * row_stride + static_cast<uint64_t>(head) * d;
    const float x = threadIdx.x < d ? to_f32(of_head[threadIdx.x]) : 0.0f;
    if (threadIdx.x < WIDEST) query[threadIdx.x] = x;
    const float centre = means && threadIdx.x < d ? means[kv_head * d + threadIdx.x] : 0.0f;
    const float shift = block_sum(x * centre, shared), length = sqrtf(block_sum(x * x, shared));

    uint32_t before = 0;
    for (uint32_t range = 0; range < blockIdx.z; ++range) before += found[ranges + range];
    const uint32_t here = found[ranges + blockIdx.z];
    if (blockIdx.z + 1 == gridDim.z && threadIdx.x == 0) counts[list] = before + here;
    uint32_t* own = lists + static_cast<uint64_t>(list) * most + before;
    float* own_weights = weights + static_cast<uint64_t>(list) * most + before;
    const uint32_t* own_marks = marks + (ranges + blockIdx.z) * words;
    const uint32_t each = (words + SAMPLERS - 1) / SAMPLERS, low = min(words, threadIdx.x * each), high = min(low + each, words);
    uint32_t count = 0, all;
    for (uint32_t i = low; i < high; ++i) count += __popc(own_marks[i]);
    uint32_t to = sum_before(count, sums, all);
    for (uint32_t i = low; i < high; ++i)
        for (uint32_t left = own_marks[i]; left; left &= left - 1) own[to++] = first + begin + 32 * i + __ffs(left) - 1;
    __syncthreads();

    const int piece = threadIdx.x % LANES;
    const bool holds = piece * PIECE < d;
    const T* own_keys = keys + kv_head * head_stride;
    const float* own_lengths = lengths + static_cast<uint64_t>(kv_head) * tokens;
    float part[PIECE];
#pragma unroll
    for (int c = 0; c < PIECE; ++c) part[c] = query[piece * PIECE + c];
    constexpr int GROUPS = SAMPLERS / LANES;
    for (uint32_t i = threadIdx.x / LANES; i - threadIdx.x / LANES < here; i += GROUPS * KEYS_AHEAD) {
        Piece<T> raw[KEYS_AHEAD];
        uint32_t token[KEYS_AHEAD];
#pragma unroll
        for (int a = 0; a < KEYS_AHEAD; ++a) {
            const uint32_t at = i + a * GROUPS;
            token[a] = at < here ? own[at] - first : 0;
            if (holds) raw[a] = load_piece(own_keys + static_cast<uint64_t>(token[a]) * d + piece * PIECE);
        }
#pragma unroll
        for (int a = 0; a < KEYS_AHEAD; ++a) {
            float key[PIECE] = {}, sum = 0.0f;
            if (holds) widen_piece(raw[a], key);
#pragma unroll
            for (int c = 0; c < PIECE; ++c) sum = fmaf(part[c], key[c], sum);
#pragma unroll
            for (int step = LANES / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
            const uint32_t at = i + a * GROUPS;
            if (piece != a || at >= here) continue;
            const double lengths_of_both = static_cast<double>(length) * own_lengths[token[a]];
            const double cosine = lengths_of_both > 0.0 ? static_cast<double>(sum - shift) / lengths_of_both : 0.0;
            own_weights[at] = log_probability(sampling, cosine);
        }
    }
}

#define STORAGE(NAME, T)                                                                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS) sum_keys_##NAME(                                                    \
        const T* keys, unsigned long long head_stride, uint32_t tokens, int d, double* sums) {                                \
        sum_keys(keys, head_stride, tokens, d, sums);                                                                         \
    }                                                                                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS) hash_keys_##NAME(                                                   \
        const T* keys, uint32_t tokens, int d, const float* mean, const float* planes, uint32_t bits, uint32_t tables,        \
        uint16_t* codes, float* lengths) {                                                                                    \
        hash_keys(keys, tokens, d, mean, planes, bits, tables, codes, lengths);                                               \
    }                                                                                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS) hash_queries_##NAME(                                                \
        const uint32_t* rows, const T* queries, unsigned long long row_stride, uint32_t heads, uint32_t count, int d,         \
        const float* planes, uint32_t bits, uint32_t tables, uint16_t* codes) {                                               \
        hash_queries(rows, queries, row_stride, heads, count, d, planes, bits, tables, codes);                                \
    }                                                                                                                         \
    extern "C" __global__ void __launch_bounds__(SAMPLERS, 2) weigh_collisions_##NAME(                                        \
        const uint32_t* rows, const T* queries, unsigned long long row_stride, int group, const T* keys,                      \
        unsigned long long head_stride, uint32_t tokens, int d, const float* means, const float* lengths, Sampling sampling,  \
        uint32_t words, const uint32_t* marks, const uint32_t* found, uint32_t first, uint32_t* lists, float* weights,        \
        uint32_t most, uint32_t* counts) {                                                                                    \
        weigh_collisions(rows, queries, row_stride, group, keys, head_stride, tokens, d, means, lengths, sampling, words,     \
                         marks, found, first, lists, weights, most, counts);                                                  \
    }

#define SORT(WIDTH, N)                                                                                                        \
    extern "C" __global__ void __launch_bounds__(SAMPLERS) sort_codes_##WIDTH(const uint16_t* codes, uint32_t tokens,         \
                                                                              uint32_t bits, N* bounds, N* sorted) {          \
        sort_codes(codes, tokens, bits, bounds, sorted);                                                                      \
    }                                                                                                                         \
    extern "C" __global__ void __launch_bounds__(SAMPLERS) meet_collisions_##WIDTH(                                           \
        const uint16_t* codes, int group, uint32_t tokens, const N* bounds, const N* sorted, Sampling sampling,               \
        uint32_t words, uint32_t* marks, uint32_t* found, uint32_t* entries) {                                                \
        meet_collisions(codes, group, tokens, bounds, sorted, sampling, words, marks, found, entries);                        \
    }

STORAGE(f32, float)
STORAGE(f16, __half)
STORAGE(bf16, __nv_bfloat16)
SORT(16, uint16_t)
SORT(32, uint32_t)
