// The product of one row with a matrix in quantised blocks on tensor cores, limited by the speed of reading the blocks.
//
// Blocks are as in quantised.cu. A tile is 16 rows of W, a chunk 256 numbers of a row. Warps of a block share the chunks of a tile. Each
// has a ring in shared memory, into which it copies its next chunks of 16 rows, and the sums of warps are added up every few tiles.
//
// Codes are operand A. The bits of an integer below 1024 are those of a subnormal f16 number, 2^-24 times as large, so codes need no
// conversion. They are shifted up as far as they stay below 1024, because a tensor core cuts off the terms of a sum below 2^-25 of the
// largest product, for which it counts any subnormal number as 2^-14. x is operand B. The numbers of a chunk are scaled by a power of two,
// so that the largest fits f16, and split into parts: one if x is stored in 16 bits, three if it is f32. Then a 16-bit number is rounded
// only if it is less than 2^-25 of the largest of its chunk, by 2^-36 of that at most, far below the rounding of f32 sums.
//
// Operand B has eight columns: column g holds the numbers of group g of a chunk. A product multiplies the codes of one group by all
// columns; only the group's own column is kept, and multiplied by the group's scale.
#include "early.cuh"
#include "hopper.cuh"
#include "quantised.cuh"

namespace by_mma {

using hopper::shared_address;

constexpr int ROWS = 16, CHUNK = 256, MOST_WARPS = 16;
// The number of tiles after which the sums of warps are added up.
constexpr int FLUSH = 4;
// Chunks of x that a warp reads at the same time.
constexpr int TOGETHER = 4;
// How far codes of `bits` bits are shifted up, and the factor that corrects their products.
__host__ __device__ constexpr int shift_of(int bits) { return 10 - bits; }
__host__ __device__ constexpr float code_scale(int bits) { return 0x1p24f / (1 << shift_of(bits)); }

// Which groups the 32-byte lines of a chunk's codes belong to; a thread has 8 bytes of each line. HALVES: the low nibbles of a line are one
// group, the high ones the next. LINES: both nibbles of 16 bytes belong to one group. SIXTEENTHS: the low nibbles of 16 bytes are one
// group, the high ones another. BYTES: a line belongs to one group.
enum Layout { HALVES, LINES, SIXTEENTHS, BYTES };

// 16-bit operands of codes 0 and 2, and 1 and 3, of a word.
struct Pairs { uint32_t even, odd; };

// Of four-bit codes in the low or high nibbles of bytes.
__device__ __forceinline__ Pairs half_pairs(uint32_t word, int half) {
    constexpr uint32_t MASK = 0x000f000fu << shift_of(4);
    return {(half ? word << 2 : word << 6) & MASK, (half ? word >> 6 : word >> 2) & MASK};
}
// Of codes of BITS bits in bytes.
template <int BITS> __device__ __forceinline__ Pairs byte_pairs(uint32_t word) {
    constexpr uint32_t MASK = ((1u << BITS) - 1) * 0x00010001u << shift_of(BITS);
    return {word << shift_of(BITS) & MASK, word >> (8 - shift_of(BITS)) & MASK};
}

__device__ __forceinline__ uint32_t shifted(uint32_t word, int left) { return left >= 0 ? word << left : word >> -left; }

// The place of a 16-byte piece of a row in a field of WIDTH bytes a row, so that eight threads that read lines of neighbouring rows use all
// banks.
template <int WIDTH> __device__ __forceinline__ int swizzled(int row, int piece) {
    return WIDTH >= 128 ? piece ^ (row & 3) << 1 : WIDTH == 64 ? piece ^ (row >> 1 & 1) << 1 : piece;
}

// 8 bytes of a line of a row.
template <int WIDTH> __device__ __forceinline__ uint2 eight_at(const uint8_t* field, int row, int line, int t) {
    return *reinterpret_cast<const uint2*>(field + WIDTH * row + 16 * swizzled<WIDTH>(row, 2 * line) + 8 * t);
}

// Bytes of a row in each field of a chunk that is copied; 0 for a field that is not.
template <int A, int B, int C> struct Copied {
    static constexpr int A_ROW = A, B_ROW = B, C_ROW = C;
    static constexpr int B_AT = ROWS * A, C_AT = ROWS * (A + B), BYTES = ROWS * (A + B + C);
};

// Shared by formats that read nothing but what is copied.
struct Plain {
    struct Loose {};
    static __device__ __forceinline__ Loose loose(const Fields&, size_t, size_t) { return {}; }
};

struct Q4_K : Plain {
    static constexpr Layout LAYOUT = HALVES;
    static constexpr int STAGES = 2;
    using Copy = Copied<16, 128, 0>;
    static constexpr int CODES_AT = Copy::B_AT, CODES_ROW = 128;
    static __device__ __forceinline__ uint2 bits(const uint8_t*, int, int, int) { return {}; }
    static __device__ __forceinline__ Pairs pairs(uint32_t word, uint32_t, int, int half, int, int) {
        return half_pairs(word, half);
    }
    static __device__ __forceinline__ void scales(const uint8_t* stage, int row, int t, Loose, int, float (&scale)[2],
                                                  float (&offset)[2]) {
        grouped_scales(*reinterpret_cast<const uint4*>(stage + 16 * row), t, scale, offset);
        scale[0] *= code_scale(4), scale[1] *= code_scale(4);
    }
};

struct Q5_K : Plain {
    static constexpr Layout LAYOUT = HALVES;
    static constexpr int STAGES = 2;
    using Copy = Copied<16, 32, 128>;
    static constexpr int CODES_AT = Copy::C_AT, CODES_ROW = 128;
    static __device__ __forceinline__ uint2 bits(const uint8_t* stage, int row, int, int t) {
        return eight_at<32>(stage + Copy::B_AT, row, 0, t);
    }
    // Bit i of a byte is the highest bit of a code of group i.
    static __device__ __forceinline__ Pairs pairs(uint32_t word, uint32_t bits, int line, int half, int, int) {
        return byte_pairs<5>((word >> (4 * half) & 0x0f0f0f0fu) | (shifted(bits, 4 - 2 * line - half) & 0x10101010u));
    }
    static __device__ __forceinline__ void scales(const uint8_t* stage, int row, int t, Loose, int, float (&scale)[2],
                                                  float (&offset)[2]) {
        grouped_scales(*reinterpret_cast<const uint4*>(stage + 16 * row), t, scale, offset);
        scale[0] *= code_scale(5), scale[1] *= code_scale(5);
    }
};

struct Q6_K {
    static constexpr Layout LAYOUT = SIXTEENTHS;
    static constexpr int STAGES = 2;
    using Copy = Copied<128, 64, 16>;
    static constexpr int CODES_AT = 0, CODES_ROW = 128;
    struct Loose { __half scale[2]; };
    static __device__ __forceinline__ Loose loose(const Fields& from, size_t block, size_t other) {
        const __half* scales = reinterpret_cast<const __half*>(from.field[3]);
        return {scales[block], scales[other]};
    }
    static __device__ __forceinline__ uint2 bits(const uint8_t* stage, int row, int line, int t) {
        return eight_at<64>(stage + Copy::B_AT, row, line / 2, t);
    }
    // A byte has two bits for each quarter of 128 numbers; a line has quarters 0 and 2, or 1 and 3.
    static __device__ __forceinline__ Pairs pairs(uint32_t word, uint32_t bits, int line, int half, int, int) {
        return byte_pairs<6>((word >> (4 * half) & 0x0f0f0f0fu) | (shifted(bits, 4 - 2 * (line % 2) - 4 * half) & 0x30303030u));
    }
    static __device__ __forceinline__ void scales(const uint8_t* stage, int row, int t, Loose loose, int which, float (&scale)[4],
                                                  float (&offset)[4]) {
        const char2* from = reinterpret_cast<const char2*>(stage + Copy::C_AT + 16 * row);
        const char2 low = from[t], high = from[4 + t];
        const float of = __half2float(loose.scale[which]);
        const float codes[4] = {static_cast<float>(low.x), static_cast<float>(low.y), static_cast<float>(high.x),
                                static_cast<float>(high.y)};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float own = of * codes[i];
            scale[i] = code_scale(6) * own, offset[i] = -32.0f * own;
        }
    }
};

