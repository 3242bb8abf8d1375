// Selects the tokens whose packed signatures are nearest to those of a query head, or of a group's heads together. Does in one launch what
// hamming_scores.cu and top_pages_hopper.cu do in two, without writing scores. A cluster of blocks computes one list.
//
// Distances are small whole numbers. Every block keeps those of its part in shared memory and counts them, which gives the distance of the
// last selected token. Of the tokens at that distance, the highest levels are counted in turn; of the tokens on the last level, the first
// places are selected.
//
// The distances to a group's heads are summed without comparing with every head. For each bit, a key pays a price if it differs from what
// most heads have: the number of those heads less the number of the others. What it pays in any case is the same for all keys, so it is
// left out. Bits of equal price are counted together: two counts for four heads. For an even number of heads, prices are halved.
#include "cluster_top.cuh"
#include "hamming.cuh"
#include "hopper.cuh"

constexpr int THREADS = 512;
// Words of masks that fit, cells that a thread computes at a time, and loads in flight.
constexpr int MASKS = 256, EACH = 4, AHEAD = 4;
// Tokens that may be compared one with another at the end; every block of a cluster holds all of them.
constexpr uint32_t ROOM = 64;
// If more than a third of all tokens lie at the deciding distance, their COARSE highest bits of the level are counted first, for all tokens
// at once: one by one would take longer. Cells then hold one of COARSE_CELLS numbers.
constexpr int COARSE = 6;
constexpr uint32_t COARSE_CELLS = 1 << COARSE;
// Bytes of shared memory before the masks of selected tokens. As in the launcher.
constexpr int SHARED = 18 << 10;

template <int CLUSTER> struct Shared : Counted<CLUSTER, THREADS> {
    // For each word, the bits that most heads have, then a mask of the bits of each price, highest first.
    uint32_t masks[MASKS];
    // The undecided tokens: the level in the high word, the inverted place in the low word, so that larger wins.
    unsigned long long deciding[ROOM];
    uint32_t found;
};

// The price of a bit on which all heads of a list agree, how much it falls for each head that disagrees, and the greatest possible
// distance.
struct Prices {
    int highest, step;
    uint32_t farthest;
    __device__ __forceinline__ Prices(int of_list, int words) {
        const int halved = of_list % 2 == 0 ? 2 : 1;
        highest = of_list / halved, step = 2 / halved, farthest = 32 * words * highest;
    }
};

// What one word of a key pays, by masks of PRICES prices, or of `count` prices if PRICES is 0.
template <int PRICES> __device__ __forceinline__ uint32_t paid(uint32_t key, const uint32_t* masks, int count, const Prices& prices) {
    const uint32_t differing = key ^ masks[0];
    uint32_t sum = 0;
#pragma unroll
    for (int i = 0; i < (PRICES > 0 ? PRICES : count); ++i) sum += (prices.highest - i * prices.step) * __popc(differing & masks[1 + i]);
    return sum;
}

// Makes the masks of all words: a warp for each word in turn, a lane for each bit.
__device__ __forceinline__ void make_masks(uint32_t* masks, const uint32_t* queries, int words, int of_list, int prices) {
    const int lane = threadIdx.x % 32;
    for (int word = threadIdx.x / 32; word < words; word += THREADS / 32) {
        int ones = 0;
        for (int head = 0; head < of_list; ++head) ones += queries[head * words + word] >> lane & 1;
        uint32_t* to = masks + word * (1 + prices);
        const uint32_t most = __ballot_sync(~0u, 2 * ones > of_list);
        if (lane == 0) to[0] = most;
        for (int i = 0; i < prices; ++i) {
            const uint32_t bits = __ballot_sync(~0u, abs(2 * ones - of_list) == of_list - 2 * i);
            if (lane == 0) to[1 + i] = bits;
        }
    }
}

