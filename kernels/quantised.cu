// Products of a few rows with a matrix in quantised blocks, limited by the speed of reading the blocks; and dequantisation of its rows.
//
// W is `[outputs][inputs]` in blocks as GGUF files have them. The launcher separates their fields: field i of all blocks is an array of
// its own, so that all loads are aligned. A thread reads units of 32 numbers: two halves of 16. A number is scale * code + offset, with
// one scale and offset for each half. Codes are multiplied as they are, and each half's scale and offset are applied once: sum (scale c +
// offset) x = scale sum c x + offset sum x. x is `[rows][inputs]` of a storage type; sums are f32.
#include "early.cuh"
#include "quantised.cuh"

constexpr int HALF = 16;

// Codes are bytes; word w of half h holds codes 4w to 4w + 3 of the half.
struct Unit {
    uint32_t codes[2][4];
    float scale[2], offset[2];
};

struct Words { uint32_t word[4]; };

__device__ __forceinline__ Words words_at(const uint8_t* at) {
    const uint4 raw = *reinterpret_cast<const uint4*>(at);
    return {raw.x, raw.y, raw.z, raw.w};
}

// Unpacks 16 bytes of four-bit codes: the low nibbles are the first half of the unit, the high nibbles the second.
__device__ __forceinline__ void put_nibbles(const Words& codes, Unit& unit) {
#pragma unroll
    for (int w = 0; w < 4; ++w) {
        unit.codes[0][w] = codes.word[w] & 0x0f0f0f0fu;
        unit.codes[1][w] = codes.word[w] >> 4 & 0x0f0f0f0fu;
    }
}

// Spreads four bits to bit 4 of each byte of a word.
__device__ __forceinline__ uint32_t fifths(uint32_t bits) { return ((bits & 15u) * 0x00204081u & 0x01010101u) << 4; }

// Adds the highest bits of 32 codes, which are given in order.
__device__ __forceinline__ void add_fifths(uint32_t bits, Unit& unit) {
#pragma unroll
    for (int w = 0; w < 4; ++w) {
        unit.codes[0][w] |= fifths(bits >> (4 * w));
        unit.codes[1][w] |= fifths(bits >> (16 + 4 * w));
    }
}

__device__ __forceinline__ void put_scale(Unit& unit, float scale, float offset) {
    unit.scale[0] = unit.scale[1] = scale, unit.offset[0] = unit.offset[1] = offset;
}

// Each format reads the Raw of a unit and unpacks it later, so that loads are in flight meanwhile. `at` is the unit's number within its
// block.

// Shared by formats whose blocks are one unit: its halves are consecutive.
struct Small {
    static constexpr int UNITS = 1;
    static constexpr bool WIDE = false;  // codes of 8 bits, from -128 on, stored with their sign
    static __device__ __forceinline__ int column(int unit, int half) { return 32 * unit + HALF * half; }
};

struct Q4_0 : Small {
    struct Raw { Words codes; __half scale; };
    static __device__ __forceinline__ Raw read(const Fields& from, size_t block, int) {
        return {words_at(from.field[1] + 16 * block), *reinterpret_cast<const __half*>(from.field[0] + 2 * block)};
    }
    static __device__ __forceinline__ void unpack(const Raw& raw, int, Unit& unit) {
        put_nibbles(raw.codes, unit);
        const float scale = __half2float(raw.scale);
        put_scale(unit, scale, -8.0f * scale);
    }
};

struct Q4_1 : Small {
    struct Raw { Words codes; __half2 scale_offset; };
    static __device__ __forceinline__ Raw read(const Fields& from, size_t block, int) {
        return {words_at(from.field[1] + 16 * block), *reinterpret_cast<const __half2*>(from.field[0] + 4 * block)};
    }
    static __device__ __forceinline__ void unpack(const Raw& raw, int, Unit& unit) {
        put_nibbles(raw.codes, unit);
        const float2 both = __half22float2(raw.scale_offset);
        put_scale(unit, both.x, both.y);
    }
};

