"""Qwen2's tokenizer, by the package `tokenizers`, from the vocabulary in a GGUF file."""

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

# The pattern of Qwen2's tokenizer.json.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Types of a GGUF file's tokens.
CONTROL, USER_DEFINED = 3, 4


def tokenizer(reader):
    field = lambda name: reader.fields[f"tokenizer.ggml.{name}"].contents()
    texts, kinds = field("tokens"), field("token_type")
    merges = [tuple(merge.split(" ")) for merge in field("merges")]
    made = Tokenizer(models.BPE({text: at for at, text in enumerate(texts)}, merges))
    made.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(WORDS), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    made.add_tokens([AddedToken(text, normalized=False) for text, kind in zip(texts, kinds) if kind in (CONTROL, USER_DEFINED)])
    made.decoder = decoders.ByteLevel()
    return made


def encoder(made):
    """The function that gives a text's tokens."""
    return lambda text: made.encode(text, add_special_tokens=False).ids