__device__ __forceinline__ void store_cells(uint8_t* to, const uint32_t (&cells)[EACH]) {
    *reinterpret_cast<uint32_t*>(to) = cells[0] | cells[1] << 8 | cells[2] << 16 | cells[3] << 24;
}
__device__ __forceinline__ void store_cells(uint16_t* to, const uint32_t (&cells)[EACH]) {
    *reinterpret_cast<uint2*>(to) = make_uint2(cells[0] | cells[1] << 16, cells[2] | cells[3] << 16);
}

// Fills the cells with the distances of a block's keys, and counts how many lie at each distance, `[distance][copies]`. Lanes count in
// separate copies, so that they do not wait for each other. Cells beyond the last token get the largest number.
template <int PRICES, typename Cell>
__device__ __forceinline__ void fill_cells(Cell* cells, uint32_t* counts, uint32_t copies, const uint32_t* keys, uint64_t key_stride,
                                           uint32_t size, uint32_t chunk, const uint32_t* all_masks, int words, int count,
                                           const Prices& prices) {
    const uint32_t copy = threadIdx.x % copies;
    uint32_t masks[1 + (PRICES > 0 ? PRICES : 1)];
    if (PRICES > 0)
#pragma unroll
        for (int i = 0; i <= PRICES; ++i) masks[i] = all_masks[i];
    for (uint32_t i = threadIdx.x * EACH; i < chunk; i += AHEAD * THREADS * EACH) {
        uint32_t sums[AHEAD][EACH] = {};
        for (int word = 0; word < words; ++word) {
            uint4 some[AHEAD];
#pragma unroll
            for (int a = 0; a < AHEAD; ++a) {
                const uint32_t place = i + a * THREADS * EACH;
                some[a] = place < size ? __ldg(reinterpret_cast<const uint4*>(keys + word * key_stride + place)) : make_uint4(0, 0, 0, 0);
            }
            const uint32_t* of_word = PRICES > 0 ? masks : all_masks + word * (1 + count);
#pragma unroll
            for (int a = 0; a < AHEAD; ++a) {
                sums[a][0] += paid<PRICES>(some[a].x, of_word, count, prices);
                sums[a][1] += paid<PRICES>(some[a].y, of_word, count, prices);
                sums[a][2] += paid<PRICES>(some[a].z, of_word, count, prices);
                sums[a][3] += paid<PRICES>(some[a].w, of_word, count, prices);
            }
        }
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) {
            const uint32_t place = i + a * THREADS * EACH;
            if (place + EACH <= size) {
#pragma unroll
                for (int j = 0; j < EACH; ++j) atomicAdd(&counts[sums[a][j] * copies + copy], 1);
            } else {
#pragma unroll
                for (int j = 0; j < EACH; ++j)
                    if (place + j < size) atomicAdd(&counts[sums[a][j] * copies + copy], 1);
                    else sums[a][j] = static_cast<Cell>(~0u);
            }
            if (place < chunk) store_cells(cells + place, sums[a]);
        }
    }
}

// Turns the counts of distances up to `farthest` into bins, the nearest distance last. Each thread handles at most OF_THREAD distances.
template <int OF_THREAD> __device__ __forceinline__ void gather_counts(uint32_t* bins, uint32_t copies, uint32_t farthest) {
    uint32_t together[OF_THREAD] = {};
    __syncthreads();
#pragma unroll
    for (int slot = 0; slot < OF_THREAD; ++slot) {
        const uint32_t distance = slot * THREADS + threadIdx.x;
        if (distance > farthest) continue;
        for (uint32_t i = 0; i < copies; ++i) together[slot] += bins[distance * copies + (i + threadIdx.x) % copies];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < BINS; i += THREADS) bins[i] = 0;
    __syncthreads();
#pragma unroll
    for (int slot = 0; slot < OF_THREAD; ++slot) {
        const uint32_t distance = slot * THREADS + threadIdx.x;
        if (distance <= farthest) bins[farthest - distance] = together[slot];
    }
}