struct Q5_0 : Small {
    struct Raw { Words codes; uint32_t fifths; __half scale; };
    static __device__ __forceinline__ Raw read(const Fields& from, size_t block, int) {
        return {words_at(from.field[2] + 16 * block), *reinterpret_cast<const uint32_t*>(from.field[1] + 4 * block),
                *reinterpret_cast<const __half*>(from.field[0] + 2 * block)};
    }
    static __device__ __forceinline__ void unpack(const Raw& raw, int, Unit& unit) {
        put_nibbles(raw.codes, unit);
        add_fifths(raw.fifths, unit);
        const float scale = __half2float(raw.scale);
        put_scale(unit, scale, -16.0f * scale);
    }
};

struct Q5_1 : Small {
    struct Raw { Words codes; uint32_t fifths; __half2 scale_offset; };
    static __device__ __forceinline__ Raw read(const Fields& from, size_t block, int) {
        return {words_at(from.field[2] + 16 * block), *reinterpret_cast<const uint32_t*>(from.field[1] + 4 * block),
                *reinterpret_cast<const __half2*>(from.field[0] + 4 * block)};
    }
    static __device__ __forceinline__ void unpack(const Raw& raw, int, Unit& unit) {
        put_nibbles(raw.codes, unit);
        add_fifths(raw.fifths, unit);
        const float2 both = __half22float2(raw.scale_offset);
        put_scale(unit, both.x, both.y);
    }
};

struct Q8_0 : Small {
    static constexpr bool WIDE = true;
    struct Raw { Words codes[2]; __half scale; };
    static __device__ __forceinline__ Raw read(const Fields& from, size_t block, int) {
        const uint8_t* codes = from.field[1] + 32 * block;
        return {{words_at(codes), words_at(codes + 16)}, *reinterpret_cast<const __half*>(from.field[0] + 2 * block)};
    }
    static __device__ __forceinline__ void unpack(const Raw& raw, int, Unit& unit) {
#pragma unroll
        for (int w = 0; w < 4; ++w) unit.codes[0][w] = raw.codes[0].word[w], unit.codes[1][w] = raw.codes[1].word[w];
        put_scale(unit, __half2float(raw.scale), 0.0f);
    }
};

__device__ __forceinline__ void put_scales(const Words& head, int part, Unit& unit) {
    grouped_scales(make_uint4(head.word[0], head.word[1], head.word[2], head.word[3]), part, unit.scale, unit.offset);
}

// Shared by formats with blocks of 256 numbers in groups of 32: a unit is half of each of two groups.
struct Grouped {
    static constexpr int UNITS = 8;
    static constexpr bool WIDE = false;
    static __device__ __forceinline__ int column(int unit, int half) {
        return 64 * (unit / 2) + 32 * half + HALF * (unit % 2);
    }
};

struct Q4_K : Grouped {
    struct Raw { Words codes, head; };
    static __device__ __forceinline__ Raw read(const Fields& from, size_t block, unsigned at) {
        return {words_at(from.field[1] + 128 * block + 16 * at), words_at(from.field[0] + 16 * block)};
    }
    static __device__ __forceinline__ void unpack(const Raw& raw, unsigned at, Unit& unit) {
        put_nibbles(raw.codes, unit);
        put_scales(raw.head, at / 2, unit);
    }
};

struct Q5_K : Grouped {
    struct Raw { Words codes, bits, head; };
    static __device__ __forceinline__ Raw read(const Fields& from, size_t block, unsigned at) {
        return {words_at(from.field[2] + 128 * block + 16 * at), words_at(from.field[1] + 32 * block + 16 * (at % 2)),
                words_at(from.field[0] + 16 * block)};
    }
    static __device__ __forceinline__ void unpack(const Raw& raw, unsigned at, Unit& unit) {
        put_nibbles(raw.codes, unit);
        const unsigned group = at / 2 * 2;
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            unit.codes[0][w] |= (raw.bits.word[w] >> group & 0x01010101u) << 4;
            unit.codes[1][w] |= (raw.bits.word[w] >> (group + 1) & 0x01010101u) << 4;
        }
        put_scales(raw.head, at / 2, unit);
    }
};