// Scales of units 2t and 2t + 1 of a format that stores no offsets, for codes of BITS bits, the least of which is negative.
template <int BITS>
__device__ __forceinline__ void plain_scales(const uint8_t* from, int t, float (&scale)[2], float (&offset)[2]) {
    constexpr float LEAST = -(1 << (BITS - 1));
    const float2 own = __half22float2(reinterpret_cast<const __half2*>(from)[t]);
    scale[0] = code_scale(BITS) * own.x, scale[1] = code_scale(BITS) * own.y, offset[0] = LEAST * own.x, offset[1] = LEAST * own.y;
}

// Scales and offsets of units 2t and 2t + 1 of a format that stores an offset with each scale.
template <int BITS>
__device__ __forceinline__ void offset_scales(const uint8_t* from, int t, float (&scale)[2], float (&offset)[2]) {
    const uint2 raw = reinterpret_cast<const uint2*>(from)[t];
    const float2 a = __half22float2(*reinterpret_cast<const __half2*>(&raw.x));
    const float2 b = __half22float2(*reinterpret_cast<const __half2*>(&raw.y));
    scale[0] = code_scale(BITS) * a.x, scale[1] = code_scale(BITS) * b.x, offset[0] = a.y, offset[1] = b.y;
}

template <int HEAD> struct FourBits : Plain {
    static constexpr Layout LAYOUT = LINES;
    static constexpr int STAGES = 2;
    using Copy = Copied<HEAD, 128, 0>;
    static constexpr int CODES_AT = Copy::B_AT, CODES_ROW = 128;
    static __device__ __forceinline__ uint2 bits(const uint8_t*, int, int, int) { return {}; }
    static __device__ __forceinline__ Pairs pairs(uint32_t word, uint32_t, int, int half, int, int) {
        return half_pairs(word, half);
    }
};

