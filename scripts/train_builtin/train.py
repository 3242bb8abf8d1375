"""Train the built-in model, in pieces that end in time and go on where the last one stopped.

The schedule (lengths, learning rate) follows the number of tokens seen, of --tokens in all, so that a piece
that was cut short only shifts what comes later. Batches are made by `spattn data export-train` while training:
batch number and seed decide what is in them. See README.md for commands.
"""
import argparse
import json
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

import model as M

LN2 = 0.6931471805599453
# Loss weights by class: none, prompt, answer, copy, counted answer, text.
CLASS_WEIGHTS = [0.0, 0.05, 1.0, 0.2, 3.0, 0.5]
ANSWER, COUNT, TEXT = 2, 4, 5
# Shares of the lengths, up to a part of the training.
STAGES = [
    (0.04, {256: 50, 512: 50}),
    (0.09, {256: 15, 512: 40, 1024: 45}),
    (0.18, {512: 30, 1024: 30, 2048: 40}),
    (0.35, {512: 12, 1024: 23, 2048: 25, 4096: 40}),
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


def rate_factor(part, step, warmup, decay_from):
    factor = min(1.0, (step + 1) / warmup)
    return factor * (1.0 if part < decay_from else max(0.01, (1 - part) / (1 - decay_from)))


class Rows:
    """Batches from the generator, read ahead in a thread."""

    def __init__(self, args, plan, first, seed):
        file = tempfile.NamedTemporaryFile("w", suffix=".txt", delete=False)
        file.write("\n".join(plan) + "\n")
        file.close()
        command = [args.binary, "data", "export-train", "--tokenizer", args.tokenizer, "--plan", file.name,
                   "--from", str(first), "--seed", str(seed)]
        if args.books:
            command += ["--books", args.books]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=1 << 20)
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
            ids = torch.from_numpy(np.frombuffer(stream.read(2 * rows * length), "<i2").reshape(rows, length).copy())
            classes = torch.from_numpy(np.frombuffer(stream.read(rows * length), np.uint8).reshape(rows, length).copy())
            if M.CUDA:
                ids, classes = ids.pin_memory(), classes.pin_memory()
            self.queue.put((int(number), families, ids, classes))
        self.queue.put(None)

    def next(self):
        batch = self.queue.get()
        if batch is None:
            sys.exit(f"the generator of rows ended, with status {self.process.wait()}")
        number, families, ids, classes = batch
        return (number, families, ids.to(M.DEVICE, non_blocking=True).long(),
                classes.to(M.DEVICE, non_blocking=True).long())

    def close(self):
        self.process.kill()
        self.process.wait()


