// Stand-alone check and benchmark of the prefill attention kernels.
//
//   nvcc -gencode=arch=compute_90a,code=sm_90a -O3 -std=c++17 -o prefill_attention kernels/tests/prefill_attention.cu
//   prefill_attention check             every size against a float64 reference; exit code 1 if one is off
//   prefill_attention check small [EVERY]      every fifth (EVERY-th) of the small sizes, for compute-sanitizer
//                                              (WITHOUT_PAIR=1 in the environment leaves out the clusters)
//   prefill_attention time      D ROWS FIRST [HEADS KV_HEADS]   times prefill_attention_bf16_D
//   prefill_attention time_pair D ROWS FIRST [HEADS KV_HEADS]   times prefill_attention_pair_bf16_D (128)
//   prefill_attention time_any T D ROWS FIRST [HEADS KV_HEADS]  times prefill_attention_any_T, T = f32, bf16 or f16
//                                              (32 query heads and 8 KV heads unless given)
//
// Keys and values lie in a cache that is longer than what is read, with NaN beyond it. Queries lie in a wider array, with NaN between them.
// The output starts as NaN and is followed by a guard.

#include "../prefill_attention.cu"
#ifndef WITHOUT_ANY
#include "../prefill_attention_any.cu"
#endif

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#define CHECK(CALL)                                                                                        \
    do {                                                                                                   \
        cudaError_t code = (CALL);                                                                         \
        if (code != cudaSuccess) {                                                                         \
            std::printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #CALL, cudaGetErrorString(code));           \
            std::exit(2);                                                                                  \
        }                                                                                                  \
    } while (0)

template <typename T> struct Name;
template <> struct Name<float> {
    static constexpr const char* text = "f32";
    static constexpr double tolerance = 1e-5;
};
template <> struct Name<__nv_bfloat16> {
    static constexpr const char* text = "bf16";
    static constexpr double tolerance = 5e-3;
};
template <> struct Name<__half> {
    static constexpr const char* text = "f16";
    static constexpr double tolerance = 1e-3;
};

template <typename T> __device__ T number(float x) { return static_cast<T>(x); }
template <> __device__ __nv_bfloat16 number<__nv_bfloat16>(float x) { return __float2bfloat16_rn(x); }
template <> __device__ __half number<__half>(float x) { return __float2half_rn(x); }

__device__ uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

__device__ float normal(uint64_t seed, uint64_t i) {
    const uint64_t bits = mix(seed * 0x2545f4914f6cdd1dull + i);
    const float u = ((bits >> 40) + 0.5f) * (1.f / 16777216.f);
    const float w = ((bits & 0xffffff) + 0.5f) * (1.f / 16777216.f);
    return sqrtf(-2.f * logf(u)) * cospif(2.f * w);
}

// Fills `lines` lines of `width` normally distributed numbers, `stride` apart, and NaN elsewhere in the `total` elements.
template <typename T>
__global__ void fill(T* to, size_t total, size_t stride, size_t lines, size_t width, float size, uint64_t seed) {
    const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
    for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < total; i += step) {
        const bool inside = i / stride < lines && i % stride < width;
        to[i] = number<T>(inside ? size * normal(seed, i) : NAN);
    }
}

struct Case {
    int d, rows, first, heads, kv_heads;
    float size = 1.f;  // of the queries
    int section = 0;   // KV heads at once; 0: as many as fit in L2
    int keys() const { return first + rows; }
    int capacity() const { return keys() + 37; }
    int kv_stride() const { return capacity() * d + 24; }
    int q_stride() const { return (heads + 2 * kv_heads) * d; }
    float scale() const { return 1.f / std::sqrt(static_cast<float>(d)); }
};

constexpr size_t GUARD = 4096;

