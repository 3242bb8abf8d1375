// Kernels that start before the kernel ahead of them has ended (programmatic dependent launch).
//
// The launcher lets every kernel of a file that includes this header start early, on GPUs for which it is compiled as such code. So
// every thread of each of them calls `wait_for_earlier` before it reads or writes anything that a kernel may write or read, and before it
// returns. What it may read earlier no kernel writes: weights, and lists that the host sends, for which the first kernel behind the copy
// waits. As each one waits until the kernel ahead has ended, and that one did the same, all kernels ahead have ended. No other header
// includes this one.
#pragma once

// Waits until all kernels ahead have ended, and sees what they wrote.
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

// What a short kernel begins with: what the next one reads ahead, it reads meanwhile.
__device__ __forceinline__ void begin_short() {
    let_next_start();
    wait_for_earlier();
}
