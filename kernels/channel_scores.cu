// Scores by a query's largest channels, and the share that they leave (SparQ). Keys are stored channel by channel, `[kv_head][d][stride]`,
// so that the few channels that a query chooses are read in long stretches.
//
// A score is q̂·k / τ with τ = √(d·‖q̂‖₁/‖q‖₁), where q̂ is the query on its channels: an estimated logit. `rest_shares` computes from
// these logits the share of the softmax that falls to the candidates that were not selected.
#include "common.cuh"

constexpr int THREADS = 128;
// Tokens that a block scores.
constexpr uint32_t TILE = THREADS * PIECE;
// Channels that a thread loads before it uses the first.
constexpr int AHEAD = 8;
// The widest head.
constexpr int WIDEST = 256;
// Threads of a block that reads all logits of a head.
constexpr int REST_THREADS = 256;

// Transposes keys `[kv_head][token][d]` to channels, with zeros beyond the last token. Blocks: 32 tokens, 32 channels, KV heads.
template <typename T>
__device__ void by_channel(const T* keys, uint64_t head_stride, uint32_t tokens, int d, T* out, uint64_t stride) {
    __shared__ T tile[32][33];
    const T* from = keys + blockIdx.z * head_stride;
    T* to = out + static_cast<uint64_t>(blockIdx.z) * d * stride;
    const uint32_t token = blockIdx.x * 32, channel = blockIdx.y * 32;
    for (uint32_t y = threadIdx.y; y < 32; y += blockDim.y) {
        const bool holds = token + y < tokens && channel + threadIdx.x < d;
        tile[y][threadIdx.x] = holds ? from[static_cast<uint64_t>(token + y) * d + channel + threadIdx.x] : from_f32<T>(0.0f);
    }
    __syncthreads();
    for (uint32_t y = threadIdx.y; y < 32; y += blockDim.y)
        if (channel + y < d && token + threadIdx.x < stride)
            to[(channel + y) * stride + token + threadIdx.x] = tile[threadIdx.x][y];
}

// Sums of values over chunks of tokens, `[kv_head][chunk][d]`. Blocks: chunks, KV heads. One thread for each channel.
template <typename T>
__device__ void sum_values(const T* values, uint64_t head_stride, uint32_t tokens, int d, double* sums) {
    if (threadIdx.x >= d) return;
    const uint32_t chunk = (tokens + gridDim.x - 1) / gridDim.x, begin = blockIdx.x * chunk, end = min(tokens, begin + chunk);
    const T* from = values + blockIdx.y * head_stride + threadIdx.x;
    double sum = 0.0;
    for (uint32_t token = begin; token < end; ++token) sum += to_f32(from[static_cast<uint64_t>(token) * d]);
    sums[(static_cast<uint64_t>(blockIdx.y) * gridDim.x + blockIdx.x) * d + threadIdx.x] = sum;
}

// Mean values from these sums, `[kv_head][d]`. Blocks: KV heads. One thread for each channel.
extern "C" __global__ void __launch_bounds__(WIDEST) mean_of_sums(const double* sums, uint32_t chunks, uint32_t tokens, int d,
                                                                  float* means) {
    if (threadIdx.x >= d) return;
    double sum = 0.0;
    for (uint32_t chunk = 0; chunk < chunks; ++chunk)
        sum += sums[(static_cast<uint64_t>(blockIdx.x) * chunks + chunk) * d + threadIdx.x];
    means[blockIdx.x * d + threadIdx.x] = static_cast<float>(sum / tokens);
}

// The `chosen` channels, ascending, in which a query, or the queries of a list's heads together, are largest; and each query's numbers in
// them divided by τ. Blocks: lists, each for equally many neighbouring heads; rows. One thread for each channel.
template <typename T>
__device__ void choose_channels(const uint32_t* rows, const T* queries, uint64_t row_stride, int heads, int d, int chosen,
                                uint32_t* channels, float* weights) {
    __shared__ float sizes[WIDEST], shared[32];
    __shared__ bool is_chosen[WIDEST];
    const int lists = gridDim.x, each = heads / lists, list = blockIdx.x, row = blockIdx.y, channel = threadIdx.x;
    const T* query = queries + rows[row] * row_stride + static_cast<uint64_t>(list) * each * d;
    float size = 0.0f;
    if (channel < d)
        for (int h = 0; h < each; ++h) size += fabsf(to_f32(query[h * d + channel]));
    if (channel < d) sizes[channel] = size;
    __syncthreads();
    int larger = 0;
    if (channel < d)
        for (int other = 0; other < d; ++other) larger += sizes[other] > size || (sizes[other] == size && other < channel);
    const bool own = channel < d && larger < chosen;
    if (channel < d) is_chosen[channel] = own;
    __syncthreads();
    int place = 0;
    for (int other = 0; own && other < channel; ++other) place += is_chosen[other];
    // With NaN in the queries, more than `chosen` channels may be marked.
    const bool holds = own && place < chosen;
    if (holds) channels[(static_cast<uint64_t>(row) * lists + list) * chosen + place] = channel;
    for (int h = 0; h < each; ++h) {
        const float q = channel < d ? to_f32(query[h * d + channel]) : 0.0f;
        const float all = block_sum(fabsf(q), shared), covered = block_sum(own ? fabsf(q) : 0.0f, shared);
        const float coverage = covered > 0.0f ? covered / all : 1.0f;
        const uint64_t head = static_cast<uint64_t>(row) * heads + list * each + h;
        if (holds) weights[head * chosen + place] = q / sqrtf(d * coverage);
    }
}

