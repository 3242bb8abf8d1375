"""Train the tokenizer of the built-in model: byte-level BPE with explicit numbers.

Numbers are cut into groups of up to three digits (every group is a token), or into single digits with
--digits 1. Runs of capitals are cut from their space and made of pairs, so that made-up variable names
are always the same few tokens. A token never reaches across the start of white space; the generator of
training rows relies on that and checks it.

  train-rows --jsonl --tokenizer models/builtin/tokenizer.json --plan plan.txt --out rows.jsonl
  python3 tokenizer.py --rows rows.jsonl --books train_data/books --out train_data/tokenizer.json
"""
import argparse
import json
import random
import string
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ["<pad>", "<s>", "</s>"]


def pattern(digits):
    return (r"\n|\p{N}{1,%d}|\p{Lu}{2,}| ?(?!\p{Lu}{2})\p{L}+| ?[^\s\p{L}\p{N}]+|[^\S\n]+(?!\S)|[^\S\n]+" % digits)


def corpus(rows, books, seed, text_share):
    """Pieces of books and of rows; books make up `text_share` of the bytes."""
    draw = random.Random(seed)
    synthetic = 0
    for line in open(rows):
        row = json.loads(line)
        if row["family"] not in ("books", "copy"):
            for segment in row["segments"]:
                # Repeated lines of noise would have too much weight.
                text = segment["text"].replace("The grass is green. The sky is blue. The sun is yellow. Here we go.", "")
                synthetic += len(text)
                yield text
    files = sorted(Path(books).glob("*.txt"))
    left = int(synthetic * text_share / (1 - text_share)) // len(files)
    for file in files:
        text = file.read_text(encoding="utf-8")
        start = draw.randrange(max(1, len(text) - left))
        yield text[start:start + left]


def forced_merges(digits, draw):
    """Merges that come before all learnt ones: digit groups and pairs of capitals."""
    merges = []
    if digits > 1:
        merges += [(a, b) for a in string.digits for b in string.digits]
    if digits > 2:
        for a in string.digits:
            for b in string.digits:
                for c in string.digits:
                    merges += [(a + b, c), (a, b + c)]
    pairs = [(a, b) for a in string.ascii_uppercase for b in string.ascii_uppercase]
    draw.shuffle(pairs)
    return merges + pairs + [("VA", "R"), ("V", "AR")]


def build(rows, books, vocab, digits, seed, text_share):
    draw = random.Random(seed)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern(digits)), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    forced = forced_merges(digits, draw)
    wanted = {a + b for a, b in forced}

    def train(size):
        trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=SPECIAL, show_progress=False,
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
        tokenizer.train_from_iterator(corpus(rows, books, seed, text_share), trainer)
        state = json.loads(tokenizer.to_str())
        return state, sum(w not in state["model"]["vocab"] for w in wanted)

    # Some of the forced tokens are learnt anyway: find how many to learn so that the total has the requested size.
    size = vocab - len(wanted)
    for _ in range(8):
        state, missing = train(size)
        off = vocab - len(state["model"]["vocab"]) - missing
        if off == 0:
            break
        size += off
    else:
        state, missing = train(size - 8)
    tokens = state["model"]["vocab"]
    for a, b in forced:
        tokens.setdefault(a + b, len(tokens))
    learnt = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in state["model"]["merges"]]
    known = set(forced)
    state["model"]["merges"] = [list(m) for m in forced + [m for m in learnt if m not in known]]
    bos = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    part = lambda name, kind: {"Sequence": {"id": name, "type_id": kind}}
    state["post_processor"] = {
        "type": "TemplateProcessing", "single": [bos, part("A", 0)], "pair": [bos, part("A", 0), part("B", 1)],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [SPECIAL.index("<s>")], "tokens": ["<s>"]}},
    }
    return Tokenizer.from_str(json.dumps(state, ensure_ascii=False))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", required=True, help="training rows as JSON lines")
    parser.add_argument("--books", required=True, help="folder of *.txt")
    parser.add_argument("--out", required=True)
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument("--digits", type=int, default=3, choices=[1, 2, 3], help="digits in a token at most")
    parser.add_argument("--text-share", type=float, default=0.75, help="share of book text in the corpus, by bytes")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    tokenizer = build(args.rows, args.books, args.vocab, args.digits, args.seed, args.text_share)
    tokenizer.save(args.out, pretty=False)
    probe = Path(sorted(Path(args.books).glob("*.txt"))[0]).read_text(encoding="utf-8")[:200_000]
    ids = tokenizer.encode(probe, add_special_tokens=False).ids
    print(f"{args.out}: {tokenizer.get_vocab_size()} tokens, {len(ids) / len(probe.split()):.2f} a word of a book")


if __name__ == "__main__":
    main()
