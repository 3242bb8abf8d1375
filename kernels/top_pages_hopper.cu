// The tokens of the pages with the largest scores, as top_pages.cu finds them, for long lists: a cluster of blocks finds one.
//
// Scores are read twice. The first time each block counts the highest bits of its own; the sums over the cluster say in which
// bin the last that is picked lies. The second time what lies above it is marked, and what lies in it is gathered, seldom
// more than a few hundred, among which the remaining bits are counted. Marks are one bit a page, from which lists are written in
// order.
#include <cooperative_groups.h>

#include "common.cuh"
#include "hopper.cuh"
#include "ordered.cuh"

namespace cg = cooperative_groups;

constexpr int THREADS = 256, CLUSTER = 8;
// Bits of a pass, from the highest down.
constexpr int DIGIT = 11, BINS = 1 << DIGIT;
// Scores that a thread reads at a time, and gathered ones that a block has room for.
constexpr int WIDE = 4, ROOM = 2048;

// The sum over the threads of a block before each, and over all; `shared` has room for 9 numbers.
__device__ __forceinline__ uint32_t block_scan(uint32_t x, uint32_t* shared, uint32_t& total) {
    const uint32_t up_to = warp_scan(x);
    __syncthreads();
    if (threadIdx.x % 32 == 31) shared[threadIdx.x / 32] = up_to;
    __syncthreads();
    uint32_t before = up_to - x;
    total = 0;
#pragma unroll
    for (int warp = 0; warp < THREADS / 32; ++warp) {
        if (warp < threadIdx.x / 32) before += shared[warp];
        total += shared[warp];
    }
    return before;
}

struct Shared {
    uint32_t bins[BINS];
    // Of the whole cluster.
    uint32_t totals[BINS];
    uint32_t words[ROOM], places[ROOM];
    uint32_t scan[THREADS / 32];
    uint32_t chosen[3];
    uint32_t gathered, missing;
    // Of each block of the cluster.
    uint32_t counts[CLUSTER], equals[CLUSTER];
};

// The bin in which the `left`-th of what the cluster has counted lies, from the largest down: the bin, how many are picked of
// it, and how many it holds.
__device__ __forceinline__ uint3 find(Shared& own, cg::cluster_group& cluster, uint32_t left) {
    cluster.sync();
    const int rank = cluster.block_rank();
    for (int i = threadIdx.x; i < BINS / CLUSTER; i += THREADS) {
        const int bin = rank * (BINS / CLUSTER) + i;
        uint32_t sum = 0;
#pragma unroll
        for (int block = 0; block < CLUSTER; ++block) sum += *cluster.map_shared_rank(&own.bins[bin], block);
#pragma unroll
        for (int block = 0; block < CLUSTER; ++block) *cluster.map_shared_rank(&own.totals[bin], block) = sum;
    }
    cluster.sync();
    constexpr int EACH = BINS / THREADS;
    uint32_t sizes[EACH], sum = 0, total;
#pragma unroll
    for (int i = 0; i < EACH; ++i) sum += sizes[i] = own.totals[BINS - 1 - (threadIdx.x * EACH + i)];
    uint32_t above = block_scan(sum, own.scan, total);
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        if (above < left && left <= above + sizes[i]) {
            own.chosen[0] = BINS - 1 - (threadIdx.x * EACH + i);
            own.chosen[1] = left - above, own.chosen[2] = sizes[i];
        }
        above += sizes[i];
    }
    __syncthreads();
    const uint3 found = make_uint3(own.chosen[0], own.chosen[1], own.chosen[2]);
    for (int i = threadIdx.x; i < BINS; i += THREADS) own.bins[i] = 0;
    __syncthreads();
    return found;
}

