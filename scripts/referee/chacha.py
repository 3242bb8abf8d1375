"""ChaCha with 8 rounds (Bernstein, 2008) as a source of random numbers, seeded as the Rust crates `rand_core` and `rand_chacha` say."""

import numpy as np

MASK = 2**64 - 1


def seeded(number):
    """The key that a 64-bit seed stands for: eight numbers of PCG32."""
    key = []
    for _ in range(8):
        number = (number * 6364136223846793005 + 11634580027462260723) & MASK
        mixed, turn = ((number >> 18 ^ number) >> 27) & 0xFFFFFFFF, number >> 59
        key.append((mixed >> turn | mixed << (32 - turn)) & 0xFFFFFFFF)
    return key


def quarter(x, a, b, c, d):
    """A quarter round on numbers modulo 2^32."""
    for left, right, by, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        x[left] = (x[left] + x[right]) & 0xFFFFFFFF
        mixed = x[by] ^ x[left]
        x[by] = (mixed << turn | mixed >> (32 - turn)) & 0xFFFFFFFF


def block(key, counter):
    """The 16 words of a block."""
    start = [*np.frombuffer(b"expand 32-byte k", "<u4").tolist(), *key, counter & 0xFFFFFFFF, counter >> 32, 0, 0]
    x = list(start)
    for _ in range(4):
        for at in range(4):
            quarter(x, at, at + 4, at + 8, at + 12)
        for at in range(4):
            quarter(x, at, (at + 1) % 4 + 4, (at + 2) % 4 + 8, (at + 3) % 4 + 12)
    return [(one + two) & 0xFFFFFFFF for one, two in zip(x, start)]


def numbers(seed, count):
    """The first `count` random numbers of 64 bits."""
    key = seeded(seed)
    words = [word for counter in range(-(-count // 8)) for word in block(key, counter)]
    return [low | high << 32 for low, high in zip(words[::2], words[1::2])][:count]
