// Causal prefill attention with an online softmax, for Hopper's tensor cores (sm_90a).
//
//   out[i, h] = sum_j softmax_j(scale * q[i, h] . k[h / group, j]) * v[h / group, j],   j = 0 ..= first + i
//
// Kernels, by element type and head width d:
//   prefill_attention_{bf16,f16}_{64,128}   any number of query heads for a KV head
//   prefill_attention_pair_{bf16,f16}_128   an even number of query heads for a KV head: clusters of two blocks, which
//                                           process two heads of one KV head and share its keys and values
// Sums and softmax are f32; weights are rounded to the element type before they are multiplied with values.
//
// Arrays (elements of the kernel's 16-bit type unless said otherwise, every base address a multiple of 16 bytes)
//   q    [rows][q_stride], head h at h * d; q_stride >= heads * d, a multiple of 8. Row i is at position first + i.
//   k, v [kv_heads][capacity][d], heads kv_stride elements apart (a multiple of 8). Query head h reads KV head
//        h / (heads / kv_heads). Only the first first + rows keys of a head are read.
//   out  [rows][heads * d].
//   lse  f32 [heads][rows], the natural logarithm of the sum of exp(scale * q . k); null to leave it out.
//
// Launch, with QUERIES = 128 for d = 128, 192 for d = 64
//   parameters  (q_map, k_map, v_map, out, lse, counter, rows, first, heads, kv_heads, section, scale): three tensor
//               maps by value, three pointers, five i32, one f32
//   block       384 threads for d = 128, 512 for d = 64
//   grid        min(multiprocessors, heads * ceil(rows / QUERIES)) blocks;
//               pair: 2 * min(multiprocessors / 2, heads / 2 * ceil(rows / QUERIES)), the cluster is the kernel's own
//   shared      dynamic, 164992 bytes for d = 128, 91264 for d = 64 (raise the kernel's limit first)
//   tensor maps 16-bit, four dimensions, 128-byte swizzle, no interleave, element strides 1, out-of-bounds fill zero
//               (CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE), L2 promotion 256 bytes; byte strides are of dimensions 1, 2, 3:
//     q_map   dims {64, rows, d / 64, heads}, strides {2 * q_stride, 128, 2 * d}, box {64, QUERIES, d / 64, 1}
//     k_map   dims {64, first + rows, d / 64, kv_heads}, strides {2 * d, 128, 2 * kv_stride}, box {64, d, 1, 1}
//     v_map   as k_map, over v
//     Dimension 1 must be exactly rows or first + rows: anything beyond is then read as zeros, so garbage there
//     (even NaN) does no harm.
//   counter     one u32 of device memory, zero before the first launch; every launch leaves it zero. Launches that may
//               overlap need separate counters.
//   section     KV heads that are processed together, 1 ..= kv_heads; their keys and values should fit in L2, so
//               clamp(24 MiB / (4 * d * (first + rows)), 1, kv_heads) is a good choice. Affects only the order of work.
//   scale       positive.
//
// Not supported: other masks, other head widths, key lists, dropout, gaps between positions, rows that see no key. The keys of a row are
// not split over blocks either: few rows of few heads leave multiprocessors idle.
//
// How it works. A block takes tiles of QUERIES rows of one head from a queue; within a section of heads, those with most keys come first.
// One thread copies tiles of 128 keys and values into two-stage ring buffers; each of the other warpgroups owns 64 of the rows. A warpgroup
// starts the scores of the next key tile together with the weighted sum over the previous one, and computes the softmax of the former while
// the latter runs. The warpgroups take turns to start products, so that one computes a softmax while another keeps the tensor cores busy.
//
// Power is the limit: on an H200, a run at d = 128 lowers the clock to about 1.6 GHz, with the tensor cores busy in 77% of the cycles.
// Pairs of blocks halve the reads from L2, which saves 1 to 8% of the time; at d = 64 they saved nothing. Tiles of 160 or 176 keys, three
// stages, and skipping small rescalings were no faster.

#include "hopper.cuh"
#include "numbers.cuh"

