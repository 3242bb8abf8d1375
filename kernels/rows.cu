// Operations on rows of activations between matrix products: embedding, RMS norm, bias, gates, adding a branch.
//
// Rows `[row][width]` of the residual stream are f32; inputs of a product have the storage type. One block processes a row.
#include "common.cuh"
#include "early.cuh"

// x[row] = scale * table[tokens[row]]
template <typename T>
__device__ void embed(const T* table, const uint32_t* tokens, float* x, int hidden, float scale) {
    const T* from = table + static_cast<size_t>(tokens[blockIdx.x]) * hidden;
    float* to = x + static_cast<size_t>(blockIdx.x) * hidden;
    for (int i = threadIdx.x; i < hidden; i += blockDim.x) to[i] = scale * to_f32(from[i]);
}

// out[row] = x[row] / rms(x[row]) * weight, or x[row] if there is no weight. `broken` becomes the least `mark << 32 | first + row` of the
// rows of x with numbers that are not finite.
template <typename T>
__device__ void rms_norm(const float* x, const float* weight, T* out, int hidden, float eps, unsigned long long mark,
                         unsigned long long first, unsigned long long* broken) {
    // A thread's first KEPT numbers are read once and kept in registers; the rest of longer rows is read again.
    constexpr int KEPT = 8;
    __shared__ float shared[32];
    const float* from = x + static_cast<size_t>(blockIdx.x) * hidden;
    T* to = out + static_cast<size_t>(blockIdx.x) * hidden;
    const int stride = blockDim.x, behind = KEPT * stride + threadIdx.x;
    float kept[KEPT], scale[KEPT], squares = 0.0f;
#pragma unroll
    for (int k = 0; k < KEPT; ++k) {
        const int i = k * stride + threadIdx.x;
        kept[k] = i < hidden ? from[i] : 0.0f, scale[k] = i < hidden && weight ? weight[i] : 1.0f;
    }
#pragma unroll
    for (int k = 0; k < KEPT; ++k) squares += kept[k] * kept[k];
    for (int i = behind; i < hidden; i += stride) squares += from[i] * from[i];
    const float all = block_sum(squares, shared);
    // Squares may overflow even if the numbers are finite.
    if (!isfinite(all)) {
        bool finite = true;
        for (int i = threadIdx.x; i < hidden; i += stride) finite = finite && isfinite(from[i]);
        if (!finite) atomicMin(broken, mark << 32 | (first + blockIdx.x));
    }
    const float factor = weight ? rsqrtf(all / hidden + eps) : 1.0f;
#pragma unroll
    for (int k = 0; k < KEPT; ++k) {
        const int i = k * stride + threadIdx.x;
        if (i < hidden) to[i] = from_f32<T>(kept[k] * factor * scale[k]);
    }
    for (int i = behind; i < hidden; i += stride) to[i] = from_f32<T>(from[i] * factor * (weight ? weight[i] : 1.0f));
}

// rows[row][0..width] /= their rms, times weight, for rows `stride` apart.
template <typename T>
__device__ void norm_part(T* rows, int stride, int width, const float* weight, float eps) {
    __shared__ float shared[32];
    T* x = rows + static_cast<size_t>(blockIdx.x) * stride;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < width; i += blockDim.x) squares += to_f32(x[i]) * to_f32(x[i]);
    const float factor = rsqrtf(block_sum(squares, shared) / width + eps);
    for (int i = threadIdx.x; i < width; i += blockDim.x) x[i] = from_f32<T>(to_f32(x[i]) * factor * weight[i]);
}

// x[row] += scale * branch[row], which is normed first if there is a weight.
extern "C" __global__ void add_branch(float* x, const float* branch, const float* weight, float eps, float scale, int hidden) {
    begin_short();
    __shared__ float shared[32];
    const float* from = branch + static_cast<size_t>(blockIdx.x) * hidden;
    float* to = x + static_cast<size_t>(blockIdx.x) * hidden;
    float factor = scale;
    if (weight) {
        float squares = 0.0f;
        for (int i = threadIdx.x; i < hidden; i += blockDim.x) squares += from[i] * from[i];
        factor *= rsqrtf(block_sum(squares, shared) / hidden + eps);
    }
    for (int i = threadIdx.x; i < hidden; i += blockDim.x) to[i] += factor * from[i] * (weight ? weight[i] : 1.0f);
}

