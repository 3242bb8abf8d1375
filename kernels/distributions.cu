// Distributions over a vocabulary, given by rows of logits: their sums of exponentials, and the KL divergence between two, in f64.
//
// Results equal those of the host's `distribution` bit for bit: sixteen partial sums each take every sixteenth term and are then added in
// order, the exponential is the same series, and no product is fused with a sum.
#include "greatest.cuh"

constexpr int THREADS = 1024;
constexpr uint32_t LANES = 16;
// Terms that are computed before they are summed; a multiple of the lanes.
constexpr uint32_t CHUNK = 2048;

// Below this, e^x is as good as 0 beside the 1 of the largest logit.
constexpr double LOWEST = -708.0;
// Added to a number below 2^51, this leaves the nearest integer in the lowest bits of the sum.
constexpr double ROUND = 6755399441055744.0;
constexpr double LOG2_E = 1.44269504088896340736;

// 1/n! from n = 13 down to 2.
__device__ constexpr double SERIES[12] = {
    1.6059043836821615e-10, 2.08767569878681e-9,   2.505210838544172e-8,  2.755731922398589e-7,
    2.7557319223985893e-6,  2.48015873015873e-5,   1.984126984126984e-4,  1.388888888888889e-3,
    8.333333333333333e-3,   4.1666666666666664e-2, 1.6666666666666666e-1, 0.5,
};

__device__ __forceinline__ double times(double a, double b) { return __dmul_rn(a, b); }
__device__ __forceinline__ double plus(double a, double b) { return __dadd_rn(a, b); }

// e^x for x <= 709.
__device__ __forceinline__ double exponential(double x) {
    x = x > LOWEST ? x : LOWEST;
    const double sum = plus(times(x, LOG2_E), ROUND), n = plus(sum, -ROUND);
    // ln 2 in two parts, the first with so few bits that its products with integers are exact.
    const double r = plus(plus(x, -times(n, 6.931471803691238e-1)), -times(n, 1.9082149292705877e-10));
    double p = SERIES[0];
#pragma unroll
    for (int i = 1; i < 12; ++i) p = plus(times(p, r), SERIES[i]);
    p = plus(plus(times(p, times(r, r)), r), 1.0);
    // 2^n times p: the integer n is in the lowest bits of the sum.
    return __longlong_as_double(__double_as_longlong(p) + (__double_as_longlong(sum) << 52));
}

// The sum of `term(i)` over the columns, for the threads of the first warp. All threads of the block take part.
template <typename Term> __device__ double summed(uint32_t columns, Term term) {
    __shared__ double terms[2][CHUNK];
    double sum_of_lane = 0.0;
    for (uint32_t first = 0, turn = 0; first < columns; first += CHUNK, turn ^= 1) {
        const uint32_t count = min(CHUNK, columns - first);
        for (uint32_t i = threadIdx.x; i < count; i += THREADS) terms[turn][i] = term(first + i);
        // These terms are overwritten in the turn after next, after the next turn's barrier. The lanes sum them before they reach it.
        __syncthreads();
        if (threadIdx.x < LANES) {
#pragma unroll 8
            for (uint32_t i = threadIdx.x; i < count; i += LANES) sum_of_lane = plus(sum_of_lane, terms[turn][i]);
        }
    }
    double sum = 0.0;
    if (threadIdx.x < 32) {
        for (int lane = 0; lane < LANES; ++lane) sum = plus(sum, __shfl_sync(~0u, sum_of_lane, lane));
    }
    return sum;
}

// The results for one row of logits.
struct Row {
    // The sum of exp(logit - largest).
    double sum;
    float largest;
    float of_target;
    // The first column with the largest logit.
    uint32_t top;
    uint32_t finite;
};

// Blocks: rows. Computes the `Row` of each row of logits `[row][columns]`, given a target column below `columns` for each.
extern "C" __global__ void __launch_bounds__(THREADS)
    row_sums(const float* logits, uint32_t columns, const uint32_t* targets, Row* found) {
    const float* own = logits + static_cast<uint64_t>(blockIdx.x) * columns;
    const Greatest greatest = greatest_of(own, columns);
    const float largest = own[greatest.column];
    const double sum = summed(columns, [=](uint32_t i) { return exponential(plus(own[i], -static_cast<double>(largest))); });
    if (threadIdx.x == 0) found[blockIdx.x] = Row{sum, largest, own[targets[blockIdx.x]], greatest.column, greatest.all_finite};
}

// Blocks: rows. Computes `Σ p (ln p - ln q)` for each row: p is given by `logits`, q by `others`, with the logarithms of their sums.
extern "C" __global__ void __launch_bounds__(THREADS)
    row_divergences(const float* logits, const double* log_z, const float* others, const double* other_log_z,
                    uint32_t columns, double* found) {
    const uint64_t first = static_cast<uint64_t>(blockIdx.x) * columns;
    const float *own = logits + first, *other = others + first;
    const double of_own = log_z[blockIdx.x], shift = plus(other_log_z[blockIdx.x], -of_own);
    const double sum = summed(columns, [=](uint32_t i) {
        const double a = own[i];
        return times(exponential(plus(a, -of_own)), plus(plus(a, -static_cast<double>(other[i])), shift));
    });
    if (threadIdx.x == 0) found[blockIdx.x] = sum;
}