template <int HEAD> struct FiveBits : Plain {
    static constexpr Layout LAYOUT = LINES;
    static constexpr int STAGES = 2;
    using Copy = Copied<HEAD, 32, 128>;
    static constexpr int CODES_AT = Copy::C_AT, CODES_ROW = 128;
    // The highest bits of the 32 codes of a unit, from the thread's first code on.
    static __device__ __forceinline__ uint2 bits(const uint8_t* stage, int row, int line, int t) {
        const uint32_t own = reinterpret_cast<const uint32_t*>(stage + Copy::B_AT + 32 * row)[2 * line + t / 2];
        return {own >> (8 * (t % 2)), own >> (8 * (t % 2))};
    }
    static __device__ __forceinline__ Pairs pairs(uint32_t word, uint32_t bits, int, int half, int i, int) {
        const uint32_t four = bits >> (16 * half + 4 * i) & 15u;
        return byte_pairs<5>((word >> (4 * half) & 0x0f0f0f0fu) | (four * 0x02040810u & 0x10101010u));
    }
};

struct Q4_0 : FourBits<16> {
    static __device__ __forceinline__ void scales(const uint8_t* stage, int row, int t, Loose, int, float (&scale)[2],
                                                  float (&offset)[2]) {
        plain_scales<4>(stage + 16 * row, t, scale, offset);
    }
};

struct Q4_1 : FourBits<32> {
    static __device__ __forceinline__ void scales(const uint8_t* stage, int row, int t, Loose, int, float (&scale)[2],
                                                  float (&offset)[2]) {
        offset_scales<4>(stage + 32 * row, t, scale, offset);
    }
};

