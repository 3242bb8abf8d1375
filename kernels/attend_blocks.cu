// Attention of a prompt's rows over the tokens that a mask allows: the block-sparse counterpart of prefill_attention_any.cu.
//
// Rows are cut into blocks of `block_rows`, and heads into equal parts, one for each list of a block. The rows of a block, for all heads of
// a part, share an ascending list of tokens. A row attends
//   the tokens of the list that lie before its start, and all tokens from its start up to its own position.
// So each token counts once, even if the list and this stretch overlap, and every row sees itself. With diagonals, a row also attends all
// tokens at some distances before it; with partials, also what attend_own.cu has summed for it.
//
// Kernels: attend_blocks_{bf16,f16}_{64,128,256}_{32,64}, by element type, greatest head width, and rows of a tile; and
// attend_lines_{bf16,f16}_{64,128,256}, with diagonals and 64 rows in a tile; sm_80 and up; d a multiple of 8. Products are mma.m16n8k16
// with f32 sums; weights are rounded to the element type.
//
// Arrays (elements of the kernel's type unless said otherwise, every base address a multiple of 16 bytes)
//   q      [rows][q_stride], head h at h * d; q_stride >= heads * d, a multiple of 8. Row i is at position first + i.
//   k, v   [kv_heads][capacity][d], heads kv_stride elements apart (a multiple of 8).
//   out    [rows][heads * d].
//   tokens u32 [block][list][most], counts u32 [block][list]: all tokens are before the end of the block's rows.
//   starts u32 [list or 1][rows]: row i of list l at l * starts_stride + i; at most the row's position.
//   distances u32 [list][distance_words]: bit j % 32 of word j / 32 says whether list l has the diagonal at distance j, for every distance
//   up to the last row's position. Not read without diagonals.
//   partials f32 [row][head][d + 2], or null: softmaxes of other tokens, as written by attend_own.cu.
//
// Launch, with TILE rows in a tile (32 or 64) and w the kernel's width
//   grid    x = blocks * ceil(block_rows * heads / lists / TILE), y = lists
//   block   128 threads
//   shared  dynamic, (TILE + 128) * 2 * w bytes, and with diagonals a bit for every 64 tokens up to the last row's position, in whole words
//   (raise the kernel's limit first)
//   scale   positive
//
// How it works. A block of threads owns a tile of rows and visits tiles of 64 tokens, first of the list, then of the stretch. Keys and
// values are gathered token by token, 16 bytes per copy. A tile's values are copied while its scores are computed, and the next keys while
// values are summed. With 64 rows, each of 4 warps owns 16 rows; with 32, two warps share 16 rows, each takes half of the tokens, and their
// sums are merged at the end. Blocks that run at the same time belong to one list, so its keys stay in the second-level cache. Diagonals
// are visited between list and stretch, in aligned tiles of 64 tokens; tiles that no diagonal of any row meets are skipped. A token that a
// diagonal gives to a row is not taken from the list again.

#include <climits>

#include "tiles.cuh"

namespace attend_blocks {

using namespace tiles;
using numbers::exp2_fast;
using numbers::LOG2_E;

constexpr int THREADS = 128;
constexpr int KEYS = ROWS;
constexpr uint32_t NOBODY = ~0u;

// What the rows see.
struct Seen {
    const uint32_t *tokens, *counts, *starts, *distances;
    const float* partials;
    uint32_t most, starts_stride, block_rows, lists, distance_words;
};

// The distances of a list's diagonals, a bit each.
struct Diagonals {
    const uint32_t* words;

    __device__ __forceinline__ bool at(int distance) const {
        return __ldg(words + distance / 32) >> (distance % 32) & 1;
    }
    // Whether there is a diagonal at a distance in low..=high.
    __device__ __forceinline__ bool within(int low, int high) const {
        for (int word = low / 32; word <= high / 32; ++word) {
            uint32_t bits = __ldg(words + word);
            if (word == low / 32) bits &= ~0u << (low % 32);
            if (word == high / 32) bits &= ~0u >> (31 - high % 32);
            if (bits) return true;
        }
        return false;
    }
};

template <typename T> struct Problem {
    const T *q, *k, *v;
    T* out;
    int d, q_stride;
    long long kv_stride;
    int rows, first, heads, kv_heads;
    float scale;
    Seen seen;
};

// A block's rows for all heads of a part, numbered head after head.
struct Tile {
    int block, base, head, count;  // rows of a block begin with `base`; `count` is one past the last number

