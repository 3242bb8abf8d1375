// Decode attention over any selection on tensor cores, for 16-bit keys and values and heads 64 or 128 wide. Does what attend.cu does, with
// a group's queries as one side of matrix products, so that only memory limits the speed.
//
// The work comes as units (attend.cuh). A warp takes 16 tokens at a time and exchanges nothing with other warps until its span ends. Each
// warp copies rows into its own ring buffer in shared memory, so that the next rows arrive while some are processed. Both products are
// mma.m16n8k16:
//   scores, queries x tokens: A is the queries (rows 8 to 15 are zero), B the keys.
//   outputs, channels x queries: A is the values, B the weights, in the layout of the scores.
// A weight is multiplied as the sum of two 16-bit numbers, so that nothing is lost against f32 arithmetic.
#include "attend.cuh"
#include "early.cuh"
#include "mma.cuh"
#include "tiles.cuh"
#include "numbers.cuh"

constexpr int WARPS = 4;
// Tokens of a warp's tile, and the most queries in a unit.
constexpr int TILE = 16, QUERIES = 8;
// Marks a row of the tail, and one of the rows that were fetched.
constexpr uint32_t IN_TAIL = 1u << 31, FETCHED = 1u << 30;
// Tiles in a ring, and blocks per multiprocessor: three blocks with rings of two were as fast as two with rings of three, or faster.
constexpr int STAGES = 2, BLOCKS = 3;

// Splits two numbers into sums of two 16-bit numbers each.
template <typename T> __device__ __forceinline__ void split(float x, float y, uint32_t& high, uint32_t& low);
template <> __device__ __forceinline__ void split<__nv_bfloat16>(float x, float y, uint32_t& high, uint32_t& low) {
    high = numbers::Pair<__nv_bfloat16>::pack(x, y);
    low = numbers::Pair<__nv_bfloat16>::pack(x - __uint_as_float(high << 16), y - __uint_as_float(high & 0xffff0000u));
}
template <> __device__ __forceinline__ void split<__half>(float x, float y, uint32_t& high, uint32_t& low) {
    high = numbers::Pair<__half>::pack(x, y);
    const float2 rounded = __half22float2(reinterpret_cast<__half2&>(high));
    low = numbers::Pair<__half>::pack(x - rounded.x, y - rounded.y);
}

// One KV head's keys or values: the prefix's rows, the tail's, and those that were fetched.
template <typename T, int D> struct Sequence {
    const T* prefix;
    const T* tail;
    const T* fetched;
    __device__ __forceinline__ const T* row(uint32_t row) const {
        const T* rows = row & IN_TAIL ? tail : row & FETCHED ? fetched : prefix;
        return rows + static_cast<uint64_t>(row & ~(IN_TAIL | FETCHED)) * D;
    }
};

// A tile in shared memory: rows of keys, rows of values, and a number for each token. Within each 128 bytes, the 16-byte pieces of a row
// are permuted by the row's number, so that the pieces of one column of eight rows lie in different banks.
template <typename T, int D> struct Tile {
    T keys[TILE][D], values[TILE][D];
    float extra[32];
};

template <int D> __device__ __forceinline__ uint32_t place_of(uint32_t rows, int row, int piece) {
    return rows + row * (2 * D) + ((piece ^ (row & 7)) << 4);
}

