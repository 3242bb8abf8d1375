// Selects the tokens of the pages with the largest scores, as top_pages.cu does, for long lists: a cluster of blocks computes one list.
// Clusters of eight are for few lists or very long ones; with four or two, more lists run at the same time.
//
// A sample gives two numbers between which the last selected score lies. Scores are read once: those above both are marked as selected, and
// those between them, a few percent, as open. Open scores are counted in bins of equal width, and those in the deciding bin are compared
// one with another. If the sample misleads, the words of all scores are counted digit by digit. Marks are one bit per page; lists are
// written from them in order.
#include "cluster_top.cuh"
#include "common.cuh"
#include "hopper.cuh"

constexpr int THREADS = 512;
// Scores of a sample, and how far its bins reach from the mean, in standard deviations.
constexpr int SAMPLE = 2048, OF_THREAD = SAMPLE / THREADS;
constexpr float REACH = 4.0f;
// How far the two numbers are moved apart, in standard deviations of the number of larger scores in a sample.
constexpr float DOUBT = 5.0f;
// Scores that a thread reads of a run of its warp, and runs in flight; how many open scores fit in a block, and how many deciding ones in a
// cluster.
constexpr int WIDE = 4, RUNS = 4, OPEN = 5120, ROOM = 512;
// Bytes of shared memory before the marks. As in the launcher.
constexpr int SHARED = 66 << 10;

template <int CLUSTER> struct Shared : Counted<CLUSTER, THREADS> {
    uint32_t words[OPEN], places[OPEN];
    // Scores in the deciding bin, of this block and of the cluster.
    uint32_t few_words[ROOM], few_places[ROOM], all_words[ROOM], all_places[ROOM];
    float sums[THREADS / 32][3];
    uint32_t few, missing;
    // The words of the least and the largest finite open score, of this block and of each block of the cluster.
    uint32_t least, largest, leasts[CLUSTER], largests[CLUSTER];
    // For each block of the cluster: how many scores are selected for certain, are open, and are in the deciding bin.
    uint32_t sure[CLUSTER], open[CLUSTER], found[CLUSTER];
};

// The score of a word.
__device__ __forceinline__ float score_of(uint32_t word) {
    return __uint_as_float(word >> 31 ? word & ~(1u << 31) : ~word);
}

// Equal bins over a range, or, if `factor` is 0, bins by the highest bits of words. A larger score never gets a lower bin.
struct Bins {
    float least, factor;
    __device__ __forceinline__ uint32_t of(float score) const {
        return static_cast<uint32_t>(fminf(fmaxf((score - least) * factor, 0.0f), static_cast<float>(BINS - 1)));
    }
    __device__ __forceinline__ uint32_t of_word(uint32_t word) const {
        return factor == 0.0f ? word >> (32 - DIGIT) : of(score_of(word));
    }
};

// The bin of the `rank`-th largest, counted from 0, of what this block has counted.
template <typename Shared> __device__ __forceinline__ uint32_t bin_of_rank(Shared& own, uint32_t rank) {
    constexpr int EACH = BINS / THREADS;
    uint32_t sizes[EACH], sum = 0, total;
#pragma unroll
    for (int i = 0; i < EACH; ++i) sum += sizes[i] = own.bins[BINS - 1 - (threadIdx.x * EACH + i)];
    uint32_t above = block_scan(sum, own.scan, total);
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        if (above <= rank && rank < above + sizes[i]) own.chosen[0] = BINS - 1 - (threadIdx.x * EACH + i);
        above += sizes[i];
    }
    __syncthreads();
    return own.chosen[0];
}

// The range of the open scores; replaces the bounds that the sample left infinite.
template <int CLUSTER>
__device__ __forceinline__ float2 bounded(Shared<CLUSTER>& own, cg::cluster_group& cluster, float2 between, uint32_t open) {
    uint32_t least = ~0u, largest = 0;
    for (uint32_t i = threadIdx.x; i < open; i += THREADS) {
        const uint32_t word = own.words[i];
        if (isfinite(score_of(word))) least = min(least, word), largest = max(largest, word);
    }
    least = __reduce_min_sync(~0u, least), largest = __reduce_max_sync(~0u, largest);
    if (threadIdx.x % 32 == 0) atomicMin(&own.least, least), atomicMax(&own.largest, largest);
    __syncthreads();
    if (threadIdx.x < CLUSTER) {
        *cluster.map_shared_rank(&own.leasts[cluster.block_rank()], threadIdx.x) = own.least;
        *cluster.map_shared_rank(&own.largests[cluster.block_rank()], threadIdx.x) = own.largest;
    }
    cluster.sync();
#pragma unroll
    for (int block = 0; block < CLUSTER; ++block)
        least = min(least, own.leasts[block]), largest = max(largest, own.largests[block]);
    if (least > largest) return between;
    return make_float2(isfinite(between.x) ? between.x : score_of(least), isfinite(between.y) ? between.y : score_of(largest));
}

