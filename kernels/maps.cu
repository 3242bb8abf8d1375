// Maps of keys and queries to what an index stores: some of their channels, their products with a few directions, and the signs of small
// nets' outputs.
//
// A block maps 64 keys at a time, or a single query. Arithmetic is f32.
#include "common.cuh"

constexpr int THREADS = 256, WARPS = THREADS / 32;
// Keys of a block, and those of a warp.
constexpr int ROWS = 64, OWN_ROWS = ROWS / WARPS;
// The widest input, and the most outputs.
constexpr int WIDEST = 128;
// Outputs of a lane, 32 apart.
constexpr int OWN = WIDEST / 32;
// Layers of a net.
constexpr int LAYERS = 3;
// Warps of a block that signs a query, and outputs of each warp.
constexpr int SIGN_WARPS = 16, SIGN_OUTPUTS = WIDEST / SIGN_WARPS;
// The widest hyperplanes of `sign_sides`, and how many of them a block processes.
constexpr int WIDEST_SIDES = 256, SIDES_AT_ONCE = 64;

// A layer's weights [output][inputs] and biases.
struct Affine {
    const __half* weights;
    const float* biases;
};
struct Net { Affine layers[LAYERS]; };

__device__ __forceinline__ float silu(float x) { return x / (1.0f + __expf(-x)); }

// Loads rows of keys as f32, with zeros beyond the last row.
template <typename T>
__device__ __forceinline__ void load_rows(const T* from, uint32_t rows, int d, float* x) {
    for (int i = threadIdx.x; i < ROWS * d; i += THREADS) x[i] = i / d < static_cast<int>(rows) ? to_f32(from[i]) : 0.0f;
}

// Copies weights into shared memory. A row has an odd number of words, so that lanes do not share a bank.
__device__ __forceinline__ void load_weights(const float* from, int outputs, int inputs, float* to) {
    for (int i = threadIdx.x; i < outputs * inputs; i += THREADS) to[i / inputs * (inputs + 1) + i % inputs] = from[i];
}
__device__ __forceinline__ void load_weights(const __half* from, int outputs, int inputs, __half* to) {
    for (int i = threadIdx.x; i < outputs * inputs; i += THREADS) to[i / inputs * (inputs + 2) + i % inputs] = from[i];
}

// Products of a warp's rows of `x` with weights in shared memory: row r with output lane + 32i is out[r][i].
template <typename W>
__device__ __forceinline__ void multiply_rows(const float* x, const W* weights, int outputs, int inputs,
                                              float (&out)[OWN_ROWS][OWN]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int pitch = inputs + (sizeof(W) == 2 ? 2 : 1);
#pragma unroll
    for (int r = 0; r < OWN_ROWS; ++r)
#pragma unroll
        for (int i = 0; i < OWN; ++i) out[r][i] = 0.0f;
    for (int k = 0; k < inputs; ++k) {
        float w[OWN];
#pragma unroll
        for (int i = 0; i < OWN; ++i) w[i] = lane + 32 * i < outputs ? to_f32(weights[(lane + 32 * i) * pitch + k]) : 0.0f;
#pragma unroll
        for (int r = 0; r < OWN_ROWS; ++r) {
            const float own = x[(warp * OWN_ROWS + r) * inputs + k];
#pragma unroll
            for (int i = 0; i < OWN; ++i) out[r][i] = fmaf(own, w[i], out[r][i]);
        }
    }
}

// Blocks: 64 candidates, KV heads. Directions are `[heads of a model][count][d]`; projections are `[kv_head][token][padded]`, with zeros
// beyond `count`.
template <typename T>
__device__ void project_keys(const T* keys, uint64_t head_stride, uint32_t tokens, int d, const float* directions,
                             uint32_t direction_heads, int count, int padded, T* out) {
    extern __shared__ float shared[];
    float *x = shared, *weights = shared + ROWS * d;
    const uint32_t first = blockIdx.x * ROWS, rows = min(ROWS, tokens - first);
    load_rows(keys + blockIdx.y * head_stride + static_cast<uint64_t>(first) * d, rows, d, x);
    load_weights(directions + blockIdx.y % direction_heads * static_cast<uint64_t>(count * d), count, d, weights);
    __syncthreads();
    float of_rows[OWN_ROWS][OWN];
    multiply_rows(x, weights, count, d, of_rows);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < OWN_ROWS; ++r) {
        const uint32_t row = warp * OWN_ROWS + r;
        if (row >= rows) break;
        T* to = out + (static_cast<uint64_t>(blockIdx.y) * tokens + first + row) * padded;
#pragma unroll
        for (int i = 0; i < OWN; ++i)
            if (lane + 32 * i < padded) to[lane + 32 * i] = from_f32<T>(of_rows[r][i]);
    }
}