struct Q5_0 : FiveBits<16> {
    static __device__ __forceinline__ void scales(const uint8_t* stage, int row, int t, Loose, int, float (&scale)[2],
                                                  float (&offset)[2]) {
        plain_scales<5>(stage + 16 * row, t, scale, offset);
    }
};

struct Q5_1 : FiveBits<32> {
    static __device__ __forceinline__ void scales(const uint8_t* stage, int row, int t, Loose, int, float (&scale)[2],
                                                  float (&offset)[2]) {
        offset_scales<5>(stage + 32 * row, t, scale, offset);
    }
};

struct Q8_0 : Plain {
    static constexpr Layout LAYOUT = BYTES;
    static constexpr int STAGES = 2;
    using Copy = Copied<16, 256, 0>;
    static constexpr int CODES_AT = Copy::B_AT, CODES_ROW = 256;
    static __device__ __forceinline__ uint2 bits(const uint8_t*, int, int, int) { return {}; }
    // The codes plus 128.
    static __device__ __forceinline__ Pairs pairs(uint32_t word, uint32_t, int, int, int, int) {
        return byte_pairs<8>(word ^ 0x80808080u);
    }
    static __device__ __forceinline__ void scales(const uint8_t* stage, int row, int t, Loose, int, float (&scale)[2],
                                                  float (&offset)[2]) {
        plain_scales<8>(stage + 16 * row, t, scale, offset);
    }
};

// A chunk of x in shared memory: its parts, eight numbers a thread in order, and zeros; the sums of groups; and the factor of the sums of
// products.
template <Layout LAYOUT, int PARTS> struct Chunk {
    // Sets of registers that operand B is taken from, and of products that are kept.
    static constexpr int SETS = LAYOUT == LINES || LAYOUT == SIXTEENTHS ? 2 : 1, KEPT = LAYOUT == SIXTEENTHS ? 2 : 1;
    uint4 parts[PARTS][32];
    uint4 zeros;
    float sums[8 * KEPT];
    float back, unused[3];
};

// The place in `parts` of the 8 numbers of a set that thread (g, t) has; 32 for zeros.
template <Layout LAYOUT> __device__ __forceinline__ int slot_of(int set, int g, int t) {
    if constexpr (LAYOUT == LINES) return t / 2 == g % 2 ? 4 * g + 2 * set + t % 2 : 32;
    else if constexpr (LAYOUT == SIXTEENTHS) return t / 2 == g % 2 ? 4 * (4 * set + g / 2) + t : 32;
    else return 4 * g + t;
}

__device__ __forceinline__ uint32_t two_halves(__half low, __half high) {
    return __half_as_ushort(low) | static_cast<uint32_t>(__half_as_ushort(high)) << 16;
}

// Stores a chunk of x, by one warp whose lanes have eight numbers each.
template <typename F, int PARTS>
__device__ __forceinline__ void put_chunk(Chunk<F::LAYOUT, PARTS>& to, const float4& a, const float4& b, int lane) {
    float left[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    float most = 0.0f, sum = ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
#pragma unroll
    for (int i = 0; i < 8; ++i) most = fmaxf(most, fabsf(left[i]));
#pragma unroll
    for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
    sum += __shfl_xor_sync(~0u, sum, 1);
    if constexpr (F::LAYOUT == SIXTEENTHS) {
        if (lane % 2 == 0) to.sums[lane / 2] = sum;
    } else {
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (lane % 4 == 0) to.sums[lane / 4] = sum;
    }
    // Scaled numbers are below 2^15.
    const uint32_t exponent = max(__float_as_uint(most) >> 23, 15u);
    const float factor = __uint_as_float((268u - exponent) << 23);
    if (lane == 0) to.back = __uint_as_float((exponent - 14u) << 23), to.zeros = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < 8; ++i) left[i] *= factor;
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        __half halves[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            halves[i] = __float2half_rn(left[i]);
            left[i] -= __half2float(halves[i]);
        }
        to.parts[part][lane] = make_uint4(two_halves(halves[0], halves[2]), two_halves(halves[1], halves[3]),
                                          two_halves(halves[4], halves[6]), two_halves(halves[5], halves[7]));
    }
}