struct Q6_K {
    static constexpr int UNITS = 8;
    static constexpr bool WIDE = false;
    struct Raw { Words codes, bits; int8_t scales[2]; __half scale; };
    // Low nibbles belong to the first two quarters of 128 numbers, high nibbles to the last two.
    static __device__ __forceinline__ int column(int unit, int half) {
        return 128 * (unit / 4) + 64 * half + 32 * (unit % 4 / 2) + HALF * (unit % 2);
    }
    static __device__ __forceinline__ Raw read(const Fields& from, size_t block, unsigned at) {
        const int8_t* scales = reinterpret_cast<const int8_t*>(from.field[2] + 16 * block) + 8 * (at / 4) + at % 4;
        return {words_at(from.field[0] + 128 * block + 16 * at),
                words_at(from.field[1] + 64 * block + 32 * (at / 4) + 16 * (at % 2)),
                {scales[0], scales[4]},
                *reinterpret_cast<const __half*>(from.field[3] + 2 * block)};
    }
    static __device__ __forceinline__ void unpack(const Raw& raw, unsigned at, Unit& unit) {
        put_nibbles(raw.codes, unit);
        const unsigned shift = at % 4 / 2 * 2;
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            unit.codes[0][w] |= (raw.bits.word[w] >> shift & 0x03030303u) << 4;
            unit.codes[1][w] |= (raw.bits.word[w] >> (shift + 4) & 0x03030303u) << 4;
        }
        const float scale = __half2float(raw.scale);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            unit.scale[half] = scale * static_cast<float>(raw.scales[half]);
            unit.offset[half] = -32.0f * unit.scale[half];
        }
    }
};

template <typename F> __device__ __forceinline__ void unit_at(const Fields& from, size_t block, unsigned at, Unit& unit) {
    F::unpack(F::read(from, block, at), at, unit);
}

// Converts a byte of a word to a number. Codes below 128 come with BIAS added, because that takes one instruction.
template <bool WIDE> constexpr float BIAS = WIDE ? 0.0f : 128.0f;

template <bool WIDE> __device__ __forceinline__ float biased(uint32_t word, int byte) {
    if constexpr (WIDE) {
        // The code plus 128 is the lowest byte of a float from 2^23 on.
        const uint32_t bits = __byte_perm(word ^ 0x80808080u, 0x4b000000u, 0x7440u | byte);
        return __uint_as_float(bits) - (8388608.0f + 128.0f);
    } else {
        // The code is in the bits that count ones of a float from 128 to 256.
        return __uint_as_float(__byte_perm(word, 0x43000000u, 0x7044u | byte << 8));
    }
}

constexpr int WARPS = 16, THREADS = 32 * WARPS;
// Outputs of a warp, which share the loads of x.
constexpr int OUTPUTS = 2;
// Units of x in shared memory, and the distance between the eight parts of units: one more, so that threads use all banks.
constexpr int CHUNK = 128, PITCH = CHUNK + 1;

// Rows of x from the chunk's first unit on, by part of a unit; then the sums of halves.
template <int ROWS> struct Staged {
    float4 parts[ROWS][8][PITCH];
    float sums[ROWS][2][CHUNK];
};

template <typename F, int ROWS>
__device__ __forceinline__ void stage(Staged<ROWS>& staged, const void* x, int stored, int rows, int units, int first) {
    const int inputs = 32 * units;
    for (int i = threadIdx.x; i < ROWS * 8 * CHUNK; i += THREADS) {
        const int row = i / (8 * CHUNK), unit = i / 8 % CHUNK, part = i % 8;
        const bool there = row < rows && first + unit < units;
        const size_t at = static_cast<size_t>(row) * inputs + F::column(first + unit, part / 4) + part % 4 * 4;
        staged.parts[row][part][unit] = there ? four_at(x, stored, at) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < ROWS * 2 * CHUNK; i += THREADS) {
        const int row = i / (2 * CHUNK), half = i / CHUNK % 2, unit = i % CHUNK;
        float sum = 0.0f;
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const float4 four = staged.parts[row][4 * half + part][unit];
            sum += (four.x + four.y) + (four.z + four.w);
        }
        staged.sums[row][half][unit] = sum;
    }
    __syncthreads();
}