// The reference for one row and one head: scores, softmax and sum in float64.
template <typename T>
__global__ void reference(const T* q, const T* k, const T* v, double* out, double* lse, Case c, int q_stride,
                          int kv_stride, double scale) {
    extern __shared__ double scores[];
    __shared__ double part[128];
    const int row = blockIdx.x, head = blockIdx.y, t = threadIdx.x;
    const int seen = c.first + row + 1;
    const T* query = q + static_cast<size_t>(row) * q_stride + head * c.d;
    const size_t shift = static_cast<size_t>(head / (c.heads / c.kv_heads)) * kv_stride;
    double most = -INFINITY;
    for (int j = t; j < seen; j += 128) {
        double sum = 0;
        for (int i = 0; i < c.d; ++i) {
            sum += static_cast<double>(static_cast<float>(query[i])) *
                   static_cast<double>(static_cast<float>(k[shift + static_cast<size_t>(j) * c.d + i]));
        }
        scores[j] = sum * scale;
        most = fmax(most, scores[j]);
    }
    part[t] = most;
    __syncthreads();
    for (int i = 0; i < 128; ++i) most = fmax(most, part[i]);
    __syncthreads();
    double sum = 0;
    for (int j = t; j < seen; j += 128) sum += scores[j] = exp(scores[j] - most);
    part[t] = sum;
    __syncthreads();
    sum = 0;
    for (int i = 0; i < 128; ++i) sum += part[i];
    for (int i = t; i < c.d; i += 128) {
        double value = 0;
        for (int j = 0; j < seen; ++j) {
            value += scores[j] * static_cast<double>(static_cast<float>(v[shift + static_cast<size_t>(j) * c.d + i]));
        }
        out[(static_cast<size_t>(row) * c.heads + head) * c.d + i] = value / sum;
    }
    if (t == 0) lse[static_cast<size_t>(head) * c.rows + row] = most + log(sum);
}

// Sums of squares of the error and of the reference; the worst error of one row of one head, and of the log-sum-exp.
struct Errors {
    double error, reference, worst, lse;
    unsigned long long off;  // numbers that are not finite
};

__device__ void raise(double* to, double x) {
    auto* bits = reinterpret_cast<unsigned long long*>(to);
    atomicMax(bits, static_cast<unsigned long long>(__double_as_longlong(x)));  // in order for numbers >= 0
}

template <typename T>
__global__ void compare(const T* out, const float* lse, const double* want, const double* want_lse, Case c,
                        Errors* errors) {
    const int line = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (line >= c.rows * c.heads) return;
    double error = 0, norm = 0;
    int off = 0;
    for (int i = lane; i < c.d; i += 32) {
        const size_t at = static_cast<size_t>(line) * c.d + i;
        const float x = static_cast<float>(out[at]);
        if (!isfinite(x)) {
            ++off;
            continue;
        }
        error += (x - want[at]) * (x - want[at]);
        norm += want[at] * want[at];
    }
    for (int s = 16; s; s /= 2) {
        error += __shfl_xor_sync(~0u, error, s);
        norm += __shfl_xor_sync(~0u, norm, s);
        off += __shfl_xor_sync(~0u, off, s);
    }
    if (lane == 0) {
        const int row = line / c.heads, head = line % c.heads;
        const size_t at = static_cast<size_t>(head) * c.rows + row;
        atomicAdd(&errors->error, error);
        atomicAdd(&errors->reference, norm);
        raise(&errors->worst, sqrt(error / norm));
        if (!isfinite(lse[at])) ++off;
        raise(&errors->lse, fabs(lse[at] - want_lse[at]));
        if (off) atomicAdd(&errors->off, static_cast<unsigned long long>(off));
    }
}