class Watch:
    """Losses of answers and the share of rows with every answer right, by family and length.

    Rows never repeat, so this is a measurement on unseen rows. A token counts as right if its probability is
    over one half: greedy decoding then gives it."""

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
    """Bits a byte on the parts of the books that are never trained on."""

    def __init__(self, args, network):
        self.network, self.batches = network, []
        if not args.books:
            return
        length = min(4096, args.batch)
        rows = Rows(args, [f"{length} {max(1, args.batch // length)} held_out"] * args.held_out, 0, args.seed)
        self.batches = [rows.next()[2:] for _ in range(args.held_out)]
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
        # Without the optimiser's state the rate rises from 0 again.
        self.warm_from = self.step if args.load and len(found) < 2 else 0
        size = sum(v.numel() for v in P.values())
        vocabulary = json.loads(Path(args.tokenizer).read_text())["model"]["vocab"]
        assert max(vocabulary.values()) < self.c.vocab, "the tokenizer has more tokens than the model"
        self.log({"event": "start", "parameters": size, "bf16_mb": round(size * 2 / 1e6, 2), "config": self.c.__dict__,
                  "batches_done": self.done, "optimiser": found})
        self.log({"event": "attention_ms", **self.network.attention.tune(self.c, args.batch)})
        self.batches = args.tokens // args.batch
        self.plan = lengths(self.batches, args.batch, args.longest, args.seed)
        self.class_weights = torch.tensor(CLASS_WEIGHTS, device=M.DEVICE)

    def log(self, entry):
        line = json.dumps({"t": round(time.time() - self.start, 1), **entry})
        print(line, flush=True)
        if self.args.out:
            Path(self.args.out).mkdir(parents=True, exist_ok=True)
            with open(Path(self.args.out) / "log.jsonl", "a") as file:
                file.write(line + "\n")

    def save(self):
        M.save_checkpoint(self.args.out, self.c, self.P, self.optimiser,
                          {"batches": self.done, "step": self.step, "tokens": self.args.tokens, "seed": self.args.seed,
                           "batch": self.args.batch})

    def gradient(self, batch, parts, text_families):
        """Adds the gradient of one batch; returns the loss of every token."""
        _, families, ids, classes = batch
        rate = None
        if self.args.text_dropout > 0:
            # Text is the only thing that is seen more than once.
            is_text = torch.tensor([f in text_families for f in families], device=M.DEVICE)
            rate = (is_text * self.args.text_dropout).repeat_interleave(ids.shape[1])[:, None]
            torch.manual_seed(self.args.seed * 1_000_003 + self.done)
        ce = self.network.losses(self.network.weights(), ids, rate)
        target = classes.roll(-1, 1).reshape(-1)
        weight = self.class_weights[target]
        ((ce * weight).sum() / weight.sum() / parts).backward()
        return ce

    def rows(self):
        return Rows(self.args, [f"{n} {self.args.batch // n}" for n in self.plan], self.done, self.args.seed)

    def run(self):
        args = self.args
        rows, held_out = self.rows(), HeldOut(args, self.network)
        watch = Watch(rows.families)
        text_families = {rows.families.index("books")}
        last_log, last_text, at_log = time.time(), time.time(), self.done
        while self.done < self.batches and time.time() - self.start < args.seconds:
            part = self.done / self.batches
            parts = 2 if part > args.double_from else 1
            for _ in range(min(parts, self.batches - self.done)):
                batch = rows.next()
                assert batch[0] == self.done
                ce = self.gradient(batch, parts, text_families)
                self.done += 1
            factor = rate_factor(part, self.step - self.warm_from, args.warmup, args.decay_from)
            self.optimiser.step(factor)
            self.step += 1
            if self.step % args.watch_every == 0:
                watch.add(batch[1], batch[2].shape[1], ce, batch[3])
            now = time.time()
            if now - last_log > args.log_seconds:
                entry = {"event": "train", "step": self.step, "part": round(self.done / self.batches, 4),
                         "mtok": round(self.done * args.batch / 1e6, 1), "lr": round(factor, 3),
                         "mtok_s": round((self.done - at_log) * args.batch / (now - last_log) / 1e6, 3),
                         "waiting": rows.queue.qsize(), "watch": watch.take()}
                if held_out.batches and now - last_text > args.text_seconds:
                    entry["held_out"], last_text = held_out.measure(), now
                self.log(entry)
                last_log, at_log = time.time(), self.done
                if not all(np.isfinite(v[0]) for v in entry["watch"].values()):
                    sys.exit("the loss is not finite")
        rows.close()
        entry = {"event": "end", "step": self.step, "batches": self.done, "of": self.batches,
                 "mtok": round(self.done * args.batch / 1e6, 1), "watch": watch.take()}
        if held_out.batches:
            entry["held_out"] = held_out.measure()
        self.save()
        self.log({**entry, "wall": round(time.time() - self.start, 1)})

    def smoke(self):
        """A few steps at the shortest and the longest lengths, and a checkpoint there and back."""
        args = self.args
        wanted = [n for n in (512, 4096, 32768) if n <= min(args.longest, args.batch)] or [args.batch]
        plan = [f"{n} {args.batch // n}" for n in wanted for _ in range(3)]
        rows = Rows(args, plan + [f"{wanted[-1]} {args.batch // wanted[-1]}"] * 4000, 0, args.seed)
        text_families = {rows.families.index("books")}
        for i, n in enumerate(wanted):
            for j in range(3):
                started = time.time()
                ce = self.gradient(rows.next(), 1, text_families)
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
    p.add_argument("--binary", default="train_data/spattn")
    p.add_argument("--tokenizer", default="train_data/tokenizer.json")
    p.add_argument("--books", default="train_data/books", help="folder of *.txt; empty for none")
    p.add_argument("--out", default="train_data/checkpoint", help="folder for the checkpoint and log.jsonl")
    p.add_argument("--load", default="", help="folder of the checkpoint to go on from")
    p.add_argument("--smoke", action="store_true", help="only try everything out")
    p.add_argument("--no-compile", action="store_true")
    p.add_argument("--seconds", type=float, default=560, help="end after so much wall time, saving included later")
    p.add_argument("--tokens", type=int, default=2_800_000_000, help="tokens of the whole training")
    p.add_argument("--batch", type=int, default=65536, help="tokens in a batch")
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
    trainer = Trainer(args)
    trainer.smoke() if args.smoke else trainer.run()


if __name__ == "__main__":
    main()
