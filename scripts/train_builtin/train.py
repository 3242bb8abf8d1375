"""Train the built-in model, in runs of limited time that each continue the one before.

The schedule (lengths, learning rate) follows the number of tokens seen, of --tokens in all, so that a piece
that was cut short only shifts what comes later. Batches are made by `train-rows` (`crates/train-rows`) while training:
batch number and seed decide what is in them. Under torchrun every GPU takes batches of its own of the same length.
See README.md for commands.
"""
import argparse
import json
import os
import queue
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

import model as M

RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
# Seconds reserved for saving, and steps between checks of the time.
SAVING, STOP_EVERY = 6, 16
LN2 = 0.6931471805599453
# Loss weights by class: none, prompt, answer, copy, counted answer, text.
CLASS_WEIGHTS = [0.0, 0.05, 1.0, 0.2, 3.0, 0.5]
ANSWER, COUNT, TEXT = 2, 4, 5
# The shares of the lengths, up to the given part of the training.
STAGES = [
    (0.05, {256: 50, 512: 50}),
    (0.10, {256: 15, 512: 40, 1024: 45}),
    (0.19, {512: 30, 1024: 30, 2048: 40}),
    (0.36, {512: 12, 1024: 23, 2048: 25, 4096: 40}),
    (0.58, {512: 8, 1024: 14, 2048: 18, 4096: 32, 8192: 28}),
    (0.86, {512: 6, 1024: 10, 2048: 14, 4096: 24, 8192: 24, 16384: 22}),
    (1.01, {512: 5, 1024: 9, 2048: 12, 4096: 21, 8192: 20, 16384: 21, 32768: 12}),
]


def lengths(batches, tokens_a_batch, longest, seed):
    """The length of every batch of the whole training."""
    draw = random.Random(seed)
    plan = []
    for i in range(batches):
        part = (i + 0.5) / batches
        shares = next(s for end, s in STAGES if part < end)
        limit = min(longest, tokens_a_batch)
        shares = {n: s for n, s in shares.items() if n <= limit} or {limit: 1}
        plan.append(draw.choices(list(shares), list(shares.values()))[0])
    return plan


def mean_batch_time(seconds, longest):
    """The expected seconds of a batch over the whole schedule, given the seconds of a batch of every length."""
    total, start = 0.0, 0.0
    for end, shares in STAGES:
        shares = {n: s for n, s in shares.items() if n <= longest} or {longest: 1}
        mean = sum(s * seconds[n] for n, s in shares.items()) / sum(shares.values())
        total, start = total + (min(end, 1.0) - start) * mean, end
    return total


def rate_factor(part, step, warmup, decay_from):
    factor = min(1.0, (step + 1) / warmup)
    return factor * (1.0 if part < decay_from else max(0.01, (1 - part) / (1 - decay_from)))


class Choices:
    """Positions where an answer may continue with any of several words: those of a list in any order.

    The first token of each word of such an answer ("1. word 2. word") is replaced in the loss by the set of the first
    tokens of all words not yet listed, so that no order is taught and a repeated word is wrong."""

    MOST = 10

    def __init__(self, tokenizer):
        vocabulary = json.loads(Path(tokenizer).read_text())["model"]["vocab"]
        self.point = vocabulary["."]
        self.starts = np.zeros(max(vocabulary.values()) + 1, bool)
        for token, number in vocabulary.items():
            self.starts[number] = token[:1] == "\u0120" and token[1:2].isalpha()

    def find(self, ids, classes):
        """Flat positions that predict such a token, and the tokens allowed there, `[positions][MOST]`, -1 for none."""
        counted = classes == COUNT
        first = counted & self.starts[ids]
        first[:, 1:] &= ids[:, :-1] == self.point
        first[:, 0] = False
        rows, columns = np.nonzero(first)
        # All words of an answer have the same number of non-answer tokens before them.
        answer = rows.astype(np.int64) * ids.shape[1] + np.cumsum(~counted, 1)[rows, columns]
        tokens = ids[rows, columns].astype(np.int64)
        sets = np.full((len(rows), self.MOST), -1, np.int64)
        for ahead in range(self.MOST):
            here = np.arange(len(rows) - ahead) if ahead < len(rows) else np.arange(0)
            same = answer[here] == answer[here + ahead]
            known = (sets[here] == tokens[here + ahead][:, None]).any(1)
            sets[here, ahead] = np.where(same & ~known, tokens[here + ahead], -1)
        return rows.astype(np.int64) * ids.shape[1] + columns - 1, sets