template <typename T, int D>
__device__ void attend(const Unit& unit, int span_index, const Prefix<T>& prefix, const T* queries, uint32_t heads,
                       uint64_t row_stride, float scale, const Merging<T> to) {
    // 16-byte pieces in a row, rows that a warp copies at once, and products that a row takes.
    constexpr int PIECES = D / 8, ROWS = 32 / PIECES, DEEP = D / 16;
    using Ring = Tile<T, D>[STAGES];
    extern __shared__ __align__(128) uint8_t room[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    Ring& ring = reinterpret_cast<Ring*>(room)[warp];
    const bool given = unit.weighting == GIVEN;
    const uint64_t tail_head = static_cast<uint64_t>(unit.tail_capacity) * D;
    const T* tail = static_cast<const T*>(unit.tail) + (2ull * prefix.layer * prefix.kv_heads + unit.kv_head) * tail_head;
    const Sequence<T, D> keys{prefix.keys + unit.kv_head * prefix.stride, tail, static_cast<const T*>(unit.fetched_keys)};
    const Sequence<T, D> values{prefix.values + unit.kv_head * prefix.stride, tail + prefix.kv_heads * tail_head,
                                static_cast<const T*>(unit.fetched_values)};
    const uint32_t fixed = unit.sink + unit.total - unit.recent;
    const uint2 own = tokens_of_span(unit, span_index);
    const uint32_t end = own.y;
    // Lanes beyond the end read the last token and ignore it.
    auto row_of = [&](uint32_t i) {
        i = min(i, end - 1);
        if (i >= fixed && unit.fetched_keys) return (i - fixed) | FETCHED;
        const uint32_t token = i < unit.sink ? i : i < fixed ? unit.recent + i - unit.sink : unit.tokens[i - fixed];
        return token < prefix.tokens ? token : (token - prefix.tokens) | IN_TAIL;
    };
    constexpr uint32_t STEP = WARPS * TILE;
    const uint32_t start = own.x + warp * TILE;
    const uint32_t tiles = start < end ? (end - start + STEP - 1) / STEP : 0;
    uint32_t row = tiles > 0 ? row_of(start + lane % TILE) : 0, asked = 0;
    // Requests the next tile, if there is one. A copy group is committed in either case, so that waiting can count groups.
    auto ask = [&] {
        if (asked < tiles) {
            Tile<T, D>& to_tile = ring[asked % STAGES];
            const uint32_t key_rows = tiles::shared_address(to_tile.keys), value_rows = tiles::shared_address(to_tile.values);
            const uint32_t i = start + asked * STEP + lane % TILE;
#pragma unroll
            for (int r = 0; r < TILE / ROWS; ++r) {
                const int own_row = r * ROWS + lane / PIECES, piece = lane % PIECES;
                const uint32_t token = __shfl_sync(~0u, row, own_row);
                if (!given) tiles::copy_16(place_of<D>(key_rows, own_row, piece), keys.row(token) + piece * PIECE, true);
                tiles::copy_16(place_of<D>(value_rows, own_row, piece), values.row(token) + piece * PIECE, true);
            }
            if (unit.weights && lane < TILE) {
                const uint32_t at = min(i, end - 1);
                if (at >= fixed) tiles::copy_4(tiles::shared_address(to_tile.extra + lane), unit.weights + at - fixed);
                else to_tile.extra[lane] = 0.0f;
            }
            ++asked;
            if (asked < tiles) row = row_of(start + asked * STEP + lane % TILE);
        }
        tiles::copy_commit();
    };
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) ask();
    // Query g, channels 2t and 2t + 1 of every eight.
    uint32_t q[DEEP][2];
#pragma unroll
    for (int k = 0; k < DEEP; ++k)
#pragma unroll
        for (int i = 0; i < 2; ++i) q[k][i] = 0;
    if (g < unit.queries) {
        const uint32_t query = unit.first_query + g;
        const T* from = queries + query / heads * row_stride + static_cast<uint64_t>(query % heads) * D;
#pragma unroll
        for (int k = 0; k < DEEP; ++k)
#pragma unroll
            for (int i = 0; i < 2; ++i) q[k][i] = *reinterpret_cast<const uint32_t*>(from + k * 16 + i * 8 + 2 * t);
    }

    // For query g: the maximum, in powers of two; `sum` over the tokens that this lane holds.
    float most = -CUDART_INF_F, sum = 0.0f;
    // Sums for channels 16m + g (0 and 1) and 16m + g + 8 (2 and 3), of queries 2t and 2t + 1.
    float out[DEEP][4] = {};
    const float factor = scale * numbers::LOG2_E;
    for (uint32_t tile = 0; tile < tiles; ++tile) {
        // The next tile overwrites the one that all lanes have finished.
        ask();
        tiles::copy_wait<STAGES - 1>();
        __syncwarp();
        const Tile<T, D>& here = ring[tile % STAGES];
        const uint32_t key_rows = tiles::shared_address(here.keys), value_rows = tiles::shared_address(here.values);
        const uint32_t first = start + tile * STEP;
        // Weights of tokens 8j + 2t and 8j + 2t + 1.
        float weight[2][2];
        if (given) {
#pragma unroll
            for (int j = 0; j < 2; ++j)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int token = 8 * j + 2 * t + i;
                    weight[j][i] = first + token < end ? here.extra[token] : 0.0f;
                }
        } else {
            float scores[2][4] = {};
#pragma unroll
            for (int k = 0; k < DEEP; ++k) {
                uint32_t b[4];
                tiles::load_matrices(b, place_of<D>(key_rows, lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
                multiply<T>(scores[0], q[k][0], 0, q[k][1], 0, b[0], b[1]);
                multiply<T>(scores[1], q[k][0], 0, q[k][1], 0, b[2], b[3]);
            }
            float top = -CUDART_INF_F;
#pragma unroll
            for (int j = 0; j < 2; ++j)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int token = 8 * j + 2 * t + i;
                    float logit = scores[j][i] * factor;
                    if (unit.weights) logit -= here.extra[token] * numbers::LOG2_E;
                    weight[j][i] = first + token < end ? logit : -CUDART_INF_F;
                    top = fmaxf(top, weight[j][i]);
                }
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
            top = fmaxf(top, most);
            if (__any_sync(~0u, top > most)) {
                const float shrink = top == -CUDART_INF_F ? 1.0f : numbers::exp2_fast(most - top);
                sum *= shrink, most = top;
                const float left = __shfl_sync(~0u, shrink, 8 * t), right = __shfl_sync(~0u, shrink, 8 * t + 4);
#pragma unroll
                for (int m = 0; m < DEEP; ++m) {
                    out[m][0] *= left, out[m][1] *= right;
                    out[m][2] *= left, out[m][3] *= right;
                }
            }
#pragma unroll
            for (int j = 0; j < 2; ++j)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    weight[j][i] = weight[j][i] == -CUDART_INF_F ? 0.0f : numbers::exp2_fast(weight[j][i] - most);
                    sum += weight[j][i];
                }
        }
        uint32_t high[2], low[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) split<T>(weight[j][0], weight[j][1], high[j], low[j]);
#pragma unroll
        for (int m = 0; m < DEEP; ++m) {
            uint32_t a[4];
            tiles::load_matrices_transposed(a, place_of<D>(value_rows, lane / 16 * 8 + lane % 8, 2 * m + lane / 8 % 2));
            multiply<T>(out[m], a[0], a[1], a[2], a[3], high[0], high[1]);
            multiply<T>(out[m], a[0], a[1], a[2], a[3], low[0], low[1]);
        }
        __syncwarp();
    }
    // Keys and values are not read any more.
    let_next_start();
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (given) {
        // The mass of given weights counts once for all spans together.
        most = unit.log_mass * numbers::LOG2_E;
        sum = span_index == 0 && warp == 0 ? 1.0f : 0.0f;
    }
    // Merges the warps of the block, in the memory of the rings. From here on, maxima are natural logarithms.
    using Merged = float[WARPS][QUERIES][D + 2];
    static_assert(sizeof(Merged) <= WARPS * sizeof(Ring), "room for what warps have");
    __syncthreads();
    Merged& merged = *reinterpret_cast<Merged*>(room);
    if (t == 0) merged[warp][g][0] = most * (1.0f / numbers::LOG2_E), merged[warp][g][1] = sum;
