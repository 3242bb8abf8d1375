// Labels of keys in few bits (Double Sparsity: a few channels of each key, each channel quantised by its own range over 128 tokens), and
// their products with queries on tensor cores.
//
// Codes are stored as operands of mma.m16n8k32 on bytes (with 16 channels: m16n8k16): 16 tokens are the rows, channels the depth. Lane 4g +
// t holds the codes of tokens g and g + 8 at the four channels from 4t on, and from 4t + 16 on; a mask of a word of codes gives one
// register of the product. The other operand is the query times the steps of the group, in fixed point: 24 bits relative to the largest,
// whose three bytes are three columns of the product. Sums of whole numbers are exact, so only the last step rounds.
#include "mma.cuh"

// Tokens that share a channel's range, and tokens of one product.
constexpr int GROUP = 128, TILE = 16, TILES = GROUP / TILE;
// Warps of a block of the scoring kernel.
constexpr int WARPS = 4;
// Queries of a block, queries of one product, and columns of each query, one for each byte.
constexpr int QUERIES = 8, AT_ONCE = 2, BYTES = 4;
// Channels are padded to a multiple of these.
constexpr int DEPTH = 16;
// The largest whole number of a query's channel. Its bytes, lowest first, are signed numbers.
constexpr float WHOLE = 8.0e6f;
constexpr uint32_t SIGNS = 0x00808080u;

struct Range { float least, step; };

// The layout of codes with padded channels: registers of a product, channels of it, products in a tile; codes in a byte, and words that a
// lane holds of a group for one product each.
template <int BITS, int BLOCKS> struct Shape {
    static constexpr int REGISTERS = BLOCKS > 1 ? 4 : 2, CHANNELS = 8 * REGISTERS, CHUNKS = BLOCKS * DEPTH / CHANNELS;
    static constexpr int FIELDS = 8 / BITS, WORDS = TILES * REGISTERS / FIELDS;
};

// How codes are rounded: to the nearest number, to one that is not greater, or to one that is not less. Numbers as in the launchers.
enum Rounding { NEAREST = 0, DOWN = 1, UP = 2 };

// What a code stands for, rounded twice as on the host.
__device__ __forceinline__ float decoded(float low, float step, float code) { return __fadd_rn(low, __fmul_rn(step, code)); }

// The code of `x`, which lies in the range. The quotient is rounded, so the code is corrected by what it decodes to.
__device__ __forceinline__ float code_of(float x, float low, float step, float top, int rounding) {
    if (!(step > 0.0f)) return 0.0f;
    const float place = __fdiv_rn(__fsub_rn(x, low), step);
    float code = rounding == DOWN ? floorf(place) : rounding == UP ? ceilf(place) : roundf(place);
    code = fminf(fmaxf(code, 0.0f), top);
    if (rounding == DOWN && decoded(low, step, code) > x) code -= 1.0f;
    if (rounding == UP && decoded(low, step, code) < x) code += 1.0f;
    return fminf(fmaxf(code, 0.0f), top);
}