// Two numbers between which, most likely, the k-th largest of a list lies. All blocks of a cluster compute the same.
template <typename Shared>
__device__ __forceinline__ float2 bracket(Shared& own, const float* list, uint32_t columns, uint32_t k) {
    float sample[OF_THREAD], part[3] = {};
#pragma unroll
    for (int i = 0; i < OF_THREAD; ++i)
        sample[i] = list[static_cast<uint64_t>(i * THREADS + threadIdx.x) * columns / SAMPLE];
#pragma unroll
    for (int i = 0; i < OF_THREAD; ++i) {
        if (isnan(sample[i])) sample[i] = -CUDART_INF_F;
        if (!isfinite(sample[i])) continue;
        part[0] += 1.0f, part[1] += sample[i], part[2] += sample[i] * sample[i];
    }
#pragma unroll
    for (int i = 0; i < 3; ++i) {
        part[i] = warp_sum(part[i]);
        if (threadIdx.x % 32 == 0) own.sums[threadIdx.x / 32][i] = part[i];
    }
    __syncthreads();
    float sums[3] = {};
    for (int warp = 0; warp < THREADS / 32; ++warp)
        for (int i = 0; i < 3; ++i) sums[i] += own.sums[warp][i];
    const float mean = sums[1] / fmaxf(sums[0], 1.0f);
    const float deviation = sqrtf(fmaxf(sums[2] / fmaxf(sums[0], 1.0f) - mean * mean, 0.0f));
    const float width = 2.0f * REACH * deviation / BINS, least = mean - REACH * deviation;
    // If all scores are equal, or too large to be squared, a sample tells nothing.
    if (!(isfinite(least) && isfinite(width) && width > 0.0f && isfinite(1.0f / width)))
        return make_float2(CUDART_INF_F, CUDART_INF_F);
    const Bins bins = {least, 1.0f / width};
#pragma unroll
    for (int i = 0; i < OF_THREAD; ++i) atomicAdd(&own.bins[bins.of(sample[i])], 1);
    __syncthreads();
    const float share = static_cast<float>(k) / columns, rank = share * SAMPLE;
    const float doubt = DOUBT * sqrtf(rank * (1.0f - share)) + 4.0f;
    const uint32_t low = bin_of_rank(own, static_cast<uint32_t>(fminf(rank + doubt, SAMPLE - 1.0f)));
    __syncthreads();
    const uint32_t high = bin_of_rank(own, static_cast<uint32_t>(fmaxf(rank - doubt, 0.0f)));
    for (int i = threadIdx.x; i < BINS; i += THREADS) own.bins[i] = 0;
    __syncthreads();
    // Bounds are at the edges of bins; the outermost ones are infinite.
    const bool is_last = rank + doubt >= SAMPLE - 1.0f || low == 0, is_first = rank - doubt <= 0.0f || high + 1 >= BINS;
    return make_float2(is_last ? -CUDART_INF_F : least + low * width, is_first ? CUDART_INF_F : least + (high + 1) * width);
}