namespace prefill {

using namespace hopper;
using numbers::exp2_fast;
using numbers::Pair;

template <bool VALUE> struct Flag {
    static constexpr bool value = VALUE;
};

// Constants that depend on the head width.
template <int D> struct Shape {
    static constexpr int WARPGROUPS = D == 64 ? 3 : 2;  // that compute
    static constexpr int QUERIES = 64 * WARPGROUPS;
    static constexpr int KEYS = 128;
    static constexpr int STAGES = 2;  // a power of two
    static constexpr int BLOCK = 128 * (WARPGROUPS + 1);
    static constexpr int REGISTERS = D == 64 ? 160 : 232;  // of a computing thread
    // All registers that the block has at its start are used: 40 + 2 * 232 = 3 * 168, 32 + 3 * 160 = 4 * 128.
    static constexpr int REGISTERS_COPY = D == 64 ? 32 : 40;
    static constexpr uint32_t Q_BYTES = QUERIES * D * 2;
    static constexpr uint32_t KV_BYTES = KEYS * D * 2;
    static constexpr uint32_t Q_AT = 0;
    static constexpr uint32_t K_AT = Q_AT + Q_BYTES;
    static constexpr uint32_t V_AT = K_AT + STAGES * KV_BYTES;
    static constexpr uint32_t BARRIERS_AT = V_AT + STAGES * KV_BYTES;
    static constexpr uint32_t Q_FULL = BARRIERS_AT;
    static constexpr uint32_t Q_EMPTY = Q_FULL + 8;
    static constexpr uint32_t K_FULL = Q_EMPTY + 8;
    static constexpr uint32_t K_EMPTY = K_FULL + 8 * STAGES;
    static constexpr uint32_t V_FULL = K_EMPTY + 8 * STAGES;
    static constexpr uint32_t V_EMPTY = V_FULL + 8 * STAGES;
    static constexpr uint32_t NEXT_FULL = V_EMPTY + 8 * STAGES;
    static constexpr uint32_t ITEM = NEXT_FULL + 8 * 2;
    static constexpr uint32_t NEXT = ITEM + 4;
    // The tiles start at a multiple of 1024; the base need not.
    static constexpr uint32_t SHARED_BYTES = BARRIERS_AT + 128 + 1024;
};

struct Problem {
    int rows, first, heads, kv_heads, section;

