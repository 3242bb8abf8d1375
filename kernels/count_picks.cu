// Counts the selected tokens in lists: how many each query head attends, how many distinct ones its group reads, and how many tokens of one
// selection are missing from another.
#include <cstdint>
#include <cuda_runtime.h>

constexpr int THREADS = 1024;
// Words of the bit set of tokens, and how many tokens it covers.
constexpr uint32_t WORDS = 8192, ROOM = 32 * WORDS;

// Lists that are counted. Tokens are `[row][kv_head][lists][most]`, all in [first, end), and counts `[row][kv_head][lists]`; a KV head has one
// list for all heads of its group, or one for each. `counters` holds two numbers for each row: the address of its counters, and a factor
// for what is added. `entries` are `[row][kv_head][lists]`, or null.
struct Counted {
    const uint32_t* tokens;
    const uint32_t* counts;
    const uint32_t* entries;
    const unsigned long long* counters;
    uint32_t most, lists, first, end, rows, padding;
};

// The most lists in one launch: as arguments, they need no upload.
constexpr int MOST_COUNTED = 16;

struct AllCounted {
    Counted of[MOST_COUNTED];
};

// Blocks: KV heads, rows, lists. This layer's counters of a row begin at `offset`: `[kv_head]` tokens read, `[query head]` tokens attended,
// and the number of index entries read, summed over entries.
extern "C" __global__ void __launch_bounds__(THREADS) count_picks(const __grid_constant__ AllCounted all, uint32_t group,
                                                                  unsigned long long offset) {
    __shared__ uint32_t seen[WORDS];
    const Counted& own = all.of[blockIdx.z];
    if (blockIdx.y >= own.rows) return;
    const uint32_t *tokens = own.tokens, *counts = own.counts, *entries = own.entries;
    const uint32_t most = own.most, lists = own.lists, first = own.first, end = own.end;
    const uint64_t list = (static_cast<uint64_t>(blockIdx.y) * gridDim.x + blockIdx.x) * lists;
    unsigned long long* sums = reinterpret_cast<unsigned long long*>(own.counters[2 * blockIdx.y]) + offset;
    const unsigned long long times = own.counters[2 * blockIdx.y + 1];
    for (uint32_t head = threadIdx.x; head < group; head += THREADS) {
        const uint32_t count = counts[list + (lists == 1 ? 0 : head)];
        atomicAdd(sums + gridDim.x + blockIdx.x * group + head, times * count);
    }
    for (uint32_t i = threadIdx.x; i < lists && entries; i += THREADS)
        atomicAdd(sums + gridDim.x * (1 + group), static_cast<unsigned long long>(entries[list + i]));
    if (lists == 1) {
        if (threadIdx.x == 0) atomicAdd(sums + blockIdx.x, times * counts[list]);
        return;
    }
    uint32_t different = 0;
    for (uint32_t from = first; from < end; from += ROOM) {
        for (uint32_t i = threadIdx.x; i < WORDS; i += THREADS) seen[i] = 0;
        __syncthreads();
        for (uint32_t h = 0; h < lists; ++h) {
            const uint32_t* listed = tokens + (list + h) * most;
            const uint32_t count = min(counts[list + h], most);
            for (uint32_t i = threadIdx.x; i < count; i += THREADS) {
                // Tokens before `from` wrap around to large numbers.
                const uint32_t at = listed[i] - from;
                if (at >= ROOM) continue;
                const uint32_t bit = 1u << at % 32;
                different += (atomicOr(&seen[at / 32], bit) & bit) == 0;
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) different += __shfl_xor_sync(~0u, different, step);
    if (threadIdx.x % 32 == 0 && different > 0) atomicAdd(sums + blockIdx.x, times * different);
}

// Blocks: lists, rows. Counts the tokens of each list in `wanted`, and those of them that the same list of `picked` lacks. Both are
// `[row][list][most]`, without a token twice in a list, all in [first, end). `counters` holds the address of each row's counters; this
// layer's two begin at `offset`.
extern "C" __global__ void __launch_bounds__(THREADS) count_missing(const uint32_t* wanted, uint32_t wanted_most,
                                                                    const uint32_t* wanted_counts, const uint32_t* picked,
                                                                    uint32_t picked_most, const uint32_t* picked_counts,
                                                                    uint32_t first, uint32_t end,
                                                                    const unsigned long long* counters,
                                                                    unsigned long long offset) {
    __shared__ uint32_t seen[WORDS];
    const uint64_t list = static_cast<uint64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
    unsigned long long* sums = reinterpret_cast<unsigned long long*>(counters[blockIdx.y]) + offset;
    const uint32_t all = min(wanted_counts[list], wanted_most), held = min(picked_counts[list], picked_most);
    const uint32_t *asked = wanted + list * wanted_most, *own = picked + list * picked_most;
    uint32_t missing = 0;
    for (uint32_t from = first; from < end; from += ROOM) {
        for (uint32_t i = threadIdx.x; i < WORDS; i += THREADS) seen[i] = 0;
        __syncthreads();
        // Tokens before `from` wrap around to large numbers.
        for (uint32_t i = threadIdx.x; i < held; i += THREADS) {
            const uint32_t at = own[i] - from;
            if (at < ROOM) atomicOr(&seen[at / 32], 1u << at % 32);
        }
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < all; i += THREADS) {
            const uint32_t at = asked[i] - from;
            if (at < ROOM) missing += (seen[at / 32] >> at % 32 & 1) == 0;
        }
        __syncthreads();
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) missing += __shfl_xor_sync(~0u, missing, step);
    if (threadIdx.x % 32 == 0 && missing > 0) atomicAdd(sums + 1, static_cast<unsigned long long>(missing));
    if (threadIdx.x == 0) atomicAdd(sums, static_cast<unsigned long long>(all));
}