class Rows:
    """Batches from the generator; a thread reads them in advance."""

    def __init__(self, args, plan, first, seed):
        file = tempfile.NamedTemporaryFile("w", suffix=".txt", delete=False)
        file.write("\n".join(plan) + "\n")
        file.close()
        command = [args.binary, "--tokenizer", args.tokenizer, "--plan", file.name,
                   "--from", str(first), "--seed", str(seed)]
        if args.books:
            command += ["--books", args.books]
        environment = {**os.environ, "RAYON_NUM_THREADS": str(max(1, os.cpu_count() // WORLD - 1))}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=1 << 20, env=environment)
        self.choices = Choices(args.tokenizer)
        header = self.process.stdout.readline()
        if not header:
            sys.exit("the generator of rows wrote nothing")
        self.families = json.loads(header)["families"]
        self.queue = queue.Queue(12)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        stream = self.process.stdout
        while header := stream.read(12):
            number, rows, length = np.frombuffer(header, "<u4")
            families = np.frombuffer(stream.read(rows), np.uint8)
            ids = np.frombuffer(stream.read(2 * rows * length), "<i2").reshape(rows, length)
            classes = np.frombuffer(stream.read(rows * length), np.uint8).reshape(rows, length)
            tensors = [torch.from_numpy(a.copy()) for a in (ids, classes, *self.choices.find(ids, classes))]
            if M.CUDA:
                tensors = [t.pin_memory() for t in tensors]
            self.queue.put((int(number), families, *tensors))
        self.queue.put(None)

    def next(self):
        """Number, families, ids, classes, and the two results of `Choices.find`."""
        batch = self.queue.get()
        if batch is None:
            sys.exit(f"the generator of rows ended, with status {self.process.wait()}")
        number, families, *tensors = batch
        return number, families, *(t.to(M.DEVICE, non_blocking=True).long() for t in tensors)

    def close(self):
        self.process.kill()
        self.process.wait()


class Watch:
    """Losses of answers and the share of rows with every answer right, by family and length.

    Rows never repeat, so this is a measurement on unseen rows. A token counts as right if its probability is
    over one half, so that greedy decoding returns it."""

    def __init__(self, names):
        self.names, self.kept = names, []

    def add(self, families, length, ce, classes):
        rows = len(families)
        ce, target = ce.detach().view(rows, length), classes.roll(-1, 1)
        of_answer = (target == ANSWER) | (target == COUNT)
        of_text = target == TEXT
        count = of_answer.sum(1)
        wrong = ((ce > LN2) & of_answer).any(1)
        text = (ce * of_text).sum(1), of_text.sum(1)
        self.kept.append((families, length, torch.stack(
            [(ce * of_answer).sum(1), count.float(), wrong.float(), text[0], text[1].float()]).cpu()))

    def take(self):
        sums = defaultdict(lambda: np.zeros(4))
        for families, length, values in self.kept:
            values = values.numpy()
            for i, family in enumerate(families):
                answer_ce, count, wrong, text_ce, text_count = values[:, i]
                key = f"{self.names[family].removeprefix('ruler/')}@{length}"
                if text_count:
                    sums[key] += (text_ce, text_count, 0, 1)
                elif count:
                    sums[key] += (answer_ce, count, 1 - wrong, 1)
        self.kept = []
        return {k: [round(s[0] / s[1], 3), round(100 * s[2] / s[3], 1), int(s[3])] for k, s in sorted(sums.items())}


class HeldOut:
    """Bits per byte on the parts of the books that are never used for training."""

    def __init__(self, args, network):
        self.network, self.batches = network, []
        if not args.books:
            return
        length = min(4096, args.batch)
        rows = Rows(args, [f"{length} {max(1, args.batch // length)} held_out"] * args.held_out, 0, args.seed)
        self.batches = [rows.next()[2:4] for _ in range(args.held_out)]
        rows.close()
        vocabulary = json.loads(Path(args.tokenizer).read_text())["model"]["vocab"]
        sizes = torch.zeros(max(vocabulary.values()) + 1)
        for token, number in vocabulary.items():
            sizes[number] = len(token)
        self.sizes = sizes.to(M.DEVICE)

    @torch.no_grad()
    def measure(self):
        W, edges = self.network.weights(), [0, 64, 256, 1024, 4096]
        nats, size = torch.zeros(4), torch.zeros(4)
        for ids, classes in self.batches:
            ce = self.network.losses(W, ids).view(ids.shape)
            kept = classes.roll(-1, 1) == TEXT
            bytes_ = self.sizes[ids.roll(-1, 1)] * kept
            for i, (a, b) in enumerate(zip(edges, edges[1:])):
                nats[i] += (ce * kept)[:, a:b].sum().cpu()
                size[i] += bytes_[:, a:b].sum().cpu()
        by_position = [round(float(n / s / LN2), 3) if s else None for n, s in zip(nats, size)]
        return {"bits_a_byte": round(float(nats.sum() / size.sum() / LN2), 4), "by_position": by_position}


def synchronize():
    if M.CUDA:
        torch.cuda.synchronize()


class Trainer:
    def __init__(self, args):
        self.args, self.start = args, time.time()
        torch.set_float32_matmul_precision("high")
        self.done = 0
        self.step = 0
        if args.load:
            self.c, P, state = M.read_parameters(args.load)
            self.done, self.step = state["batches"], state["step"]
        else:
            self.c = M.Config(vocab=args.vocab, layers=args.layers, hidden=args.hidden, heads=args.heads,
                              kv_heads=args.kv_heads, head_dim=args.head_dim, ff=args.ff, theta=args.theta)
            P = M.init_parameters(self.c, args.seed)
        self.P = {k: v.to(M.DEVICE).requires_grad_(True) for k, v in P.items()}
        self.network = M.Network(self.c, self.P, not args.no_compile)
        self.optimiser = M.Optimiser(self.P, args.muon_lr, args.adam_lr)
        found = M.read_optimiser(args.load, self.optimiser, self.step) if args.load else []
        # Without the optimiser's state, the rate rises from 0 again.
        self.warm_from = self.step if args.load and len(found) < 2 else 0
        size = sum(v.numel() for v in P.values())
        vocabulary = json.loads(Path(args.tokenizer).read_text())["model"]["vocab"]
        assert max(vocabulary.values()) < self.c.vocab, "the tokenizer has more tokens than the model"
        self.log({"event": "start", "parameters": size, "bf16_mb": round(size * 2 / 1e6, 2), "config": self.c.__dict__,
                  "batches_done": self.done, "optimiser": found})
        self.log({"event": "attention_ms", **self.network.attention.tune(self.c, args.batch)})
        tokens = args.tokens or self.tokens_that_fit()
        self.batches = tokens // (args.batch * WORLD)
        self.plan = lengths(self.batches, args.batch, args.longest, args.seed)
        self.class_weights = torch.tensor(CLASS_WEIGHTS, device=M.DEVICE)

    def tokens_that_fit(self):
        """The number of tokens that fit into --seconds of training, from timing batches of every length."""
        args, seconds, rate = self.args, {}, None
        if args.text_dropout > 0:
            rate = torch.full((args.batch, 1), 0.5 * args.text_dropout, device=M.DEVICE)
        for length in sorted({n for _, shares in STAGES for n in shares if n <= min(args.longest, args.batch)}):
            ids = torch.randint(3, self.c.vocab, (args.batch // length, length), device=M.DEVICE)
            for i in range(5):
                if i == 2:
                    synchronize()
                    started = time.time()
                self.network.losses(self.network.weights(), ids, rate).mean().backward()
                self.reduce(False)
                self.optimiser.step(0.0)
            synchronize()
            seconds[length] = (time.time() - started) / 3
        # The rate was 0, so only the optimiser must be reset.
        self.optimiser = M.Optimiser(self.P, self.args.muon_lr, self.args.adam_lr)
        mean = torch.tensor(mean_batch_time(seconds, min(args.longest, args.batch)), device=M.DEVICE)
        if WORLD > 1:
            dist.all_reduce(mean, op=dist.ReduceOp.MAX)
        left = args.seconds - (time.time() - self.start) - SAVING
        # Reading rows and measuring take time too.
        tokens = int(args.share * left / float(mean)) * args.batch * WORLD
        self.log({"event": "fit", "mtok_s": {n: round(args.batch * WORLD / s / 1e6, 2) for n, s in seconds.items()},
                  "tokens": tokens})
        return tokens

    def reduce(self, stop):
        """Averages the gradients over the GPUs. Returns a tensor that is above 0 if any of them is to stop."""
        wish = torch.full((1,), float(stop), device=M.DEVICE)
        if WORLD == 1:
            return wish
        values = list(self.P.values())
        flat = torch.cat([wish] + [v.grad.reshape(-1) for v in values])
        dist.all_reduce(flat)
        flat /= WORLD
        at = 1
        for v in values:
            v.grad = flat[at:at + v.numel()].view(v.shape)
            at += v.numel()
        return flat[0]

    def log(self, entry):
        if RANK > 0:
            return
        line = json.dumps({"t": round(time.time() - self.start, 1), **entry})
        print(line, flush=True)
        if self.args.out:
            Path(self.args.out).mkdir(parents=True, exist_ok=True)
            with open(Path(self.args.out) / "log.jsonl", "a") as file:
                file.write(line + "\n")

    def save(self):
        M.save_checkpoint(self.args.out, self.c, self.P, self.optimiser,
                          {"batches": self.done, "of": self.batches, "step": self.step, "seed": self.args.seed,
                           "tokens": self.batches * self.args.batch * WORLD, "batch": self.args.batch, "gpus": WORLD})

    def gradient(self, batch, parts, text_families):
        """Adds the gradient of one batch; returns the loss of every token."""
        _, families, ids, classes, at, allowed = batch
        rate = None
        if self.args.text_dropout > 0:
            # Text is the only data that is used more than once.
            is_text = torch.tensor([f in text_families for f in families], device=M.DEVICE)
            rate = (is_text * self.args.text_dropout).repeat_interleave(ids.shape[1])[:, None]
            torch.manual_seed((self.args.seed * 1_000_003 + self.done) * WORLD + RANK)
        ce = self.network.losses(self.network.weights(), ids, rate, (at, allowed))
        target = classes.roll(-1, 1).reshape(-1)
        weight = self.class_weights[target]
        ((ce * weight).sum() / weight.sum() / parts).backward()
        return ce

    def rows(self):
        seed = self.args.seed * WORLD + RANK
        return Rows(self.args, [f"{n} {self.args.batch // n}" for n in self.plan], self.done, seed)

    def run(self):
        args = self.args
        rows, held_out = self.rows(), HeldOut(args, self.network) if RANK == 0 else None
        watch, stop = Watch(rows.families), False
        text_families = {rows.families.index("books")}
        last_log, last_text, at_log = time.time(), time.time(), self.done
        while self.done < self.batches and not stop:
            part = self.done / self.batches
            parts = 2 if part > args.double_from else 1
            for _ in range(min(parts, self.batches - self.done)):
                batch = rows.next()
                assert batch[0] == self.done
                ce = self.gradient(batch, parts, text_families)
                self.done += 1
            wish = self.reduce(time.time() - self.start > args.seconds - SAVING)
            factor = rate_factor(part, self.step - self.warm_from, args.warmup, args.decay_from)
            self.optimiser.step(factor)
            self.step += 1
            if self.step % STOP_EVERY == 0:
                stop = float(wish) > 0
            if RANK > 0:
                continue
            if self.step % args.watch_every == 0:
                watch.add(batch[1], batch[2].shape[1], ce, batch[3])
            now = time.time()
            if now - last_log > args.log_seconds:
                entry = {"event": "train", "step": self.step, "part": round(self.done / self.batches, 4),
                         "mtok": round(self.done * args.batch * WORLD / 1e6, 1), "lr": round(factor, 3),
                         "mtok_s": round((self.done - at_log) * args.batch * WORLD / (now - last_log) / 1e6, 3),
                         "waiting": rows.queue.qsize(), "watch": watch.take()}
                if held_out.batches and now - last_text > args.text_seconds:
                    entry["held_out"], last_text = held_out.measure(), now
                self.log(entry)
                last_log, at_log = time.time(), self.done
                if not all(np.isfinite(v[0]) for v in entry["watch"].values()):
                    sys.exit("the loss is not finite")
        rows.close()
        if RANK > 0:
            return
        entry = {"event": "end", "step": self.step, "batches": self.done, "of": self.batches,
                 "mtok": round(self.done * args.batch * WORLD / 1e6, 1), "watch": watch.take()}
        if held_out.batches:
            entry["held_out"] = held_out.measure()
        self.save()
        self.log({**entry, "wall": round(time.time() - self.start, 1)})

    def smoke(self):
        """A few steps at the shortest and the longest length, and a checkpoint saved and loaded."""
        args = self.args
        wanted = [n for n in (512, 4096, 32768) if n <= min(args.longest, args.batch)] or [args.batch]
        plan = [f"{n} {args.batch // n}" for n in wanted for _ in range(3)]
        rows = Rows(args, plan + [f"{wanted[-1]} {args.batch // wanted[-1]}"] * 4000, 0, args.seed)
        text_families = {rows.families.index("books")}
        for i, n in enumerate(wanted):
            for j in range(3):
                started = time.time()
                ce = self.gradient(rows.next(), 1, text_families)
                self.reduce(False)
                self.optimiser.step(0.01)
                loss = float(ce.detach().mean())
                if j != 1:
                    self.log({"event": "smoke", "length": n, "seconds": round(time.time() - started, 3),
                              "loss": round(loss, 3),
                              "gb": round(torch.cuda.max_memory_allocated() / 1e9, 1) if M.CUDA else None})
                assert np.isfinite(loss)
        started, count = time.time(), 0
        while time.time() - started < 4:
            rows.next()
            count += 1
        self.log({"event": "smoke", "rows_mtok_s": round(count * args.batch / (time.time() - started) / 1e6, 2)})
        rows.close()
        with tempfile.TemporaryDirectory() as folder:
            M.save_checkpoint(folder, self.c, self.P, self.optimiser, {"batches": 0, "step": 0})
            _, P, _ = M.read_parameters(folder)
            worst = max(float((P[k] - v.detach().cpu()).abs().max() / (v.detach().abs().max().cpu() + 1e-9))
                        for k, v in self.P.items())
            sizes = [f.stat().st_size for f in Path(folder).iterdir()]
            found = M.read_optimiser(folder, self.optimiser, 0)
        assert worst < 1e-4 and found == ["momentum", "adam"], (worst, found)
        assert max(sizes) < 16 << 20 and len(sizes) <= 7, sizes
        self.log({"event": "smoke", "ok": True, "checkpoint_mb": round(sum(sizes) / 1e6, 1), "files": len(sizes)})


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--binary", default="train_data/train-rows")
    p.add_argument("--tokenizer", default="train_data/tokenizer.json")
    p.add_argument("--books", default="train_data/books", help="folder of *.txt; empty for none")
    p.add_argument("--out", default="train_data/checkpoint", help="folder for the checkpoint and log.jsonl")
    p.add_argument("--load", default="", help="folder of the checkpoint to go on from")
    p.add_argument("--smoke", action="store_true", help="only try everything out")
    p.add_argument("--no-compile", action="store_true")
    p.add_argument("--seconds", type=float, default=560, help="end after so much wall time, saving included")
    p.add_argument("--tokens", type=int, default=2_800_000_000,
                   help="tokens of the whole training; 0: as many as fit into --seconds")
    p.add_argument("--share", type=float, default=0.95, help="part of the time that --tokens 0 plans with")
    p.add_argument("--batch", type=int, default=65536, help="tokens in a batch of one GPU")
    p.add_argument("--longest", type=int, default=32768)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--vocab", type=int, default=8192)
    p.add_argument("--layers", type=int, default=10)
    p.add_argument("--hidden", type=int, default=256)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--kv-heads", type=int, default=2)
    p.add_argument("--head-dim", type=int, default=64)
    p.add_argument("--ff", type=int, default=896)
    p.add_argument("--theta", type=float, default=1e6)
    p.add_argument("--muon-lr", type=float, default=0.015)
    p.add_argument("--adam-lr", type=float, default=3e-3)
    p.add_argument("--warmup", type=int, default=60, help="steps")
    p.add_argument("--decay-from", type=float, default=0.55, help="part of the training from which the rate falls to 0")
    p.add_argument("--double-from", type=float, default=0.6, help="part from which two batches make a step")
    p.add_argument("--text-dropout", type=float, default=0.1, help="dropout on rows of book text")
    p.add_argument("--held-out", type=int, default=6, help="batches of held-out text")
    p.add_argument("--watch-every", type=int, default=5, help="steps")
    p.add_argument("--log-seconds", type=float, default=20)
    p.add_argument("--text-seconds", type=float, default=60)
    args = p.parse_args()
    if WORLD > 1:
        if M.CUDA:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl" if M.CUDA else "gloo")
    trainer = Trainer(args)
    trainer.smoke() if args.smoke else trainer.run()
    if WORLD > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