// Blocks: lists of a row by CLUSTER, rows; all else is as in top_pages.cu. `chunk` is what a block has of a list, a multiple of
// 128, and there is shared memory for two marks of each.
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 4)
    top_pages_hopper(const float* scores, unsigned long long stride, uint32_t columns, uint32_t chunk, const uint32_t* pages,
                     uint32_t page, uint32_t first, uint32_t end, uint32_t* tokens, uint32_t most, uint32_t* counts) {
    __shared__ Shared own;
    extern __shared__ uint32_t marks[];
    auto cluster = cg::this_cluster();
    const int rank = cluster.block_rank(), lane = threadIdx.x % 32;
    const uint64_t list = static_cast<uint64_t>(blockIdx.y) * (gridDim.x / CLUSTER) + blockIdx.x / CLUSTER;
    const uint32_t k = min(pages[blockIdx.y], columns);
    if (k == 0) {
        if (rank == 0 && threadIdx.x == 0) counts[list] = 0;
        return;
    }
    const uint32_t begin = min(columns, rank * chunk), size = min(columns, begin + chunk) - begin, mark_words = chunk / 32;
    const float* from = scores + list * stride + begin;
    uint32_t *picked = marks, *equal = marks + mark_words;
    for (int i = threadIdx.x; i < BINS; i += THREADS) own.bins[i] = 0;
    for (uint32_t i = threadIdx.x; i < mark_words; i += THREADS) equal[i] = 0;
    if (threadIdx.x == 0) own.gathered = 0, own.missing = 0;
    __syncthreads();
    // The words of four places from `i` on; what lies behind the end is no one's.
    auto read = [&](uint32_t i, uint32_t (&some)[WIDE]) {
        const float4 four = i < size ? *reinterpret_cast<const float4*>(from + i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        some[0] = ordered(four.x), some[1] = ordered(four.y), some[2] = ordered(four.z), some[3] = ordered(four.w);
    };
#pragma unroll 4
    for (uint32_t i = threadIdx.x * WIDE; i < size; i += THREADS * WIDE) {
        uint32_t some[WIDE];
        read(i, some);
#pragma unroll
        for (int j = 0; j < WIDE; ++j)
            if (i + j < size) atomicAdd(&own.bins[some[j] >> (32 - DIGIT)], 1);
    }
    const uint3 high = find(own, cluster, k);
    // Every warp takes 128 places at a time, which are four words of marks.
#pragma unroll 4
    for (uint32_t i = threadIdx.x * WIDE; i < chunk; i += THREADS * WIDE) {
        uint32_t some[WIDE], mark = 0;
        read(i, some);
#pragma unroll
        for (int j = 0; j < WIDE; ++j) {
            const uint32_t bin = some[j] >> (32 - DIGIT);
            if (i + j >= size) continue;
            if (bin > high.x) mark |= 1u << j;
            if (bin != high.x) continue;
            const uint32_t place = atomicAdd(&own.gathered, 1);
            if (place < ROOM) own.words[place] = some[j], own.places[place] = i + j;
        }
        mark <<= lane % 8 * WIDE;
#pragma unroll
        for (int step = 1; step < 8; step *= 2) mark |= __shfl_xor_sync(~0u, mark, step);
        if (lane % 8 == 0) picked[i / 32] = mark;
    }
    __syncthreads();
    // What lies in the bin: from the room, or, if that was too small, from all scores again.
    const uint32_t gathered = own.gathered;
    auto each = [&](auto&& visit) {
        if (gathered <= ROOM) {
            for (uint32_t i = threadIdx.x; i < gathered; i += THREADS) visit(own.words[i], own.places[i]);
        } else {
            for (uint32_t i = threadIdx.x * WIDE; i < size; i += THREADS * WIDE) {
                uint32_t some[WIDE];
                read(i, some);
#pragma unroll
                for (int j = 0; j < WIDE; ++j)
                    if (i + j < size && some[j] >> (32 - DIGIT) == high.x) visit(some[j], i + j);
            }
        }
    };
    // The least word that is picked as far as it is known, and which of its bits are.
    uint32_t word = high.x << (32 - DIGIT), known = ~0u << (32 - DIGIT), left = high.y;
    bool whole = high.y == high.z;
    constexpr int SHIFTS[2] = {32 - 2 * DIGIT, 0};
#pragma unroll
    for (int pass = 0; pass < 2; ++pass) {
        if (whole) break;
        const int shift = SHIFTS[pass];
        const uint32_t mask = pass == 0 ? BINS - 1 : (1u << SHIFTS[0]) - 1;
        each([&](uint32_t x, uint32_t) {
            if ((x & known) == word) atomicAdd(&own.bins[x >> shift & mask], 1);
        });
        const uint3 found = find(own, cluster, left);
        word |= found.x << shift, known |= mask << shift, left = found.y;
        whole = found.y == found.z;
    }
    each([&](uint32_t x, uint32_t place) {
        const uint32_t bits = x & known;
        if (bits > word || bits == word && whole) atomicOr(&picked[place / 32], 1u << place % 32);
        else if (bits == word) atomicOr(&equal[place / 32], 1u << place % 32);
    });
    __syncthreads();
    // Of those equal to the last one the first are picked.
    const uint32_t per_thread = (mark_words + THREADS - 1) / THREADS, words_from = min(mark_words, threadIdx.x * per_thread);
    const uint32_t words_end = min(mark_words, words_from + per_thread);
    uint32_t total;
    if (!whole) {
        uint32_t count = 0;
        for (uint32_t i = words_from; i < words_end; ++i) count += __popc(equal[i]);
        uint32_t before = block_scan(count, own.scan, total);
        if (threadIdx.x < CLUSTER) *cluster.map_shared_rank(&own.equals[rank], threadIdx.x) = total;
        cluster.sync();
        for (int block = 0; block < rank; ++block) before += own.equals[block];
        for (uint32_t i = words_from; i < words_end; ++i) {
            for (uint32_t bits = equal[i]; bits && before < left; bits &= bits - 1, ++before) picked[i] |= bits & -bits;
        }
    }
    uint32_t count = 0;
    for (uint32_t i = words_from; i < words_end; ++i) count += __popc(picked[i]);
    uint32_t at = block_scan(count, own.scan, total);
    if (threadIdx.x < CLUSTER) *cluster.map_shared_rank(&own.counts[rank], threadIdx.x) = total;
    cluster.sync();
    for (int block = 0; block < rank; ++block) at += own.counts[block];
    uint32_t* to = tokens + list * most;
    for (uint32_t i = words_from; i < words_end; ++i) {
        for (uint32_t bits = picked[i]; bits; bits &= bits - 1, ++at) {
            const uint32_t token = first + (begin + i * 32 + __ffs(bits) - 1) * page, wide = min(page, end - token);
            for (uint32_t t = 0; t < wide; ++t) to[static_cast<uint64_t>(at) * page + t] = token + t;
            if (wide < page) own.missing = page - wide;
        }
    }
    __syncthreads();
    // Only the last page of all can be short, and it is in the last block that has any.
    const bool is_last = begin + size == columns && size > 0;
    if (is_last && threadIdx.x == 0) counts[list] = k * page - own.missing;
    // Nobody leaves while others may still read what it has.
    cluster.sync();
}
