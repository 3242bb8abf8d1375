// Causal prefill attention with an online softmax for any head width: the fallback of prefill_attention.cu.
//
//   out[i, h] = sum_j softmax_j(scale * q[i, h] . k[h / group, j]) * v[h / group, j],   j = 0 ..= first + i
//
// Kernels, by element type; sm_80 and up; d a multiple of 8, from 8 to 256:
//   prefill_attention_any_{f32,bf16,f16}
//   prefill_attention_rule_{f32,bf16,f16}   by the rule of a layer: a row sees its last `window` keys, its own included; if cap > 0, a
//                                           scaled product x becomes cap * tanh(x / cap); if sinks is not null, exp(sinks[h]) is added
//                                           to the denominator of head h, and to the sum that lse has
// The 16-bit kernels multiply on tensor cores (mma.m16n8k16) with f32 sums, and round weights to the element type before they are
// multiplied with values. The f32 kernels compute everything in f32 (no tf32), for parity checks.
//
// Arrays (elements of the kernel's type unless said otherwise, every base address a multiple of 16 bytes)
//   q    [rows][q_stride], head h at h * d; q_stride >= heads * d, a multiple of 8. Row i is at position first + i.
//   k, v [kv_heads][capacity][d], heads kv_stride elements apart (a multiple of 8). Query head h reads KV head
//        h / (heads / kv_heads). Only the first first + rows keys of a head are read.
//   out  [rows][heads * d].
//   lse  f32 [heads][rows], the natural logarithm of the sum of exp(scale * q . k); null to leave it out.
//
// Launch
//   grid    x = heads, y = ceil(rows / 64)
//   block   128 threads (bf16, f16), 256 threads (f32)
//   shared  dynamic (raise the kernel's limit first); with w as d rounded up to a multiple of 64: bf16, f16: 384 * w bytes; f32: 512 * (w +
//   4) + 9216 bytes, which above d = 128 is more than the 99 KiB that a block gets on sm_86 and sm_89
//   scale   positive; window from 1 on
//
// Not supported: other masks, key lists, dropout, rows that see no key.
//
// How it works. A block owns 64 rows of one head and visits the keys in tiles; the rows with most keys start first. 16-bit: each of 4 warps
// owns 16 rows; a tile's values are copied while its scores are computed, and the next keys while values are summed. f32: 16 x 16 threads,
// each for 4 rows by 2 keys of the scores and 4 rows by w / 16 columns of the output.

#include "tiles.cuh"

