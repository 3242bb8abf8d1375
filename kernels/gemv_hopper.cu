// The product of one row with a weight matrix on Hopper, for 16-bit numbers: gemv.cu at the full memory bandwidth.
//
// Blocks are persistent. Each warp has a ring buffer in shared memory, which the copy engine fills with its next rows, so that reading
// never pauses. The input row is copied to shared memory once per block.
#include "common.cuh"
#include "early.cuh"
#include "hopper.cuh"

using namespace hopper;

constexpr int WARPS = 8;
// Numbers copied at a time, and copies of a warp in flight.
constexpr int STAGE = 1024, STAGES = 4;

// Copies bytes (a multiple of 16) from global to shared memory, counted on `barrier`.
__device__ __forceinline__ void copy_in(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
                 "r"(bytes), "r"(barrier)
                 : "memory");
}

// The pieces of a warp's rows, in reading order.
struct Pieces {
    int outputs, inputs, a_row, stride;
    int row, piece;
    __device__ __forceinline__ bool left() const { return row < outputs; }
    __device__ __forceinline__ int begin() const { return piece * STAGE; }
    __device__ __forceinline__ int count() const { return min(STAGE, inputs - piece * STAGE); }
    __device__ __forceinline__ bool ends_row() const { return piece + 1 == a_row; }
    __device__ __forceinline__ void next() {
        if (++piece == a_row) piece = 0, row += stride;
    }
};

template <typename T, typename Out, bool ADD>
__device__ void gemv(const T* w, const T* x, Out* out, int outputs, int inputs) {
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ __align__(8) uint64_t barriers[WARPS][STAGES];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    T* ring = reinterpret_cast<T*>(shared) + warp * STAGES * STAGE;
    T* row = reinterpret_cast<T*>(shared) + WARPS * STAGES * STAGE;
    const int a_row = (inputs + STAGE - 1) / STAGE;
    Pieces read{outputs, inputs, a_row, static_cast<int>(gridDim.x) * WARPS, static_cast<int>(blockIdx.x) * WARPS + warp, 0};
    Pieces asked = read;
    auto ask = [&](int stage) {
        const uint32_t barrier = shared_address(&barriers[warp][stage]), bytes = asked.count() * sizeof(T);
        mbarrier_arrive_expect(barrier, bytes);
        copy_in(shared_address(ring + stage * STAGE), w + static_cast<size_t>(asked.row) * inputs + asked.begin(), bytes, barrier);
    };
    if (lane == 0) {
#pragma unroll
        for (int stage = 0; stage < STAGES; ++stage) mbarrier_init(shared_address(&barriers[warp][stage]), 1);
        fence_barrier_init();
    }
    __syncwarp();
#pragma unroll
    for (int stage = 0; stage < STAGES; ++stage)
        if (asked.left()) {
            if (lane == 0) ask(stage);
            asked.next();
        }
    let_next_start();
    // W does not wait for x.
    wait_for_earlier();
    for (int i = threadIdx.x * PIECE; i < inputs; i += 32 * WARPS * PIECE)
        *reinterpret_cast<Halves*>(row + i) = *reinterpret_cast<const Halves*>(x + i);
    __syncthreads();
    float sum = 0.0f;
    for (int stage = 0, parity = 0; read.left(); read.next()) {
        const T *weights = ring + stage * STAGE, *numbers = row + read.begin();
        const int count = read.count();
        mbarrier_wait(shared_address(&barriers[warp][stage]), parity);
#pragma unroll
        for (int u = 0; u < STAGE / (32 * PIECE); ++u) {
            const int at = (u * 32 + lane) * PIECE;
            if (at >= count) continue;
            float a[PIECE], b[PIECE];
            widen(weights + at, a);
            widen(numbers + at, b);
#pragma unroll
            for (int i = 0; i < PIECE; ++i) sum += a[i] * b[i];
        }
        // All lanes have read the stage.
        __syncwarp();
        if (asked.left()) {
            if (lane == 0) ask(stage);
            asked.next();
        }
        if (++stage == STAGES) stage = 0, parity ^= 1;
        if (read.ends_row()) {
            sum = warp_sum(sum);
            if (lane == 0) out[read.row] = from_f32<Out>(ADD ? to_f32(out[read.row]) + sum : sum);
            sum = 0.0f;
        }
    }
}

#define GEMV(KIND, T, NAME, OUT, ADD)                                                                                   \
    extern "C" __global__ void __launch_bounds__(32 * WARPS)                                                            \
        gemv_hopper_##KIND##_##NAME(const T* w, const T* x, OUT* out, int outputs, int inputs) {                        \
        gemv<T, OUT, ADD>(w, x, out, outputs, inputs);                                                                  \
    }

// Stored as T, stored as f32, and added to f32.
#define GEMVS(T, NAME)                                                                                                  \
    GEMV(narrow, T, NAME, T, false) GEMV(wide, T, NAME, float, false) GEMV(add, T, NAME, float, true)

GEMVS(__half, f16)
GEMVS(__nv_bfloat16, bf16)
