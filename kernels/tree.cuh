// Shared by the searches of a tree of key blocks (HiP, Algorithm 1): the tree's shape, and which keys score a branch.
#pragma once

#include <cstdint>

// A tree over `tokens` candidates in blocks of `size`. Of every `stride` keys of a block one is scored, the first or the `last`.
// `representative` says which block of a branch represents it: 0 the first, 1 the last.
struct Tree {
    uint32_t tokens, size, stride, last;
    double representative;
};

// Blocks [first, first + count).
struct Span { uint32_t first, count; };

__device__ __forceinline__ uint32_t blocks_of(const Tree& tree) { return (tree.tokens + tree.size - 1) / tree.size; }

// The `j`-th bound, in blocks, if all blocks are cut into `keep` chunks of equal size.
__device__ __forceinline__ uint32_t chunk_bound(const Tree& tree, uint32_t keep, uint64_t j) {
    return (2 * j * blocks_of(tree) + keep) / (2 * keep);
}

// A half of a chunk; the first half is empty if the chunk is one block.
__device__ __forceinline__ Span half_of(const Span& chunk, uint32_t i) {
    const uint32_t half = chunk.count / 2;
    return i % 2 == 0 ? Span{chunk.first, half} : Span{chunk.first + half, chunk.count - half};
}

// The block that represents a non-empty branch.
__device__ __forceinline__ uint32_t representative_of(const Tree& tree, const Span& span) {
    return span.first + static_cast<uint32_t>(tree.representative * (max(span.count, 1u) - 1) + 0.5);
}

// How many keys of [token, end) are scored if one of every `stride` is.
__device__ __forceinline__ uint32_t keys_of(uint32_t token, uint32_t end, uint32_t stride) {
    return end > token ? (end - token + stride - 1) / stride : 0;
}