// The largest number of a block, returned to every thread. `shared` has room for 32 numbers.
__device__ __forceinline__ float block_top(float x, float* shared) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    x = threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : -CUDART_INF_F;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
    __syncthreads();
    return x;
}

// Logits of all candidates, `[row][head][stride]`; for each tile the largest logit and the sum of exponentials below it,
// `[row][head][tile][2]`; and the reduced logits of a list's heads, `[row][list][stride]`, if one block has all of these heads. Blocks:
// tiles of tokens, up to QUERIES heads of a list, rows.
template <typename T, int QUERIES>
__device__ void channel_scores(const uint32_t* channels, const float* weights, const T* keys, uint64_t key_stride, int d,
                               int heads, int group, int each, int chosen, uint32_t columns, float* out, uint64_t stride,
                               float* tiles, int reduction, float* reduced) {
    __shared__ uint32_t rows[WIDEST];
    __shared__ float factors[WIDEST][QUERIES], shared[32];
    const int parts = (each + QUERIES - 1) / QUERIES, list = blockIdx.y / parts, row = blockIdx.z;
    const int first = list * each + blockIdx.y % parts * QUERIES, count = min(QUERIES, (list + 1) * each - first);
    const int lists = heads / each;
    for (int i = threadIdx.x; i < chosen; i += THREADS) {
        rows[i] = channels[(static_cast<uint64_t>(row) * lists + list) * chosen + i];
#pragma unroll
        for (int h = 0; h < QUERIES; ++h)
            factors[i][h] = h < count ? weights[(static_cast<uint64_t>(row) * heads + first + h) * chosen + i] : 0.0f;
    }
    __syncthreads();
    const uint32_t token = blockIdx.x * TILE + threadIdx.x * PIECE;
    const bool holds = token < columns;
    float scores[QUERIES][PIECE] = {};
    if (holds) {
        const T* from = keys + static_cast<uint64_t>(first / group) * d * key_stride + token;
        for (int start = 0; start < chosen; start += AHEAD) {
            Piece<T> pieces[AHEAD];
#pragma unroll
            for (int a = 0; a < AHEAD; ++a) pieces[a] = load_piece(from + rows[min(start + a, chosen - 1)] * key_stride);
#pragma unroll
            for (int a = 0; a < AHEAD; ++a) {
                if (start + a >= chosen) break;
                float numbers[PIECE];
                widen_piece(pieces[a], numbers);
#pragma unroll
                for (int h = 0; h < QUERIES; ++h)
#pragma unroll
                    for (int i = 0; i < PIECE; ++i) scores[h][i] += factors[start + a][h] * numbers[i];
            }
        }
#pragma unroll
        for (int h = 0; h < QUERIES; ++h) {
            if (h >= count) break;
            float* to = out + (static_cast<uint64_t>(row) * heads + first + h) * stride + token;
            *reinterpret_cast<float4*>(to) = make_float4(scores[h][0], scores[h][1], scores[h][2], scores[h][3]);
            if (token + 4 < columns)
                *reinterpret_cast<float4*>(to + 4) = make_float4(scores[h][4], scores[h][5], scores[h][6], scores[h][7]);
        }
        if (reduction != NONE) {
            float all[PIECE];
#pragma unroll
            for (int i = 0; i < PIECE; ++i) {
                all[i] = scores[0][i];
#pragma unroll
                for (int h = 1; h < QUERIES; ++h)
                    if (h < count) all[i] = reduction == SUM ? all[i] + scores[h][i] : fmaxf(all[i], scores[h][i]);
            }
            float* to = reduced + (static_cast<uint64_t>(row) * lists + list) * stride + token;
            *reinterpret_cast<float4*>(to) = make_float4(all[0], all[1], all[2], all[3]);
            if (token + 4 < columns) *reinterpret_cast<float4*>(to + 4) = make_float4(all[4], all[5], all[6], all[7]);
        }
    }
#pragma unroll
    for (int h = 0; h < QUERIES; ++h) {
        if (h >= count) break;
        float top = -CUDART_INF_F, sum = 0.0f;
#pragma unroll
        for (int i = 0; i < PIECE; ++i)
            if (token + i < columns) top = fmaxf(top, scores[h][i]);
        top = block_top(top, shared);
#pragma unroll
        for (int i = 0; i < PIECE; ++i)
            if (token + i < columns) sum += expf(scores[h][i] - top);
        sum = block_sum(sum, shared);
        if (threadIdx.x == 0) {
            float* to = tiles + ((static_cast<uint64_t>(row) * heads + first + h) * gridDim.x + blockIdx.x) * 2;
            to[0] = top, to[1] = sum;
        }
    }
}