// Blocks: query heads or, if `summed`, KV heads, whose group's queries are added; rows. Products with the KV head's directions,
// `[row][head][padded]`, each split into a sum of two numbers of the keys' type, `out` and `rest`.
template <typename T>
__device__ void project_queries(const uint32_t* rows, const T* queries, uint64_t row_stride, int d, int group,
                                const float* directions, uint32_t direction_heads, int count, int padded, bool summed, T* out,
                                T* rest) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.x;
    const int kv_head = summed ? head : head / group, some = summed ? group : 1;
    const T* query = queries + rows[blockIdx.y] * row_stride + static_cast<uint64_t>(head) * some * d;
    const float* own = directions + kv_head % direction_heads * static_cast<uint64_t>(count * d);
    __shared__ float x[WIDEST];
    if (threadIdx.x < d) {
        float sum = 0.0f;
        for (int h = 0; h < some; ++h) sum += to_f32(query[h * d + threadIdx.x]);
        x[threadIdx.x] = sum;
    }
    __syncthreads();
    const uint64_t to = (static_cast<uint64_t>(blockIdx.y) * gridDim.x + head) * padded;
    for (int i = warp; i < padded; i += WARPS) {
        float sum = 0.0f;
        for (int k = lane; k < d && i < count; k += 32) sum = fmaf(x[k], own[i * d + k], sum);
        sum = warp_sum(sum);
        if (lane > 0) continue;
        const T most = from_f32<T>(sum);
        out[to + i] = most, rest[to + i] = from_f32<T>(sum - to_f32(most));
    }
}

// Blocks: 256 / padded rows, KV heads or query heads. Copies the channels chosen for the head's KV head to `[head][row][padded]` or, with
// `row_major`, to `[row][head][padded]`, with zeros beyond `count`. Row r is read from row rows[r], if `rows` is not null.
template <typename T>
__device__ void gather_channels(const uint32_t* rows, const T* from, uint64_t row_stride, uint64_t head_stride, uint32_t row_count,
                                int group, const uint32_t* channels, uint32_t channel_heads, int count, int padded, T* out,
                                bool row_major) {
    const uint32_t at = blockIdx.x * THREADS + threadIdx.x, row = at / padded, head = blockIdx.y;
    const int i = at % padded;
    if (row >= row_count) return;
    const uint32_t* own = channels + head / group % channel_heads * count;
    const T* x = from + (rows ? rows[row] : row) * row_stride + head * head_stride;
    const uint64_t to = row_major ? static_cast<uint64_t>(row) * gridDim.y + head : static_cast<uint64_t>(head) * row_count + row;
    out[to * padded + i] = i < count ? x[own[i]] : from_f32<T>(0.0f);
}

// A bit for each of a warp's first `outputs` products that is positive, 32 in a word: word w of row r is out[w * stride + r]. All lanes of
// a warp must call this.
__device__ __forceinline__ void write_signs(const float (&products)[OWN_ROWS][OWN], int outputs, uint32_t rows, uint32_t* out,
                                            uint64_t stride) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < OWN_ROWS; ++r)
#pragma unroll
        for (int i = 0; i < OWN; ++i) {
            const uint32_t word = __ballot_sync(~0u, lane + 32 * i < outputs && products[r][i] > 0.0f);
            const uint32_t row = warp * OWN_ROWS + r;
            if (lane == 0 && 32 * i < outputs && row < rows) out[i * stride + row] = word;
        }
}