__device__ __forceinline__ void multiply_add(float (&c)[4], Pairs a, Pairs b, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.even), "r"(b.even), "r"(a.odd), "r"(b.odd), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t word_of(const uint4& words, int i) {
    return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

// The products of a chunk of 16 rows: of rows g and g + 8, those with the thread's groups.
template <typename F, int PARTS>
__device__ __forceinline__ void multiply(const uint8_t* stage, const Chunk<F::LAYOUT, PARTS>& x, typename F::Loose loose, int g, int t,
                                         float (&sums)[2]) {
    using X = Chunk<F::LAYOUT, PARTS>;
    uint4 own[X::SETS][PARTS];
#pragma unroll
    for (int set = 0; set < X::SETS; ++set) {
        const int slot = slot_of<F::LAYOUT>(set, g, t);
#pragma unroll
        for (int part = 0; part < PARTS; ++part) own[set][part] = *(slot == 32 ? &x.zeros : &x.parts[part][slot]);
    }
    // Halves of a line, and how many of them are of one group.
    constexpr int COUNT = F::CODES_ROW / 32, HALF_COUNT = F::LAYOUT == BYTES ? 1 : 2, TOGETHER = F::LAYOUT == LINES ? 2 : 1;
    float kept[X::KEPT][4];
    const uint8_t* codes = stage + F::CODES_AT;
#pragma unroll
    for (int line = 0; line < COUNT; ++line) {
        const uint2 words[2] = {eight_at<F::CODES_ROW>(codes, g, line, t), eight_at<F::CODES_ROW>(codes, g + 8, line, t)};
        const uint2 bits[2] = {F::bits(stage, g, line, t), F::bits(stage, g + 8, line, t)};
        Pairs low[HALF_COUNT][2], high[HALF_COUNT][2];
#pragma unroll
        for (int half = 0; half < HALF_COUNT; ++half)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                low[half][i] = F::pairs(i ? words[0].y : words[0].x, i ? bits[0].y : bits[0].x, line, half, i, t);
                high[half][i] = F::pairs(i ? words[1].y : words[1].x, i ? bits[1].y : bits[1].x, line, half, i, t);
            }
#pragma unroll
        for (int first = 0; first < HALF_COUNT; first += TOGETHER) {
            float c[4] = {};
            // The smallest parts come first, because tensor cores cut off what is added to a large sum and do not round it.
#pragma unroll
            for (int part = PARTS - 1; part >= 0; --part)
#pragma unroll
                for (int half = first; half < first + TOGETHER; ++half)
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        const uint4& numbers = own[F::LAYOUT == LINES ? half : F::LAYOUT == SIXTEENTHS ? line / 2 : 0][part];
                        multiply_add(c, low[half][i], high[half][i], word_of(numbers, 2 * i), word_of(numbers, 2 * i + 1));
                    }
            if constexpr (F::LAYOUT == HALVES || F::LAYOUT == BYTES) {
                const int group = HALF_COUNT * line + first, column = group % 2;
                if (t == group / 2) kept[0][column] = c[column], kept[0][2 + column] = c[2 + column];
            } else if (t == (F::LAYOUT == LINES ? line : 2 * first + line % 2)) {
#pragma unroll
                for (int j = 0; j < 4; ++j) kept[F::LAYOUT == LINES ? 0 : line / 2][j] = c[j];
            }
        }
    }
    float totals[2 * X::KEPT];
#pragma unroll
    for (int set = 0; set < X::KEPT; ++set) {
        const float2 two = reinterpret_cast<const float2*>(x.sums)[4 * set + t];
        totals[2 * set] = two.x, totals[2 * set + 1] = two.y;
    }
    const float back = x.back;
