// Rotary position embedding of the query and key heads of stacked projections, after an RMS norm of each head if the model has one; then
// stores keys and values.
//
// Rows are `[heads + 2 kv_heads][d]`: queries, keys, values. The first `rotated` channels of a head are rotated in pairs (i, i +
// rotated/2), or (2i, 2i + 1) where neighbours are rotated together, by the angle position * inverse[i], rounded to f32 as in the reference
// implementation; `scaling` multiplies cos and sin. With `inverse_stride` above 0, each row has its own list of frequencies. With
// `growth_step` above 0, queries are then multiplied by 1 + growth * ln(1 + position / growth_step), where the quotient is a whole number.
// Queries and keys are rotated in the row; keys and values are also written to the cache. Without places and without a cache, only queries
// are rotated. Blocks: rows (x), and shares of a row's heads (y); a warp processes one head.
#include "common.cuh"
#include "early.cuh"

// Where a row's key and value are stored: KV head h at `keys + h * head_stride`, in elements.
template <typename T> struct Place {
    T* keys;
    T* values;
    unsigned long long head_stride;
};

template <typename T>
__device__ void rope(T* rows, const uint32_t* positions, const float* inverse, int inverse_stride,
                     float scaling, int rotated, int neighbours, int heads, int kv_heads, int d,
                     const float* query_norm, const float* key_norm, float eps, float growth, uint32_t growth_step,
                     const Place<T>* places, T* keys, T* values, unsigned long long head_stride) {
    const int row = blockIdx.x, lane = threadIdx.x % 32, half = rotated / 2;
    inverse += static_cast<size_t>(row) * inverse_stride;
    T* base = rows + static_cast<size_t>(row) * (heads + 2 * kv_heads) * d;
    // Without a list of places, rows are consecutive in one cache.
    const Place<T> place = places ? places[row]
                                  : Place<T>{keys + static_cast<size_t>(row) * d, values + static_cast<size_t>(row) * d,
                                             head_stride};
    const float grown =
        growth_step > 0 ? 1.0f + growth * logf(1.0f + static_cast<float>(positions[row] / growth_step)) : 1.0f;
    const int warps = blockDim.x / 32, all = places || keys ? heads + 2 * kv_heads : heads;
    for (int head = blockIdx.y * warps + threadIdx.x / 32; head < all; head += gridDim.y * warps) {
        T* x = base + static_cast<size_t>(head) * d;
        if (head >= heads + kv_heads) {
            T* to = place.values + (head - heads - kv_heads) * place.head_stride;
            for (int i = lane; i < d; i += 32) to[i] = x[i];
            continue;
        }
        const float* norm = head < heads ? query_norm : key_norm;
        float factor = 1.0f;
        if (norm) {
            float squares = 0.0f;
            for (int i = lane; i < d; i += 32) squares += to_f32(x[i]) * to_f32(x[i]);
            factor = rsqrtf(warp_sum(squares) / d + eps);
        }
        T* to = head < heads ? x : place.keys + (head - heads) * place.head_stride;
        const float times = head < heads ? grown : 1.0f;
        for (int i = lane; i < half; i += 32) {
            float sin, cos;
            sincosf(static_cast<float>(positions[row]) * inverse[i], &sin, &cos);
            sin *= scaling, cos *= scaling;
            const int one = neighbours ? 2 * i : i, other = neighbours ? 2 * i + 1 : i + half;
            float a = to_f32(x[one]), b = to_f32(x[other]);
            if (norm) a *= factor * norm[one], b *= factor * norm[other];
            const T first = from_f32<T>((a * cos - b * sin) * times), second = from_f32<T>((b * cos + a * sin) * times);
            to[one] = first, to[other] = second;
            // The host may read the row.
            x[one] = first, x[other] = second;
        }
        for (int i = rotated + lane; i < d; i += 32) {
            const T kept = from_f32<T>(to_f32(x[i]) * (norm ? factor * norm[i] : 1.0f) * times);
            to[i] = kept, x[i] = kept;
        }
    }
}

#define ROPE(T, NAME)                                                                                                   \
    extern "C" __global__ void rope_##NAME(T* rows, const uint32_t* positions, const float* inverse,                    \
                                           int inverse_stride, float scaling, int rotated, int neighbours, int heads,   \
                                           int kv_heads, int d,                                                         \
                                           const float* query_norm, const float* key_norm, float eps, float growth,     \
                                           uint32_t growth_step, const Place<T>* places, T* keys, T* values,            \
                                           unsigned long long head_stride) {                                            \
        begin_short();                                                                                                  \
        rope(rows, positions, inverse, inverse_stride, scaling, rotated, neighbours, heads, kv_heads, d, query_norm,    \
             key_norm, eps, growth, growth_step, places, keys, values, head_stride);                                    \
    }

ROPE(float, f32)
ROPE(__half, f16)
ROPE(__nv_bfloat16, bf16)
