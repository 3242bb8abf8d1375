// Negative Hamming distances of packed signatures, with an order among tokens at the same distance.
//
// A score is a whole number plus an offset below 1, which a seeded permutation of places gives. Every score is exact in f32, so all
// implementations give the same bits.
#include "common.cuh"
#include "hamming.cuh"

constexpr int THREADS = 256;
// Candidates of a thread, heads that it processes at a time, and words of keys that it loads before it uses the first.
constexpr int EACH = 4, MOST_GROUP = 8, AHEAD = 4;

__device__ __forceinline__ float raised(const Ties& ties, uint32_t place) {
    return static_cast<float>(level_of(ties, place)) * ties.unit;
}

// Scores of a thread's candidates for the heads of one KV head. If GROUP is not zero, there are GROUP heads with signatures by one net,
// which have one word if IS_SHORT. If GROUP is zero, any numbers of heads and nets.
template <int GROUP, bool IS_SHORT>
__device__ __forceinline__ void of_kv_head(const uint32_t* queries, int words, int heads, int group, const uint32_t* keys, int nets,
                                           uint64_t key_stride, uint32_t column, const float (&raise)[EACH], int reduction,
                                           float* out, uint64_t stride, int kv_head) {
    constexpr int MOST = GROUP == 0 ? MOST_GROUP : GROUP;
    constexpr int STEP = GROUP > 0 && !IS_SHORT ? AHEAD : 1;
    if (GROUP > 0) nets = 1, group = GROUP;
    if (IS_SHORT) words = 1;
    const uint32_t row = blockIdx.z;
    const uint32_t* of_queries = queries + (static_cast<uint64_t>(row) * heads + kv_head * group) * words;
    const uint32_t* of_keys = keys + static_cast<uint64_t>(kv_head) * nets * words * key_stride + column;
    float reduced[EACH];
    for (int first = 0; first < group; first += MOST) {
        const int some = min(MOST, group - first);
        int distance[MOST][EACH] = {};
        for (int begin = 0; begin < words; begin += STEP) {
            uint4 ahead[STEP];
#pragma unroll
            for (int w = 0; w < STEP; ++w)
                if (nets == 1) ahead[w] = __ldg(reinterpret_cast<const uint4*>(of_keys + min(begin + w, words - 1) * key_stride));
#pragma unroll
            for (int w = 0; w < STEP; ++w) {
                const int word = begin + w;
                if (word >= words) break;
                uint4 key = ahead[w];
#pragma unroll
                for (int h = 0; h < MOST; ++h) {
                    if (h >= some) break;
                    if (nets > 1)
                        key = __ldg(reinterpret_cast<const uint4*>(of_keys + ((first + h) * words + word) * key_stride));
                    const uint32_t query = __ldg(of_queries + (first + h) * words + word);
                    distance[h][0] += __popc(key.x ^ query), distance[h][1] += __popc(key.y ^ query);
                    distance[h][2] += __popc(key.z ^ query), distance[h][3] += __popc(key.w ^ query);
                }
            }
        }
        // All numbers are exact in f32, so the order of addition does not matter.
        if (reduction == SUM) {
            int sums[EACH] = {};
#pragma unroll
            for (int h = 0; h < MOST; ++h) {
                if (h >= some) break;
#pragma unroll
                for (int j = 0; j < EACH; ++j) sums[j] += distance[h][j];
            }
#pragma unroll
            for (int j = 0; j < EACH; ++j) {
                const float sum = static_cast<float>(some) * raise[j] - static_cast<float>(sums[j]);
                reduced[j] = first == 0 ? sum : reduced[j] + sum;
            }
            continue;
        }
#pragma unroll
        for (int h = 0; h < MOST; ++h) {
            if (h >= some) break;
            float score[EACH];
#pragma unroll
            for (int j = 0; j < EACH; ++j) score[j] = raise[j] - static_cast<float>(distance[h][j]);
            if (reduction == NONE) {
                float* to = out + (static_cast<uint64_t>(row) * heads + kv_head * group + first + h) * stride + column;
                *reinterpret_cast<float4*>(to) = make_float4(score[0], score[1], score[2], score[3]);
            } else {
#pragma unroll
                for (int j = 0; j < EACH; ++j) reduced[j] = first + h == 0 ? score[j] : fmaxf(reduced[j], score[j]);
            }
        }
    }
    if (reduction == NONE) return;
    float* to = out + (static_cast<uint64_t>(row) * (heads / group) + kv_head) * stride + column;
    *reinterpret_cast<float4*>(to) = make_float4(reduced[0], reduced[1], reduced[2], reduced[3]);
}

// Blocks: EACH * THREADS candidates, `taken` KV heads, rows. The offsets of a block's candidates are computed once, for all its KV heads.
// Signatures of keys are `[kv_head][net][word][key_stride]`, with one net for all heads of a group (`nets` is 1) or one for each; those of
// queries are `[row][head][word]`. Scores are `[row][query head][stride]`, or `[row][KV head][stride]` if reduced. Both strides are
// multiples of four.
#define HAMMING_SCORES(NAME, CASES)                                                                                     \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME(                                                         \
        const uint32_t* queries, int words, int heads, int group, const uint32_t* keys, int nets,                       \
        unsigned long long key_stride, uint32_t columns, int taken, const Ties ties, int reduction, float* out,         \
        unsigned long long stride) {                                                                                    \
        const uint32_t column = (blockIdx.x * THREADS + threadIdx.x) * EACH;                                            \
        if (column >= columns) return;                                                                                  \
        float raise[EACH];                                                                                              \
        _Pragma("unroll") for (int j = 0; j < EACH; ++j) raise[j] = raised(ties, place_of(ties, column + j));           \
        const int kv_heads = heads / group, end = min(kv_heads, static_cast<int>(blockIdx.y + 1) * taken);              \
        const int first = blockIdx.y * taken;                                                                           \
        CASES                                                                                                           \
    }
#define TAKE(GROUP, IS_SHORT)                                                                                           \
    _Pragma("unroll 2") for (int kv_head = first; kv_head < end; ++kv_head) of_kv_head<GROUP, IS_SHORT>(                \
        queries, words, heads, group, keys, nets, key_stride, column, raise, reduction, out, stride, kv_head)
// For signatures of one word, and of several, which take more registers.
HAMMING_SCORES(hamming_scores, if (nets == 1 && group == 4) TAKE(4, true); else if (nets == 1 && group == 1) TAKE(1, true); else TAKE(0, true);)
HAMMING_SCORES(hamming_scores_long, if (nets == 1 && group == 4) TAKE(4, false); else if (nets == 1 && group == 1) TAKE(1, false); else TAKE(0, false);)
#undef TAKE
#undef HAMMING_SCORES