#pragma unroll
    for (int which = 0; which < 2; ++which) {
        float scale[2 * X::KEPT], offset[2 * X::KEPT], dot = 0.0f, rest = 0.0f;
        F::scales(stage, g + 8 * which, t, loose, which, scale, offset);
#pragma unroll
        for (int i = 0; i < 2 * X::KEPT; ++i) {
            dot = fmaf(scale[i], kept[i / 2][2 * which + i % 2], dot);
            rest = fmaf(offset[i], totals[i], rest);
        }
        sums[which] += fmaf(back, dot, rest);
    }
}

__device__ __forceinline__ void copy_16(uint32_t to, const uint8_t* from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copies_committed() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void copies_done() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }

// Copies a field of a chunk of 16 rows, by one warp. `block` is the first block, or group of blocks, of the first row; a row has `chunks`.
template <int WIDTH> __device__ __forceinline__ void copy_field(uint32_t to, const uint8_t* field, size_t block, int chunks, int lane) {
    if constexpr (WIDTH > 0) {
        constexpr int PIECES = WIDTH / 16, AT_ONCE = 32 / PIECES;
        const int row = lane / PIECES, piece = lane % PIECES;
        const uint8_t* from = field + (block + static_cast<size_t>(row) * chunks) * WIDTH + 16 * piece;
        const size_t stride = static_cast<size_t>(AT_ONCE) * chunks * WIDTH;
#pragma unroll
        for (int first = 0; first < ROWS; first += AT_ONCE) {
            if (AT_ONCE > ROWS && row >= ROWS) continue;
            copy_16(to + (first + row) * WIDTH + 16 * swizzled<WIDTH>(first + row, piece), from + first / AT_ONCE * stride);
        }
    }
}

template <typename F> __device__ __forceinline__ void copy_chunk(uint32_t to, const Fields& w, size_t block, int chunks, int lane) {
    using C = typename F::Copy;
    copy_field<C::A_ROW>(to, w.field[0], block, chunks, lane);
    copy_field<C::B_ROW>(to + C::B_AT, w.field[1], block, chunks, lane);
    copy_field<C::C_ROW>(to + C::C_AT, w.field[2], block, chunks, lane);
}

// The sums of a block's tiles, see FLUSH.
struct Sums { float of[2][FLUSH][MOST_WARPS][ROWS]; };

// Adds up the sums of warps for `count` tiles from `tile` on, `gridDim.x` apart, and writes them.
__device__ __forceinline__ void flush(const float (&sums)[FLUSH][MOST_WARPS][ROWS], int count, int tile, int warps, void* out, int stored,
                                      int into, int outputs) {
    for (int i = threadIdx.x; i < count * ROWS; i += blockDim.x) {
        const int own = tile + i / ROWS * gridDim.x, row = i % ROWS, output = min(own * ROWS, outputs - ROWS) + row;
        float sum = 0.0f;
        for (int warp = 0; warp < warps; ++warp) sum += sums[i / ROWS][warp][row];
        // The previous tile writes these.
        if (output < own * ROWS) continue;
        if (into == ADD) static_cast<float*>(out)[output] += sum;
        else put(out, into == NARROW ? stored : F32, output, sum);
    }
}