namespace prefill_any {

using namespace tiles;
using numbers::exp2_fast;
using numbers::LOG2_E;

constexpr int QUERIES = ROWS;

struct Launch {
    int block, queries, shared_bytes;
};

// The launch parameters of the header, for a launcher in C++.
constexpr Launch launch_of(int d, bool f32) {
    const int w = (d + 63) / 64 * 64;
    return f32 ? Launch{256, QUERIES, 512 * (w + 4) + 9216} : Launch{128, QUERIES, 384 * w};
}

template <typename T> struct Problem {
    const T *q, *k, *v;
    T* out;
    float* lse;
    int d, q_stride;
    long long kv_stride;
    int rows, first, heads, kv_heads;
    float scale;
    // The rule of a layer, for the kernels that have one.
    int window;
    float cap;
    const float* sinks;
};

// A scaled product as the rule caps it.
__device__ __forceinline__ float capped(float x, float cap) { return cap > 0.f ? cap * tanhf(x / cap) : x; }

// The first tile of `keys` keys that any of the rows from `row0` on sees.
template <bool RULE, typename T> __device__ __forceinline__ int first_tile(const Problem<T>& problem, int row0, int keys) {
    return RULE ? max(0, problem.first + row0 + 1 - problem.window) / keys : 0;
}

// ---- 16-bit elements -------------------------------------------------------------------------------------------

// WIDTH is d rounded up to the next width that is compiled.
template <typename T, int WIDTH, bool RULE> __device__ __forceinline__ void attend_16(const Problem<T>& problem) {
    constexpr int KEYS = 64;
    constexpr uint32_t TILE = QUERIES * ((WIDTH + 63) / 64 * 128);
    extern __shared__ __align__(1024) uint8_t shared_raw[];
    const uint32_t q_tile = shared_address(shared_raw), k_tile = q_tile + TILE, v_tile = k_tile + TILE;

    const int head = blockIdx.x;
    const int row0 = (gridDim.y - 1 - blockIdx.y) * QUERIES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int t = lane % 4;
    const int d = problem.d;
    const int row = row0 + 16 * warp + lane / 4;  // and 8 further
    const int total = problem.first + problem.rows;
    const int tiles = (problem.first + min(row0 + QUERIES, problem.rows) + KEYS - 1) / KEYS;
    const size_t shift = static_cast<size_t>(head / (problem.heads / problem.kv_heads)) * problem.kv_stride;
    const T *k = problem.k + shift, *v = problem.v + shift;
    // By a rule, scores are scaled before they are capped.
    const float scale = RULE ? 1.f : problem.scale, scale_log2 = scale * LOG2_E;
    const int begin = first_tile<RULE>(problem, row0, KEYS);

    copy_tile<T, WIDTH>(q_tile, problem.q + static_cast<size_t>(head) * d, problem.q_stride, row0, problem.rows, d);
    copy_tile<T, WIDTH>(k_tile, k, d, begin * KEYS, total, d);
    copy_commit();

    RowSums<T, WIDTH> sums;
    sums.begin();

    for (int tile = begin; tile < tiles; ++tile) {
        copy_wait<0>();
        __syncthreads();  // the keys are there, and nobody reads the last values any more
        copy_tile<T, WIDTH>(v_tile, v, d, tile * KEYS, total, d);
        copy_commit();

        float s[KEYS / 2];
        score_tiles<T, WIDTH>(s, q_tile, k_tile, 16 * warp, 0, lane);

        if (RULE) {
#pragma unroll
            for (int i = 0; i < KEYS / 2; ++i) s[i] = capped(s[i] * problem.scale, problem.cap);
            // Keys before the windows of the lane's two rows.
            const int hidden = problem.first + row - problem.window - tile * KEYS - 2 * t;
#pragma unroll
            for (int i = 0; i < KEYS / 8; ++i) {
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    if (8 * i + c <= hidden) s[4 * i + c] = -INFINITY;
                    if (8 * i + c <= hidden + 8) s[4 * i + 2 + c] = -INFINITY;
                }
            }
        }
        if (tile * KEYS + KEYS - 1 > problem.first + row0 + 16 * warp) {
            const int position = problem.first + row - tile * KEYS - 2 * t;
#pragma unroll
            for (int i = 0; i < KEYS / 8; ++i) {
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    if (8 * i + c > position) s[4 * i + c] = -INFINITY;
                    if (8 * i + c > position + 8) s[4 * i + 2 + c] = -INFINITY;
                }
            }
        }
        // Without a window, every row sees key 0, so the maximum is finite from the first tile on.
        sums.template weigh<RULE, KEYS>(s, scale_log2);

        copy_wait<0>();
        __syncthreads();  // the values are there, and nobody reads the keys any more
        if (tile + 1 < tiles) copy_tile<T, WIDTH>(k_tile, k, d, (tile + 1) * KEYS, total, d);
        copy_commit();
        sums.template add<KEYS>(s, v_tile, 0, lane);
    }

    sums.join_lanes();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int here = row + 8 * r;
        if (here >= problem.rows) continue;
        if (RULE && problem.sinks != nullptr) sums.sum[r] += expf(problem.sinks[head] - sums.maximum[r]);
        sums.store(r, problem.out + (static_cast<size_t>(here) * problem.heads + head) * d + 2 * t, d);
        if (problem.lse != nullptr && t == 0) {
            problem.lse[static_cast<size_t>(head) * problem.rows + here] = sums.maximum[r] * scale + logf(sums.sum[r]);
        }
    }
}

// ---- f32 -------------------------------------------------------------------------------------------------------