// The sum of doubles over a block, returned to every thread. `shared` has room for 32.
__device__ __forceinline__ double block_total(double x, double* shared) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    x = threadIdx.x % 32 < REST_THREADS / 32 ? shared[threadIdx.x % 32] : 0.0;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    __syncthreads();
    return x;
}

// From the tiles' sums, the share of each head's softmax that the selected tokens leave, below 1, `[row][head]`; and copies the KV heads'
// mean values to where the attention kernel reads them. Lists of selected tokens are by head or by KV head, of tokens from `begin` on.
// Blocks: heads, rows.
extern "C" __global__ void __launch_bounds__(REST_THREADS) rest_shares(
    const float* logits, unsigned long long stride, uint32_t columns, const float* tiles, uint32_t tile_count,
    const uint32_t* tokens, uint32_t most, const uint32_t* counts, int lists, uint32_t begin, int group, const float* means,
    int d, float* shares, float* values) {
    // The largest share below one: the rest is expressed as a multiple of the selected mass.
    constexpr float MOST = 1.0f - 1.1920929e-7f;
    __shared__ double shared[32];
    __shared__ float tops[32];
    const int heads = gridDim.x, head = blockIdx.x, row = blockIdx.y, each = heads / lists;
    const float* own = logits + (static_cast<uint64_t>(row) * heads + head) * stride;
    const float* own_tiles = tiles + (static_cast<uint64_t>(row) * heads + head) * tile_count * 2;
    float top = -CUDART_INF_F;
    for (uint32_t i = threadIdx.x; i < tile_count; i += REST_THREADS) top = fmaxf(top, own_tiles[2 * i]);
    const float most_logit = block_top(top, tops);
    double all = 0.0;
    for (uint32_t i = threadIdx.x; i < tile_count; i += REST_THREADS)
        all += static_cast<double>(own_tiles[2 * i + 1]) * expf(own_tiles[2 * i] - most_logit);
    all = block_total(all, shared);
    const uint64_t list = static_cast<uint64_t>(row) * lists + head / each;
    const uint32_t count = min(counts[list], most);
    double inside = 0.0;
    for (uint32_t i = threadIdx.x; i < count; i += REST_THREADS) inside += expf(own[tokens[list * most + i] - begin] - most_logit);
    inside = block_total(inside, shared);
    // If all tokens are selected, the share is 0; the subtraction would leave a rounding error.
    const double outside = count >= columns ? 0.0 : fmax(all - inside, 0.0);
    if (threadIdx.x == 0)
        shares[static_cast<uint64_t>(row) * heads + head] = fminf(static_cast<float>(outside / (inside + outside)), MOST);
    if (row == 0 && head % group == 0)
        for (int channel = threadIdx.x; channel < d; channel += REST_THREADS)
            values[head / group * d + channel] = means[head / group * d + channel];
}

#define CHANNELS(T, NAME)                                                                                               \
    extern "C" __global__ void __launch_bounds__(256) by_channel_##NAME(                                                \
        const T* keys, unsigned long long head_stride, uint32_t tokens, int d, T* out, unsigned long long stride) {     \
        by_channel(keys, head_stride, tokens, d, out, stride);                                                          \
    }                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(WIDEST) sum_values_##NAME(                                             \
        const T* values, unsigned long long head_stride, uint32_t tokens, int d, double* sums) {                        \
        sum_values(values, head_stride, tokens, d, sums);                                                               \
    }                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(WIDEST) choose_channels_##NAME(                                        \
        const uint32_t* rows, const T* queries, unsigned long long row_stride, int heads, int d, int chosen,            \
        uint32_t* channels, float* weights) {                                                                           \
        choose_channels(rows, queries, row_stride, heads, d, chosen, channels, weights);                                \
    }

#define CHANNEL_SCORES(T, NAME, QUERIES)                                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS) channel_scores_##NAME##_##QUERIES(                            \
        const uint32_t* channels, const float* weights, const T* keys, unsigned long long key_stride, int d, int heads, \
        int group, int each, int chosen, uint32_t columns, float* out, unsigned long long stride, float* tiles,         \
        int reduction, float* reduced) {                                                                                \
        channel_scores<T, QUERIES>(channels, weights, keys, key_stride, d, heads, group, each, chosen, columns, out,    \
                                   stride, tiles, reduction, reduced);                                                  \
    }

#define CHANNELS_ALL(T, NAME)                                                                                           \
    CHANNELS(T, NAME)                                                                                                   \
    CHANNEL_SCORES(T, NAME, 1) CHANNEL_SCORES(T, NAME, 2) CHANNEL_SCORES(T, NAME, 4) CHANNEL_SCORES(T, NAME, 8)

CHANNELS_ALL(float, f32)
CHANNELS_ALL(__half, f16)
CHANNELS_ALL(__nv_bfloat16, bf16)