// Adds the products of one unit of each of the warp's outputs.
template <typename F, int ROWS>
__device__ __forceinline__ void multiply(const Unit (&units)[OUTPUTS], const Staged<ROWS>& staged, int at,
                                         float (&sums)[OUTPUTS][ROWS]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float dots[OUTPUTS][ROWS] = {};
#pragma unroll
        for (int w = 0; w < 4; ++w) {
#pragma unroll
            for (int row = 0; row < ROWS; ++row) {
                const float4 four = staged.parts[row][4 * half + w][at];
#pragma unroll
                for (int o = 0; o < OUTPUTS; ++o) {
                    const uint32_t word = units[o].codes[half][w];
                    float dot = dots[o][row];
                    dot = fmaf(biased<F::WIDE>(word, 0), four.x, dot);
                    dot = fmaf(biased<F::WIDE>(word, 1), four.y, dot);
                    dot = fmaf(biased<F::WIDE>(word, 2), four.z, dot);
                    dots[o][row] = fmaf(biased<F::WIDE>(word, 3), four.w, dot);
                }
            }
        }
#pragma unroll
        for (int o = 0; o < OUTPUTS; ++o) {
            const float offset = fmaf(-BIAS<F::WIDE>, units[o].scale[half], units[o].offset[half]);
#pragma unroll
            for (int row = 0; row < ROWS; ++row) {
                const float own = fmaf(offset, staged.sums[row][half][at], units[o].scale[half] * dots[o][row]);
                sums[o][row] += own;
            }
        }
    }
}

// Rows of out are `stride` numbers apart.
template <typename F, int ROWS>
__device__ void gemv(const Fields& w, const void* x, int stored, int rows, void* out, int into, int outputs, int units, int stride) {
    extern __shared__ float4 shared[];
    Staged<ROWS>& staged = *reinterpret_cast<Staged<ROWS>*>(shared);
    const int lane = threadIdx.x % 32, first_output = (blockIdx.x * WARPS + threadIdx.x / 32) * OUTPUTS;
    const size_t row_blocks = units / F::UNITS;
    float sums[OUTPUTS][ROWS] = {};
    for (int first = 0; first < units; first += CHUNK) {
        if (first > 0) __syncthreads();
        stage<F, ROWS>(staged, x, stored, rows, units, first);
        if (first_output >= outputs) continue;
#pragma unroll
        for (int step = 0; step < CHUNK / 32; ++step) {
            const int at = 32 * step + lane, unit = first + at;
            if (unit >= units) continue;
            Unit own[OUTPUTS];
#pragma unroll
            for (int o = 0; o < OUTPUTS; ++o) {
                // The last output stands in for outputs beyond it.
                const size_t output = min(first_output + o, outputs - 1);
                unit_at<F>(w, output * row_blocks + unit / F::UNITS, unit % F::UNITS, own[o]);
            }
            multiply<F, ROWS>(own, staged, at, sums);
        }
    }
    if (first_output >= outputs) return;
#pragma unroll
    for (int o = 0; o < OUTPUTS; ++o) {
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
            const float sum = warp_sum(sums[o][row]);
            const int output = first_output + o;
            if (lane != 0 || row >= rows || output >= outputs) continue;
            const size_t at = static_cast<size_t>(row) * stride + output;
            if (into == ADD) static_cast<float*>(out)[at] += sum;
            else put(out, into == NARROW ? stored : F32, at, sum);
        }
    }
}

// For one row of x: a warp keeps its part of x in registers and moves from outputs to outputs. Its share of a row of W is SPAN units, two
// for each thread. As many warps as a row has shares work on the same TILE outputs, and add their sums in shared memory. A block has
// `groups` groups of `shares` warps.
//
// TILE is 2 or 4, the same as in the launcher. With four outputs, sums are added over warps less often. With two, every format has
// registers left for what is read ahead, and the last round of blocks leaves fewer multiprocessors idle.
constexpr int SPAN = 64, TILE = 2, MOST_WARPS = 8;
// Threads between the sums of neighbouring outputs, see warp_sums.
constexpr int SUM_STEP = 32 / TILE;