template <typename T> struct Arrays {
    Case c;
    T *q, *k, *v, *out;
    float* lse;
    uint32_t* counter;
    size_t outputs, lines;

    explicit Arrays(const Case& c, uint64_t seed) : c(c) {
        outputs = static_cast<size_t>(c.rows) * c.heads * c.d;
        lines = static_cast<size_t>(c.rows) * c.heads;
        const size_t q_total = static_cast<size_t>(c.rows) * c.q_stride();
        const size_t kv_total = static_cast<size_t>(c.kv_heads) * c.kv_stride();
        CHECK(cudaMalloc(&q, q_total * sizeof(T)));
        CHECK(cudaMalloc(&k, kv_total * sizeof(T)));
        CHECK(cudaMalloc(&v, kv_total * sizeof(T)));
        CHECK(cudaMalloc(&out, (outputs + GUARD) * sizeof(T)));
        CHECK(cudaMalloc(&lse, (lines + GUARD) * sizeof(float)));
        CHECK(cudaMalloc(&counter, sizeof(uint32_t)));
        CHECK(cudaMemset(counter, 0, sizeof(uint32_t)));
        fill<T><<<1024, 256>>>(q, q_total, c.q_stride(), c.rows, c.heads * c.d, c.size, seed);
        fill<T><<<1024, 256>>>(k, kv_total, c.kv_stride(), c.kv_heads, static_cast<size_t>(c.keys()) * c.d, 1.f,
                               seed + 1);
        fill<T><<<1024, 256>>>(v, kv_total, c.kv_stride(), c.kv_heads, static_cast<size_t>(c.keys()) * c.d, 1.f,
                               seed + 2);
        CHECK(cudaGetLastError());
        poison();
    }
    ~Arrays() {
        for (void* p : {static_cast<void*>(q), static_cast<void*>(k), static_cast<void*>(v), static_cast<void*>(out),
                        static_cast<void*>(lse), static_cast<void*>(counter)}) {
            CHECK(cudaFree(p));
        }
    }
    void poison() {
        CHECK(cudaMemset(out, 0xff, (outputs + GUARD) * sizeof(T)));
        CHECK(cudaMemset(lse, 0xff, (lines + GUARD) * sizeof(float)));
    }
    // Whether the guard behind the outputs is intact, and the counter is zero again.
    bool guarded() const {
        std::vector<uint8_t> bytes(GUARD * sizeof(T));
        CHECK(cudaMemcpy(bytes.data(), out + outputs, bytes.size(), cudaMemcpyDeviceToHost));
        for (uint8_t b : bytes) {
            if (b != 0xff) return false;
        }
        bytes.resize(GUARD * sizeof(float));
        CHECK(cudaMemcpy(bytes.data(), lse + lines, bytes.size(), cudaMemcpyDeviceToHost));
        for (uint8_t b : bytes) {
            if (b != 0xff) return false;
        }
        uint32_t count = 1;
        CHECK(cudaMemcpy(&count, counter, sizeof(count), cudaMemcpyDeviceToHost));
        return count == 0;
    }
};

// ---- launches --------------------------------------------------------------------------------------------------

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                            const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static CUtensorMap tensor_map(bool bf16, void* base, int rows, int blocks, int heads, size_t row_stride,
                              size_t head_stride, int box_rows, int box_blocks) {
    static Encode encode = [] {
        void* entry = nullptr;
        cudaDriverEntryPointQueryResult found;
        CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found));
        return reinterpret_cast<Encode>(entry);
    }();
    CUtensorMap map;
    const cuuint64_t dims[4] = {64, static_cast<cuuint64_t>(rows), static_cast<cuuint64_t>(blocks),
                                static_cast<cuuint64_t>(heads)};
    const cuuint64_t strides[3] = {2 * row_stride, 128, 2 * head_stride};
    const cuuint32_t box[4] = {64, static_cast<cuuint32_t>(box_rows), static_cast<cuuint32_t>(box_blocks), 1};
    const cuuint32_t ones[4] = {1, 1, 1, 1};
    const CUresult code = encode(
        &map, bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4, base, dims, strides, box,
        ones, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (code != CUDA_SUCCESS) {
        std::printf("cuTensorMapEncodeTiled: error %d\n", static_cast<int>(code));
        std::exit(2);
    }
    return map;
}

static int multiprocessors() {
    static int count = [] {
        int n = 0;
        CHECK(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, 0));
        return n;
    }();
    return count;
}

