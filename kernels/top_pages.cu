// Selects the tokens of the pages with the largest scores, ascending. Among equal scores the earlier page wins; NaN sorts with negative
// infinity.
//
// A block computes one list. Scores are compared as words that sort in the same order. Four passes, one for each byte, count the words that
// share the higher bytes of the k-th largest. A last pass writes the pages above it, and of those equal to it the first.
#include "picks.cuh"

constexpr int BINS = 256;

// Blocks: lists of a row, rows. Scores are `[row][list][stride]`, with a stride that is a multiple of four; tokens are `[row][list][most]`,
// counts `[row][list]`. Pages cover the tokens [first, end), or those of a row [first, ends[row]).
extern "C" __global__ void __launch_bounds__(THREADS) top_pages(const float* scores, unsigned long long stride,
                                                                uint32_t columns, const uint32_t* pages, uint32_t page,
                                                                uint32_t first, uint32_t end, const uint32_t* ends,
                                                                uint32_t* tokens, uint32_t most, uint32_t* counts) {
    // Each lane has its own copy of the bins, so lanes of a warp never count in the same place.
    __shared__ uint32_t bins[BINS][32];
    __shared__ uint32_t sums[BINS], shared[33], chosen[3];
    const uint64_t list = static_cast<uint64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
    const float* own = scores + list * stride;
    uint32_t* to = tokens + list * most;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t k = min(pages[blockIdx.y], columns);
    if (k == 0) {
        if (threadIdx.x == 0) counts[list] = 0;
        return;
    }
    // The k-th largest word as far as it is known, a mask of its known bits, and how many of the words that share them are selected.
    uint32_t word = 0, known = 0, left = k;
    // Whether all words that share these bits are selected.
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
        // Finds, from the largest bin down, the bin of the last selected word.
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
    // If all words that share these bits are selected, the low bits are zero, and no word equals word - 1.
    const bool all = k == columns;
    const Cut cut = {whole && !all ? word - 1 : word, whole ? 0 : left, all};
    const uint32_t missing = write_pages(own, columns, cut, page, first, ends ? ends[blockIdx.y] : end, to, shared);
    if (threadIdx.x == 0) counts[list] = k * page - missing;
}