    template <int D> __device__ __forceinline__ int query_tiles() const {
        return (rows + Shape<D>::QUERIES - 1) / Shape<D>::QUERIES;
    }
    // Items of work, each for a block or for a pair of blocks.
    template <int D, int BLOCKS> __device__ __forceinline__ int items() const {
        return query_tiles<D>() * (heads / BLOCKS);
    }
};

// A tile of queries of one head.
struct Item {
    int head, kv_head, row;
};

// Item `index` of the queue: section by section of heads, in each the last rows first and heads fastest. A pair of blocks takes two
// neighbouring heads; `rank` says which one.
template <int D, int BLOCKS> __device__ __forceinline__ Item take(const Problem& problem, int index, int rank) {
    const int group = problem.heads / problem.kv_heads;
    const int tiles = problem.query_tiles<D>();
    const int width = problem.section * group / BLOCKS;
    const int section = index / (tiles * width);
    const int rest = index - section * tiles * width;
    const int here = min(width, problem.heads / BLOCKS - section * width);
    const int tile = rest / here;
    Item item;
    item.head = (section * width + (rest - tile * here)) * BLOCKS + rank;
    item.kv_head = item.head / group;
    item.row = (tiles - 1 - tile) * Shape<D>::QUERIES;
    return item;
}

// The key tiles of an item, in reading order. All code that reads or masks keys uses this, so another list of tiles only needs another
// struct with these members.
template <int D> struct CausalTiles {
    int count;  // at least 1

    __device__ __forceinline__ CausalTiles(const Problem& problem, const Item& item) {
        const int last = min(item.row + Shape<D>::QUERIES, problem.rows) + problem.first;
        count = (last + Shape<D>::KEYS - 1) / Shape<D>::KEYS;
    }
    // First key of the j-th tile: from the diagonal back to the start.
    __device__ __forceinline__ int key(int j) const { return (count - 1 - j) * Shape<D>::KEYS; }
    // The number of tiles, from the first on, that may hold keys after `position`.
    __device__ __forceinline__ int masked(int position) const {
        return count - min(count, (position + 1) / Shape<D>::KEYS);
    }
};

// Position in a ring of shared-memory tiles.
template <int STAGES> struct Cursor {
    int stage = 0;
    uint32_t phase = 0;
    __device__ __forceinline__ void next() {
        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
};

// Copies 128 keys or values as two boxes: the lower and upper 64 columns if D is 128, the first and last 64 keys if D is 64. In a pair of
// blocks, each copies one box to both.
template <int D, int BLOCKS>
__device__ __forceinline__ void copy_keys(uint32_t tile, const CUtensorMap* map, uint32_t barrier, int key, int kv_head,
                                          int rank) {
    using S = Shape<D>;
    mbarrier_arrive_expect(barrier, S::KV_BYTES);
    if (BLOCKS == 2) {
        tensor_load_4d_multicast(tile + rank * (S::KV_BYTES / 2), map, barrier, 0, key + (D == 64 ? 64 * rank : 0),
                                 D == 64 ? 0 : rank, kv_head, 3);
    } else {
        tensor_load_4d(tile, map, barrier, 0, key, 0, kv_head);
        tensor_load_4d(tile + S::KV_BYTES / 2, map, barrier, 0, key + (D == 64 ? 64 : 0), D == 64 ? 0 : 1, kv_head);
    }
}

// Copies the tiles of all items, in the order of use. Runs on one thread.
template <int D, int BLOCKS>
__device__ __forceinline__ void copy_tiles(uint32_t shared, volatile int* item_slot, volatile int* next_slots,
                                           const CUtensorMap* q_map, const CUtensorMap* k_map,
                                           const CUtensorMap* v_map, uint32_t* counter, const Problem& problem) {
    using S = Shape<D>;
    prefetch_tensor_map(q_map);
    prefetch_tensor_map(k_map);
    prefetch_tensor_map(v_map);
    const int rank = BLOCKS == 2 ? cluster_rank() : 0;
    uint32_t loaded = 0;  // tiles of keys so far, and of values
    uint32_t done = 0;    // items
    const int items = problem.items<D, BLOCKS>();
    for (int index = blockIdx.x / BLOCKS; index < items; ++done) {
        const Item item = take<D, BLOCKS>(problem, index, rank);
        const CausalTiles<D> tiles(problem, item);

        // Every item is followed by one fetch, so the fetch that returns items - 1 is the last of the launch.
        int fetched = 0;
        if (rank == 0) fetched = static_cast<int>(atomicAdd(counter, 1u));

        mbarrier_wait(shared + S::Q_EMPTY, (done & 1) ^ 1);
        *item_slot = index;
        mbarrier_arrive_expect(shared + S::Q_FULL, S::Q_BYTES);
        tensor_load_4d(shared + S::Q_AT, q_map, shared + S::Q_FULL, 0, item.row, 0, item.head);

        // In a pair, the first block fetches the next item and sends it to the other. The scores of the first block's last item are done,
        // so the other block has begun that item and has read the slot's previous content.
        const uint32_t next_full = shared + S::NEXT_FULL + 8 * (done & 1);
        if (BLOCKS == 2 && rank == 0) store_at(shared + S::NEXT + 4 * (done & 1), fetched, next_full, 1);
        if (BLOCKS == 2 && rank == 1) mbarrier_arrive_expect(next_full, 4);

        // The j-th values follow the keys j + 1.
#pragma unroll 1
        for (int j = 0; j <= tiles.count; ++j) {
            if (j < tiles.count) {
                const uint32_t stage = (loaded + j) % S::STAGES, phase = (loaded + j) / S::STAGES % 2;
                mbarrier_wait(shared + S::K_EMPTY + 8 * stage, phase ^ 1);
                copy_keys<D, BLOCKS>(shared + S::K_AT + stage * S::KV_BYTES, k_map, shared + S::K_FULL + 8 * stage,
                                     tiles.key(j), item.kv_head, rank);
            }
            if (j > 0) {
                const uint32_t stage = (loaded + j - 1) % S::STAGES, phase = (loaded + j - 1) / S::STAGES % 2;
                mbarrier_wait(shared + S::V_EMPTY + 8 * stage, phase ^ 1);
                copy_keys<D, BLOCKS>(shared + S::V_AT + stage * S::KV_BYTES, v_map, shared + S::V_FULL + 8 * stage,
                                     tiles.key(j - 1), item.kv_head, rank);
            }
        }
        loaded += tiles.count;
        if (rank == 0) {
            if (fetched == items - 1) *counter = 0;
        } else {
            mbarrier_wait_cluster(next_full, done >> 1 & 1);
            fetched = next_slots[done & 1];
        }
        index = fetched + static_cast<int>(gridDim.x) / BLOCKS;
    }
    mbarrier_wait(shared + S::Q_EMPTY, (done & 1) ^ 1);
    *item_slot = -1;
    mbarrier_arrive(shared + S::Q_FULL);
}

// Transposes 4 x 4 words over the four lanes of a quad: word k of lane t becomes word t of lane k.
__device__ __forceinline__ void transpose_quad(uint32_t (&u)[4], int t) {
#pragma unroll
    for (int bit = 1; bit <= 2; bit <<= 1) {
        const bool high = t & bit;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            if (k & bit) continue;
            const uint32_t sent = high ? u[k] : u[k | bit];
            const uint32_t received = __shfl_xor_sync(0xffffffff, sent, bit);
            if (high) {
                u[k] = received;
            } else {
                u[k | bit] = received;
            }
        }
    }
}

// One warpgroup's 64 rows: the running maximum and sum of two rows per thread, and the weighted sum of the values.
template <typename T, int D> struct Rows {
    using S = Shape<D>;
    float o[D / 2];
    float s[S::KEYS / 2];
    uint32_t p[S::KEYS / 4];
    float maximum[2], sum[2];

    // Starts s = q k^T, without waiting.
    __device__ __forceinline__ void start_scores(Operand q, Operand k) {
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < D / 16; ++i) {
            Wgmma<T, S::KEYS>::ss(s, q.offset((i / 4) * (S::QUERIES * 128) + (i % 4) * 32),
                                  k.offset((i / 4) * (S::KEYS * 128) + (i % 4) * 32), i > 0);
        }
        wgmma_commit();
    }