template <typename T, int D> static void launch_wide(const Arrays<T>& a, const void* kernel, int blocks) {
    using S = prefill::Shape<D>;
    const Case& c = a.c;
    constexpr bool bf16 = std::is_same<T, __nv_bfloat16>::value;
    CUtensorMap q_map = tensor_map(bf16, a.q, c.rows, D / 64, c.heads, c.q_stride(), D, S::QUERIES, D / 64);
    CUtensorMap k_map = tensor_map(bf16, a.k, c.keys(), D / 64, c.kv_heads, D, c.kv_stride(), D, 1);
    CUtensorMap v_map = tensor_map(bf16, a.v, c.keys(), D / 64, c.kv_heads, D, c.kv_stride(), D, 1);
    T* out = a.out;
    float* lse = a.lse;
    uint32_t* counter = a.counter;
    int rows = c.rows, first = c.first, heads = c.heads, kv_heads = c.kv_heads;
    int section = c.section ? c.section : static_cast<int>((24u << 20) / (4ull * D * c.keys()));
    section = std::max(1, std::min(section, kv_heads));
    float scale = c.scale();
    void* arguments[] = {&q_map, &k_map, &v_map, &out, &lse, &counter, &rows, &first, &heads, &kv_heads, &section,
                         &scale};
    const int items = heads / blocks * ((rows + S::QUERIES - 1) / S::QUERIES);
    const int grid = blocks * std::min(multiprocessors() / blocks, items);
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::SHARED_BYTES));
    CHECK(cudaLaunchKernel(kernel, dim3(grid), dim3(S::BLOCK), arguments, S::SHARED_BYTES, nullptr));
    CHECK(cudaGetLastError());
}

template <typename T> static const void* function(T* kernel) { return reinterpret_cast<const void*>(kernel); }

static void launch_hopper(const Arrays<__nv_bfloat16>& a, bool pair) {
    using T = __nv_bfloat16;
    if (a.c.d == 64 && !pair) launch_wide<T, 64>(a, function(prefill_attention_bf16_64), 1);
    if (a.c.d == 128 && !pair) launch_wide<T, 128>(a, function(prefill_attention_bf16_128), 1);
    if (a.c.d == 128 && pair) launch_wide<T, 128>(a, function(prefill_attention_pair_bf16_128), 2);
}
static void launch_hopper(const Arrays<__half>& a, bool pair) {
    using T = __half;
    if (a.c.d == 64 && !pair) launch_wide<T, 64>(a, function(prefill_attention_f16_64), 1);
    if (a.c.d == 128 && !pair) launch_wide<T, 128>(a, function(prefill_attention_f16_128), 1);
    if (a.c.d == 128 && pair) launch_wide<T, 128>(a, function(prefill_attention_pair_f16_128), 2);
}
[[maybe_unused]] static void launch_hopper(const Arrays<float>&, bool) {}

#ifndef WITHOUT_ANY
template <typename T> static void launch_any_kernel(const Arrays<T>& a, const void* kernel) {
    const Case& c = a.c;
    const prefill_any::Launch l = prefill_any::launch_of(c.d, sizeof(T) == 4);
    const T *q = a.q, *k = a.k, *v = a.v;
    T* out = a.out;
    float* lse = a.lse;
    int d = c.d, q_stride = c.q_stride(), rows = c.rows, first = c.first, heads = c.heads, kv_heads = c.kv_heads;
    long long kv_stride = c.kv_stride();
    float scale = c.scale();
    void* arguments[] = {&q, &k, &v, &out, &lse, &d, &q_stride, &kv_stride, &rows, &first, &heads, &kv_heads, &scale};
    const dim3 grid(heads, (rows + l.queries - 1) / l.queries);
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, l.shared_bytes));
    CHECK(cudaLaunchKernel(kernel, grid, dim3(l.block), arguments, l.shared_bytes, nullptr));
    CHECK(cudaGetLastError());
}
static void launch_any(const Arrays<float>& a) {
    launch_any_kernel(a, reinterpret_cast<const void*>(prefill_attention_any_f32));
}
static void launch_any(const Arrays<__nv_bfloat16>& a) {
    launch_any_kernel(a, reinterpret_cast<const void*>(prefill_attention_any_bf16));
}
static void launch_any(const Arrays<__half>& a) {
    launch_any_kernel(a, reinterpret_cast<const void*>(prefill_attention_any_f16));
}
#else
template <typename T> static void launch_any(const Arrays<T>&) {}
#endif

// ---- checks ----------------------------------------------------------------------------------------------------