// Blocks: 64 candidates, nets. Net `kv_head * nets + i` maps the keys of a KV head; a model's nets are repeated for further heads.
// Signatures are `[net][word][stride]`, a bit for each positive output.
template <typename T>
__device__ void sign_keys(const T* keys, uint64_t head_stride, uint32_t tokens, int d, const Net* all, uint32_t all_nets, int nets,
                          int bits, uint32_t* out, uint64_t stride) {
    extern __shared__ float shared[];
    float* x = shared;
    __half* weights = reinterpret_cast<__half*>(shared + ROWS * d);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t first = blockIdx.x * ROWS, rows = min(ROWS, tokens - first);
    load_rows(keys + blockIdx.y / nets * head_stride + static_cast<uint64_t>(first) * d, rows, d, x);
    const Net& net = all[blockIdx.y % all_nets];
    float of_rows[OWN_ROWS][OWN];
    for (int layer = 0; layer < LAYERS; ++layer) {
        const int outputs = layer + 1 < LAYERS ? d : bits;
        load_weights(net.layers[layer].weights, outputs, d, weights);
        __syncthreads();
        multiply_rows(x, weights, outputs, d, of_rows);
        // The next layer's weights and inputs overwrite these.
        __syncthreads();
#pragma unroll
        for (int r = 0; r < OWN_ROWS; ++r)
#pragma unroll
            for (int i = 0; i < OWN; ++i) {
                const int output = lane + 32 * i;
                if (output >= outputs) continue;
                of_rows[r][i] += net.layers[layer].biases[output];
                if (layer + 1 < LAYERS) x[(warp * OWN_ROWS + r) * d + output] = silu(of_rows[r][i]);
            }
    }
    const int words = (bits + 31) / 32;
    write_signs(of_rows, bits, rows, out + static_cast<uint64_t>(blockIdx.y) * words * stride + first, stride);
}

// Blocks: query heads, rows. Signatures of queries by the net of their head, `[row][head][word]`. All weights are loaded before the first
// is used.
template <typename T>
__device__ void sign_queries(const uint32_t* rows, const T* queries, uint64_t row_stride, int d, const Net* all, uint32_t all_nets,
                             int bits, uint32_t* out) {
    __shared__ __align__(16) float x[WIDEST];
    __shared__ float y[WIDEST];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.x, channel = 4 * lane;
    const T* query = queries + rows[blockIdx.y] * row_stride + static_cast<uint64_t>(head) * d;
    if (threadIdx.x < d) x[threadIdx.x] = to_f32(query[threadIdx.x]);
    const Net net = all[head % all_nets];
    const bool holds = channel < d;
    uint2 weights[LAYERS][SIGN_OUTPUTS];
    float bias[LAYERS];
#pragma unroll
    for (int layer = 0; layer < LAYERS; ++layer) {
        const int outputs = layer + 1 < LAYERS ? d : bits;
#pragma unroll
        for (int i = 0; i < SIGN_OUTPUTS; ++i) {
            const int output = warp + SIGN_WARPS * i;
            const bool is_there = holds && output < outputs;
            weights[layer][i] = is_there ? *reinterpret_cast<const uint2*>(net.layers[layer].weights + output * d + channel)
                                         : make_uint2(0, 0);
        }
        const int own = warp + SIGN_WARPS * lane;
        bias[layer] = lane < SIGN_OUTPUTS && own < outputs ? net.layers[layer].biases[own] : 0.0f;
    }
#pragma unroll
    for (int layer = 0; layer < LAYERS; ++layer) {
        __syncthreads();
        float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (holds) four = *reinterpret_cast<const float4*>(x + channel);
        float own = 0.0f;
#pragma unroll
        for (int i = 0; i < SIGN_OUTPUTS; ++i) {
            const float2 front = __half22float2(reinterpret_cast<const __half2&>(weights[layer][i].x));
            const float2 back = __half22float2(reinterpret_cast<const __half2&>(weights[layer][i].y));
            const float sum = warp_sum(fmaf(four.x, front.x, fmaf(four.y, front.y, fmaf(four.z, back.x, four.w * back.y))));
            if (lane == i) own = sum + bias[layer];
        }
        __syncthreads();
        const int output = warp + SIGN_WARPS * lane;
        if (lane >= SIGN_OUTPUTS || output >= (layer + 1 < LAYERS ? d : bits)) continue;
        if (layer + 1 < LAYERS) x[output] = silu(own);
        else y[output] = own;
    }
    __syncthreads();
    const int words = (bits + 31) / 32;
    if (warp >= words) return;
    const uint32_t word = __ballot_sync(~0u, warp * 32 + lane < bits && y[min(warp * 32 + lane, bits - 1)] > 0.0f);
    if (lane == 0) out[(static_cast<uint64_t>(blockIdx.y) * gridDim.x + head) * words + warp] = word;
}

