"""A second implementation, from the papers and in numpy, of five things that spattn analyses; compares the results.

    spattn analyze mass recall estimation channels -t ruler/vt -l 1K -n 1 --queries 4 --dump --out DIR \\
        -m magicpig:K=8,L=75 -m hash_attention:k=64 -m double_sparsity:k=64,label_bits=16 -m hip:k=128
    python3 scripts/referee/check.py DIR models/builtin/calibration

Prints a line for each number, with both results, and ends with status 1 if they differ by more than the tolerance.
Nothing here is taken from the program, not even its hyperplanes, so random results have a wider tolerance.
"""

import sys

import numpy as np

from captured import documents, softmax, table, tensors

DRAWS = 16
failed = []


def compare(what, ours, referee, tolerance):
    """Records whether two numbers are equal, up to a share of this script's number."""
    same = abs(ours - referee) <= tolerance * max(abs(referee), 1e-12)
    print(f"{'same' if same else 'OTHER':6}{what:58}{ours:12.6f}{referee:12.6f}   within {100 * tolerance:g} %")
    if not same:
        failed.append(what)


def mean(numbers):
    return float(np.mean(numbers))


def top_mass(folder, read):
    """Top-k's mass: the sum of the largest weights."""
    for share in (1, 20):
        covered = []
        for document in read:
            for _, _, _, query, keys, _ in document.each_query():
                weights = np.sort(softmax(document.scale * keys @ query))[::-1]
                covered.append(weights[: int(np.ceil(share / 100 * len(weights)))].sum())
        ours = [float(row[f"top {share}%"]) for row in table(folder, "mass_by_head")]
        compare(f"top-k: mass of the top {share} %", mean(ours), mean(covered), 1e-5)


def agreement(query, keys, centre):
    """The probability that a query and a centred key are on the same side of a random hyperplane (MagicPIG, eq. 9)."""
    centred = keys - centre
    cosines = centred @ query / (np.linalg.norm(centred, axis=1) * np.linalg.norm(query))
    return 1 - np.arccos(np.clip(cosines, -1, 1)) / np.pi