// Adds up one number of each of TILE outputs over a warp; the sum of output o ends in thread SUM_STEP * o.
__device__ __forceinline__ float warp_sums(const float (&sums)[TILE], int lane) {
    float left[TILE];
#pragma unroll
    for (int o = 0; o < TILE; ++o) left[o] = sums[o];
    // Each half of the threads continues with half of the outputs, until each thread has one.
#pragma unroll
    for (int step = 16, half = TILE / 2; half > 0; step /= 2, half /= 2) {
        const bool upper = lane & step;
#pragma unroll
        for (int o = 0; o < half; ++o) {
            const float given = __shfl_xor_sync(~0u, upper ? left[o] : left[o + half], step);
            left[o] = (upper ? left[o + half] : left[o]) + given;
        }
    }
    float sum = left[0];
#pragma unroll
    for (int step = SUM_STEP / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    return sum;
}

// The units that a thread reads of TILE rows of W.
template <typename F> struct Tile {
    typename F::Raw raw[TILE][2];

    // Reads the thread's units of row `first + o`.
    __device__ __forceinline__ void read(int o, const Fields& w, int first, int outputs, int units, unsigned pair) {
        // The last output stands in for outputs beyond it.
        const size_t row = static_cast<size_t>(min(first + o, outputs - 1)) * (units / F::UNITS);
#pragma unroll
        for (unsigned u = 0; u < 2; ++u) {
            const unsigned unit = unit_of(pair, u, units);
            raw[o][u] = F::read(w, row + unit / F::UNITS, unit % F::UNITS);
        }
    }

    // If the number of units is odd, the last one is read twice and multiplied by zeros.
    static __device__ __forceinline__ unsigned unit_of(unsigned pair, unsigned u, int units) {
        return F::UNITS > 1 ? pair << 1 | u : min(pair << 1 | u, static_cast<unsigned>(units - 1));
    }

    // The product of x with the units of row o.
    __device__ __forceinline__ float multiply(int o, unsigned pair, const float4 (&x)[2][2][4], const float (&totals)[2][2]) const {
        float sum = 0.0f;
#pragma unroll
        for (unsigned u = 0; u < 2; ++u) {
            Unit unit;
            F::unpack(raw[o][u], (pair << 1 | u) % F::UNITS, unit);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float dot = 0.0f;
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const uint32_t word = unit.codes[half][i];
                    dot = fmaf(biased<F::WIDE>(word, 0), x[u][half][i].x, dot);
                    dot = fmaf(biased<F::WIDE>(word, 1), x[u][half][i].y, dot);
                    dot = fmaf(biased<F::WIDE>(word, 2), x[u][half][i].z, dot);
                    dot = fmaf(biased<F::WIDE>(word, 3), x[u][half][i].w, dot);
                }
                const float offset = fmaf(-BIAS<F::WIDE>, unit.scale[half], unit.offset[half]);
                sum += fmaf(offset, totals[u][half], unit.scale[half] * dot);
            }
        }
        return sum;
    }
};