// Blocks: query heads, rows, runs of SIDES_AT_ONCE bits. Signatures `[row][head][word]` of the sides of hyperplanes on which queries lie.
// `sides` has the normals `[bit][d]`, then a number for each bit that is added to the product. Each warp processes one bit after the other.
template <typename T>
__device__ void sign_sides(const uint32_t* rows, const T* queries, uint64_t row_stride, int d, const float* sides, int bits,
                           uint32_t* out) {
    __shared__ float x[WIDEST_SIDES];
    __shared__ bool positive[SIDES_AT_ONCE];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, words = (bits + 31) / 32;
    const int first = blockIdx.z * SIDES_AT_ONCE, end = min(bits, first + SIDES_AT_ONCE);
    const T* query = queries + rows[blockIdx.y] * row_stride + static_cast<uint64_t>(blockIdx.x) * d;
    for (int i = threadIdx.x; i < d; i += blockDim.x) x[i] = to_f32(query[i]);
    __syncthreads();
#pragma unroll 2
    for (int bit = first + warp; bit < end; bit += SIGN_WARPS) {
        const float* normal = sides + static_cast<uint64_t>(bit) * d;
        float sum = 0.0f;
        for (int k = lane; k < d; k += 32) sum = fmaf(x[k], normal[k], sum);
        sum = warp_sum(sum);
        if (lane == 0) positive[bit - first] = sum + sides[static_cast<uint64_t>(bits) * d + bit] > 0.0f;
    }
    __syncthreads();
    for (int word = first / 32 + warp; 32 * word < end; word += SIGN_WARPS) {
        const int bit = 32 * word + lane;
        const uint32_t signs = __ballot_sync(~0u, bit < end && positive[min(bit, end - 1) - first]);
        if (lane == 0) out[(static_cast<uint64_t>(blockIdx.y) * gridDim.x + blockIdx.x) * words + word] = signs;
    }
}

// Blocks: 8 rows, heads; a warp for each row. Squared norms `[head][row]` of rows, less the mean of their head if there are means. `least` gets
// the smallest norm of a head that is not zero, as bits of a double.
template <typename T>
__device__ void squared_norms(const T* from, uint64_t head_stride, uint32_t rows, int d, const float* means, double* out,
                              unsigned long long* least) {
    const uint32_t row = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.y;
    if (row >= rows) return;
    const T* own = from + head * head_stride + static_cast<uint64_t>(row) * d;
    double sum = 0.0;
    for (int k = lane; k < d; k += 32) {
        const double x = to_f32(own[k]) - (means ? means[head * d + k] : 0.0f);
        sum += x * x;
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane > 0) return;
    out[static_cast<uint64_t>(head) * rows + row] = sum;
    if (sum > 0.0) atomicMin(least + head, static_cast<unsigned long long>(__double_as_longlong(sum)));
}

// Blocks: 256 rows, heads. The length `[head][row]` of each key with its further coordinate, from squared norms, and the largest of a head
// as bits of a double. If there are values, the coordinate is `divisor * ln(norm)` of the value, where a zero counts as the shortest
// other value of the head, or as 1 if there is none.
extern "C" __global__ void __launch_bounds__(THREADS) lengths_of_keys(const double* keys, const double* values, uint32_t rows,
                                                                      const unsigned long long* shortest, double divisor,
                                                                      float* further, double* lengths,
                                                                      unsigned long long* longest) {
    const uint32_t row = blockIdx.x * THREADS + threadIdx.x, head = blockIdx.y;
    if (row >= rows) return;
    const uint64_t at = static_cast<uint64_t>(head) * rows + row;
    float own = 0.0f;
    if (values) {
        const double least = shortest[head] == ~0ull ? 1.0 : sqrt(__longlong_as_double(static_cast<long long>(shortest[head])));
        own = static_cast<float>(divisor * log(fmax(sqrt(values[at]), least)));
        further[at] = own;
    }
    const double length = hypot(sqrt(keys[at]), static_cast<double>(own));
    lengths[at] = length;
    if (length >= 0.0) atomicMax(longest + head, static_cast<unsigned long long>(__double_as_longlong(length)));
}

