// Channel-wise minima and maxima of the keys of each page (Quest), in the keys' type, so they are exact.
#include "common.cuh"

// Blocks: pages, KV heads; one thread for each channel. `keys` begins with the first page of the first KV head; the last page may be
// shorter. `lower` and `upper` are `[kv_head][page][d]`.
template <typename T>
__device__ void page_bounds(const T* keys, uint64_t head_stride, uint32_t tokens, uint32_t page, int d, T* lower, T* upper) {
    const int channel = threadIdx.x;
    if (channel >= d) return;
    const uint32_t first = blockIdx.x * page, count = min(page, tokens - first);
    const T* from = keys + blockIdx.y * head_stride + static_cast<uint64_t>(first) * d + channel;
    float least = to_f32(from[0]), most = least;
#pragma unroll 4
    for (uint32_t t = 1; t < count; ++t) {
        const float x = to_f32(from[static_cast<uint64_t>(t) * d]);
        least = fminf(least, x), most = fmaxf(most, x);
    }
    const uint64_t to = (static_cast<uint64_t>(blockIdx.y) * gridDim.x + blockIdx.x) * d + channel;
    lower[to] = from_f32<T>(least), upper[to] = from_f32<T>(most);
}

#define BOUNDS(T, NAME)                                                                                                 \
    extern "C" __global__ void page_bounds_##NAME(const T* keys, unsigned long long head_stride, uint32_t tokens,       \
                                                  uint32_t page, int d, T* lower, T* upper) {                           \
        page_bounds(keys, head_stride, tokens, page, d, lower, upper);                                                  \
    }

BOUNDS(float, f32)
BOUNDS(__half, f16)
BOUNDS(__nv_bfloat16, bf16)