    // The prompt's row with number `i`, or -1 if there is none.
    __device__ __forceinline__ int row(int i, int block_rows, int rows) const {
        const int row = base + i % block_rows;
        return i < count && row < rows ? row : -1;
    }
};

// Gathers the keys or values of 64 tokens into a tile.
template <typename T, int WIDTH>
__device__ __forceinline__ void gather(uint32_t tile, const T* from, const uint32_t* ids, int d) {
    constexpr int PIECES = WIDTH / 8;
#pragma unroll 4
    for (int i = 0; i < KEYS * PIECES / THREADS; ++i) {
        const int at = i * THREADS + threadIdx.x, r = at / PIECES, c = at % PIECES;
        const uint32_t id = ids[r];
        const bool valid = id != NOBODY && 8 * c < d;
        copy_16(piece<WIDTH>(tile, r, c), valid ? from + static_cast<size_t>(id) * d + 8 * c : from, valid);
    }
}

// Merges a row's partial into row r of the lane's two; the lane's columns begin at `column`. The row itself has seen at least one token:
// itself.
template <typename T, int WIDTH>
__device__ __forceinline__ void merge(RowSums<T, WIDTH>& sums, int r, float scale_log2, const float* partial, int column, int d) {
    const float2 other = *reinterpret_cast<const float2*>(partial);
    // If the sum is 0, the sums of values are not set.
    if (other.y == 0.f) return;
    const float own = sums.maximum[r] * scale_log2, m = fmaxf(own, other.x);
    const float ours = exp2_fast(own - m), theirs = exp2_fast(other.x - m);
    sums.sum[r] = sums.sum[r] * ours + other.y * theirs;
#pragma unroll
    for (int i = 0; i < WIDTH / 8; ++i) {
        if (8 * i >= d) continue;
        const float2 part = *reinterpret_cast<const float2*>(partial + 2 + column + 8 * i);
        float* const pair = sums.o + 4 * i + 2 * r;
        pair[0] = pair[0] * ours + part.x * theirs, pair[1] = pair[1] * ours + part.y * theirs;
    }
}

template <typename T, int WIDTH, int ROW_WARPS, bool LINES> __device__ __forceinline__ void attend(const Problem<T>& problem) {
    constexpr int KEY_WARPS = 4 / ROW_WARPS, QUERIES = 16 * ROW_WARPS, OWN = KEYS / KEY_WARPS;
    constexpr uint32_t ROW_BYTES = (WIDTH + 63) / 64 * 128;
    extern __shared__ __align__(1024) uint8_t shared_raw[];
    __shared__ uint32_t ids[3][KEYS];
    __shared__ int bounds[3];
    const uint32_t q_tile = shared_address(shared_raw), k_tile = q_tile + QUERIES * ROW_BYTES,
                   v_tile = k_tile + KEYS * ROW_BYTES;
    const Seen& seen = problem.seen;
    const int d = problem.d, block_rows = static_cast<int>(seen.block_rows);
    const int list = blockIdx.y, sharing = problem.heads / static_cast<int>(seen.lists);
    const int numbers = block_rows * sharing, tiles_of_block = (numbers + QUERIES - 1) / QUERIES;
    // Blocks with most tokens start first.
    const int at = gridDim.x - 1 - blockIdx.x;
    const Tile tile{at / tiles_of_block, at / tiles_of_block * block_rows, list * sharing, numbers};
    const int number0 = at % tiles_of_block * QUERIES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int row_warp = warp % ROW_WARPS, own_key = warp / ROW_WARPS * OWN;
    const uint32_t* starts = seen.starts + static_cast<size_t>(list) * seen.starts_stride;

    // First and last start, and first and last row, of the tile.
    if (warp == 0) {
        int first_start = INT_MAX, last_start = 0, first_row = INT_MAX, last_row = 0;
        for (int i = lane; i < QUERIES; i += 32) {
            const int row = tile.row(number0 + i, block_rows, problem.rows);
            if (row < 0) continue;
            const int start = static_cast<int>(starts[row]);
            first_start = min(first_start, start), last_start = max(last_start, start);
            first_row = min(first_row, row), last_row = max(last_row, row);
        }
        first_start = __reduce_min_sync(~0u, first_start), last_start = __reduce_max_sync(~0u, last_start);
        first_row = __reduce_min_sync(~0u, first_row), last_row = __reduce_max_sync(~0u, last_row);
        if (lane == 0) bounds[0] = first_start, bounds[1] = last_start, bounds[2] = first_row;
        if (lane == 1) ids[2][0] = last_row;
    }
    __syncthreads();
    const int first_start = bounds[0], last_start = bounds[1], first_position = problem.first + bounds[2];
    if (first_start == INT_MAX) return;  // no row of the chunk is in the tile
    const int end = problem.first + static_cast<int>(ids[2][0]) + 1;
    const size_t index = static_cast<size_t>(tile.block) * seen.lists + list;
    const uint32_t* listed = seen.tokens + index * seen.most;
    const int count = static_cast<int>(seen.counts[index]);
    const int list_tiles = (count + KEYS - 1) / KEYS;
    const Diagonals diagonals{seen.distances + static_cast<size_t>(list) * seen.distance_words};
    // A bit for each aligned tile of tokens that a row may see by a diagonal: those before the last start.
    uint32_t* const met = reinterpret_cast<uint32_t*>(shared_raw + (QUERIES + 2 * KEYS) * ROW_BYTES);
    int line_tiles = 0, last_met = -1;
    if constexpr (LINES) {
        const int aligned = (last_start + KEYS - 1) / KEYS, words = (aligned + 31) / 32;
        for (int word = warp; word < words; word += 4) {
            const int key0 = (32 * word + lane) * KEYS;
            const bool meets = key0 < last_start && diagonals.within(max(0, first_position - key0 - KEYS + 1), end - 1 - key0);
            const uint32_t bits = __ballot_sync(~0u, meets);
            if (lane == 0) met[word] = bits;
        }
        __syncthreads();
        for (int word = 0; word < words; ++word) line_tiles += __popc(met[word]);
    }
    const int before_stretch = list_tiles + line_tiles;
    const int tiles = before_stretch + (end - first_start + KEYS - 1) / KEYS;
    // The token in slot `slot` of a tile. Tiles must be requested in order.
    auto id_of = [&](int tile, int slot) -> uint32_t {
        if (tile < list_tiles) {
            const int i = tile * KEYS + slot;
            return i < count ? listed[i] : NOBODY;
        }
        if (LINES && tile < before_stretch) {
            int word = ++last_met / 32;
            uint32_t bits = met[word] & ~0u << (last_met % 32);
            while (!bits) bits = met[++word];
            last_met = 32 * word + __ffs(bits) - 1;
            const int key = last_met * KEYS + slot;
            return key < last_start ? static_cast<uint32_t>(key) : NOBODY;
        }
        const int key = first_start + (tile - before_stretch) * KEYS + slot;
        return key < end ? static_cast<uint32_t>(key) : NOBODY;
    };
    __syncthreads();  // the last row is read
    if (threadIdx.x < KEYS) {
        ids[0][threadIdx.x] = id_of(0, threadIdx.x);
        ids[1][threadIdx.x] = tiles > 1 ? id_of(1, threadIdx.x) : NOBODY;
    }
    __syncthreads();

    const size_t shift = static_cast<size_t>(tile.head / (problem.heads / problem.kv_heads)) * problem.kv_stride;
    const T *k = problem.k + shift, *v = problem.v + shift;
    {
        constexpr int PIECES = WIDTH / 8;
#pragma unroll 4
        for (int i = 0; i < QUERIES * PIECES / THREADS; ++i) {
            const int at = i * THREADS + threadIdx.x, r = at / PIECES, c = at % PIECES;
            const int row = tile.row(number0 + r, block_rows, problem.rows);
            const bool valid = row >= 0 && 8 * c < d;
            const int head = tile.head + (number0 + r) / block_rows;
            const size_t from = static_cast<size_t>(row) * problem.q_stride + static_cast<size_t>(head) * d + 8 * c;
            copy_16(piece<WIDTH>(q_tile, r, c), valid ? problem.q + from : problem.q, valid);
        }
    }
    gather<T, WIDTH>(k_tile, k, ids[0], d);
    copy_commit();

    // Start and position of the lane's two rows; rows that do not exist see nothing.
    int start[2], position[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int row = tile.row(number0 + 16 * row_warp + g + 8 * r, block_rows, problem.rows);
        start[r] = row < 0 ? 0 : static_cast<int>(starts[row]);
        position[r] = row < 0 ? -1 : problem.first + row;
    }
    const float scale_log2 = problem.scale * LOG2_E;
    RowSums<T, WIDTH> sums;
    sums.begin();

    for (int at = 0; at < tiles; ++at) {
        copy_wait<0>();
        __syncthreads();  // the keys are there, nobody reads the last values any more, and the next tokens are known
        const uint32_t* own = ids[at % 3];
        gather<T, WIDTH>(v_tile, v, own, d);
        copy_commit();
        uint32_t after_next = NOBODY;
        if (threadIdx.x < KEYS && at + 2 < tiles) after_next = id_of(at + 2, threadIdx.x);

        float s[OWN / 2];
        score_tiles<T, WIDTH, OWN>(s, q_tile, k_tile, 16 * row_warp, own_key, lane);

        const bool is_list = at < list_tiles, is_line = LINES && !is_list && at < before_stretch;
        const int begin = first_start + (at - before_stretch) * KEYS;
        // Whether all rows see all tokens of the tile: in the list those before the first start, in the stretch those from the last start
        // to the first row.
        const bool is_whole = is_line   ? false
                              : is_list ? line_tiles == 0 && own[KEYS - 1] < static_cast<uint32_t>(first_start)
                                        : begin >= last_start && begin + KEYS - 1 <= first_position;
        if (!is_whole) {
#pragma unroll
            for (int i = 0; i < OWN / 8; ++i) {
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    const int slot = own_key + 8 * i + 2 * t + c;
                    const bool is_before = is_list || is_line;
                    const uint32_t id = is_before ? own[slot] : static_cast<uint32_t>(begin + slot);
#pragma unroll
                    for (int r = 0; r < 2; ++r) {
                        bool sees = is_before ? id < static_cast<uint32_t>(start[r])
                                              : static_cast<int>(id) >= start[r] && static_cast<int>(id) <= position[r];
                        if (LINES && is_before && line_tiles > 0 && sees)
                            sees = diagonals.at(position[r] - static_cast<int>(id)) == is_line;
                        if (!sees) s[4 * i + 2 * r + c] = -INFINITY;
                    }
                }
            }
        }
        // A row may have seen nothing so far.
        sums.template weigh<true, OWN>(s, scale_log2);
        // No thread reads the previous tile's tokens any more.
        if (threadIdx.x < KEYS) ids[(at + 2) % 3][threadIdx.x] = after_next;

        copy_wait<0>();
        __syncthreads();  // the values are there, and nobody reads the keys any more
        if (at + 1 < tiles) gather<T, WIDTH>(k_tile, k, ids[(at + 1) % 3], d);
        copy_commit();
        sums.template add<OWN>(s, v_tile, own_key, lane);
    }
    sums.join_lanes();
    if constexpr (KEY_WARPS == 2) {
        // The warps for the second half of the tokens pass their sums to those for the first half.
        float* handed = reinterpret_cast<float*>(shared_raw + QUERIES * ROW_BYTES);
        float* scalars = reinterpret_cast<float*>(shared_raw);
        __syncthreads();
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int row = 16 * row_warp + g + 8 * r;
            if (warp < ROW_WARPS) continue;
#pragma unroll
            for (int i = 0; i < WIDTH / 8; ++i)
                *reinterpret_cast<float2*>(handed + row * WIDTH + 8 * i + 2 * t) =
                    make_float2(sums.o[4 * i + 2 * r], sums.o[4 * i + 2 * r + 1]);
            if (t == 0) scalars[2 * row] = sums.maximum[r], scalars[2 * row + 1] = sums.sum[r];
        }
        __syncthreads();
        if (warp >= ROW_WARPS) return;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int row = 16 * row_warp + g + 8 * r;
            const float other = scalars[2 * row], m = fmaxf(sums.maximum[r], other);
            const float own = sums.maximum[r] == m ? 1.f : exp2_fast((sums.maximum[r] - m) * scale_log2);
            const float theirs = other == m ? 1.f : exp2_fast((other - m) * scale_log2);
            sums.maximum[r] = m, sums.sum[r] = sums.sum[r] * own + scalars[2 * row + 1] * theirs;
#pragma unroll
            for (int i = 0; i < WIDTH / 8; ++i) {
                const float2 part = *reinterpret_cast<float2*>(handed + row * WIDTH + 8 * i + 2 * t);
                float* const pair = sums.o + 4 * i + 2 * r;
                pair[0] = pair[0] * own + part.x * theirs, pair[1] = pair[1] * own + part.y * theirs;
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int number = number0 + 16 * row_warp + g + 8 * r;
        if (position[r] < 0) continue;
        const int row = position[r] - problem.first, head = tile.head + number / block_rows;
        const size_t line = static_cast<size_t>(row) * problem.heads + head;
        if (seen.partials) merge(sums, r, scale_log2, seen.partials + line * (d + 2), 2 * t, d);
        sums.store(r, problem.out + line * d + 2 * t, d);
    }
}

}  // namespace attend_blocks