    // Starts o += p v, without waiting.
    __device__ __forceinline__ void start_values(Operand v) {
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < S::KEYS / 16; ++i) {
            Wgmma<T, D>::rs(o, p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3], v.offset(i * 2048), 1);
        }
        wgmma_commit();
    }

    // Masks the keys of a tile after the two rows' positions, which count from the tile's first key and the lane's column.
    __device__ __forceinline__ void mask(int position) {
#pragma unroll
        for (int i = 0; i < S::KEYS / 8; ++i) {
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                if (8 * i + c > position) s[4 * i + c] = -INFINITY;
                if (8 * i + c > position + 8) s[4 * i + 2 + c] = -INFINITY;
            }
        }
    }

    // Turns scores into weights; `factor` is what the sums so far must be multiplied by. Only with MASKED may a row have seen no key so
    // far.
    template <bool MASKED> __device__ __forceinline__ void softmax(float scale, float (&factor)[2]) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float m = maximum[r];
#pragma unroll
            for (int i = 0; i < S::KEYS / 8; ++i) m = fmaxf(m, fmaxf(s[4 * i + 2 * r], s[4 * i + 2 * r + 1]));
            m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, 1));
            m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, 2));
            const float finite = MASKED && m == -INFINITY ? 0.f : m;
            const float base = finite * scale;
            // Computed from the difference, so that it is exactly 1 while the maximum stays.
            factor[r] = exp2_fast((maximum[r] - finite) * scale);
            maximum[r] = m;
            float part = 0.f;
#pragma unroll
            for (int i = 0; i < S::KEYS / 8; ++i) {
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    float& x = s[4 * i + 2 * r + c];
                    x = exp2_fast(x * scale - base);
                    part += x;
                }
            }
            sum[r] = sum[r] * factor[r] + part;
        }
    }

    __device__ __forceinline__ void pack() {
#pragma unroll
        for (int i = 0; i < S::KEYS / 4; ++i) p[i] = Pair<T>::pack(s[2 * i], s[2 * i + 1]);
    }

    __device__ __forceinline__ void rescale(const float (&factor)[2]) {
#pragma unroll
        for (int i = 0; i < D / 2; ++i) o[i] *= factor[(i >> 1) & 1];
    }
};

