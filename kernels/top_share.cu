// Selects the tokens of the fewest pages with the largest scores that have a given share of the softmax mass, ascending; among equal scores
// the earlier page wins.
//
// A block computes one list, as in top_pages.cu, in four passes of one byte each over words that sort as scores do. Here, a bin also holds
// the mass of its words.
#include "mass.cuh"

constexpr int BINS = 256;
// Copies of each bin, because lanes of a warp that add to the same place wait for each other.
constexpr int COPIES = 8;
constexpr int BINS_OF_LANE = BINS / 32;
// The bin of the last selected word, the mass and count still wanted from it, its size, and how many words are above it.
struct Chosen {
    Mass mass;
    uint32_t bin, count, size, above;
};

// Blocks: lists of a row, rows. Scores, tokens and counts as in top_pages.cu. At least `least` pages are selected.
extern "C" __global__ void __launch_bounds__(THREADS) top_share(const float* scores, unsigned long long stride,
                                                                uint32_t columns, double share, float scale, uint32_t least,
                                                                uint32_t page, uint32_t first, uint32_t end,
                                                                uint32_t* tokens, uint32_t most, uint32_t* counts) {
    __shared__ Mass masses[BINS][COPIES], all_mass;
    __shared__ uint32_t sizes[BINS][COPIES], shared[33];
    __shared__ float tops[32];
    __shared__ Chosen chosen;
    const uint64_t list = static_cast<uint64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
    const float* own = scores + list * stride;
    uint32_t* to = tokens + list * most;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (threadIdx.x == 0) all_mass = 0;
    const float largest = largest_of(own, columns, tops);
    // If the largest score is infinite, no score has any mass here.
    const bool has_mass = isfinite(largest);
    Mass sum = 0;
    for (uint32_t i = threadIdx.x; i < columns && has_mass; i += THREADS) sum += mass_of(own[i], largest, scale);
    sum = mass_scan(sum);
    if (lane == 31) atomicAdd(&all_mass, sum);
    __syncthreads();
    const bool all = share >= 1.0 || least >= columns;
    Mass wanted = min(all_mass, static_cast<Mass>(ceil(share * static_cast<double>(all_mass))));
    uint32_t needed = max(least, 1u), word = 0, known = 0, above = 0;
    // Whether all words with the known bits are selected.
    bool whole = all;
    for (int shift = 24; shift >= 0 && !whole; shift -= 8) {
        for (int i = threadIdx.x; i < BINS * COPIES; i += THREADS) masses[i / COPIES][i % COPIES] = 0, sizes[i / COPIES][i % COPIES] = 0;
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < columns; i += THREADS) {
            const uint32_t x = ordered(own[i]);
            if ((x & known) != word) continue;
            const uint32_t bin = x >> shift & 255;
            atomicAdd(&sizes[bin][lane % COPIES], 1);
            if (has_mass) atomicAdd(&masses[bin][lane % COPIES], mass_of(own[i], largest, scale));
        }
        __syncthreads();
        if (warp == 0) {
            // From the largest bin down; each lane handles neighbouring bins.
            Mass mass[BINS_OF_LANE], of_lane = 0;
            uint32_t size[BINS_OF_LANE], count = 0;
#pragma unroll
            for (int j = 0; j < BINS_OF_LANE; ++j) {
                const int bin = BINS - 1 - (lane * BINS_OF_LANE + j);
                mass[j] = 0, size[j] = 0;
                for (int copy = 0; copy < COPIES; ++copy) mass[j] += masses[bin][copy], size[j] += sizes[bin][copy];
                of_lane += mass[j], count += size[j];
            }
            Mass mass_above = mass_scan(of_lane) - of_lane;
            uint32_t size_above = warp_scan(count) - count;
#pragma unroll
            for (int j = 0; j < BINS_OF_LANE; ++j) {
                const bool before = mass_above >= wanted && size_above >= needed;
                const bool after = mass_above + mass[j] >= wanted && size_above + size[j] >= needed;
                if (after && !before) {
                    chosen.mass = wanted - min(wanted, mass_above), chosen.count = needed - min(needed, size_above);
                    chosen.bin = BINS - 1 - (lane * BINS_OF_LANE + j), chosen.size = size[j], chosen.above = size_above;
                }
                mass_above += mass[j], size_above += size[j];
            }
        }
        __syncthreads();
        word |= chosen.bin << shift, known |= 255u << shift;
        wanted = chosen.mass, needed = chosen.count, above += chosen.above;
        whole = chosen.size == 1;
        __syncthreads();
    }
    uint32_t left = 1;
    if (!whole) {
        // All remaining words are equal.
        const uint32_t bits = word >> 31 ? word & 0x7fffffffu : ~word;
        const Mass each = has_mass ? mass_of(__uint_as_float(bits), largest, scale) : 0;
        const Mass by_mass = each > 0 ? (wanted + each - 1) / each : 0;
        left = max(needed, static_cast<uint32_t>(min(by_mass, static_cast<Mass>(chosen.size))));
    }
    // If the word is the smallest possible, everything is selected.
    const bool everything = all || whole && word == 0;
    const uint32_t picked = everything ? columns : above + left;
    const Cut cut = {whole ? word - 1 : word, whole ? 0 : left, everything};
    const uint32_t missing = write_pages(own, columns, cut, page, first, end, to, shared);
    if (threadIdx.x == 0) counts[list] = picked * page - missing;
}
