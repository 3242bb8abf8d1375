// Mixture of experts: the choice of each row's experts, and the products of few rows with them. For many rows, the rows of one expert at a
// time are gathered for a matrix product, and the outputs are added.
//
// Rows are `[hidden]` of the storage type T, matrices `[outputs][inputs]` of the same type, inputs a multiple of 8; sums are f32. `table`
// holds the addresses of the matrices of all experts, and `biases` those of their biases, `[outputs]` f32, or is null. A slot is a row and
// one of its `used` experts: number row * used + j, where j counts the row's experts in the order of their numbers.
#include "common.cuh"

constexpr int WARPS = 4;
// The same as in the launchers.
constexpr int MOST_EXPERTS = 512;

template <typename T> constexpr int UNROLL_OF = sizeof(T) == 2 ? 8 : 4;

// For each row of logits `[count]`, chooses the `used` experts (at most 32) with the largest ones, in the order of their numbers. Their
// weights are the softmax over all experts, or over the chosen ones. Of equal logits, the lower expert's counts as larger. A warp a row.
extern "C" __global__ void __launch_bounds__(32)
    route(const float* logits, int count, int used, int among_used, uint32_t* chosen, float* weights) {
    constexpr int EACH = MOST_EXPERTS / 32;
    const int lane = threadIdx.x;
    const float* own = logits + static_cast<size_t>(blockIdx.x) * count;
    float kept[EACH];
    uint32_t taken = 0;
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
        const int expert = k * 32 + lane;
        kept[k] = expert < count ? own[expert] : 0.0f;
        if (expert >= count) taken |= 1u << k;
    }
    int mine = 0;
    float my_logit = 0.0f, largest = 0.0f;
    for (int j = 0; j < used; ++j) {
        float best = 0.0f;
        int at = MOST_EXPERTS;
#pragma unroll
        for (int k = 0; k < EACH; ++k)
            if (!(taken >> k & 1) && (at == MOST_EXPERTS || kept[k] > best)) best = kept[k], at = k * 32 + lane;
        for (int step = 16; step > 0; step /= 2) {
            const float other = __shfl_xor_sync(~0u, best, step);
            const int other_at = __shfl_xor_sync(~0u, at, step);
            if (other_at == MOST_EXPERTS) continue;
            if (at == MOST_EXPERTS || other > best || (other == best && other_at < at)) best = other, at = other_at;
        }
        if (at % 32 == lane) taken |= 1u << (at / 32);
        if (lane == j) mine = at, my_logit = best;
        if (j == 0) largest = best;
    }
    const float share = lane < used ? expf(my_logit - largest) : 0.0f;
    float sum = share;
    if (!among_used) {
        sum = 0.0f;
#pragma unroll
        for (int k = 0; k < EACH; ++k)
            if (k * 32 + lane < count) sum += expf(kept[k] - largest);
    }
    sum = warp_sum(sum);
    int rank = 0;
    for (int j = 0; j < used; ++j) rank += __shfl_sync(~0u, mine, j) < mine;
    if (lane >= used) return;
    chosen[static_cast<size_t>(blockIdx.x) * used + rank] = mine;
    weights[static_cast<size_t>(blockIdx.x) * used + rank] = share / sum;
}