template <typename T, int D, int BLOCKS>
__device__ __forceinline__ void compute_tiles(uint32_t shared, const volatile int* item_slot, T* out, float* lse,
                                              const Problem& problem, float scale) {
    using S = Shape<D>;
    // Broadcast from lane 0, so that the compiler knows that all lanes have the same value.
    const int group = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x / 128) - 1, 0);
    const int warp = (threadIdx.x / 32) % 4;
    const int lane = threadIdx.x % 32;
    const int t = lane % 4;
    const int row_here = 64 * group + 16 * warp + lane / 4;  // and 8 further
    const bool releases = lane == 0;
    const int rank = BLOCKS == 2 ? cluster_rank() : 0;
    const float scale_log2 = scale * numbers::LOG2_E;

    // Barrier 1 + w opens when it is warpgroup w's turn to start products.
    const int turn = 1 + group, next_turn = 1 + (group + 1) % S::WARPGROUPS;
    if (group == S::WARPGROUPS - 1) named_barrier_arrive(next_turn, 256);

    Cursor<S::STAGES> k, v;
    uint32_t q_phase = 0;
    const Operand q_tile(shared + S::Q_AT + group * 64 * 128, 16);
    auto k_tile = [&](int stage) { return Operand(shared + S::K_AT + stage * S::KV_BYTES, 16); };
    auto v_tile = [&](int stage) { return Operand(shared + S::V_AT + stage * S::KV_BYTES, S::KEYS * 128); };
    Rows<T, D> x;

    auto release = [&](uint32_t barrier) {
        __syncwarp();
        if (releases) mbarrier_arrive(barrier);
    };
    // Keys and values are released in both blocks of a pair, because each block writes to both.
    auto release_tile = [&](uint32_t barrier) {
        __syncwarp();
        if (BLOCKS == 2) {
            if (lane < 2) mbarrier_arrive_at(barrier, lane);
        } else {
            if (releases) mbarrier_arrive(barrier);
        }
    };

    while (true) {
        mbarrier_wait(shared + S::Q_FULL, q_phase);
        q_phase ^= 1;
        const int index = __shfl_sync(0xffffffff, lane == 0 ? *item_slot : 0, 0);
        if (index < 0) break;
        const Item item = take<D, BLOCKS>(problem, index, rank);
        const CausalTiles<D> tiles(problem, item);
        const int position = problem.first + item.row + row_here;
        const int masked = tiles.masked(problem.first + item.row + 64 * group);

        float factor[2];
        x.maximum[0] = x.maximum[1] = -INFINITY;
        x.sum[0] = x.sum[1] = 0.f;
#pragma unroll
        for (int i = 0; i < D / 2; ++i) x.o[i] = 0.f;

        mbarrier_wait(shared + S::K_FULL + 8 * k.stage, k.phase);
        x.start_scores(q_tile, k_tile(k.stage));
        wgmma_wait<0>();
        pin(x.s);
        release_tile(shared + S::K_EMPTY + 8 * k.stage);
        k.next();
        x.mask(position - tiles.key(0) - 2 * t);
        x.template softmax<true>(scale_log2, factor);
        x.pack();

        auto step = [&](auto mask_it, int j) {
            constexpr bool MASKED = decltype(mask_it)::value;
            mbarrier_wait(shared + S::K_FULL + 8 * k.stage, k.phase);
            named_barrier_sync(turn, 256);
            pin(x.o);
            pin(x.p);
            x.start_scores(q_tile, k_tile(k.stage));
            mbarrier_wait(shared + S::V_FULL + 8 * v.stage, v.phase);
            x.start_values(v_tile(v.stage));
            named_barrier_arrive(next_turn, 256);
            wgmma_wait<1>();
            pin(x.s);
            release_tile(shared + S::K_EMPTY + 8 * k.stage);
            k.next();
            if (MASKED) x.mask(position - tiles.key(j) - 2 * t);
            x.template softmax<MASKED>(scale_log2, factor);
            wgmma_wait<0>();
            pin(x.o);
            pin(x.p);
            release_tile(shared + S::V_EMPTY + 8 * v.stage);
            v.next();
            x.pack();
            x.rescale(factor);
        };
        int j = 1;
        for (; j < masked; ++j) step(Flag<true>{}, j);
        for (; j < tiles.count; ++j) step(Flag<false>{}, j);
        release(shared + S::Q_EMPTY);

        mbarrier_wait(shared + S::V_FULL + 8 * v.stage, v.phase);
        pin(x.o);
        pin(x.p);
        x.start_values(v_tile(v.stage));
        wgmma_wait<0>();
        pin(x.o);
        release_tile(shared + S::V_EMPTY + 8 * v.stage);
        v.next();

#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float sum = x.sum[r];
            sum += __shfl_xor_sync(0xffffffff, sum, 1);
            sum += __shfl_xor_sync(0xffffffff, sum, 2);
            const float inverse = 1.f / sum;
            const int row = item.row + row_here + 8 * r;
            T* line = out + (static_cast<size_t>(row) * problem.heads + item.head) * D;
#pragma unroll
            for (int b = 0; b < D / 32; ++b) {
                uint32_t u[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int at = 4 * (4 * b + i) + 2 * r;
                    u[i] = Pair<T>::pack(x.o[at] * inverse, x.o[at + 1] * inverse);
                }
                transpose_quad(u, t);
                if (row < problem.rows) {
                    *reinterpret_cast<uint4*>(line + 8 * (4 * b + t)) = make_uint4(u[0], u[1], u[2], u[3]);
                }
            }
            if (lse != nullptr && t == 0 && row < problem.rows) {
                lse[static_cast<size_t>(item.head) * problem.rows + row] = x.maximum[r] * scale + logf(sum);
            }
        }
    }
}

