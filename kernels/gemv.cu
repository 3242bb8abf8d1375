// Products of few rows with a weight matrix, at the speed at which the matrix can be read: out = x · Wᵀ.
//
// W is `[outputs][inputs]`, x `[rows][inputs]` in the same type, inputs a multiple of 8; sums are f32. The result is stored
// in x's type, or added to f32 rows (the residual stream). A warp takes two outputs, a block eight warps; more than four
// rows are better left to a matrix product.
#include "common.cuh"

constexpr int OUTPUTS = 2;
constexpr int WARPS = 8;
constexpr int UNROLL = 4;

template <typename T, int ROWS, typename Out, bool ADD>
__device__ void gemv(const T* __restrict__ w, const T* __restrict__ x, Out* out, int outputs, int inputs) {
    const int lane = threadIdx.x % 32, first = (blockIdx.x * WARPS + threadIdx.x / 32) * OUTPUTS;
    if (first >= outputs) return;
    float sums[OUTPUTS][ROWS] = {};
    const T* rows[OUTPUTS];
#pragma unroll
    for (int o = 0; o < OUTPUTS; ++o) rows[o] = w + static_cast<size_t>(min(first + o, outputs - 1)) * inputs;
    const int stride = 32 * PIECE;
    for (int start = lane * PIECE; start < inputs; start += UNROLL * stride) {
        Piece<T> pieces[UNROLL][OUTPUTS];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int at = start + u * stride;
            if (at >= inputs) continue;
#pragma unroll
            for (int o = 0; o < OUTPUTS; ++o) pieces[u][o] = load_piece(rows[o] + at);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int at = start + u * stride;
            if (at >= inputs) continue;
            float weights[OUTPUTS][PIECE];
#pragma unroll
            for (int o = 0; o < OUTPUTS; ++o) widen_piece(pieces[u][o], weights[o]);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                float numbers[PIECE];
                widen(x + static_cast<size_t>(r) * inputs + at, numbers);
#pragma unroll
                for (int o = 0; o < OUTPUTS; ++o)
#pragma unroll
                    for (int i = 0; i < PIECE; ++i) sums[o][r] += weights[o][i] * numbers[i];
            }
        }
    }
#pragma unroll
    for (int o = 0; o < OUTPUTS; ++o)
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const float sum = warp_sum(sums[o][r]);
            if (lane == 0 && first + o < outputs) {
                Out& to = out[static_cast<size_t>(r) * outputs + first + o];
                to = from_f32<Out>(ADD ? to_f32(to) + sum : sum);
            }
        }
}

#define GEMV(KIND, T, NAME, R, OUT, ADD)                                                                                \
    extern "C" __global__ void __launch_bounds__(32 * WARPS)                                                            \
        gemv_##KIND##_##NAME##_##R(const T* w, const T* x, OUT* out, int outputs, int inputs) {                         \
        gemv<T, R, OUT, ADD>(w, x, out, outputs, inputs);                                                               \
    }

// Stored as T, stored as f32, added to f32.
#define GEMV_ROWS(T, NAME, R)                                                                                           \
    GEMV(narrow, T, NAME, R, T, false) GEMV(wide, T, NAME, R, float, false) GEMV(add, T, NAME, R, float, true)

#define GEMVS(T, NAME) GEMV_ROWS(T, NAME, 1) GEMV_ROWS(T, NAME, 2) GEMV_ROWS(T, NAME, 3) GEMV_ROWS(T, NAME, 4)

GEMVS(float, f32)
GEMVS(__half, f16)
GEMVS(__nv_bfloat16, bf16)
