// Partial softmaxes of tokens that single rows of a prompt attend in addition to their block's tokens. attend_blocks.cu merges them.
//
// Kernels: attend_own_{bf16,f16}_{64,128,256}, by element type and greatest head width; sm_80 and up; d a multiple of 8. Arithmetic is f32.
//
// Arrays (elements of the kernel's type unless said otherwise, every base address a multiple of 16 bytes)
//   q      [rows][q_stride], head h at h * d; q_stride >= heads * d, a multiple of 8.
//   k, v   [kv_heads][capacity][d], heads kv_stride elements apart (a multiple of 8).
//   begins u32 [block][list][block_rows] and one more: where each row's slices begin. Rows beyond the last have no slices.
//   slices stretches of the following arrays, each with a group that it leaves out. No two slices of a row have a token in common.
//   tokens u32; weights f32, added to scaled logits, or null for zeros; groups u32, or null if no slice leaves one out.
//   partials f32 [row][head][d + 2]: the maximum (a logit times log2 e), the sum of exponentials below it, and d sums of values. A row
//   without tokens has -infinity and zero; its sums of values are not written.
//
// Launch
//   grid    x = ceil(rows / 4), y = heads
//   block   128 threads
//   scale   positive
//
// How it works. A warp takes one row of one head. Groups of lanes read one key or value each, 16 bytes per lane, so that the warp reads
// several at once; each group keeps its own softmax. Four keys and four values per lane are in flight. Token numbers of a slice are loaded
// 32 at a time, one round ahead. Blocks that run at the same time belong to one head, so its keys stay in the second-level cache.

#include "common.cuh"
#include "numbers.cuh"

namespace attend_own {

using numbers::exp2_fast;
using numbers::LOG2_E;

constexpr int WARPS = 4;
// Keys, and values, that a lane has in flight.
constexpr int TOGETHER = 4;

// A stretch of the tokens, without those of one group.
struct Slice {
    uint32_t begin, end, without;
};

// The rows' tokens, and where their partials are written.
struct Own {
    const uint32_t* begins;
    const Slice* slices;
    const uint32_t* tokens;
    const float* weights;
    const uint32_t* groups;
    float* partials;
    uint32_t block_rows, lists;
};

template <typename T> struct Problem {
    const T *q, *k, *v;
    int d, q_stride;
    long long kv_stride;
    int rows, heads, kv_heads;
    float scale;
    Own own;
};

// The base of exponents: 0 if a lane has seen no token yet.
__device__ __forceinline__ float base_of(float maximum) { return maximum == -CUDART_INF_F ? 0.0f : maximum; }

// A running softmax over tokens, for one piece of the values.
struct Sums {
    float maximum = -CUDART_INF_F, sum = 0.0f;
    float values[PIECE] = {};

    __device__ __forceinline__ void lift(float top) {
        const float factor = exp2_fast(maximum - base_of(top));
        maximum = top, sum *= factor;
#pragma unroll
        for (int i = 0; i < PIECE; ++i) values[i] *= factor;
    }