// Blocks: 64 candidates, KV heads, runs of 128 bits. Signatures `[head][word][stride]` of keys, less the mean of their head if there are
// means, with their further coordinate if there is one, and lengthened to the longest key of the head by one more: on which sides of
// hyperplanes with the normals `[bit][width]` they lie.
template <typename T>
__device__ void sign_lengthened(const T* keys, uint64_t head_stride, uint32_t tokens, int d, const float* means,
                                const float* further, const double* lengths, const unsigned long long* longest,
                                const float* normals, int bits, uint32_t* out, uint64_t stride) {
    extern __shared__ float shared[];
    const int width = d + 1 + (further ? 1 : 0);
    const int first_bit = blockIdx.z * WIDEST, outputs = min(WIDEST, bits - first_bit), words = (bits + 31) / 32;
    float *x = shared, *weights = shared + ROWS * width;
    const uint32_t first = blockIdx.x * ROWS, rows = min(ROWS, tokens - first), head = blockIdx.y;
    const T* from = keys + head * head_stride + static_cast<uint64_t>(first) * d;
    for (int i = threadIdx.x; i < ROWS * d; i += THREADS) {
        const int row = i / d, channel = i % d;
        const float centre = means ? means[head * d + channel] : 0.0f;
        x[row * width + channel] = row < static_cast<int>(rows) ? to_f32(from[i]) - centre : 0.0f;
    }
    if (threadIdx.x < ROWS) {
        const bool is_there = threadIdx.x < rows;
        const uint64_t at = static_cast<uint64_t>(head) * tokens + first + threadIdx.x;
        const double most = __longlong_as_double(static_cast<long long>(longest[head])), own = is_there ? lengths[at] : 0.0;
        float* end = x + threadIdx.x * width + d;
        if (further) *end++ = is_there ? further[at] : 0.0f;
        *end = static_cast<float>(sqrt(fmax(most * most - own * own, 0.0)));
    }
    load_weights(normals + static_cast<uint64_t>(first_bit) * width, outputs, width, weights);
    __syncthreads();
    float of_rows[OWN_ROWS][OWN];
    multiply_rows(x, weights, outputs, width, of_rows);
    write_signs(of_rows, outputs, rows, out + (static_cast<uint64_t>(head) * words + first_bit / 32) * stride + first, stride);
}

#define MAPS(T, NAME)                                                                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS) project_keys_##NAME(                                          \
        const T* keys, unsigned long long head_stride, uint32_t tokens, int d, const float* directions,                 \
        uint32_t direction_heads, int count, int padded, T* out) {                                                      \
        project_keys(keys, head_stride, tokens, d, directions, direction_heads, count, padded, out);                    \
    }                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS) project_queries_##NAME(                                       \
        const uint32_t* rows, const T* queries, unsigned long long row_stride, int d, int group,                        \
        const float* directions, uint32_t direction_heads, int count, int padded, int summed, T* out, T* rest) {        \
        project_queries(rows, queries, row_stride, d, group, directions, direction_heads, count, padded, summed != 0,   \
                        out, rest);                                                                                     \
    }                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS) gather_channels_##NAME(                                       \
        const uint32_t* rows, const T* from, unsigned long long row_stride, unsigned long long head_stride,             \
        uint32_t row_count, int group, const uint32_t* channels, uint32_t channel_heads, int count, int padded, T* out, \
        int row_major) {                                                                                                \
        gather_channels(rows, from, row_stride, head_stride, row_count, group, channels, channel_heads, count, padded,  \
                        out, row_major != 0);                                                                           \
    }                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS) sign_keys_##NAME(                                             \
        const T* keys, unsigned long long head_stride, uint32_t tokens, int d, const Net* all, uint32_t all_nets,       \
        int nets, int bits, uint32_t* out, unsigned long long stride) {                                                 \
        sign_keys(keys, head_stride, tokens, d, all, all_nets, nets, bits, out, stride);                                \
    }                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(32 * SIGN_WARPS) sign_queries_##NAME(                                  \
        const uint32_t* rows, const T* queries, unsigned long long row_stride, int d, const Net* all,                   \
        uint32_t all_nets, int bits, uint32_t* out) {                                                                   \
        sign_queries(rows, queries, row_stride, d, all, all_nets, bits, out);                                           \
    }                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(32 * SIGN_WARPS) sign_sides_##NAME(                                    \
        const uint32_t* rows, const T* queries, unsigned long long row_stride, int d, const float* sides, int bits,     \
        uint32_t* out) {                                                                                                \
        sign_sides(rows, queries, row_stride, d, sides, bits, out);                                                     \
    }                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS) squared_norms_##NAME(                                         \
        const T* from, unsigned long long head_stride, uint32_t rows, int d, const float* means, double* out,           \
        unsigned long long* least) {                                                                                    \
        squared_norms(from, head_stride, rows, d, means, out, least);                                                   \
    }                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS) sign_lengthened_##NAME(                                       \
        const T* keys, unsigned long long head_stride, uint32_t tokens, int d, const float* means,                      \
        const float* further, const double* lengths, const unsigned long long* longest, const float* normals, int bits, \
        uint32_t* out, unsigned long long stride) {                                                                     \
        sign_lengthened(keys, head_stride, tokens, d, means, further, lengths, longest, normals, bits, out, stride);    \
    }

MAPS(float, f32)
MAPS(__half, f16)
MAPS(__nv_bfloat16, bf16)