#pragma unroll
    for (int m = 0; m < DEEP; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) merged[warp][2 * t + i % 2][2 + m * 16 + g + i / 2 * 8] = out[m][i];
    __syncthreads();
    store_partials<T>(unit, span_index, merged, D, to);
}

// One block for each span of a unit. Queries are `[row][row_stride]`, head h at h * D.
template <typename T, int D>
__device__ __forceinline__ void attend_block(const Unit* units, int count, const Prefix<T>& prefix, const T* queries,
                                             uint32_t heads, uint64_t row_stride, float scale, const Merging<T>& to) {
    __shared__ Unit unit;
    // Units come from the host, so they can be read before earlier kernels have ended.
    const int own = unit_of_block(units, count);
    if (threadIdx.x < sizeof(Unit) / 4)
        reinterpret_cast<uint32_t*>(&unit)[threadIdx.x] = reinterpret_cast<const uint32_t*>(units + own)[threadIdx.x];
    wait_for_earlier();
    __syncthreads();
    attend<T, D>(unit, blockIdx.x - unit.first_block, prefix, queries, heads, row_stride, scale, to);
}

#define ATTEND(T, NAME, D)                                                                                              \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS) attend_tiles_##NAME##_##D(                         \
        const Unit* units, int count, const Prefix<T> prefix, const T* queries, uint32_t heads,                         \
        unsigned long long row_stride, float scale, const Merging<T> to) {                                              \
        attend_block<T, D>(units, count, prefix, queries, heads, row_stride, scale, to);                                \
    }

ATTEND(__half, f16, 64)
ATTEND(__half, f16, 128)
ATTEND(__nv_bfloat16, bf16, 64)
ATTEND(__nv_bfloat16, bf16, 128)
