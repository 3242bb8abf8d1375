// Shared by clusters of blocks that select the largest of a list: sums over a block, the search for the bin of a rank, selected places as
// bit masks, and lists written from these masks in order.
#pragma once

#include <cooperative_groups.h>
#include <cstdint>

#include "ordered.cuh"

namespace cg = cooperative_groups;

// Bits of a digit, and bins, one for each value of a digit.
constexpr int DIGIT = 11, BINS = 1 << DIGIT;

// Shared memory of every block of THREADS threads. `scan` is for block sums.
template <int CLUSTER, int THREADS> struct Counted {
    // Counts of this block, followed by those of the whole cluster.
    uint32_t bins[2 * BINS];
    uint32_t scan[THREADS / 32];
    uint32_t chosen[3];
    // For each block of the cluster: how many places are equal to the cut, and how many are written.
    uint32_t equals[CLUSTER], counts[CLUSTER];
};

// Exclusive prefix sum over the threads of a block, and the total. `shared` has room for one number per warp.
template <int WARPS> __device__ __forceinline__ uint32_t block_scan(uint32_t x, uint32_t (&shared)[WARPS], uint32_t& total) {
    const uint32_t up_to = warp_scan(x), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    __syncthreads();
    if (lane == 31) shared[warp] = up_to;
    __syncthreads();
    // Every warp sums all warps' totals.
    const uint32_t of_warps = warp_scan(lane < WARPS ? shared[lane] : 0);
    total = __shfl_sync(~0u, of_warps, 31);
    return up_to - x + (warp > 0 ? __shfl_sync(~0u, of_warps, warp - 1) : 0);
}

// Finds the bin that holds the `left`-th largest of what the cluster has counted. Returns the bin, how many of it are selected, and how
// many it holds. Bins are zero afterwards. Only the first `used` bins, a multiple of CLUSTER, may hold anything.
template <int CLUSTER, int THREADS>
__device__ __forceinline__ uint3 find(Counted<CLUSTER, THREADS>& own, cg::cluster_group& cluster, uint32_t left, int used = BINS) {
    cluster.sync();
    const int rank = cluster.block_rank(), part = used / CLUSTER;
    for (int i = threadIdx.x; i < part; i += THREADS) {
        const int bin = rank * part + i;
        uint32_t sum = 0;
#pragma unroll
        for (int block = 0; block < CLUSTER; ++block) sum += *cluster.map_shared_rank(&own.bins[bin], block);
#pragma unroll
        for (int block = 0; block < CLUSTER; ++block) *cluster.map_shared_rank(&own.bins[BINS + bin], block) = sum;
    }
    cluster.sync();
    constexpr int EACH = BINS / THREADS;
    uint32_t sizes[EACH], sum = 0, total;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int bin = BINS - 1 - (threadIdx.x * EACH + i);
        sum += sizes[i] = bin < used ? own.bins[BINS + bin] : 0;
    }
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
    for (int i = threadIdx.x; i < used; i += THREADS) own.bins[i] = 0;
    __syncthreads();
    return found;
}

// The words of the mask that this thread processes: consecutive, and equally many for each thread.
template <int THREADS> __device__ __forceinline__ uint2 words_of_thread(uint32_t words) {
    const uint32_t each = (words + THREADS - 1) / THREADS, from = min(words, threadIdx.x * each);
    return make_uint2(from, min(words, from + each));
}

// Selects the first `missing` places of the cluster that are equal to the cut.
template <int CLUSTER, int THREADS>
__device__ __forceinline__ void pick_first(Counted<CLUSTER, THREADS>& own, cg::cluster_group& cluster, uint32_t* picked, const uint32_t* equal,
                                           uint2 words, uint32_t missing) {
    uint32_t count = 0, total;
    for (uint32_t i = words.x; i < words.y; ++i) count += __popc(equal[i]);
    uint32_t before = block_scan(count, own.scan, total);
    if (threadIdx.x < CLUSTER) *cluster.map_shared_rank(&own.equals[cluster.block_rank()], threadIdx.x) = total;
    cluster.sync();
    for (int block = 0; block < cluster.block_rank(); ++block) before += own.equals[block];
    for (uint32_t i = words.x; i < words.y; ++i)
        for (uint32_t bits = equal[i]; bits && before < missing; bits &= bits - 1, ++before) picked[i] |= bits & -bits;
}

// Calls `write` with each selected place's number in the cluster's list and its place in the block. Consecutive threads handle consecutive
// entries. Places are staged in `stage`, `room` at a time. Every thread must have set bits only in its own words.
template <int CLUSTER, int THREADS, typename Write>
__device__ __forceinline__ void write_picked(Counted<CLUSTER, THREADS>& own, cg::cluster_group& cluster, const uint32_t* picked,
                                             uint2 words, uint32_t* stage, uint32_t room, Write write) {
    uint32_t count = 0, total, behind = 0;
    for (uint32_t i = words.x; i < words.y; ++i) count += __popc(picked[i]);
    const uint32_t before = block_scan(count, own.scan, total);
    if (threadIdx.x < CLUSTER) *cluster.map_shared_rank(&own.counts[cluster.block_rank()], threadIdx.x) = total;
    cluster.barrier_arrive();
    for (uint32_t first = 0; first < max(total, 1u); first += room) {
        uint32_t at = before - first;
        for (uint32_t i = words.x; i < words.y; ++i)
            for (uint32_t bits = picked[i]; bits; bits &= bits - 1, ++at)
                if (at < room) stage[at] = i * 32 + __ffs(bits) - 1;
        if (first == 0) {
            cluster.barrier_wait();
            for (int block = 0; block < cluster.block_rank(); ++block) behind += own.counts[block];
        }
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < min(room, total - first); i += THREADS) write(behind + first + i, stage[i]);
        __syncthreads();
    }
}
