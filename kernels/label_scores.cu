// Labels of keys in few bits (a few channels of each key, each channel by its own range over 128 tokens), and their products with
// queries on tensor cores.
//
// Codes lie as operands of mma.m16n8k16: 16 tokens are its rows, 16 channels its depth. Lane 4g + t holds the codes of tokens g and
// g + 8 at channels 2t, 2t + 1, 2t + 8 and 2t + 9, so a code is read by the lane that multiplies it, and widened by one
// operation a pair: behind the bits of 128 in bf16, a code of up to 15 is what is added to 128. What these 128 add to a product is
// known beforehand, and taken off. The other operand is the query times the steps of the group, as the sum of two bf16.
#include "mma.cuh"

// Tokens that share the range of a channel, and those of one product.
constexpr int GROUP = 128, TILE = 16;
// Warps of a block of the scoring kernel, and groups that each takes one after the other.
constexpr int WARPS = 4, EACH = 8;
// Queries of one product.
constexpr int QUERIES = 8;
// Channels of one product.
constexpr int DEPTH = 16;

struct Range { float least, step; };

// Words of a lane's codes of 64 tokens and 16 channels: 8 codes of 4 bits a word, or 16 of 2 bits.
template <int BITS> constexpr int LANE_WORDS = BITS == 4 ? 4 : 2;

// Blocks: groups, KV heads; a thread a token. `keys` begins with the first candidate of the first KV head. `channels` are
// `[heads of a model][width]`, used again for further KV heads. `ranges` are `[kv_head][group][padded]`, with zeros behind
// `width`; codes `[kv_head][group][padded / 16][half][lane][words]`.
template <typename T, int BITS>
__device__ void build_labels(const T* keys, uint64_t head_stride, uint32_t tokens, int d, const uint32_t* channels,
                             uint32_t channel_heads, uint32_t width, uint32_t padded, Range* ranges, uint32_t* codes) {
    constexpr float TOP = (1 << BITS) - 1;
    constexpr int WORDS = LANE_WORDS<BITS>;
    __shared__ float least[4], most[4];
    extern __shared__ uint8_t own[];
    const uint32_t first = blockIdx.x * GROUP, count = min(GROUP, tokens - first);
    const bool is_there = threadIdx.x < count;
    const T* row = keys + blockIdx.y * head_stride + static_cast<uint64_t>(first + min(threadIdx.x, count - 1)) * d;
    const uint32_t* chosen = channels + blockIdx.y % channel_heads * width;
    const uint64_t group = static_cast<uint64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
    for (uint32_t c = 0; c < padded; ++c) {
        const float x = c < width ? to_f32(row[chosen[c]]) : 0.0f;
        float low = x, high = x;
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            low = fminf(low, __shfl_xor_sync(~0u, low, step));
            high = fmaxf(high, __shfl_xor_sync(~0u, high, step));
        }
        if (threadIdx.x % 32 == 0) least[threadIdx.x / 32] = low, most[threadIdx.x / 32] = high;
        __syncthreads();
        low = fminf(fminf(least[0], least[1]), fminf(least[2], least[3]));
        high = fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3]));
        __syncthreads();
        const float step = c < width ? __fdiv_rn(__fsub_rn(high, low), TOP) : 0.0f;
        if (threadIdx.x == 0) ranges[group * padded + c] = {c < width ? low : 0.0f, step};
        const float place = step > 0.0f ? __fdiv_rn(__fsub_rn(x, low), step) : 0.0f;
        own[c * GROUP + threadIdx.x] = is_there ? static_cast<uint8_t>(fminf(fmaxf(roundf(place), 0.0f), TOP)) : 0;
    }
    __syncthreads();
    // A word of 4 bits: nibbles of a0, a1, a2 and a3 at the even channel, then at the odd one; of 2 bits two tiles at once.
    const uint32_t pieces = padded / DEPTH * 2 * 32 * WORDS;
    for (uint32_t at = threadIdx.x; at < pieces; at += GROUP) {
        const int word = at % WORDS, lane = at / WORDS % 32, half = at / WORDS / 32 % 2, block = at / WORDS / 64;
        const int g = lane / 4, t = lane % 4;
        uint32_t packed = 0;
#pragma unroll
        for (int tile = 0; tile < 4 / WORDS; ++tile)
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int odd = 0; odd < 2; ++odd) {
                    const int token = (half * 4 + word * (4 / WORDS) + tile) * TILE + g + i % 2 * 8;
                    const int channel = block * DEPTH + 2 * t + odd + i / 2 * 8;
                    packed |= static_cast<uint32_t>(own[channel * GROUP + token]) << (BITS * (tile * 4 + i) + 16 * odd);
                }
        codes[group * pieces + at] = packed;
    }
}

