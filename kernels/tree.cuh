// What searches of a tree of key blocks share (HiP, Algorithm 1): what is searched, and by which keys a branch is scored.
#pragma once

#include <cstdint>

// What is searched: blocks of `size` of `tokens` candidates, a key of each `stride` of them scored, the first or the last; and which
// block of a branch stands for it.
struct Tree {
    uint32_t tokens, size, stride, last;
    double representative;
};

// Blocks [first, first + count).
struct Span { uint32_t first, count; };

__device__ __forceinline__ uint32_t blocks_of(const Tree& tree) { return (tree.tokens + tree.size - 1) / tree.size; }

// Block `j` of the bounds that cut all blocks into `keep` chunks at equal distances.
__device__ __forceinline__ uint32_t chunk_bound(const Tree& tree, uint32_t keep, uint64_t j) {
    return (2 * j * blocks_of(tree) + keep) / (2 * keep);
}

// One half of a chunk, of which the first is empty where the chunk is one block.
__device__ __forceinline__ Span half_of(const Span& chunk, uint32_t i) {
    const uint32_t half = chunk.count / 2;
    return i % 2 == 0 ? Span{chunk.first, half} : Span{chunk.first + half, chunk.count - half};
}

// The block that stands for a branch that is not empty.
__device__ __forceinline__ uint32_t representative_of(const Tree& tree, const Span& span) {
    return span.first + static_cast<uint32_t>(tree.representative * (max(span.count, 1u) - 1) + 0.5);
}

// Keys from `token` to `end` of which one of each `stride` is scored.
__device__ __forceinline__ uint32_t keys_of(uint32_t token, uint32_t end, uint32_t stride) {
    return end > token ? (end - token + stride - 1) / stride : 0;
}