template <typename F, int PARTS, int STAGES>
__device__ __forceinline__ void gemv(const Fields& w, const void* x, int stored, void* out, int into, int outputs, int chunks) {
    using X = Chunk<F::LAYOUT, PARTS>;
    constexpr int STAGE = F::Copy::BYTES;
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ Sums sums;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32, g = lane / 4, t = lane % 4;
    const int tiles = (outputs + ROWS - 1) / ROWS;
    uint8_t* ring = shared + warp * STAGES * STAGE;
    X* xs = reinterpret_cast<X*>(shared + warps * STAGES * STAGE);
    // The last rows stand in for rows beyond them.
    auto block_of = [&](int tile, int chunk) {
        return static_cast<size_t>(min(tile * ROWS, outputs - ROWS)) * chunks + chunk;
    };
    int asked_tile = blockIdx.x, asked = warp, slot = 0;
    auto ask = [&]() {
        if (asked_tile < tiles) {
            copy_chunk<F>(shared_address(ring) + slot * STAGE, w, block_of(asked_tile, asked), chunks, lane);
            asked += warps;
            if (asked >= chunks) asked = warp, asked_tile += gridDim.x;
        }
        copies_committed();
        slot = slot + 1 == STAGES ? 0 : slot + 1;
    };
    auto loose_of = [&](int tile, int chunk) {
        const size_t block = block_of(tile, chunk);
        return F::loose(w, block + static_cast<size_t>(g) * chunks, block + static_cast<size_t>(g + 8) * chunks);
    };
    // W does not wait for x: its first chunks are in flight while x is computed and read.
    for (int i = 0; i < STAGES - 1; ++i) ask();
    let_next_start();
    typename F::Loose next = loose_of(min(static_cast<int>(blockIdx.x), tiles - 1), warp);
    wait_for_earlier();
    for (int first = warp; first < chunks; first += TOGETHER * warps) {
        float4 numbers[TOGETHER][2];
#pragma unroll
        for (int i = 0; i < 2 * TOGETHER; ++i) {
            const int chunk = min(first + i / 2 * warps, chunks - 1);
            numbers[i / 2][i % 2] = four_at(x, stored, static_cast<size_t>(chunk) * CHUNK + 8 * lane + i % 2 * 4);
        }
#pragma unroll
        for (int i = 0; i < TOGETHER; ++i)
            if (first + i * warps < chunks) put_chunk<F, PARTS>(xs[first + i * warps], numbers[i][0], numbers[i][1], lane);
    }
    int used = 0, buffer = 0, count = 0, first_tile = blockIdx.x;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        float own[2] = {};
        for (int chunk = warp; chunk < chunks; chunk += warps) {
            copies_done<STAGES - 2>();
            // All threads have copied this chunk, and read the one before it.
            __syncwarp();
            ask();
            const typename F::Loose loose = next;
            const bool same = chunk + warps < chunks;
            if (same || tile + gridDim.x < tiles) next = loose_of(same ? tile : tile + gridDim.x, same ? chunk + warps : warp);
            multiply<F, PARTS>(ring + used * STAGE, xs[chunk], loose, g, t, own);
            used = used + 1 == STAGES ? 0 : used + 1;
        }
#pragma unroll
        for (int which = 0; which < 2; ++which) {
            own[which] += __shfl_xor_sync(~0u, own[which], 1);
            own[which] += __shfl_xor_sync(~0u, own[which], 2);
            if (t == 0) sums.of[buffer][count][warp][g + 8 * which] = own[which];
        }
        if (++count < FLUSH && tile + gridDim.x < tiles) continue;
        // The other buffer is written next, so one barrier is enough.
        __syncthreads();
        flush(sums.of[buffer], count, first_tile, warps, out, stored, into, outputs);
        buffer ^= 1, count = 0, first_tile = tile + gridDim.x;
    }
}

}  // namespace by_mma

#define GEMV(NAME, FORMAT, KIND, PARTS)                                                                                 \
    extern "C" __global__ void __launch_bounds__(32 * by_mma::MOST_WARPS, 1)                                            \
        gemv_mma_##NAME##_##KIND(Fields w, const void* x, int stored, void* out, int into, int outputs, int chunks) {   \
        by_mma::gemv<by_mma::FORMAT, PARTS, by_mma::FORMAT::STAGES>(w, x, stored, out, into, outputs, chunks);          \
    }

// For activations of 16 bits, and of 32.
#define QUANTISED_MMA(NAME, FORMAT) GEMV(NAME, FORMAT, 16, 1) GEMV(NAME, FORMAT, 32, 3)

QUANTISED_MMA(q4_0, Q4_0)
QUANTISED_MMA(q4_1, Q4_1)
QUANTISED_MMA(q5_0, Q5_0)
QUANTISED_MMA(q5_1, Q5_1)
QUANTISED_MMA(q8_0, Q8_0)
QUANTISED_MMA(q4_k, Q4_K)
QUANTISED_MMA(q5_k, Q5_K)
QUANTISED_MMA(q6_k, Q6_K)