// x[row] += bias, for the first `width` numbers of rows of `stride`.
template <typename T> __device__ void add_bias(T* x, const float* bias, int width, int stride) {
    T* row = x + static_cast<size_t>(blockIdx.x) * stride;
    for (int i = threadIdx.x; i < width; i += blockDim.x) row[i] = from_f32<T>(to_f32(row[i]) + bias[i]);
}

struct Silu {
    __device__ __forceinline__ float operator()(float gate, float up) const { return gate / (1.0f + __expf(-gate)) * up; }
};

// GELU by its approximation with tanh.
struct GeluTanh {
    __device__ __forceinline__ float operator()(float gate, float up) const {
        return 0.5f * gate * (1.0f + tanhf(0.7978845608028654f * (gate + 0.044715f * gate * gate * gate))) * up;
    }
};

// The gate is limited to `limit` from above, and `slope` scales the argument of its sigmoid; the value is limited to `limit` around 0 and
// gets 1 added.
struct Clamped {
    float slope, limit;
    __device__ __forceinline__ float operator()(float gate, float up) const {
        const float most = fminf(gate, limit), within = fminf(fmaxf(up, -limit), limit);
        return most / (1.0f + __expf(-slope * most)) * (within + 1.0f);
    }
};

// out[row] = through(gate, up), for rows that hold the gate and then up, `inner` numbers each, a multiple of 8.
template <typename Gate, typename T> __device__ void gated(Gate through, const T* gate_up, T* out, int inner) {
    const size_t row = blockIdx.y;
    const int i = (blockIdx.x * blockDim.x + threadIdx.x) * PIECE;
    if (i >= inner) return;
    float gate[PIECE], up[PIECE];
    widen(gate_up + 2 * row * inner + i, gate);
    widen(gate_up + (2 * row + 1) * inner + i, up);
#pragma unroll
    for (int j = 0; j < PIECE; ++j) out[row * inner + i + j] = from_f32<T>(through(gate[j], up[j]));
}

#define ROWS(T, NAME)                                                                                                   \
    extern "C" __global__ void embed_##NAME(const T* table, const uint32_t* tokens, float* x, int hidden, float scale) {\
        begin_short();                                                                                                  \
        embed(table, tokens, x, hidden, scale);                                                                         \
    }                                                                                                                   \
    extern "C" __global__ void norm_part_##NAME(T* rows, int stride, int width, const float* weight, float eps) {       \
        begin_short();                                                                                                  \
        norm_part(rows, stride, width, weight, eps);                                                                    \
    }                                                                                                                   \
    extern "C" __global__ void rms_norm_##NAME(const float* x, const float* weight, T* out, int hidden, float eps,      \
                                               unsigned long long mark, unsigned long long first,                       \
                                               unsigned long long* broken) {                                            \
        begin_short();                                                                                                  \
        rms_norm(x, weight, out, hidden, eps, mark, first, broken);                                                     \
    }                                                                                                                   \
    extern "C" __global__ void add_bias_##NAME(T* x, const float* bias, int width, int stride) {                        \
        begin_short();                                                                                                  \
        add_bias(x, bias, width, stride);                                                                               \
    }                                                                                                                   \
    extern "C" __global__ void silu_gate_##NAME(const T* gate_up, T* out, int inner) {                                  \
        begin_short();                                                                                                  \
        gated(Silu{}, gate_up, out, inner);                                                                             \
    }                                                                                                                   \
    extern "C" __global__ void gelu_tanh_gate_##NAME(const T* gate_up, T* out, int inner) {                             \
        begin_short();                                                                                                  \
        gated(GeluTanh{}, gate_up, out, inner);                                                                         \
    }                                                                                                                   \
    extern "C" __global__ void clamped_gate_##NAME(const T* gate_up, T* out, int inner, float slope, float limit) {     \
        begin_short();                                                                                                  \
        gated(Clamped{slope, limit}, gate_up, out, inner);                                                              \
    }

ROWS(float, f32)
ROWS(__half, f16)
ROWS(__nv_bfloat16, bf16)