// Blocks: lists of a row, CLUSTER blocks each; rows. All else as in top_pages.cu. A block processes `chunk` scores of a list, a multiple of
// 128; shared memory holds two mark bits for each.
template <int CLUSTER>
__device__ __forceinline__ void top_pages(const float* scores, uint64_t stride, uint32_t columns, uint32_t chunk, const uint32_t* pages,
                                          uint32_t page, uint32_t first, uint32_t end, uint32_t* tokens, uint32_t most,
                                          uint32_t* counts) {
    static_assert(sizeof(Shared<CLUSTER>) <= SHARED);
    extern __shared__ __align__(16) unsigned char room[];
    Shared<CLUSTER>& own = *reinterpret_cast<Shared<CLUSTER>*>(room);
    uint32_t* const marks = reinterpret_cast<uint32_t*>(room + SHARED);
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
    uint32_t *picked = marks, *open = marks + mark_words;
    for (int i = threadIdx.x; i < BINS; i += THREADS) own.bins[i] = 0;
    if (threadIdx.x == 0) own.few = 0, own.missing = 0, own.least = ~0u, own.largest = 0;
    __syncthreads();
    // No block writes to another one before that has started.
    auto begun = cluster.barrier_arrive();
    const float2 between = bracket(own, scores + list * stride, columns, k);
    // Every warp takes runs of 128 places, which are four words of marks. Marks are written after all reads of some runs, because the
    // compiler cannot know that they do not alias the scores.
    const int warp = threadIdx.x / 32;
    for (uint32_t i = warp * WIDE * 32; i < chunk; i += RUNS * THREADS * WIDE) {
        float some[RUNS][WIDE];
#pragma unroll
        for (int run = 0; run < RUNS; ++run)
#pragma unroll
            for (int j = 0; j < WIDE; ++j) {
                const uint32_t place = i + run * THREADS * WIDE + 32 * j + lane;
                some[run][j] = place < size ? from[place] : CUDART_NAN_F;
            }
#pragma unroll
        for (int run = 0; run < RUNS; ++run) {
            const uint32_t at = (i + run * THREADS * WIDE) / 32;
            if (at >= mark_words) break;
            uint32_t above[WIDE], inside[WIDE];
#pragma unroll
            for (int j = 0; j < WIDE; ++j) {
                above[j] = __ballot_sync(~0u, some[run][j] > between.y);
                // Scores from the first number on and not above the second; NaN is neither.
                inside[j] = __ballot_sync(~0u, some[run][j] >= between.x) & ~above[j];
            }
            if (lane == 0) {
                *reinterpret_cast<uint4*>(picked + at) = make_uint4(above[0], above[1], above[2], above[3]);
                *reinterpret_cast<uint4*>(open + at) = make_uint4(inside[0], inside[1], inside[2], inside[3]);
            }
        }
    }
    __syncthreads();
    const uint2 words = words_of_thread<THREADS>(mark_words);
    uint32_t sure = 0, opened = 0;
    for (uint32_t i = words.x; i < words.y; ++i) sure += __popc(picked[i]), opened += __popc(open[i]);
    uint32_t total_sure, total_open;
    block_scan(sure, own.scan, total_sure);
    uint32_t at_open = block_scan(opened, own.scan, total_open);
    cluster.barrier_wait(std::move(begun));
    if (threadIdx.x < CLUSTER) {
        *cluster.map_shared_rank(&own.sure[rank], threadIdx.x) = total_sure;
        *cluster.map_shared_rank(&own.open[rank], threadIdx.x) = total_open;
    }
    cluster.sync();
    uint32_t all_sure = 0, all_open = 0, most_open = 0;
#pragma unroll
    for (int block = 0; block < CLUSTER; ++block) {
        all_sure += own.sure[block], all_open += own.open[block];
        most_open = max(most_open, own.open[block]);
    }
    const uint32_t left = k - all_sure;
    // Whether the sample was right, and the open scores fit. The same for all blocks of the cluster.
    bool settled = all_sure <= k && k <= all_sure + all_open && most_open <= OPEN;
    if (settled && left > 0) {
        for (uint32_t i = words.x; i < words.y; ++i)
            for (uint32_t bits = open[i]; bits; bits &= bits - 1, ++at_open) own.places[at_open] = i * 32 + __ffs(bits) - 1;
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < total_open; i += THREADS) own.words[i] = ordered(from[own.places[i]]);
        const bool has_bounds = isfinite(between.x) && isfinite(between.y);
        const float2 range = has_bounds ? between : bounded(own, cluster, between, total_open);
        const float width = (range.y - range.x) / BINS;
        const bool has_width = isfinite(width) && width > 0.0f && isfinite(1.0f / width);
        const Bins bins = has_width ? Bins{range.x, 1.0f / width} : Bins{0.0f, 0.0f};
        for (uint32_t i = threadIdx.x; i < total_open; i += THREADS) atomicAdd(&own.bins[bins.of_word(own.words[i])], 1);
        const uint3 deciding = find(own, cluster, left);
        for (uint32_t i = threadIdx.x; i < total_open; i += THREADS) {
            const uint32_t word = own.words[i], place = own.places[i], bin = bins.of_word(word);
            if (bin > deciding.x) atomicOr(&picked[place / 32], 1u << place % 32);
            if (bin != deciding.x) continue;
            const uint32_t number = atomicAdd(&own.few, 1);
            if (number < ROOM) own.few_words[number] = word, own.few_places[number] = rank * chunk + place;
        }
        __syncthreads();
        const uint32_t few = own.few;
        if (threadIdx.x < CLUSTER) *cluster.map_shared_rank(&own.found[rank], threadIdx.x) = few;
        cluster.sync();
        settled = deciding.z <= ROOM;
        if (settled) {
            // Every block collects all scores in the deciding bin.
            uint32_t behind = 0;
            for (int block = 0; block < CLUSTER; behind += own.found[block], ++block)
                for (uint32_t i = threadIdx.x; i < own.found[block]; i += THREADS) {
                    own.all_words[behind + i] = *cluster.map_shared_rank(&own.few_words[i], block);
                    own.all_places[behind + i] = *cluster.map_shared_rank(&own.few_places[i], block);
                }
            __syncthreads();
            for (uint32_t i = threadIdx.x; i < few; i += THREADS) {
                const uint32_t word = own.few_words[i], whole = own.few_places[i], place = whole - rank * chunk;
                uint32_t ahead = 0;
                for (uint32_t other = 0; other < behind; ++other) {
                    const uint32_t x = own.all_words[other];
                    ahead += x > word || x == word && own.all_places[other] < whole;
                }
                if (ahead < deciding.y) atomicOr(&picked[place / 32], 1u << place % 32);
            }
        }
    }
    if (!settled) {
        // The least selected word as far as it is known, and a mask of its known bits.
        uint32_t word = 0, known = 0, missing = k;
        bool whole = k == columns;
        auto each = [&](auto&& visit) {
            for (uint32_t i = threadIdx.x * WIDE; i < size; i += THREADS * WIDE) {
                const float4 four = *reinterpret_cast<const float4*>(from + i);
                const float some[WIDE] = {four.x, four.y, four.z, four.w};
#pragma unroll
                for (int j = 0; j < WIDE; ++j)
                    if (i + j < size) visit(ordered(some[j]), i + j);
            }
        };
        for (uint32_t i = threadIdx.x; i < mark_words; i += THREADS) picked[i] = 0, open[i] = 0;
        for (int i = threadIdx.x; i < BINS; i += THREADS) own.bins[i] = 0;
        __syncthreads();
        for (int pass = 0; pass < 3 && !whole; ++pass) {
            const int shift = max(32 - (pass + 1) * DIGIT, 0);
            const uint32_t mask = (1u << (32 - pass * DIGIT - shift)) - 1;
            each([&](uint32_t x, uint32_t) {
                if ((x & known) == word) atomicAdd(&own.bins[x >> shift & mask], 1);
            });
            const uint3 found = find(own, cluster, missing);
            word |= found.x << shift, known |= mask << shift, missing = found.y;
            whole = found.y == found.z;
        }
        each([&](uint32_t x, uint32_t place) {
            const uint32_t bits = x & known;
            if (bits > word || bits == word && whole) atomicOr(&picked[place / 32], 1u << place % 32);
            else if (bits == word) atomicOr(&open[place / 32], 1u << place % 32);
        });
        __syncthreads();
        // Of the words equal to the last, the first are selected.
        if (!whole) pick_first(own, cluster, picked, open, words, missing);
    }
    __syncthreads();
    uint32_t* to = tokens + list * most;
    write_picked(own, cluster, picked, words, own.words, OPEN, [&](uint32_t at, uint32_t place) {
        const uint32_t token = first + (begin + place) * page, wide = min(page, end - token);
        for (uint32_t t = 0; t < wide; ++t) to[static_cast<uint64_t>(at) * page + t] = token + t;
        if (wide < page) own.missing = page - wide;
    });
    __syncthreads();
    // Only the last page can be short. Columns after it are never selected.
    const uint32_t last = (end - first - 1) / page;
    const bool has_last = begin <= last && last < begin + size;
    if (has_last && threadIdx.x == 0) counts[list] = k * page - own.missing;
}

#define TOP(CLUSTER)                                                                                                    \
    extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 3) top_pages_hopper_##CLUSTER(  \
        const float* scores, unsigned long long stride, uint32_t columns, uint32_t chunk, const uint32_t* pages,        \
        uint32_t page, uint32_t first, uint32_t end, const uint32_t* ends, uint32_t* tokens, uint32_t most,             \
        uint32_t* counts) {                                                                                             \
        top_pages<CLUSTER>(scores, stride, columns, chunk, pages, page, first, ends ? ends[blockIdx.y] : end, tokens,   \
                           most, counts);                                                                               \
    }

TOP(2)
TOP(4)
TOP(8)
