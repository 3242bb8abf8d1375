// The tokens of the pages with the largest scores, ascending; of equal scores the earlier page, and not-a-number is smallest.
//
// A block finds one list. Scores are seen as words that order as they do. Four passes, a byte each, count the words whose
// higher bytes are those of the k-th largest; a last one writes what lies above it, and of those equal to it the first.
#include "ordered.cuh"

constexpr int THREADS = 1024;
constexpr int BINS = 256;
// Scores that a thread reads at a time.
constexpr int WIDE = 4;

// The sum over the threads of a block before each, and over all; `shared` has room for 33 numbers.
__device__ __forceinline__ uint32_t block_scan(uint32_t x, uint32_t* shared, uint32_t& total) {
    const uint32_t up_to = warp_scan(x);
    if (threadIdx.x % 32 == 31) shared[threadIdx.x / 32] = up_to;
    __syncthreads();
    if (threadIdx.x < 32) {
        const uint32_t own = shared[threadIdx.x], sums = warp_scan(own);
        shared[threadIdx.x] = sums - own;
        if (threadIdx.x == 31) shared[32] = sums;
    }
    __syncthreads();
    const uint32_t before = shared[threadIdx.x / 32] + up_to - x;
    total = shared[32];
    __syncthreads();
    return before;
}

// Blocks: lists of a row, rows. Scores are `[row][list][stride]`, a stride being a multiple of four; tokens
// `[row][list][most]`, counts `[row][list]`. Pages are cut over the tokens [first, end).
extern "C" __global__ void __launch_bounds__(THREADS) top_pages(const float* scores, unsigned long long stride,
                                                                uint32_t columns, const uint32_t* pages, uint32_t page,
                                                                uint32_t first, uint32_t end, uint32_t* tokens,
                                                                uint32_t most, uint32_t* counts) {
    // A bin for each lane, so that lanes of a warp never count in the same place.
    __shared__ uint32_t bins[BINS][32];
    __shared__ uint32_t sums[BINS], shared[33], chosen[3], missing;
    const uint64_t list = static_cast<uint64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
    const float* own = scores + list * stride;
    uint32_t* to = tokens + list * most;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t k = min(pages[blockIdx.y], columns);
    if (k == 0) {
        if (threadIdx.x == 0) counts[list] = 0;
        return;
    }
    // The k-th largest word as far as it is known, which of its bits are, and how many of the words that have them are picked.
    uint32_t word = 0, known = 0, left = k;
    // Whether all words that have these bits are picked.
    bool whole = k == columns;
    for (int shift = 24; shift >= 0 && !whole; shift -= 8) {
        for (int i = threadIdx.x; i < BINS * 32; i += THREADS) bins[i / 32][i % 32] = 0;
        __syncthreads();
#pragma unroll 2
        for (uint32_t i = threadIdx.x * WIDE; i < columns; i += THREADS * WIDE) {
            const float4 four = *reinterpret_cast<const float4*>(own + i);
            const float some[WIDE] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int j = 0; j < WIDE; ++j) {
                const uint32_t x = ordered(some[j]);
                if (i + j < columns && (x & known) == word) atomicAdd(&bins[x >> shift & 255][lane], 1);
            }
        }
        __syncthreads();
        for (int bin = warp; bin < BINS; bin += THREADS / 32) {
            const uint32_t sum = warp_scan(bins[bin][lane]);
            if (lane == 31) sums[bin] = sum;
        }
        __syncthreads();
        // From the largest bin down: the one in which the last that is picked lies.
        const uint32_t bin = BINS - 1 - threadIdx.x, size = threadIdx.x < BINS ? sums[bin] : 0;
        uint32_t total;
        const uint32_t above = block_scan(size, shared, total);
        if (threadIdx.x < BINS && above < left && left <= above + size) {
            chosen[0] = bin, chosen[1] = left - above, chosen[2] = size;
        }
        __syncthreads();
        word |= chosen[0] << shift, known |= 255u << shift, left = chosen[1];
        whole = left == chosen[2];
        __syncthreads();
    }
    if (threadIdx.x == 0) missing = 0;
    // Words above `least` are picked, and the first `left` of those equal to it. Where all are, its low bits are zero, and a word
    // below it is nobody's.
    const bool all = k == columns;
    if (whole) left = 0;
    const uint32_t least = whole && !all ? word - 1 : word;
    uint32_t above = 0, equal = 0;
    for (uint32_t start = 0; start < columns; start += THREADS * WIDE) {
        const uint32_t i = start + threadIdx.x * WIDE;
        float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (i < columns) four = *reinterpret_cast<const float4*>(own + i);
        const uint32_t some[WIDE] = {ordered(four.x), ordered(four.y), ordered(four.z), ordered(four.w)};
        uint32_t here = 0;
#pragma unroll
        for (int j = 0; j < WIDE; ++j) {
            if (i + j >= columns) continue;
            here += all || some[j] > least ? 1u << 16 : some[j] == least ? 1u : 0u;
        }
        uint32_t total;
        const uint32_t before = block_scan(here, shared, total);
        uint32_t larger = above + (before >> 16), same = equal + (before & 0xffffu);
#pragma unroll
        for (int j = 0; j < WIDE; ++j) {
            if (i + j >= columns) continue;
            const bool is_larger = all || some[j] > least, is_same = !is_larger && some[j] == least;
            if (is_larger || is_same && same < left) {
                const uint32_t begin = first + (i + j) * page, size = min(page, end - begin);
                const uint64_t at = static_cast<uint64_t>(larger + min(same, left)) * page;
                for (uint32_t t = 0; t < size; ++t) to[at + t] = begin + t;
                if (size < page) missing = page - size;
            }
            larger += is_larger, same += is_same;
        }
        above += total >> 16, equal += total & 0xffffu;
    }
    __syncthreads();
    if (threadIdx.x == 0) counts[list] = k * page - missing;
}