// Two bits for each of 32 cells: whether it is nearer than `distance`, and whether it is at it. The highest bit of a cell is unused: set
// before a subtraction, it stays set if the other bits did not borrow from it.
template <typename Cell> __device__ __forceinline__ uint2 mark(const Cell* cells, uint32_t distance) {
    constexpr bool IS_BYTE = sizeof(Cell) == 1;
    constexpr uint32_t HIGH = IS_BYTE ? 0x80808080u : 0x80008000u, ONES = IS_BYTE ? 0x01010101u : 0x00010001u;
    constexpr int A_WORD = 4 / sizeof(Cell), WORDS = 32 / A_WORD;
    const uint32_t least = distance * ONES, beyond = least + ONES;
    // Moves the highest bits of a word's cells to its lowest bits.
    auto gathered = [](uint32_t x) {
        return IS_BYTE ? (x >> 7) * 0x10204080u >> 28 : (x >> 15 | x >> 30) & 3;
    };
    uint2 marks = make_uint2(0, 0);
#pragma unroll
    for (int i = 0; i < WORDS; i += 4) {
        const uint4 four = *reinterpret_cast<const uint4*>(cells + i * A_WORD);
        const uint32_t some[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const uint32_t not_nearer = ((some[j] | HIGH) - least) & HIGH, farther = ((some[j] | HIGH) - beyond) & HIGH;
            marks.x |= gathered(not_nearer ^ HIGH) << A_WORD * (i + j), marks.y |= gathered(not_nearer ^ farther) << A_WORD * (i + j);
        }
    }
    return marks;
}

// Fills the cells with the highest bits of the open places' levels, inverted, so that the highest level is nearest; and counts them,
// `[cell][copies]`. Places that are not open get a larger number.
template <typename Cell>
__device__ __forceinline__ void fill_levels(Cell* cells, uint32_t* counts, uint32_t copies, const uint32_t* open, uint32_t chunk, uint32_t begin,
                                            const Ties& ties) {
    const uint32_t copy = threadIdx.x % copies;
    for (uint32_t i = threadIdx.x * EACH; i < chunk; i += THREADS * EACH) {
        const uint32_t bits = open[i / 32] >> i % 32;
        uint32_t some[EACH];
#pragma unroll
        for (int j = 0; j < EACH; ++j) {
            const bool is_open = bits >> j & 1;
            const uint32_t cell = COARSE_CELLS - 1 - (level_of(ties, begin + i + j) >> (ties.levels - COARSE));
            some[j] = is_open ? cell : 2 * COARSE_CELLS - 1;
            if (is_open) atomicAdd(&counts[cell * copies + copy], 1);
        }
        store_cells(cells + i, some);
    }
}