template <int WIDTH, bool RULE> __device__ __forceinline__ void attend_f32(const Problem<float>& problem) {
    constexpr int KEYS = 32, STRIDE = WIDTH + 4, P_STRIDE = KEYS + 4;
    extern __shared__ __align__(1024) uint8_t shared_raw[];
    float* q_tile = reinterpret_cast<float*>(shared_raw);
    float* k_tile = q_tile + QUERIES * STRIDE;
    float* v_tile = k_tile + KEYS * STRIDE;
    float* p_tile = v_tile + KEYS * STRIDE;

    const int head = blockIdx.x;
    const int row0 = (gridDim.y - 1 - blockIdx.y) * QUERIES;
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;  // a row of 16 threads lies within a warp
    const int d = problem.d;
    const int total = problem.first + problem.rows;
    const int tiles = (problem.first + min(row0 + QUERIES, problem.rows) + KEYS - 1) / KEYS;
    const size_t shift = static_cast<size_t>(head / (problem.heads / problem.kv_heads)) * problem.kv_stride;
    const float *k = problem.k + shift, *v = problem.v + shift;

    copy_tile_f32<WIDTH, QUERIES>(q_tile, problem.q + static_cast<size_t>(head) * d, problem.q_stride, row0,
                                  problem.rows, d);

    float4 o[4][WIDTH / 64];
    float maximum[4], sum[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        maximum[i] = -INFINITY;
        sum[i] = 0.f;
#pragma unroll
        for (int c = 0; c < WIDTH / 64; ++c) o[i][c] = make_float4(0.f, 0.f, 0.f, 0.f);
    }

    for (int tile = first_tile<RULE>(problem, row0, KEYS); tile < tiles; ++tile) {
        __syncthreads();  // nobody reads the last tile any more
        copy_tile_f32<WIDTH, KEYS>(k_tile, k, d, tile * KEYS, total, d);
        copy_tile_f32<WIDTH, KEYS>(v_tile, v, d, tile * KEYS, total, d);
        copy_commit();
        copy_wait<0>();
        __syncthreads();

        float s[4][2] = {};
#pragma unroll 4
        for (int c = 0; c < WIDTH; c += 4) {
            float4 a[4], b[2];
#pragma unroll
            for (int i = 0; i < 4; ++i) a[i] = *reinterpret_cast<const float4*>(q_tile + (4 * y + i) * STRIDE + c);
#pragma unroll
            for (int j = 0; j < 2; ++j) b[j] = *reinterpret_cast<const float4*>(k_tile + (x + 16 * j) * STRIDE + c);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    s[i][j] = fmaf(a[i].x, b[j].x, s[i][j]);
                    s[i][j] = fmaf(a[i].y, b[j].y, s[i][j]);
                    s[i][j] = fmaf(a[i].z, b[j].z, s[i][j]);
                    s[i][j] = fmaf(a[i].w, b[j].w, s[i][j]);
                }
            }
        }

#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int position = problem.first + row0 + 4 * y + i - tile * KEYS;
            float m = maximum[i];
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                s[i][j] = x + 16 * j > position ? -INFINITY : s[i][j] * problem.scale;
                if (RULE) {
                    s[i][j] = x + 16 * j > position || x + 16 * j + problem.window <= position
                                  ? -INFINITY
                                  : capped(s[i][j], problem.cap);
                }
                m = fmaxf(m, s[i][j]);
            }
#pragma unroll
            for (int bit = 1; bit < 16; bit <<= 1) m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, bit));
            // With a window, a row may have seen no key so far.
            const float base = RULE && m == -INFINITY ? 0.f : m;
            const float factor = expf(maximum[i] - base);
            maximum[i] = m;
            sum[i] *= factor;
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const float p = expf(s[i][j] - base);
                sum[i] += p;
                p_tile[(4 * y + i) * P_STRIDE + x + 16 * j] = p;
            }
#pragma unroll
            for (int c = 0; c < WIDTH / 64; ++c) {
                o[i][c].x *= factor;
                o[i][c].y *= factor;
                o[i][c].z *= factor;
                o[i][c].w *= factor;
            }
        }
        __syncwarp();  // the weights of a row are read by the threads that wrote them

#pragma unroll 1
        for (int j = 0; j < KEYS; j += 4) {
            float4 p[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) p[i] = *reinterpret_cast<const float4*>(p_tile + (4 * y + i) * P_STRIDE + j);
#pragma unroll
            for (int n = 0; n < 4; ++n) {
#pragma unroll
                for (int c = 0; c < WIDTH / 64; ++c) {
                    const float4 b = *reinterpret_cast<const float4*>(v_tile + (j + n) * STRIDE + 64 * c + 4 * x);
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const float w = n == 0 ? p[i].x : n == 1 ? p[i].y : n == 2 ? p[i].z : p[i].w;
                        o[i][c].x = fmaf(w, b.x, o[i][c].x);
                        o[i][c].y = fmaf(w, b.y, o[i][c].y);
                        o[i][c].z = fmaf(w, b.z, o[i][c].z);
                        o[i][c].w = fmaf(w, b.w, o[i][c].w);
                    }
                }
            }
        }
    }

