"""Log-likelihoods of the options of multiple-choice questions, under several methods."""

from dataclasses import dataclass, field

import numpy as np

from methods import select, select_rows
from qwen2 import Cache, Segment


@dataclass
class Answer:
    """What a method makes of a question."""

    log_likelihoods: list
    chosen: int
    right: bool
    # The lead of the chosen option over the next, in what is compared.
    lead: float
    # The smallest distance of a taken token's logit from one that was not taken; infinite if all were.
    nearest: float


@dataclass
class Split:
    """A question in tokens: the prompt, and each option's."""

    prompt: list
    options: list = field(default_factory=list)


def split(question, encode):
    """Context and option are encoded together; what is beyond the context's own tokens is scored."""
    prompt = encode(question.context)
    made = Split(prompt)
    for option in question.options:
        tokens = encode(f"{question.context} {option}")
        assert tokens[: len(prompt)] == prompt, "an option changes the prompt's tokens"
        made.options.append(tokens[len(prompt) :])
    return made


def shared(prompts):
    """How many tokens the prompts have in common, less than any has before its last."""
    least = min(len(prompt) - 2 for prompt in prompts)
    same = [len({prompt[at] for prompt in prompts}) == 1 for at in range(least)]
    return same.index(False) if False in same else least


def prefill(model, prefix, tokens):
    _, (own,) = model.read([Segment(prefix, tokens)])
    return prefix.followed_by(own)


def under_rule(model, prefixes, parts, rules):
    """The options' log-likelihoods for each rule behind its prefix, read side by side; options that differ in their last token are read once."""
    begun = list(dict.fromkeys(tuple(option[:-1]) for option in parts.options))
    segments = [
        Segment(prefix, [parts.prompt[-1], *start], rule) for prefix, rule in zip(prefixes, rules) for start in begun
    ]
    hidden, _ = model.read(segments)
    rows = [hidden[at * len(begun) + begun.index(tuple(option[:-1]))] for at in range(len(rules)) for option in parts.options]
    scored = model.log_likelihoods(np.concatenate(rows), np.concatenate(parts.options * len(rules)))
    ends = np.cumsum([len(part) for part in rows])[:-1]
    sums = [float(part.sum()) for part in np.split(scored, ends)]
    count = len(parts.options)
    return [sums[at * count : (at + 1) * count] for at in range(len(rules))]


def under_methods(model, prefix, parts, specs):
    """For each method, its log-likelihoods and the smallest distance. Methods that take all are computed once."""
    rules = {spec: select(spec, len(prefix)) for spec in specs}
    distinct = list(dict.fromkeys(rules.values()))
    found = dict(zip(distinct, under_rule(model, [prefix] * len(distinct), parts, distinct)))
    return {spec: (found[rule], rule.nearest if rule else np.inf) for spec, rule in rules.items()}


def read_by_methods(model, parts, specs):
    """As `under_methods`, where each method reads the prompt and what follows it, row by row."""
    nothing = Cache.empty(model)
    rows = [select_rows(spec) for spec in specs]
    _, prefixes = model.read([Segment(nothing, parts.prompt[:-1], rule) for rule in rows])
    found = under_rule(model, prefixes, parts, rows)
    return {spec: (sums, rule.nearest if rule else np.inf) for spec, sums, rule in zip(specs, found, rows)}


def answer(question, log_likelihoods, nearest):
    lengths = [len(option) if question.normalised else 1 for option in question.options]
    compared = np.array(log_likelihoods) / lengths
    chosen = int(np.argmax(compared))
    lead = float(compared[chosen] - np.sort(compared)[-2])
    return Answer(log_likelihoods, chosen, chosen == question.right, lead, nearest)


def answers(model, encode, questions, specs, sparse_from):
    """Yields, for each question, its index, its prompt's length and the `Answer` of each method."""
    parts = [split(question, encode) for question in questions]
    if sparse_from == "prefill":
        for at, part in enumerate(parts):
            found = read_by_methods(model, part, specs)
            yield at, len(part.prompt), {spec: answer(questions[at], *found[spec]) for spec in specs}
        return
    assert sparse_from == "question", f"prompts read from {sparse_from} on are not known here"
    for subject in dict.fromkeys(question.subject for question in questions):
        own = [at for at, question in enumerate(questions) if question.subject == subject]
        common = shared([parts[at].prompt for at in own]) if subject else 0
        base = prefill(model, Cache.empty(model), parts[own[0]].prompt[:common]) if common else Cache.empty(model)
        for at in own:
            prefix = prefill(model, base, parts[at].prompt[common:-1])
            found = under_methods(model, prefix, parts[at], specs)
            yield at, len(parts[at].prompt), {spec: answer(questions[at], *found[spec]) for spec in specs}