// Blocks: groups, KV heads; one thread for each token. `keys` begins with the first candidate of the first KV head. `channels` are `[heads
// of a model][width]`, repeated for further KV heads. `ranges` are `[kv_head][group][padded]`, with zeros beyond `width`; codes are
// `[kv_head][group][product][words / 4][lane][4]`.
template <typename T, int BITS>
__device__ void build_labels(const T* keys, uint64_t head_stride, uint32_t tokens, int d, const uint32_t* channels,
                             uint32_t channel_heads, uint32_t width, uint32_t padded, int rounding, Range* ranges,
                             uint32_t* codes) {
    constexpr float TOP = (1 << BITS) - 1;
    __shared__ float least[4], most[4];
    extern __shared__ uint8_t own[];
    const uint32_t first = blockIdx.x * GROUP, count = min(GROUP, tokens - first);
    const bool is_there = threadIdx.x < count;
    const T* row = keys + blockIdx.y * head_stride + static_cast<uint64_t>(first + min(threadIdx.x, count - 1)) * d;
    const uint32_t* chosen = channels + blockIdx.y % channel_heads * width;
    const uint64_t group = static_cast<uint64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
    for (uint32_t c = 0; c < padded; ++c) {
        const float x = c < width ? to_f32(row[chosen[c]]) : 0.0f;
        float low = x, high = x;
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            low = fminf(low, __shfl_xor_sync(~0u, low, step));
            high = fmaxf(high, __shfl_xor_sync(~0u, high, step));
        }
        if (threadIdx.x % 32 == 0) least[threadIdx.x / 32] = low, most[threadIdx.x / 32] = high;
        __syncthreads();
        low = fminf(fminf(least[0], least[1]), fminf(least[2], least[3]));
        high = fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3]));
        __syncthreads();
        float step = c < width ? __fdiv_rn(__fsub_rn(high, low), TOP) : 0.0f;
        // Rounded up, the last code has to reach the greatest value.
        while (rounding == UP && c < width && decoded(low, step, TOP) < high && isfinite(step)) step = nextafterf(step, CUDART_INF_F);
        if (threadIdx.x == 0) ranges[group * padded + c] = {c < width ? low : 0.0f, step};
        own[c * GROUP + threadIdx.x] = is_there ? static_cast<uint8_t>(code_of(x, low, step, TOP, rounding)) : 0;
    }
    __syncthreads();
    // A field of a word is a register of a product: the codes of four channels of one token.
    constexpr int FIELDS = 8 / BITS;
    const int registers = padded > DEPTH ? 4 : 2, words = TILES * registers / FIELDS;
    const uint32_t pieces = padded / (8 * registers) * 32 * words;
    for (uint32_t at = threadIdx.x; at < pieces; at += GROUP) {
        const int lane = at / 4 % 32, word = at / 128 % (words / 4) * 4 + at % 4, chunk = at / (32 * words);
        const int g = lane / 4, t = lane % 4;
        uint32_t packed = 0;
#pragma unroll
        for (int field = 0; field < FIELDS; ++field) {
            const int number = word * FIELDS + field, tile = number / registers, reg = number % registers;
            const int token = tile * TILE + g + reg % 2 * 8, channel = chunk * 8 * registers + 4 * t + reg / 2 * 16;
#pragma unroll
            for (int byte = 0; byte < 4; ++byte)
                packed |= static_cast<uint32_t>(own[(channel + byte) * GROUP + token]) << (BITS * field + 8 * byte);
        }
        codes[group * pieces + at] = packed;
    }
}

// c += a · b on bytes: unsigned codes, signed numbers.
__device__ __forceinline__ void multiply_bytes(int (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void multiply_bytes(int (&c)[4], const uint32_t (&a)[2], const uint32_t (&b)[1]) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b[0]));
}

// A lane's data of a group: its codes, and the ranges of its channels.
template <int BITS, int BLOCKS> struct Group {
    using Form = Shape<BITS, BLOCKS>;
    uint32_t words[Form::CHUNKS][Form::WORDS];
    float4 ranges[Form::CHUNKS][Form::REGISTERS];

    __device__ __forceinline__ void load(const uint32_t* codes, const Range* of_group, int lane) {
#pragma unroll
        for (int chunk = 0; chunk < Form::CHUNKS; ++chunk) {
#pragma unroll
            for (int i = 0; i < Form::WORDS / 4; ++i) {
                const Halves four = load_once(codes + ((chunk * (Form::WORDS / 4) + i) * 32 + lane) * 4);
#pragma unroll
                for (int j = 0; j < 4; ++j) words[chunk][4 * i + j] = four.words[j];
            }
#pragma unroll
            for (int i = 0; i < Form::REGISTERS; ++i) {
                const Range* from = of_group + chunk * Form::CHANNELS + 4 * (lane % 4) + i / 2 * 16 + i % 2 * 2;
                ranges[chunk][i] = __ldg(reinterpret_cast<const float4*>(from));
            }
        }
    }

    // Unpacks the operand of a tile.
    __device__ __forceinline__ void widen(uint32_t (&a)[Form::REGISTERS], int chunk, int tile) const {
        constexpr uint32_t MASK = BITS == 4 ? 0x0f0f0f0fu : 0x03030303u;
#pragma unroll
        for (int i = 0; i < Form::REGISTERS; ++i) {
            const int number = tile * Form::REGISTERS + i;
            a[i] = words[chunk][number / Form::FIELDS] >> (BITS * (number % Form::FIELDS)) & MASK;
        }
    }
};