// The product of a matrix's row with a row of activations; every lane of a warp gets it.
template <typename T> __device__ float dot(const T* __restrict__ w, const T* __restrict__ x, int inputs) {
    constexpr int UNROLL = UNROLL_OF<T>, STRIDE = 32 * PIECE;
    float sum = 0.0f;
    for (int start = threadIdx.x % 32 * PIECE; start < inputs; start += UNROLL * STRIDE) {
        Piece<T> pieces[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (start + u * STRIDE < inputs) pieces[u] = load_piece(w + start + u * STRIDE);
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
    return warp_sum(sum);
}

// One output of an expert for a row of activations; every lane of a warp gets it.
template <typename T>
__device__ float output_of(const unsigned long long* table, const unsigned long long* biases, uint32_t expert, const T* x, int output,
                           int inputs) {
    const float sum = dot(reinterpret_cast<const T*>(table[expert]) + static_cast<size_t>(output) * inputs, x, inputs);
    return biases ? sum + reinterpret_cast<const float*>(biases[expert])[output] : sum;
}

// out[slot] = the slot's expert times its row. Blocks: outputs (x) and slots (y).
template <typename T>
__device__ void expert_rows(const unsigned long long* table, const unsigned long long* biases, const uint32_t* chosen, const T* x,
                            T* out, int used, int outputs, int inputs) {
    const int slot = blockIdx.y, output = blockIdx.x * WARPS + threadIdx.x / 32;
    if (output >= outputs) return;
    const float sum = output_of(table, biases, chosen[slot], x + static_cast<size_t>(slot / used) * inputs, output, inputs);
    if (threadIdx.x % 32 == 0) out[static_cast<size_t>(slot) * outputs + output] = from_f32<T>(sum);
}

// out[row] += the sum of weight * (expert times x[slot]) over the row's slots. Blocks: outputs (x) and rows (y).
template <typename T>
__device__ void expert_sums(const unsigned long long* table, const unsigned long long* biases, const uint32_t* chosen,
                            const float* weights, const T* x, float* out, int used, int outputs, int inputs) {
    const int row = blockIdx.y, output = blockIdx.x * WARPS + threadIdx.x / 32;
    if (output >= outputs) return;
    float sum = 0.0f;
    for (int slot = row * used; slot < (row + 1) * used; ++slot)
        sum += weights[slot] * output_of(table, biases, chosen[slot], x + static_cast<size_t>(slot) * inputs, output, inputs);
    if (threadIdx.x % 32 == 0) out[static_cast<size_t>(row) * outputs + output] += sum;
}

// out[i] = x[rows[i]]
template <typename T> __device__ void gather_rows(const T* x, const uint32_t* rows, T* out, int width) {
    const T* from = x + static_cast<size_t>(rows[blockIdx.x]) * width;
    T* to = out + static_cast<size_t>(blockIdx.x) * width;
    for (int i = threadIdx.x; i < width; i += blockDim.x) to[i] = from[i];
}

// out[rows[i]] += weights[i] * y[i], where no row occurs twice.
extern "C" __global__ void add_weighted(const float* y, const uint32_t* rows, const float* weights, float* out, int width) {
    const float* from = y + static_cast<size_t>(blockIdx.x) * width;
    float* to = out + static_cast<size_t>(rows[blockIdx.x]) * width;
    const float weight = weights[blockIdx.x];
    for (int i = threadIdx.x; i < width; i += blockDim.x) to[i] += weight * from[i];
}

#define EXPERTS(T, NAME)                                                                                                \
    extern "C" __global__ void __launch_bounds__(32 * WARPS)                                                            \
        expert_rows_##NAME(const unsigned long long* table, const unsigned long long* biases, const uint32_t* chosen,   \
                           const T* x, T* out, int used, int outputs, int inputs) {                                     \
        expert_rows(table, biases, chosen, x, out, used, outputs, inputs);                                              \
    }                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(32 * WARPS)                                                            \
        expert_sums_##NAME(const unsigned long long* table, const unsigned long long* biases, const uint32_t* chosen,   \
                           const float* weights, const T* x, float* out, int used, int outputs, int inputs) {           \
        expert_sums(table, biases, chosen, weights, x, out, used, outputs, inputs);                                     \
    }                                                                                                                   \
    extern "C" __global__ void gather_rows_##NAME(const T* x, const uint32_t* rows, T* out, int width) {                \
        gather_rows(x, rows, out, width);                                                                               \
    }

EXPERTS(float, f32)
EXPERTS(__half, f16)
EXPERTS(__nv_bfloat16, bf16)
