// Kernels that start before the kernel ahead of them has ended (programmatic dependent launch).
//
// The launcher starts every kernel of a file that includes this header early, on GPUs for which it is compiled with these instructions.
// So every thread of such a kernel calls `wait_for_earlier` before it reads or writes anything that a kernel may write or read, and
// before it returns. Before the call, it may only read what no kernel writes: weights, and lists that the host uploads, because the first
// kernel after the copy waits for it. As each kernel waits until the previous one has ended, and that one did the same, all earlier
// kernels have ended. No other header includes this one.
#pragma once

// Waits until all earlier kernels have ended, and sees what they wrote.
__device__ __forceinline__ void wait_for_earlier() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Blocks of the next kernel may start as soon as all blocks have called this, or have ended.
__device__ __forceinline__ void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// The start of a short kernel: lets the next one read ahead while this one runs.
__device__ __forceinline__ void begin_short() {
    let_next_start();
    wait_for_earlier();
}