// One pair of codes as bf16 numbers 128 + code.
template <int BITS> __device__ __forceinline__ uint32_t widened(uint32_t word, int place) {
    constexpr uint32_t MASK = BITS == 4 ? 0x000f000fu : 0x00030003u;
    return (word >> (BITS * place)) & MASK | 0x43004300u;
}

// x and y as pairs of bf16 whose sums they are, but for 2^-17 of them.
__device__ __forceinline__ void split(float x, float y, uint32_t& high, uint32_t& low) {
    const __nv_bfloat162 rounded = __floats2bfloat162_rn(x, y);
    high = reinterpret_cast<const uint32_t&>(rounded);
    const __nv_bfloat162 rest =
        __floats2bfloat162_rn(x - __uint_as_float(high << 16), y - __uint_as_float(high & 0xffff0000u));
    low = reinterpret_cast<const uint32_t&>(rest);
}

// What a pair of pairs adds up to.
__device__ __forceinline__ float sum_of(uint32_t high, uint32_t low) {
    return (__uint_as_float(high << 16) + __uint_as_float(low << 16)) +
           (__uint_as_float(high & 0xffff0000u) + __uint_as_float(low & 0xffff0000u));
}

// Blocks: groups by WARPS * EACH, KV heads, as many rows as have eight queries of a KV head. Of each group of `group` heads, `some`
// from `first_head` on take `places` of the queries, a power of two; all of them, if scores are reduced to the largest. Scores are
// `[row][query head][stride]`, or `[row][KV head][stride]` if they are reduced. Sums over a group are scores of the sum of its
// queries, which takes one place.
template <typename T, int BITS, int BLOCKS>
__device__ void label_scores(const uint32_t* rows, uint32_t count, const T* queries, uint64_t row_stride, int d, int heads,
                             int group, int first_head, int some, int places, const uint32_t* channels, uint32_t channel_heads,
                             uint32_t width, const Range* ranges, const uint32_t* codes, uint32_t tokens, int reduction,
                             float* out, uint64_t stride) {
    constexpr int WORDS = LANE_WORDS<BITS>;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, kv_head = blockIdx.y;
    const uint32_t groups = (tokens + GROUP - 1) / GROUP;
    const bool sums = reduction == SUM, largest = reduction == MAX;
    if (sums) places = 1;
    const int rows_a_tile = QUERIES / places;
    // Query g on the channels of this lane.
    float q[BLOCKS][4] = {};
    {
        const uint32_t row = blockIdx.z * rows_a_tile + g / places;
        const bool is_there = (sums || g % places < some) && row < count;
        const uint32_t* chosen = channels + kv_head % channel_heads * width;
        const T* from = queries + (is_there ? rows[row] * row_stride : 0);
#pragma unroll
        for (int b = 0; b < BLOCKS; ++b)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const uint32_t c = b * DEPTH + 2 * t + i % 2 + i / 2 * 8;
                if (!is_there || c >= width) continue;
                const T* own = from + static_cast<uint64_t>(kv_head * group + first_head) * d + chosen[c];
                if (sums) {
                    for (int h = 0; h < some; ++h) q[b][i] += to_f32(own[static_cast<uint64_t>(h) * d]);
                } else {
                    q[b][i] = to_f32(own[static_cast<uint64_t>(g % places) * d]);
                }
            }
    }
    // Where the scores of queries 2t and 2t + 1, which this lane gets, go.
    float* to[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int query = 2 * t + i, of_head = query % places;
        const uint32_t row = blockIdx.z * rows_a_tile + query / places;
        const bool is_there = row < count && (sums || (largest ? of_head == 0 : of_head < some));
        const uint64_t list = sums || largest ? static_cast<uint64_t>(row) * (heads / group) + kv_head
                                              : static_cast<uint64_t>(row) * heads + kv_head * group + first_head + of_head;
        to[i] = is_there ? out + list * stride : nullptr;
    }
    const uint32_t begin = (blockIdx.x * WARPS + warp) * EACH, end = min(groups, begin + EACH);
    for (uint32_t at = begin; at < end; ++at) {
        const uint64_t own = static_cast<uint64_t>(kv_head) * groups + at;
        const Range* of_group = ranges + own * (BLOCKS * DEPTH);
        const uint32_t* of_codes = codes + own * (BLOCKS * 2 * 32 * WORDS) + lane * WORDS;
        uint32_t words[2][BLOCKS][WORDS];
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int b = 0; b < BLOCKS; ++b) {
                const uint32_t* from = of_codes + (b * 2 + half) * 32 * WORDS;
                if constexpr (WORDS == 4) {
                    const Halves four = load_once(from);
#pragma unroll
                    for (int i = 0; i < 4; ++i) words[half][b][i] = four.words[i];
                } else {
                    const uint2 two = __ldg(reinterpret_cast<const uint2*>(from));
                    words[half][b][0] = two.x, words[half][b][1] = two.y;
                }
            }
        uint32_t high[BLOCKS][2], low[BLOCKS][2];
        float fixed = 0.0f;