#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int bit = 1; bit < 16; bit <<= 1) sum[i] += __shfl_xor_sync(0xffffffff, sum[i], bit);
        const int row = row0 + 4 * y + i;
        if (row >= problem.rows) continue;
        if (RULE && problem.sinks != nullptr) sum[i] += expf(problem.sinks[head] - maximum[i]);
        const float inverse = 1.f / sum[i];
        float* line = problem.out + (static_cast<size_t>(row) * problem.heads + head) * d;
#pragma unroll
        for (int c = 0; c < WIDTH / 64; ++c) {
            if (64 * c + 4 * x < d) {
                *reinterpret_cast<float4*>(line + 64 * c + 4 * x) = make_float4(
                    o[i][c].x * inverse, o[i][c].y * inverse, o[i][c].z * inverse, o[i][c].w * inverse);
            }
        }
        if (problem.lse != nullptr && x == 0) {
            problem.lse[static_cast<size_t>(head) * problem.rows + row] = maximum[i] + logf(sum[i]);
        }
    }
}

template <typename T, bool RULE> __device__ __forceinline__ void attend(const Problem<T>& problem) {
    const int d = problem.d;
    if constexpr (sizeof(T) == 4) {
        if (d <= 64) {
            attend_f32<64, RULE>(problem);
        } else if (d <= 128) {
            attend_f32<128, RULE>(problem);
        } else if (d <= 192) {
            attend_f32<192, RULE>(problem);
        } else {
            attend_f32<256, RULE>(problem);
        }
    } else {
        if (d <= 64) {
            attend_16<T, 64, RULE>(problem);
        } else if (d <= 96) {
            attend_16<T, 96, RULE>(problem);
        } else if (d <= 128) {
            attend_16<T, 128, RULE>(problem);
        } else if (d <= 192) {
            attend_16<T, 192, RULE>(problem);
        } else {
            attend_16<T, 256, RULE>(problem);
        }
    }
}

}  // namespace prefill_any

#define PREFILL_ATTENTION_ANY(NAME, T, BLOCK)                                                                         \
    extern "C" __global__ void __launch_bounds__(BLOCK, 2)                                                            \
        NAME(const T* q, const T* k, const T* v, T* out, float* lse, int d, int q_stride, long long kv_stride,        \
             int rows, int first, int heads, int kv_heads, float scale) {                                             \
        prefill_any::attend<T, false>(prefill_any::Problem<T>{q, k, v, out, lse, d, q_stride, kv_stride, rows, first, \
                                                              heads, kv_heads, scale, 0, 0.f, nullptr});              \
    }

#define PREFILL_ATTENTION_RULE(NAME, T, BLOCK)                                                                        \
    extern "C" __global__ void __launch_bounds__(BLOCK, 2)                                                            \
        NAME(const T* q, const T* k, const T* v, T* out, float* lse, int d, int q_stride, long long kv_stride,        \
             int rows, int first, int heads, int kv_heads, float scale, int window, float cap, const float* sinks) {  \
        prefill_any::attend<T, true>(prefill_any::Problem<T>{q, k, v, out, lse, d, q_stride, kv_stride, rows, first,  \
                                                             heads, kv_heads, scale, window, cap, sinks});            \
    }

PREFILL_ATTENTION_ANY(prefill_attention_any_f32, float, 256)
PREFILL_ATTENTION_ANY(prefill_attention_any_bf16, __nv_bfloat16, 128)
PREFILL_ATTENTION_ANY(prefill_attention_any_f16, __half, 128)
PREFILL_ATTENTION_RULE(prefill_attention_rule_f32, float, 256)
PREFILL_ATTENTION_RULE(prefill_attention_rule_bf16, __nv_bfloat16, 128)
PREFILL_ATTENTION_RULE(prefill_attention_rule_f16, __half, 128)