// BLOCKS is 1, or 2 for pairs of blocks, which process two heads and share their keys.
template <typename T, int D, int BLOCKS>
__device__ __forceinline__ void attend(const CUtensorMap* q_map, const CUtensorMap* k_map, const CUtensorMap* v_map,
                                       T* out, float* lse, uint32_t* counter, const Problem& problem, float scale) {
    using S = Shape<D>;
    extern __shared__ uint8_t shared_raw[];
    const uint32_t raw = shared_address(shared_raw);
    const uint32_t shared = (raw + 1023) & ~1023u;
    int* item_slot = reinterpret_cast<int*>(shared_raw + (shared - raw) + S::ITEM);
    int* next_slots = reinterpret_cast<int*>(shared_raw + (shared - raw) + S::NEXT);

    if (threadIdx.x == 0) {
        mbarrier_init(shared + S::Q_FULL, 1);
        mbarrier_init(shared + S::Q_EMPTY, 4 * S::WARPGROUPS);
        for (int i = 0; i < S::STAGES; ++i) {
            mbarrier_init(shared + S::K_FULL + 8 * i, 1);
            mbarrier_init(shared + S::K_EMPTY + 8 * i, 4 * S::WARPGROUPS * BLOCKS);
            mbarrier_init(shared + S::V_FULL + 8 * i, 1);
            mbarrier_init(shared + S::V_EMPTY + 8 * i, 4 * S::WARPGROUPS * BLOCKS);
        }
        for (int i = 0; i < 2; ++i) mbarrier_init(shared + S::NEXT_FULL + 8 * i, 1);
        fence_barrier_init();
    }
    __syncthreads();
    if (BLOCKS == 2) cluster_sync();

    if (threadIdx.x < 128) {
        registers_lower<S::REGISTERS_COPY>();
        if (threadIdx.x == 0) {
            copy_tiles<D, BLOCKS>(shared, item_slot, next_slots, q_map, k_map, v_map, counter, problem);
        }
        __syncwarp();
    } else {
        registers_raise<S::REGISTERS>();
        compute_tiles<T, D, BLOCKS>(shared, item_slot, out, lse, problem, scale);
    }
    // The other block may still write to this block's barriers.
    if (BLOCKS == 2) cluster_sync();
}

}  // namespace prefill

#define PREFILL_ATTENTION(NAME, T, D, BLOCKS, ATTRIBUTE)                                                              \
    extern "C" __global__ void ATTRIBUTE __launch_bounds__(prefill::Shape<D>::BLOCK, 1)                               \
        NAME(const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap k_map,                    \
             const __grid_constant__ CUtensorMap v_map, T* out, float* lse, uint32_t* counter, int rows, int first,   \
             int heads, int kv_heads, int section, float scale) {                                                     \
        const prefill::Problem problem{rows, first, heads, kv_heads, section};                                        \
        prefill::attend<T, D, BLOCKS>(&q_map, &k_map, &v_map, out, lse, counter, problem, scale);                     \
    }

PREFILL_ATTENTION(prefill_attention_bf16_64, __nv_bfloat16, 64, 1, )
PREFILL_ATTENTION(prefill_attention_bf16_128, __nv_bfloat16, 128, 1, )
PREFILL_ATTENTION(prefill_attention_f16_64, __half, 64, 1, )
PREFILL_ATTENTION(prefill_attention_f16_128, __half, 128, 1, )
PREFILL_ATTENTION(prefill_attention_pair_bf16_128, __nv_bfloat16, 128, 2, __cluster_dims__(2, 1, 1))
PREFILL_ATTENTION(prefill_attention_pair_f16_128, __half, 128, 2, __cluster_dims__(2, 1, 1))
