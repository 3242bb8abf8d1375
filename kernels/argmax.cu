// The likeliest token of each row of logits.
#include "greatest.cuh"

constexpr int THREADS = 1024;

// Blocks: rows. For each row of logits `[row][columns]`, writes the first column with the greatest, and 1 if all are finite, else 0.
extern "C" __global__ void __launch_bounds__(THREADS) argmax(const float* logits, uint32_t columns, uint2* found) {
    const Greatest greatest = greatest_of(logits + static_cast<uint64_t>(blockIdx.x) * columns, columns);
    if (threadIdx.x == 0) found[blockIdx.x] = make_uint2(greatest.column, greatest.all_finite);
}