// Blocks: WARPS * `each` groups, KV heads, and as many rows as have eight queries of a KV head. Of each `group` heads, the `some` from
// `first_head` on take `places` of the eight queries, a power of two; all heads, if scores are reduced to their maximum. Scores are
// `[row][query head][stride]`, or `[row][KV head][stride]` if reduced. The sum over a group is the score of the sum of its queries, which
// takes one place.
template <typename T, int BITS, int BLOCKS>
__device__ void label_scores(const uint32_t* rows, uint32_t count, const T* queries, uint64_t row_stride, int d, int heads,
                             int group, int first_head, int some, int places, const uint32_t* channels, uint32_t channel_heads,
                             uint32_t width, const Range* ranges, const uint32_t* codes, uint32_t tokens, uint32_t each,
                             int reduction, float* out, uint64_t stride) {
    using Form = Shape<BITS, BLOCKS>;
    constexpr int PADDED = BLOCKS * DEPTH;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, kv_head = blockIdx.y;
    const uint32_t groups = (tokens + GROUP - 1) / GROUP;
    const bool sums = reduction == SUM, largest = reduction == MAX;
    if (sums) places = 1;
    const int rows_a_block = QUERIES / places;
    const uint32_t first_row = blockIdx.z * rows_a_block;
    const int used = min(static_cast<uint32_t>(rows_a_block), count - first_row) * places;
    const uint32_t begin = (blockIdx.x * WARPS + warp) * each, end = min(groups, begin + each);
    const uint64_t before = static_cast<uint64_t>(kv_head) * groups;
    constexpr int GROUP_WORDS = Form::CHUNKS * Form::WORDS * 32;
    // The next group is loaded while one is processed, if registers suffice.
    constexpr bool AHEAD = BLOCKS <= 2;
    Group<BITS, BLOCKS> own, next;
    if (AHEAD && begin < end) next.load(codes + (before + begin) * GROUP_WORDS, ranges + (before + begin) * PADDED, lane);
    // Queries at the channels of the labels.
    __shared__ __align__(16) float asked[QUERIES][PADDED];
    const uint32_t* chosen = channels + kv_head % channel_heads * width;
    for (int i = threadIdx.x; i < QUERIES * PADDED; i += 32 * WARPS) {
        const int query = i / PADDED, c = i % PADDED;
        float sum = 0.0f;
        if (query < used && (sums || query % places < some) && c < width) {
            const T* from = queries + rows[first_row + query / places] * row_stride +
                            static_cast<uint64_t>(kv_head * group + first_head) * d + chosen[c];
            const int until = sums ? some : query % places + 1;
            for (int h = sums ? 0 : query % places; h < until; ++h) sum += to_f32(from[static_cast<uint64_t>(h) * d]);
        }
        asked[query][c] = sum;
    }
    __syncthreads();
    // Where the scores of a query are written; null if it has none.
    auto list_of = [&](int query) -> float* {
        const int of_head = query % places;
        const uint32_t row = first_row + query / places;
        if (query >= used || !sums && !largest && of_head >= some) return nullptr;
        const uint64_t list = sums || largest ? static_cast<uint64_t>(row) * (heads / group) + kv_head
                                              : static_cast<uint64_t>(row) * heads + kv_head * group + first_head + of_head;
        return out + list * stride;
    };
    for (uint32_t at = begin; at < end; ++at) {
        const uint64_t number = before + at + (AHEAD ? 1 : 0);
        if (AHEAD) own = next;
        if (!AHEAD || at + 1 < end)
            (AHEAD ? next : own).load(codes + number * GROUP_WORDS, ranges + number * PADDED, lane);
        const uint32_t left = min(GROUP, tokens - at * GROUP), token = g + t % 2 * 8;
        float best[TILES];
        for (int first = 0; first < used; first += AT_ONCE) {
            // Query g / 4 of the two at this lane's channels, and the part of its score that the ranges' minima give.
            float y[Form::CHUNKS][Form::REGISTERS * 2], fixed = 0.0f, most = 0.0f;
            const float* query = asked[first + g / BYTES] + 4 * t;
#pragma unroll
            for (int chunk = 0; chunk < Form::CHUNKS; ++chunk)
#pragma unroll
                for (int i = 0; i < Form::REGISTERS; ++i) {
                    const float2 q = *reinterpret_cast<const float2*>(query + chunk * Form::CHANNELS + i / 2 * 16 + i % 2 * 2);
                    const float4 range = own.ranges[chunk][i];
                    y[chunk][2 * i] = q.x * range.y, y[chunk][2 * i + 1] = q.y * range.w;
                    fixed += q.x * range.x + q.y * range.z;
                    most = fmaxf(most, fmaxf(fabsf(y[chunk][2 * i]), fabsf(y[chunk][2 * i + 1])));
                }
            fixed += __shfl_xor_sync(~0u, fixed, 1), most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
            fixed += __shfl_xor_sync(~0u, fixed, 2), most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
            // NaN and infinities propagate.
            const float factor = most > 1e-30f ? WHOLE / most : 0.0f;
            float unit = most * (1.0f / WHOLE);
            uint32_t b[Form::CHUNKS][Form::REGISTERS / 2];
            const int byte = g % BYTES;
#pragma unroll
            for (int chunk = 0; chunk < Form::CHUNKS; ++chunk)
#pragma unroll
                for (int i = 0; i < Form::REGISTERS / 2; ++i) {
                    uint32_t whole[4];
#pragma unroll
                    for (int j = 0; j < 4; ++j)
                        whole[j] = static_cast<uint32_t>(__float2int_rn(y[chunk][4 * i + j] * factor) + static_cast<int>(SIGNS));
                    const uint32_t select = byte | (byte + 4) << 4;
                    const uint32_t low = __byte_perm(whole[0], whole[1], select), high = __byte_perm(whole[2], whole[3], select);
                    b[chunk][i] = byte == 3 ? 0 : __byte_perm(low, high, 0x5410) ^ 0x80808080u;
                }
            // The values for the query whose columns this lane gets.
            const int from = t / 2 * 16;
            fixed = __shfl_sync(~0u, fixed, from), unit = __shfl_sync(~0u, unit, from);
            const float weight = t % 2 ? 65536.0f * unit : unit;
            const int own_query = first + t / 2;
            float* to = list_of(own_query);
            // The maximum over a group: over the queries of this product and of those before.
            const bool joins = largest && places > 1, is_first = first % places == 0, is_last = (first + AT_ONCE) % places == 0;
            if (joins && (t >= 2 || !is_last && places > AT_ONCE)) to = nullptr;
            const bool counts = !largest || own_query % places < some;
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
                int c[4] = {};
#pragma unroll
                for (int chunk = 0; chunk < Form::CHUNKS; ++chunk) {
                    uint32_t a[Form::REGISTERS];
                    own.widen(a, chunk, tile);
                    multiply_bytes(c, a, b[chunk]);
                }
                float low = static_cast<float>(c[0] + (c[1] << 8)) * weight, high = static_cast<float>(c[2] + (c[3] << 8)) * weight;
                // Of two tokens, each lane keeps one.
                const float mine = t % 2 ? high : low, other = t % 2 ? low : high;
                float score = fixed + (mine + __shfl_xor_sync(~0u, other, 1));
                if (joins) {
                    if (!counts) score = -CUDART_INF_F;
                    score = fmaxf(score, __shfl_xor_sync(~0u, score, 2));
                    if (!is_first) score = fmaxf(score, best[tile]);
                    best[tile] = score;
                }
                if (to && tile * TILE + token < left) to[at * GROUP + tile * TILE + token] = score;
            }
        }
    }
}