struct Worst {
    double error = 0, row = 0, lse = 0;
    int cases = 0, failed = 0;
};

template <typename T>
static void judge(const char* kernel, Arrays<T>& a, const double* want, const double* want_lse, Worst& worst) {
    static Errors* errors = nullptr;
    const Case& c = a.c;
    if (!errors) CHECK(cudaMalloc(&errors, sizeof(Errors)));
    CHECK(cudaMemset(errors, 0, sizeof(Errors)));
    compare<T><<<(c.rows * c.heads + 3) / 4, 128>>>(a.out, a.lse, want, want_lse, c, errors);
    CHECK(cudaGetLastError());
    Errors e;
    CHECK(cudaMemcpy(&e, errors, sizeof(e), cudaMemcpyDeviceToHost));
    const double error = std::sqrt(e.error / e.reference);
    const bool guarded = a.guarded();
    const double tolerance = Name<T>::tolerance;
    const bool good = e.off == 0 && guarded && error < tolerance && e.worst < 4 * tolerance && e.lse < 1e-4;
    ++worst.cases;
    worst.error = std::max(worst.error, error);
    worst.row = std::max(worst.row, e.worst);
    worst.lse = std::max(worst.lse, e.lse);
    if (!good) {
        if (++worst.failed <= 12) {
            std::printf("FAILED %s %s d=%d rows=%d first=%d heads=%d/%d size=%g: error %.2e, row %.2e, lse %.2e, %llu "
                        "not finite, guard %s\n",
                        kernel, Name<T>::text, c.d, c.rows, c.first, c.heads, c.kv_heads, c.size, error, e.worst,
                        e.lse, e.off, guarded ? "whole" : "BROKEN");
        }
    }
    std::fflush(stdout);
}

template <typename T> static bool check(int every) {
    const bool small = every > 0;
    Worst wide[257], pair[257], any[257];
    uint64_t seed = 1;
    double *want, *want_lse;
    CHECK(cudaMalloc(&want, sizeof(double) * 4097 * 16 * 256));
    CHECK(cudaMalloc(&want_lse, sizeof(double) * 4097 * 16));
    CHECK(cudaFuncSetAttribute(reference<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, 100000));
    const std::vector<int> widths = {64, 80, 96, 128, 256}, rows = {1, 2, 63, 64, 65, 127, 128, 129, 1000, 4097},
                           firsts = {0, 1, 77, 5000}, groups = {1, 2, 4, 7, 8};
    int number = 0;
    for (int d : widths) {
        for (int n : rows) {
            for (int first : firsts) {
                for (int group : groups) {
                    ++number;
#ifdef WITHOUT_ANY
                    if (d != 64 && d != 128) continue;
#endif
                    if (small && (n > 129 || first > 77 || number % every)) continue;
                    // Long cases run with two of the group sizes each.
                    if (n >= 1000 && number % 5 != (n + first) % 5 && number % 5 != (n + first + 2) % 5) continue;
                    if (n > 1000 && first == 1) continue;
                    Case c{d, n, first, 2 * group, 2};
                    c.size = number % 3 == 0 ? 4.f : 1.f;
                    c.section = number % 2;
                    Arrays<T> a(c, seed += 3);
                    reference<T><<<dim3(n, c.heads), 128, sizeof(double) * c.keys()>>>(
                        a.q, a.k, a.v, want, want_lse, c, c.q_stride(), c.kv_stride(), c.scale());
                    CHECK(cudaGetLastError());
                    if (sizeof(T) == 2 && (d == 64 || d == 128)) {
                        launch_hopper(a, false);
                        judge("prefill_attention", a, want, want_lse, wide[d]);
                        a.poison();
                        if (d == 128 && group % 2 == 0 && !std::getenv("WITHOUT_PAIR")) {
                            launch_hopper(a, true);
                            judge("prefill_attention_pair", a, want, want_lse, pair[d]);
                            a.poison();
                        }
                    }
#ifndef WITHOUT_ANY
                    launch_any(a);
                    judge("prefill_attention_any", a, want, want_lse, any[d]);
#endif
                }
            }
        }
    }
    CHECK(cudaFree(want));
    CHECK(cudaFree(want_lse));
    bool good = true;
    for (int d : widths) {
        for (auto* w : {&wide[d], &pair[d], &any[d]}) {
            if (!w->cases) continue;
            std::printf("%-22s %-4s d=%-3d %4d cases, %d failed; worst error %.2e, of a row %.2e, of lse %.2e\n",
                        w == &wide[d]   ? "prefill_attention"
                        : w == &pair[d] ? "prefill_attention_pair"
                                        : "prefill_attention_any", Name<T>::text, d, w->cases,
                        w->failed, w->error, w->row, w->lse);
            good = good && w->failed == 0;
        }
    }
    return good;
}

