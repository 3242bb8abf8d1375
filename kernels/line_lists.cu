// The lists of blocks of a prompt's rows, joined with vertical lines; and how many of the listed tokens the rows attend.
//
// Kernel: join_lines; sm_80 and up.
//
// Arrays, all of 32-bit words unless said otherwise. Block b has rows b * block_rows..min((b + 1) * block_rows, rows); row i is at position
// first + i and attends all tokens from starts[i] on. Starts ascend.
//   found         [block][list][found_most], ascending; found_counts [block][list]. Null if nothing was found.
//   verticals     the vertical lines of all lists, those of list l at [begins[l], begins[l + 1])
//   starts        [row]
//   distances     [list][distance_words], a bit for each distance of a diagonal; distance_words is 0 if there are no diagonals
//   tokens        [block][list][most]: the tokens before the last start of the block's rows that were found or are on a vertical line, ascending
//   counts        [block][list]
//   attended      u64 [list]: adds, for each listed token, the rows that attend it because it is listed: whose start is after it, and for which no
//                 diagonal is at its distance
//
// Launch
//   grid    x = blocks, y = lists
//   block   256 threads
//   shared  dynamic: a bit for each token before the last start, in words of 4 bytes
//
// How it works. A block of threads sets a bit for each token, then writes the tokens out in order, 256 words of bits at a time.
#include <cstdint>

namespace line_lists {

constexpr int THREADS = 256;

// The number of diagonals at distances in low..=high.
__device__ __forceinline__ uint32_t count_within(const uint32_t* words, uint32_t low, uint32_t high) {
    uint32_t count = 0;
    for (uint32_t word = low / 32; word <= high / 32; ++word) {
        uint32_t bits = __ldg(words + word);
        if (word == low / 32) bits &= ~0u << (low % 32);
        if (word == high / 32) bits &= ~0u >> (31 - high % 32);
        count += __popc(bits);
    }
    return count;
}

// The sum of `own` over the threads before this one, and over all threads.
__device__ __forceinline__ uint32_t sum_before(uint32_t own, uint32_t* sums, uint32_t& all) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t sum = own;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const uint32_t other = __shfl_up_sync(~0u, sum, step);
        if (lane >= step) sum += other;
    }
    __syncthreads();  // nobody reads the last sums any more
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    uint32_t before = 0;
    all = 0;
#pragma unroll
    for (int i = 0; i < THREADS / 32; ++i) {
        if (i < warp) before += sums[i];
        all += sums[i];
    }
    return before + sum - own;
}

}  // namespace line_lists

extern "C" __global__ void __launch_bounds__(256)
    join_lines(const uint32_t* found, const uint32_t* found_counts, uint32_t found_most, const uint32_t* verticals, const uint32_t* begins,
               const uint32_t* starts, const uint32_t* distances, uint32_t distance_words, uint32_t block_rows, uint32_t rows, uint32_t first,
               uint32_t* tokens, uint32_t most, uint32_t* counts, unsigned long long* attended) {
    using namespace line_lists;
    extern __shared__ uint32_t bits[];
    __shared__ uint32_t sums[THREADS / 32];
    const uint32_t lists = gridDim.y, list = blockIdx.y, base = blockIdx.x * block_rows;
    const uint32_t here = min(block_rows, rows - base), position = first + base;
    const uint32_t* own_starts = starts + base;
    const uint32_t end = own_starts[here - 1], words = (end + 31) / 32;
    const size_t index = static_cast<size_t>(blockIdx.x) * lists + list;

    for (uint32_t i = threadIdx.x; i < words; i += THREADS) bits[i] = 0;
    __syncthreads();
    auto mark = [&](uint32_t token) {
        if (token < end) atomicOr(bits + token / 32, 1u << token % 32);
    };
    if (found) {
        const uint32_t* own = found + index * found_most;
        for (uint32_t i = threadIdx.x; i < found_counts[index]; i += THREADS) mark(own[i]);
    }
    for (uint32_t i = begins[list] + threadIdx.x; i < begins[list + 1]; i += THREADS) mark(verticals[i]);
    __syncthreads();

    const uint32_t* diagonals = distances + static_cast<size_t>(list) * distance_words;
    // The rows from the first one whose start is after the token, without those that have a diagonal at its distance.
    auto rows_of = [&](uint32_t token) -> uint32_t {
        uint32_t low = 0, high = here - 1;
        while (low < high) {
            const uint32_t middle = (low + high) / 2;
            if (own_starts[middle] > token) high = middle;
            else low = middle + 1;
        }
        const uint32_t all = here - low;
        if (distance_words == 0) return all;
        return all - count_within(diagonals, position + low - token, position + here - 1 - token);
    };
    uint32_t* to = tokens + index * most;
    unsigned long long seen = 0;
    uint32_t written = 0;
    for (uint32_t word0 = 0; word0 < words; word0 += THREADS) {
        const uint32_t word = word0 + threadIdx.x;
        uint32_t left = word < words ? bits[word] : 0, all;
        uint32_t place = written + sum_before(__popc(left), sums, all);
        for (; left; left &= left - 1) {
            const uint32_t token = 32 * word + __ffs(left) - 1;
            to[place++] = token;
            seen += rows_of(token);
        }
        written += all;
    }
    if (threadIdx.x == 0) counts[index] = written;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) seen += __shfl_xor_sync(~0u, seen, step);
    if (threadIdx.x % 32 == 0 && seen > 0) atomicAdd(attended + list, seen);
}