template <typename F>
__device__ void gemv_one(const Fields& w, const void* x, int stored, void* out, int into, int outputs, int units, int shares) {
    __shared__ float partial[2][MOST_WARPS][TILE];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, share = warp % shares, group = warp / shares;
    const int groups = blockDim.x / 32 / shares, stride = gridDim.x * groups;
    const unsigned pair = share * (SPAN / 2) + lane;
    const bool there = 2 * pair < units;
    const int tiles = (outputs + TILE - 1) / TILE;
    // W does not wait for x: the first blocks are in flight while x is read.
    Tile<F> tile;
    if (there && blockIdx.x * groups < tiles) {
#pragma unroll
        for (int o = 0; o < TILE; ++o) tile.read(o, w, (blockIdx.x * groups + group) * TILE, outputs, units, pair);
    }
    let_next_start();
    wait_for_earlier();
    float4 own[2][2][4];
    float totals[2][2];
#pragma unroll
    for (int u = 0; u < 2; ++u) {
        const bool has = 2 * pair + u < units;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int i = 0; i < 4; ++i)
                own[u][half][i] = has ? four_at(x, stored, F::column(2 * pair + u, half) + 4 * i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
    }
#pragma unroll
    for (int u = 0; u < 2; ++u) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float total = 0.0f;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float4 four = own[u][half][i];
                total += (four.x + four.y) + (four.z + four.w);
            }
            totals[u][half] = total;
        }
    }
    int buffer = 0;
    for (int base = blockIdx.x * groups; base < tiles; base += stride, buffer ^= 1) {
        float sums[TILE] = {};
        if (there) {
            const bool more = base + stride < tiles;
#pragma unroll
            for (int o = 0; o < TILE; ++o) {
                sums[o] = tile.multiply(o, pair, own, totals);
                // Read here, so that the next blocks are in flight while these are multiplied and while sums are added over warps.
                if (more) tile.read(o, w, (base + stride + group) * TILE, outputs, units, pair);
            }
        }
        const float sum = warp_sums(sums, lane);
        if (lane % SUM_STEP == 0) partial[buffer][warp][lane / SUM_STEP] = sum;
        // The other buffer is written next, so one barrier is enough.
        __syncthreads();
        const int output = (base + group) * TILE + lane;
        if (share == 0 && lane < TILE && output < outputs) {
            float all = partial[buffer][warp][lane];
            for (int other = 1; other < shares; ++other) all += partial[buffer][warp + other][lane];
            if (into == ADD) static_cast<float*>(out)[output] += all;
            else put(out, into == NARROW ? stored : F32, output, all);
        }
    }
}

// out[i] = scale * row `first + i` of W, or row `rows[i]` unless `rows` is null, for `count` rows; a thread writes a unit.
template <typename F>
__device__ void dequantise(const Fields& w, const uint32_t* rows, int first, int count, int units, float scale, void* out,
                           int stored) {
    const size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= static_cast<size_t>(count) * units) return;
    const size_t to = i / units, row = rows ? rows[to] : first + to;
    const int at = i % units;
    Unit unit;
    unit_at<F>(w, row * (units / F::UNITS) + at / F::UNITS, at % F::UNITS, unit);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const size_t start = to * 32 * units + F::column(at, half);
#pragma unroll
        for (int j = 0; j < HALF; ++j) {
            const float code = biased<F::WIDE>(unit.codes[half][j / 4], j % 4) - BIAS<F::WIDE>;
            put(out, stored, start + j, scale * fmaf(code, unit.scale[half], unit.offset[half]));
        }
    }
}

#define GEMV(FORMAT, NAME, ROWS)                                                                                        \
    extern "C" __global__ void __launch_bounds__(THREADS, ROWS < 4 ? 2 : 1)                                        \
        gemv_##NAME##_##ROWS(Fields w, const void* x, int stored, int rows, void* out, int into, int outputs,           \
                             int units, int stride) {                                                                   \
        begin_short();                                                                                                  \
        gemv<FORMAT, ROWS>(w, x, stored, rows, out, into, outputs, units, stride);                                      \
    }

#define QUANTISED(FORMAT, NAME)                                                                                         \
    GEMV(FORMAT, NAME, 1) GEMV(FORMAT, NAME, 2) GEMV(FORMAT, NAME, 4)                                                   \
    extern "C" __global__ void __launch_bounds__(32 * MOST_WARPS, 2)                                                    \
        gemv_one_##NAME(Fields w, const void* x, int stored, void* out, int into, int outputs, int units, int shares) { \
        gemv_one<FORMAT>(w, x, stored, out, into, outputs, units, shares);                                              \
    }                                                                                                                   \
    extern "C" __global__ void dequantise_##NAME(Fields w, const uint32_t* rows, int first, int count, int units,       \
                                                 float scale, void* out, int stored) {                                  \
        begin_short();                                                                                                  \
        dequantise<FORMAT>(w, rows, first, count, units, scale, out, stored);                                           \
    }

QUANTISED(Q4_0, q4_0)
QUANTISED(Q4_1, q4_1)
QUANTISED(Q5_0, q5_0)
QUANTISED(Q5_1, q5_1)
QUANTISED(Q8_0, q8_0)
QUANTISED(Q4_K, q4_k)
QUANTISED(Q5_K, q5_k)
QUANTISED(Q6_K, q6_k)