#pragma unroll
        for (int b = 0; b < BLOCKS; ++b)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float4 two = *reinterpret_cast<const float4*>(of_group + b * DEPTH + 2 * t + 8 * i);
                split(q[b][2 * i] * two.y, q[b][2 * i + 1] * two.w, high[b][i], low[b][i]);
                fixed += q[b][2 * i] * two.x + q[b][2 * i + 1] * two.z - 128.0f * sum_of(high[b][i], low[b][i]);
            }
        fixed += __shfl_xor_sync(~0u, fixed, 1);
        fixed += __shfl_xor_sync(~0u, fixed, 2);
        const float offsets[2] = {__shfl_sync(~0u, fixed, 8 * t), __shfl_sync(~0u, fixed, 8 * t + 4)};
        const uint32_t left = min(GROUP, tokens - at * GROUP), first = at * GROUP + g;
#pragma unroll
        for (int tile = 0; tile < 8; ++tile) {
            float scores[4] = {offsets[0], offsets[1], offsets[0], offsets[1]};
#pragma unroll
            for (int b = 0; b < BLOCKS; ++b) {
                const uint32_t word = words[tile / 4][b][tile % 4 * WORDS / 4];
                const int place = WORDS == 4 ? 0 : tile % 2 * 4;
                const uint32_t a[4] = {widened<BITS>(word, place), widened<BITS>(word, place + 1),
                                       widened<BITS>(word, place + 2), widened<BITS>(word, place + 3)};
                multiply<__nv_bfloat16>(scores, a[0], a[1], a[2], a[3], high[b][0], high[b][1]);
                multiply<__nv_bfloat16>(scores, a[0], a[1], a[2], a[3], low[b][0], low[b][1]);
            }
            if (largest) {
                // Places behind the group have scores of zero.
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    if ((2 * t + i % 2) % places >= some) scores[i] = -CUDART_INF_F;
                if (places >= 2) scores[0] = fmaxf(scores[0], scores[1]), scores[2] = fmaxf(scores[2], scores[3]);
#pragma unroll
                for (int step = 1; step < 4; step *= 2) {
                    if (places < 4 * step) break;
                    scores[0] = fmaxf(scores[0], __shfl_xor_sync(~0u, scores[0], step));
                    scores[2] = fmaxf(scores[2], __shfl_xor_sync(~0u, scores[2], step));
                }
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const uint32_t token = tile * TILE + i / 2 * 8;
                if (to[i % 2] && token + g < left) to[i % 2][first + token] = scores[i];
            }
        }
    }
}

#define BUILD(T, NAME, BITS)                                                                                            \
    extern "C" __global__ void __launch_bounds__(GROUP) build_labels_##NAME##_##BITS(                                   \
        const T* keys, unsigned long long head_stride, uint32_t tokens, int d, const uint32_t* channels,                \
        uint32_t channel_heads, uint32_t width, uint32_t padded, Range* ranges, uint32_t* codes) {                      \
        build_labels<T, BITS>(keys, head_stride, tokens, d, channels, channel_heads, width, padded, ranges, codes);     \
    }

#define SCORES(T, NAME, BITS, BLOCKS)                                                                                   \
    extern "C" __global__ void __launch_bounds__(32 * WARPS) label_scores_##NAME##_##BITS##_##BLOCKS(                   \
        const uint32_t* rows, uint32_t count, const T* queries, unsigned long long row_stride, int d, int heads,        \
        int group, int first_head, int some, int places, const uint32_t* channels, uint32_t channel_heads,              \
        uint32_t width, const Range* ranges, const uint32_t* codes, uint32_t tokens, int reduction, float* out,         \
        unsigned long long stride) {                                                                                    \
        label_scores<T, BITS, BLOCKS>(rows, count, queries, row_stride, d, heads, group, first_head, some, places,      \
                                      channels, channel_heads, width, ranges, codes, tokens, reduction, out, stride);   \
    }

#define WIDTHS(T, NAME, BITS)                                                                                           \
    SCORES(T, NAME, BITS, 1) SCORES(T, NAME, BITS, 2) SCORES(T, NAME, BITS, 4) SCORES(T, NAME, BITS, 8)

#define LABELS(T, NAME) BUILD(T, NAME, 4) BUILD(T, NAME, 2) WIDTHS(T, NAME, 4) WIDTHS(T, NAME, 2)

LABELS(float, f32)
LABELS(__half, f16)
LABELS(__nv_bfloat16, bf16)