// Prints the median time of several launches, in milliseconds.
template <typename T, typename LAUNCH> static void time_case(const char* label, const Case& c, LAUNCH launch) {
    Arrays<T> a(c, 7);
    const double seen = static_cast<double>(c.rows) * c.first + 0.5 * c.rows * c.rows;
    const double flops = 4.0 * seen * c.d * c.heads;
    cudaEvent_t start, end;
    CHECK(cudaEventCreate(&start));
    CHECK(cudaEventCreate(&end));
    std::vector<float> times;
    double spent = 0;
    const char* most = std::getenv("MILLISECONDS");  // to spend; long runs heat the card and lower its clock
    const double budget = most ? std::atof(most) : 700;
    for (int i = 0; i < 5 || (spent < budget && i < 103); ++i) {
        CHECK(cudaEventRecord(start));
        launch(a);
        CHECK(cudaEventRecord(end));
        CHECK(cudaEventSynchronize(end));
        float ms = 0;
        CHECK(cudaEventElapsedTime(&ms, start, end));
        if (i >= 2) times.push_back(ms);
        spent += ms;
    }
    CHECK(cudaGetLastError());
    std::sort(times.begin(), times.end());
    const double ms = times[times.size() / 2];
    std::printf("%-27s d=%-3d heads %d/%d rows %6d first %6d: %9.4f ms (best %9.4f) %6.1f TFLOP/s, %zu launches\n",
                label, c.d, c.heads, c.kv_heads, c.rows, c.first, ms, times[0], flops / ms * 1e-9, times.size());
    CHECK(cudaEventDestroy(start));
    CHECK(cudaEventDestroy(end));
}

int main(int count, char** words) {
    const std::string what = count > 1 ? words[1] : "check";
    if (what == "check") {
        const bool small = count > 2 && !std::strcmp(words[2], "small");
        const int every = !small ? 0 : count > 3 ? std::atoi(words[3]) : 5;
        bool good = check<__nv_bfloat16>(every);
        good = check<__half>(every) && good;
#ifndef WITHOUT_ANY
        good = check<float>(every) && good;
#endif
        CHECK(cudaDeviceSynchronize());
        std::printf(good ? "all good\n" : "SOME FAILED\n");
        return good ? 0 : 1;
    }
    const bool any = what == "time_any";
    const int at = any ? 3 : 2;
    if (count < at + 3) return 2;
    Case c{std::atoi(words[at]), std::atoi(words[at + 1]), std::atoi(words[at + 2]), 32, 8};
    if (count > at + 4) {
        c.heads = std::atoi(words[at + 3]);
        c.kv_heads = std::atoi(words[at + 4]);
    }
    if (what == "time") {
        time_case<__nv_bfloat16>("prefill_attention_bf16", c, [](auto& a) { launch_hopper(a, false); });
    } else if (what == "time_pair") {
        time_case<__nv_bfloat16>("prefill_attention_pair_bf16", c, [](auto& a) { launch_hopper(a, true); });
    } else if (!std::strcmp(words[2], "f32")) {
        time_case<float>("prefill_attention_any_f32", c, [](auto& a) { launch_any(a); });
    } else if (!std::strcmp(words[2], "f16")) {
        time_case<__half>("prefill_attention_any_f16", c, [](auto& a) { launch_any(a); });
    } else {
        time_case<__nv_bfloat16>("prefill_attention_any_bf16", c, [](auto& a) { launch_any(a); });
    }
    return 0;
}