#define ATTEND(T, NAME, WIDTH, TILE, LINES)                                                                             \
    extern "C" __global__ void __launch_bounds__(attend_blocks::THREADS, WIDTH > 128 ? 1 : TILE == 32 ? 4 : 3)          \
        NAME(const T* q, const T* k, const T* v, T* out, int d, int q_stride, long long kv_stride, int rows, int first, \
             int heads, int kv_heads, float scale, const attend_blocks::Seen seen) {                                    \
        attend_blocks::attend<T, WIDTH, TILE / 16, LINES>(attend_blocks::Problem<T>{                                    \
            q, k, v, out, d, q_stride, kv_stride, rows, first, heads, kv_heads, scale, seen});                          \
    }

#define KERNELS(T, NAME, WIDTH)                               \
    ATTEND(T, attend_blocks_##NAME##_##WIDTH##_32, WIDTH, 32, false) \
    ATTEND(T, attend_blocks_##NAME##_##WIDTH##_64, WIDTH, 64, false) \
    ATTEND(T, attend_lines_##NAME##_##WIDTH, WIDTH, 64, true)
#define WIDTHS(T, NAME) KERNELS(T, NAME, 64) KERNELS(T, NAME, 128) KERNELS(T, NAME, 256)

WIDTHS(__half, f16)
WIDTHS(__nv_bfloat16, bf16)

// Tokens first..first + count, written to a list from `place` on.
struct Run { uint32_t first, count, place; };

// One block for each list. Writes out the list's runs [begins[list], begins[list + 1]), lists `most` apart, and its number of tokens.
extern "C" __global__ void __launch_bounds__(256) write_runs(const Run* runs, const uint32_t* begins, uint32_t* tokens,
                                                             uint32_t most, uint32_t* counts) {
    const uint32_t begin = begins[blockIdx.x], end = begins[blockIdx.x + 1];
    uint32_t* to = tokens + static_cast<size_t>(blockIdx.x) * most;
    for (uint32_t i = begin + threadIdx.x / 32; i < end; i += blockDim.x / 32) {
        const Run run = runs[i];
        for (uint32_t j = threadIdx.x % 32; j < run.count; j += 32) to[run.place + j] = run.first + j;
    }
    if (threadIdx.x == 0) counts[blockIdx.x] = begin == end ? 0 : runs[end - 1].place + runs[end - 1].count;
}