def magicpig(folder, read):
    """MagicPIG's density and error (eqs. 10 and 11), with other hyperplanes than the program's."""
    densities, errors, own = [], [], []
    for document in read:
        at, parameters = document.method("magicpig")
        bits, tables = int(parameters["K"]), int(parameters["L"])
        planes = np.random.default_rng(5).standard_normal((DRAWS, document.d, bits * tables))
        powers = 1 << np.arange(bits)
        codes = {}
        for layer, step, head, query, keys, values in document.each_query():
            sink, recent = document.of_method(at, layer, "exact")[step]
            place, kv_head = (layer, head // document.group()), head // document.group()
            candidates = keys[sink:recent]
            centre = candidates.mean(axis=0)
            hashed = lambda x, draw: ((x @ planes[draw] > 0).reshape(len(x), tables, bits) * powers).sum(axis=2)
            if place not in codes:
                codes[place] = [hashed(candidates - centre, draw) for draw in range(DRAWS)]
            logits = document.scale * keys @ query
            exact = softmax(logits) @ values
            one = agreement(query, candidates, centre) ** bits
            sampled = 1 - (1 - one) ** tables - tables * one * (1 - one) ** (tables - 1)

            def output(picked):
                lowered = logits.copy()
                lowered[sink:recent] -= np.log(sampled)
                static = np.r_[0:sink, recent : len(keys)]
                tokens = np.r_[static, picked]
                return softmax(lowered[tokens]) @ values[tokens]

            relative = lambda out: np.linalg.norm(out - exact) / np.linalg.norm(exact)
            for draw in range(DRAWS):
                collisions = (codes[place][draw] == hashed(query[None], draw)).sum(axis=1)
                picked = sink + np.flatnonzero(collisions >= 2)
                densities.append((len(picked) + sink + len(keys) - recent) / len(keys))
                errors.append(relative(output(picked)))
            # The program's own selection, weighted by the paper's formula, must give its own output.
            theirs = output(document.picks(at, layer, step, head))
            ours = document.of_method(at, layer, "outputs")[step, head]
            own.append(np.linalg.norm(theirs - ours) / np.linalg.norm(exact))
    (row,) = [row for row in table(folder, "estimation") if row["estimator"].startswith("magicpig")]
    compare("MagicPIG: density", float(row["attended"]), mean(densities), 0.1)
    compare("MagicPIG: error of the output", float(row["error"]), mean(errors), 0.1)
    compare("MagicPIG: its output, by its picks, from 1", 1 + mean(own), 1.0, 1e-4)


def recall(top, picked):
    return len(np.intersect1d(top, picked)) / len(top)


def hash_attention(folder, read, calibration):
    """HashAttention's recall (eqs. 1 and 2): nets, signs, Hamming distance; ties are broken at random."""
    nets, _ = tensors(f"{calibration}/hash_attention.safetensors")
    rng = np.random.default_rng(7)

    def signs(x, layer, side, head):
        for part in range(3):
            name = f"layers.{layer}.{side}.{part}"
            x = x @ nets[f"{name}.weight"][head].astype(np.float64).T + nets[f"{name}.bias"][head]
            if part < 2:
                x = x / (1 + np.exp(-x))
        return x > 0

    recalls, valid = {32: [], 64: []}, []
    for document in read:
        at, _ = document.method("hash_attention")
        codes = {}
        for layer, step, head, query, keys, _ in document.each_query():
            sink, recent = document.of_method(at, layer, "exact")[step]
            kv_head = head // document.group()
            if (layer, kv_head) not in codes:
                codes[layer, kv_head] = signs(keys[sink:recent], layer, "key", kv_head)
            far = (codes[layer, kv_head] != signs(query[None], layer, "query", head)).sum(axis=1)
            ours = document.picks(at, layer, step, head) - sink
            nearest = np.lexsort((rng.random(len(far)), far))[: len(ours)]
            valid.append(np.sort(far[ours]).sum() == np.sort(far[nearest]).sum())
            logits = (keys @ query)[sink:recent]
            for k, found in recalls.items():
                found.append(recall(np.argsort(-logits)[:k], nearest))
    rows = [row for row in table(folder, "recall_by_head") if row["method"].startswith("hash_attention")]
    for k, found in recalls.items():
        compare(f"HashAttention: recall of the top {k}", mean([float(r[f"recall@{k}"]) for r in rows]), mean(found), 0.03)
    compare("HashAttention: steps whose picks are the nearest", mean(valid), 1.0, 0.005)


def double_sparsity(folder, read, calibration):
    """Double Sparsity's channels (§4.1) offline and online, and the tokens that they select."""
    means, _ = tensors(f"{calibration}/double_sparsity.safetensors")
    overlaps, equal = [], []
    for document in read:
        at, _ = document.method("double_sparsity")
        count, group = document.d // 4, document.group()
        for layer in document.layers:
            queries, keys, _ = document.layer(layer)
            offline = means[f"layers.{layer}.qk"].astype(np.float64).reshape(document.kv_heads, group, -1).sum(axis=1)
            for kv_head in range(document.kv_heads):
                chosen = np.argsort(-offline[kv_head], kind="stable")[:count]
                for step in range(queries.shape[0]):
                    seen = keys[kv_head, : document.context + step + 1]
                    own = queries[step, kv_head * group : (kv_head + 1) * group]
                    online = sum(np.abs(seen * query).sum(axis=0) for query in own)
                    overlaps.append(recall(np.argsort(-online, kind="stable")[:count], chosen))
                    sink, recent = document.of_method(at, layer, "exact")[step]
                    for head, query in enumerate(own, kv_head * group):
                        ours = document.picks(at, layer, step, head)
                        scores = seen[sink:recent, chosen] @ query[chosen]
                        equal.append(recall(ours, sink + np.argsort(-scores)[: len(ours)]))
    rows = table(folder, "channels_by_head")
    compare("Double Sparsity: overlap of d/4 channels", mean([float(row["overlap d/4"]) for row in rows]), mean(overlaps), 1e-5)
    # Because labels have 16 bits, rounding sometimes changes the last selected tokens.
    compare("Double Sparsity: picks that are the same", mean(equal), 1.0, 0.005)


def hip_search(scores, keep, size):
    """HiP's Algorithm 1 for one query row: the tokens of the selected blocks, counted from the first candidate."""
    count = -(-len(scores) // size)
    if keep >= count:
        return np.arange(len(scores))
    bounds = [int(np.floor(j * count / keep + 0.5)) for j in range(keep + 1)]
    chunks = [(a, b) for a, b in zip(bounds, bounds[1:]) if b > a]
    while any(b - a > 1 for a, b in chunks):
        halves = [(a, a + (b - a) // 2) for a, b in chunks] + [(a + (b - a) // 2, b) for a, b in chunks]
        branches = sorted((a, b) for a, b in halves if b > a)
        middles = [a + (b - a) // 2 for a, b in branches]
        value = np.array([scores[m * size : (m + 1) * size].max() for m in middles])
        chunks = [branches[i] for i in sorted(np.argsort(-value, kind="stable")[:keep])]
    tokens = np.concatenate([np.arange(a * size, (a + 1) * size) for a, _ in chunks])
    return tokens[tokens < len(scores)]


def hip(_, read):
    """HiP's mask of a decoding step."""
    equal = []
    for document in read:
        at, parameters = document.method("hip")
        size, k = int(parameters.get("b_k", 2)), int(parameters["k"])
        for layer, step, head, query, keys, _ in document.each_query():
            sink, recent = document.of_method(at, layer, "exact")[step]
            mask = sink + hip_search(keys[sink:recent] @ query, -(-k // size), size)
            equal.append(np.array_equal(np.sort(mask), document.picks(at, layer, step, head)))
    compare("HiP: steps whose masks are the same", mean(equal), 1.0, 0.01)


def main(folder, calibration):
    read = documents(folder)
    if not read:
        sys.exit(f"{folder} has no dump: run spattn analyze with --dump")
    print(f"{'':6}{'':58}{'spattn':>12}{'referee':>12}")
    top_mass(folder, read)
    magicpig(folder, read)
    hash_attention(folder, read, calibration)
    double_sparsity(folder, read, calibration)
    hip(folder, read)
    if failed:
        sys.exit(f"{len(failed)} differ: {'; '.join(failed)}")