// Blocks: lists of a row, CLUSTER blocks each; rows. A list is for `of_list` heads, whose signatures are `[row][head][word]`. `sharing`
// consecutive lists have the same keys, `[word][key_stride]`, a stride that is a multiple of four. There are `count` prices, half of
// `of_list` rounded up; PRICES is that number if signatures have one word, else zero. A block processes `chunk` candidates, a multiple of
// 128. Shared memory holds two mark bits for each, and `cell_bytes` for the cells and what replaces them. `numbers` says how many tokens
// are selected in each row; `first` is the first candidate's token.
template <int CLUSTER, typename Cell, int PRICES>
__device__ __forceinline__ void hamming_top(const uint32_t* queries, int words, int of_list, int count, int sharing, const uint32_t* keys,
                                            uint64_t key_stride, uint32_t columns, uint32_t chunk, uint32_t cell_bytes, const Ties& ties,
                                            const uint32_t* numbers, uint32_t first, uint32_t* tokens, uint32_t most, uint32_t* counts) {
    static_assert(sizeof(Shared<CLUSTER>) <= SHARED);
    extern __shared__ __align__(16) unsigned char room[];
    Shared<CLUSTER>& own = *reinterpret_cast<Shared<CLUSTER>*>(room);
    uint32_t *const picked = reinterpret_cast<uint32_t*>(room + SHARED), *const open = picked + chunk / 32;
    Cell* const cells = reinterpret_cast<Cell*>(open + chunk / 32);
    auto cluster = cg::this_cluster();
    const int rank = cluster.block_rank();
    const uint32_t lists = gridDim.x / CLUSTER, of_row = blockIdx.x / CLUSTER;
    const uint64_t list = static_cast<uint64_t>(blockIdx.y) * lists + of_row;
    const uint32_t k = min(numbers[blockIdx.y], columns);
    if (k == 0) {
        if (rank == 0 && threadIdx.x == 0) counts[list] = 0;
        return;
    }
    const uint32_t begin = min(columns, rank * chunk), size = min(columns, begin + chunk) - begin;
    if (PRICES > 0) words = 1, count = PRICES;
    const uint32_t* from = keys + of_row / sharing * words * key_stride + begin;
    for (int i = threadIdx.x; i < 2 * BINS; i += THREADS) own.bins[i] = 0;
    if (threadIdx.x == 0) own.found = 0;
    make_masks(own.masks, queries + list * of_list * words, words, of_list, count);
    __syncthreads();
    const Prices prices(of_list, words);
    const uint32_t copies = min(32u, 1u << (31 - __clz(2 * BINS / (prices.farthest + 1))));
    fill_cells<PRICES>(cells, own.bins, copies, from, key_stride, size, chunk, own.masks, words, count, prices);
    gather_counts<sizeof(Cell) == 1 ? 1 : BINS / THREADS>(own.bins, copies, prices.farthest);
    const uint3 deciding = find(own, cluster, k, (prices.farthest + CLUSTER) / CLUSTER * CLUSTER);
    const uint32_t distance = prices.farthest - deciding.x, mark_words = chunk / 32;
    for (uint32_t i = threadIdx.x; i < mark_words; i += THREADS) {
        const uint2 marks = mark(cells + 32 * i, distance);
        picked[i] = marks.x, open[i] = marks.y;
    }
    __syncthreads();
    // The level of the last selected token as far as it is known: without its lowest `unknown` bits.
    uint32_t level = 0, unknown = ties.levels, missing = deciding.y, in_doubt = deciding.z;
    if (3 * in_doubt > columns && missing < in_doubt && unknown > COARSE) {
        constexpr uint32_t COPIES = 32;
        for (int i = threadIdx.x; i < COARSE_CELLS * COPIES; i += THREADS) own.bins[i] = 0;
        __syncthreads();
        fill_levels(cells, own.bins, COPIES, open, chunk, begin, ties);
        gather_counts<1>(own.bins, COPIES, COARSE_CELLS - 1);
        const uint3 found = find(own, cluster, missing, COARSE_CELLS);
        for (uint32_t i = threadIdx.x; i < mark_words; i += THREADS) {
            const uint2 marks = mark(cells + 32 * i, COARSE_CELLS - 1 - found.x);
            picked[i] |= marks.x, open[i] = marks.y;
        }
        level = found.x, unknown -= COARSE, missing = found.y, in_doubt = found.z;
        __syncthreads();
    }
    const uint2 marks = words_of_thread<THREADS>(mark_words);
    // Lists the tokens at the distance, if there is room for all; the cells are not needed any more.
    uint16_t* const list_of_open = reinterpret_cast<uint16_t*>(cells);
    uint32_t opened = 0, total;
    for (uint32_t i = marks.x; i < marks.y; ++i) opened += __popc(open[i]);
    uint32_t at_open = block_scan(opened, own.scan, total);
    const bool is_listed = chunk <= 1 << 16 && total <= cell_bytes / sizeof(uint16_t);
    if (is_listed)
        for (uint32_t i = marks.x; i < marks.y; ++i)
            for (uint32_t bits = open[i]; bits; bits &= bits - 1, ++at_open) list_of_open[at_open] = i * 32 + __ffs(bits) - 1;
    __syncthreads();
    auto each_open = [&](auto&& visit) {
        if (is_listed) {
            for (uint32_t i = threadIdx.x; i < total; i += THREADS) visit(level_of(ties, begin + list_of_open[i]), list_of_open[i]);
            return;
        }
        for (uint32_t i = marks.x; i < marks.y; ++i)
            for (uint32_t bits = open[i]; bits; bits &= bits - 1) {
                const uint32_t place = i * 32 + __ffs(bits) - 1;
                visit(level_of(ties, begin + place), place);
            }
    };
    while (in_doubt > ROOM && missing < in_doubt && unknown > 0) {
        const uint32_t next = unknown > DIGIT ? unknown - DIGIT : 0, digits = unknown - next;
        each_open([&](uint32_t x, uint32_t) {
            if (x >> unknown == level) atomicAdd(&own.bins[x >> next & ((1u << digits) - 1)], 1);
        });
        const uint3 found = find(own, cluster, missing, max(1 << digits, CLUSTER));
        level = level << digits | found.x, unknown = next, missing = found.y, in_doubt = found.z;
    }
    const bool all = missing == in_doubt, few = !all && in_doubt <= ROOM;
    each_open([&](uint32_t x, uint32_t place) {
        const uint32_t known = x >> unknown, bit = 1u << place % 32;
        if (known > level || known == level && all) atomicOr(&picked[place / 32], bit);
        if (known != level) atomicAnd(&open[place / 32], ~bit);
        if (known != level || !few) return;
#pragma unroll
        for (int block = 0; block < CLUSTER; ++block) {
            const uint32_t number = atomicAdd(cluster.map_shared_rank(&own.found, block), 1);
            cluster.map_shared_rank(own.deciding, block)[number] = static_cast<unsigned long long>(x) << 32 | ~(rank * chunk + place);
        }
    });
    if (few) {
        cluster.sync();
        if (threadIdx.x < in_doubt) {
            const unsigned long long it = own.deciding[threadIdx.x];
            uint32_t ahead = 0;
            for (uint32_t i = 0; i < in_doubt; ++i) ahead += own.deciding[i] > it;
            const uint32_t place = ~static_cast<uint32_t>(it) - rank * chunk;
            if (ahead < missing && place < chunk) atomicOr(&picked[place / 32], 1u << place % 32);
        }
    }
    __syncthreads();
    if (!few && !all) pick_first(own, cluster, picked, open, marks, missing);
    uint32_t* to = tokens + list * most;
    auto write = [&](uint32_t at, uint32_t place) { to[at] = first + begin + place; };
    write_picked(own, cluster, picked, marks, reinterpret_cast<uint32_t*>(cells), cell_bytes / sizeof(uint32_t), write);
    if (rank == 0 && threadIdx.x == 0) counts[list] = k;
}

#define NEAREST(CLUSTER, CELL, KIND, PRICES)                                                                            \
    extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 2) hamming_top_##KIND##_##CLUSTER( \
        const uint32_t* queries, int words, int of_list, int count, int sharing, const uint32_t* keys,                 \
        unsigned long long key_stride, uint32_t columns, uint32_t chunk, uint32_t cell_bytes, const Ties ties,          \
        const uint32_t* numbers,                                                                                        \
        uint32_t first, uint32_t* tokens, uint32_t most, uint32_t* counts) {                                            \
        hamming_top<CLUSTER, CELL, PRICES>(queries, words, of_list, count, sharing, keys, key_stride, columns, chunk,  \
                                           cell_bytes, ties, numbers, first, tokens, most, counts);                                 \
    }
#define ALL(CLUSTER)                                                                                                    \
    NEAREST(CLUSTER, uint8_t, one, 1) NEAREST(CLUSTER, uint8_t, four, 2) NEAREST(CLUSTER, uint16_t, any, 0)

ALL(2)
ALL(4)
ALL(8)
