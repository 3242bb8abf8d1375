// The product of one row with a weight matrix, limited by the speed of reading the matrix: out = x · Wᵀ.
//
// W is `[outputs][inputs]`, x is `[inputs]` of the same type, inputs is a multiple of 8; sums are f32. The result is stored in x's type,
// stored as f32, or added to f32 numbers (the residual stream). A warp computes one output, with many pieces of the matrix in flight. For
// more rows, a matrix product is faster.
#include "common.cuh"
#include "early.cuh"

constexpr int WARPS = 4;

template <typename T> constexpr int UNROLL_OF = sizeof(T) == 2 ? 8 : 4;

template <typename T, typename Out, bool ADD>
__device__ void gemv(const T* w, const T* x, Out* out, int outputs, int inputs) {
    constexpr int UNROLL = UNROLL_OF<T>, STRIDE = 32 * PIECE;
    const int lane = threadIdx.x % 32, output = blockIdx.x * WARPS + threadIdx.x / 32;
    if (output >= outputs) return;
    const T* row = w + static_cast<size_t>(output) * inputs;
    float sum = 0.0f;
    for (int start = lane * PIECE; start < inputs; start += UNROLL * STRIDE) {
        Piece<T> pieces[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (start + u * STRIDE < inputs) pieces[u] = load_piece(row + start + u * STRIDE);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if (start + u * STRIDE >= inputs) continue;
            float weights[PIECE], numbers[PIECE];
            widen_piece(pieces[u], weights);
            widen(x + start + u * STRIDE, numbers);
#pragma unroll
            for (int i = 0; i < PIECE; ++i) sum += weights[i] * numbers[i];
        }
    }
    sum = warp_sum(sum);
    if (lane == 0) out[output] = from_f32<Out>(ADD ? to_f32(out[output]) + sum : sum);
}

#define GEMV(KIND, T, NAME, OUT, ADD)                                                                                   \
    extern "C" __global__ void __launch_bounds__(32 * WARPS)                                                            \
        gemv_##KIND##_##NAME(const T* w, const T* x, OUT* out, int outputs, int inputs) {                               \
        begin_short();                                                                                                  \
        gemv<T, OUT, ADD>(w, x, out, outputs, inputs);                                                                  \
    }

// Stored as T, stored as f32, and added to f32.
#define GEMVS(T, NAME)                                                                                                  \
    GEMV(narrow, T, NAME, T, false) GEMV(wide, T, NAME, float, false) GEMV(add, T, NAME, float, true)

GEMVS(float, f32)
GEMVS(__half, f16)
GEMVS(__nv_bfloat16, bf16)