#define BUILD(T, NAME, BITS)                                                                                            \
    extern "C" __global__ void __launch_bounds__(GROUP) build_labels_##NAME##_##BITS(                                   \
        const T* keys, unsigned long long head_stride, uint32_t tokens, int d, const uint32_t* channels,                \
        uint32_t channel_heads, uint32_t width, uint32_t padded, int rounding, Range* ranges, uint32_t* codes) {        \
        build_labels<T, BITS>(keys, head_stride, tokens, d, channels, channel_heads, width, padded, rounding, ranges,   \
                              codes);                                                                                   \
    }

#define SCORES(T, NAME, BITS, BLOCKS)                                                                                   \
    extern "C" __global__ void __launch_bounds__(32 * WARPS) label_scores_##NAME##_##BITS##_##BLOCKS(                   \
        const uint32_t* rows, uint32_t count, const T* queries, unsigned long long row_stride, int d, int heads,        \
        int group, int first_head, int some, int places, const uint32_t* channels, uint32_t channel_heads,              \
        uint32_t width, const Range* ranges, const uint32_t* codes, uint32_t tokens, uint32_t each, int reduction,      \
        float* out, unsigned long long stride) {                                                                                    \
        label_scores<T, BITS, BLOCKS>(rows, count, queries, row_stride, d, heads, group, first_head, some, places,      \
                                      channels, channel_heads, width, ranges, codes, tokens, each, reduction, out, stride);   \
    }

#define WIDTHS(T, NAME, BITS)                                                                                           \
    SCORES(T, NAME, BITS, 1) SCORES(T, NAME, BITS, 2) SCORES(T, NAME, BITS, 4) SCORES(T, NAME, BITS, 8)

#define LABELS(T, NAME) BUILD(T, NAME, 4) BUILD(T, NAME, 2) WIDTHS(T, NAME, 4) WIDTHS(T, NAME, 2)

LABELS(float, f32)
LABELS(__half, f16)
LABELS(__nv_bfloat16, bf16)