    // Merges the sums of the lane `step` away, which holds the same piece for other tokens.
    __device__ __forceinline__ void join(int step) {
        lift(fmaxf(maximum, __shfl_xor_sync(~0u, maximum, step)));
        sum += __shfl_xor_sync(~0u, sum, step);
#pragma unroll
        for (int i = 0; i < PIECE; ++i) values[i] += __shfl_xor_sync(~0u, values[i], step);
    }
};

// Of the LANES lanes that read a key, lane `piece` holds eight channels.
template <typename T, int LANES> __device__ __forceinline__ void attend(const Problem<T>& problem) {
    constexpr int KEYS = 32 / LANES, STEP = TOGETHER * KEYS;
    const Own& own = problem.own;
    const int lane = threadIdx.x % 32, piece = lane % LANES, key = lane / LANES, d = problem.d;
    const int row = blockIdx.x * WARPS + threadIdx.x / 32, head = blockIdx.y, heads = problem.heads;
    if (row >= problem.rows) return;
    const uint32_t block = row / own.block_rows, list = head / (heads / static_cast<int>(own.lists));
    const size_t index = (static_cast<size_t>(block) * own.lists + list) * own.block_rows + row % own.block_rows;
    const uint32_t first_slice = own.begins[index], end_slice = own.begins[index + 1];
    float* const partial = own.partials + (static_cast<size_t>(row) * heads + head) * (d + 2);
    if (first_slice == end_slice) {
        if (lane == 0) *reinterpret_cast<float2*>(partial) = make_float2(-CUDART_INF_F, 0.0f);
        return;
    }
    // Lanes beyond the head's width read its first piece and ignore it.
    const bool is_inside = PIECE * piece < d;
    const int channel = is_inside ? PIECE * piece : 0;
    const size_t shift = static_cast<size_t>(head / (heads / problem.kv_heads)) * problem.kv_stride + channel;
    const T *k = problem.k + shift, *v = problem.v + shift;
    float query[PIECE];
    widen(problem.q + static_cast<size_t>(row) * problem.q_stride + static_cast<size_t>(head) * d + channel, query);
#pragma unroll
    for (int i = 0; i < PIECE; ++i) query[i] *= is_inside ? problem.scale * LOG2_E : 0.0f;

    Sums sums;
    for (uint32_t number = first_slice; number < end_slice; ++number) {
        const Slice slice = own.slices[number];
        // Beyond the slice's last token, and for tokens that are left out, token 0 is read, which always exists; its weight is 0.
        auto is_seen = [&](uint32_t at) { return at < slice.end && !(own.groups && own.groups[at] == slice.without); };
        auto token_at = [&](uint32_t at) { return is_seen(at) ? own.tokens[at] : 0u; };
        auto weight_at = [&](uint32_t at) {
            if (!is_seen(at)) return -CUDART_INF_F;
            return own.weights ? own.weights[at] * LOG2_E : 0.0f;
        };
        uint32_t next_token = token_at(slice.begin + lane);
        float next_weight = weight_at(slice.begin + lane);
        for (uint32_t first = slice.begin; first < slice.end; first += 32) {
            const uint32_t own_token = next_token;
            const float own_weight = next_weight;
            next_token = token_at(first + 32 + lane), next_weight = weight_at(first + 32 + lane);
            for (uint32_t step = 0; step < 32 && first + step < slice.end; step += STEP) {
                Piece<T> keys[TOGETHER], values[TOGETHER];
                float logits[TOGETHER];
#pragma unroll
                for (int u = 0; u < TOGETHER; ++u) {
                    const size_t at = static_cast<size_t>(__shfl_sync(~0u, own_token, step + u * KEYS + key)) * d;
                    keys[u] = load_piece(k + at), values[u] = load_piece(v + at);
                }
#pragma unroll
                for (int u = 0; u < TOGETHER; ++u) {
                    float wide[PIECE];
                    widen_piece(keys[u], wide);
                    logits[u] = 0.0f;
#pragma unroll
                    for (int i = 0; i < PIECE; ++i) logits[u] += query[i] * wide[i];
                }
#pragma unroll
                for (int to = LANES / 2; to > 0; to /= 2) {
#pragma unroll
                    for (int u = 0; u < TOGETHER; ++u) logits[u] += __shfl_xor_sync(~0u, logits[u], to);
                }
                float top = sums.maximum;
#pragma unroll
                for (int u = 0; u < TOGETHER; ++u) {
                    logits[u] += __shfl_sync(~0u, own_weight, step + u * KEYS + key);
                    top = fmaxf(top, logits[u]);
                }
                sums.lift(top);
                const float base = base_of(top);
#pragma unroll
                for (int u = 0; u < TOGETHER; ++u) {
                    float wide[PIECE];
                    widen_piece(values[u], wide);
                    const float weight = exp2_fast(logits[u] - base);
                    sums.sum += weight;
#pragma unroll
                    for (int i = 0; i < PIECE; ++i) sums.values[i] += weight * wide[i];
                }
            }
        }
    }
#pragma unroll
    for (int to = LANES; to < 32; to *= 2) sums.join(to);
    if (lane == 0) *reinterpret_cast<float2*>(partial) = make_float2(sums.maximum, sums.sum);
    if (key > 0 || !is_inside) return;
#pragma unroll
    for (int i = 0; i < PIECE; i += 2)
        *reinterpret_cast<float2*>(partial + 2 + channel + i) = make_float2(sums.values[i], sums.values[i + 1]);
}

}  // namespace attend_own

#define ATTEND(T, NAME, WIDTH)                                                                                              \
    extern "C" __global__ void __launch_bounds__(32 * attend_own::WARPS)                                                    \
        attend_own_##NAME##_##WIDTH(const T* q, const T* k, const T* v, int d, int q_stride, long long kv_stride, int rows, \
                                    int heads, int kv_heads, float scale, const attend_own::Own own) {                      \
        attend_own::attend<T, WIDTH / PIECE>(                                                                               \
            attend_own::Problem<T>{q, k, v, d, q_stride, kv_stride, rows, heads, kv_heads, scale, own});                    \
    }
#define WIDTHS(T, NAME) ATTEND(T, NAME, 64) ATTEND(T, NAME, 128) ATTEND(T, NAME, 256)

WIDTHS(__half, f16)
WIDTHS(__nv_bfloat16, bf16)
