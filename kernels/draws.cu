// Independent draws of candidates from the softmax of their scores: which are drawn, and how often.
//
// A draw is a random number below 1, times the total mass. It selects the first candidate whose inclusive prefix sum of masses exceeds it.
// The random numbers are 53 of every 64 bits of ChaCha8, with a key for each list, as on the CPU.
#include "mass.cuh"

// Words of a key, and of a ChaCha block.
constexpr int KEY = 8, WORDS = 16;
constexpr int DRAWS = WORDS / 2;

__device__ __forceinline__ void quarter(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d) {
    a += b, d = __funnelshift_l(d ^ a, d ^ a, 16);
    c += d, b = __funnelshift_l(b ^ c, b ^ c, 12);
    a += b, d = __funnelshift_l(d ^ a, d ^ a, 8);
    c += d, b = __funnelshift_l(b ^ c, b ^ c, 7);
}

__device__ __forceinline__ void chacha8(const uint32_t* key, uint32_t count, uint32_t (&words)[WORDS]) {
    const uint32_t begin[WORDS] = {0x61707865u, 0x3320646eu, 0x79622d32u, 0x6b206574u, key[0], key[1], key[2], key[3],
                                   key[4],      key[5],      key[6],      key[7],      count,  0,      0,      0};
#pragma unroll
    for (int i = 0; i < WORDS; ++i) words[i] = begin[i];
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
#pragma unroll
        for (int i = 0; i < 4; ++i) quarter(words[i], words[4 + i], words[8 + i], words[12 + i]);
#pragma unroll
        for (int i = 0; i < 4; ++i) quarter(words[i], words[4 + (i + 1) % 4], words[8 + (i + 2) % 4], words[12 + (i + 3) % 4]);
    }
#pragma unroll
    for (int i = 0; i < WORDS; ++i) words[i] += begin[i];
}

// Blocks: lists of a row, rows. Scores, tokens and counts as in top_pages.cu; keys `[list][KEY]`. `sums` and `drawn` have room for one
// number per score, `[list][stride]`. `weights` is subtracted from logits by attend.cu, so that a token's weight becomes its share of the
// draws. `entries` gets 0, as no index entries are read.
extern "C" __global__ void __launch_bounds__(THREADS) draw_tokens(const float* scores, unsigned long long stride, uint32_t columns,
                                                                  const uint32_t* keys, uint32_t draws, float scale,
                                                                  uint32_t first, Mass* sums, uint32_t* drawn,
                                                                  uint32_t* tokens, float* weights, uint32_t most,
                                                                  uint32_t* counts, uint32_t* entries) {
    __shared__ Mass of_warps[32];
    __shared__ uint32_t shared[33];
    __shared__ float tops[32];
    const uint64_t list = static_cast<uint64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
    const float* own = scores + list * stride;
    Mass* up_to = sums + list * stride;
    uint32_t* times = drawn + list * stride;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const float largest = largest_of(own, columns, tops);
    const bool has_mass = isfinite(largest);
    Mass total = 0;
    for (uint32_t start = 0; start < columns; start += THREADS) {
        const uint32_t i = start + threadIdx.x;
        const Mass mine = has_mass && i < columns ? mass_of(own[i], largest, scale) : 0;
        Mass sum = mass_scan(mine);
        if (lane == 31) of_warps[warp] = sum;
        __syncthreads();
        const Mass all_warps = mass_scan(of_warps[lane]);
        sum += total + __shfl_sync(~0u, all_warps, warp) - of_warps[warp];
        if (i < columns) up_to[i] = sum, times[i] = 0;
        total += __shfl_sync(~0u, all_warps, 31);
        __syncthreads();
    }
    for (uint32_t count = threadIdx.x; count * DRAWS < draws; count += THREADS) {
        uint32_t words[WORDS];
        chacha8(keys + list * KEY, count, words);
#pragma unroll
        for (int j = 0; j < DRAWS; ++j) {
            if (count * DRAWS + j >= draws) break;
            const uint64_t bits = static_cast<uint64_t>(words[2 * j + 1]) << 32 | words[2 * j];
            const double below_one = static_cast<double>(bits >> 11) * 0x1p-53;
            const Mass wanted = static_cast<Mass>(below_one * static_cast<double>(total));
            uint32_t low = 0, high = columns - 1;
            while (low < high) {
                const uint32_t middle = low + (high - low) / 2;
                if (up_to[middle] > wanted) high = middle;
                else low = middle + 1;
            }
            atomicAdd(times + low, 1);
        }
    }
    __syncthreads();
    const float log_mass = scale * largest + static_cast<float>(log(static_cast<double>(total) / ONE));
    uint32_t found = 0;
    for (uint32_t start = 0; start < columns; start += THREADS) {
        const uint32_t i = start + threadIdx.x, count = i < columns ? times[i] : 0;
        uint32_t here;
        const uint64_t at = list * most + found + block_scan(count > 0, shared, here);
        if (count > 0) {
            tokens[at] = first + i;
            weights[at] = scale * own[i] - (logf(static_cast<float>(count) / static_cast<float>(draws)) + log_mass);
        }
        found += here;
    }
    if (threadIdx.x == 0) counts[list] = found, entries[list] = 0;
}
