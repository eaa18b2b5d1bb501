#!/usr/bin/env python3
"""Makes tests/golden/tokens: small vocabularies, a text that is hard to tokenize, and its tokens.

    pip install tiktoken tokenizers && tests/golden/make_tokens.py

The vocabulary is trained here by Hugging Face's tokenizers. For each pattern, PATTERN.tokens has the ids of the
tokens, which tokenizers (with the merges) and tiktoken (with the order of the ids) agree on. Both must know
Unicode 16.0.
"""
import json
import os
import re

import tiktoken
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tokens")

SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
PREFIX, SPACES = r"[^\r\n\p{L}\p{N}]?", r"|\s*[\r\n]+|\s+(?!\S)|\s+"
ANY = SUFFIX + "|" + PREFIX + r"\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES
CASED = PREFIX + UPPER + "*" + LOWER + "+%s|" + PREFIX + UPPER + "+" + LOWER + r"*%s|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n/]*" + SPACES
PATTERNS = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "cl100k": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    "llama3": ANY % "{1,3}",
    "qwen2": ANY % "",
    "o200k": CASED % (SUFFIX + "?", SUFFIX + "?", "{1,3}"),
    "tekken": CASED % ("", "", ""),
}

TEXT = """It's the first day, and they'll say: "We've 12345 reasons — DON'T I'M HE'LL 'tis 'Twas".
def main(argc, argv):\n\tfor i in range(0x1F, 1_000):\n        print(f"{i:>8}", end="\\r\\n")  # TODO\n\n\n
camelCaseWords HTTPServerError XMLHttpRequest2 a/b//c\n/usr/bin x'S y'ſ z'\u017f O'Reilly's ''s 'll'll rock'n'roll's'd
日本語のテキストです。漢字とひらがなとカタカナ、12３４五六 中文文本。한국어 텍스트입니다.
العربية: السَّلامُ عَلَيْكُم ١٢٣٤٥ עברית שָׁלוֹם עוֹלָם हिन्दी में नमस्ते १२३ ไทยภาษา ข้อความ
😀😃👨‍👩‍👧‍👦🇩🇪👍🏽❤️ e\u0301\u0302\u0323 a\u0308 \u0301\u0301\u0301 x\u20dd Ǆǅǆ ʰʱʲ Ⅷ ½²③ ΣΑΣ ßẞ ﬁﬂ
tabs\t\tand\x0bvertical\x0cfeed\x00nul\x01\x02\x1b[31m\x7f\x85next\xa0nbsp\u2003em\u3000wide\u200bzero\ufeffbom \x1c\x1d
trailing spaces   \n   \n \r\n\r\n \t \n  x\u2028y\u2029z      end of a line with spaces     
<|endoftext|> <|not special|> <tool> a<tool>b <|endoftext|><|endoftext|>
"""
TEXT += "a" * 500 + " " * 300 + "\n" * 200 + "ab" * 300 + "!" * 150 + "1" * 100 + "é" * 100 + "\U00010400\U0001e900\U00011f50" + "\n \n  "


def pre_tokenizer(regex):
    split = pre_tokenizers.Split(Regex(regex), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def byte_of():
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in kept]
    return {chr(b): b for b in kept} | {chr(256 + i): b for i, b in enumerate(rest)}


def save(name, text):
    with open(os.path.join(here, name), "w", newline="") as f:
        f.write(text)


def save_ids(name, ids):
    save(name + ".tokens", "".join(" ".join(map(str, ids[i : i + 16])) + "\n" for i in range(0, len(ids), 16)))


def train():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizer(PATTERNS["llama3"])
    t.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=700, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    with open(__file__) as f:
        t.train_from_iterator([TEXT * 3, f.read()], trainer)
    t.add_special_tokens(["<|endoftext|>"])
    t.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("<tool>b", normalized=False)])
    return t


def main():
    os.makedirs(here, exist_ok=True)
    with open(os.path.join(here, "text"), "wb") as f:
        f.write(TEXT.encode())
    t = train()
    t.save(os.path.join(here, "tokenizer.json"), pretty=False)
    config = json.loads(t.to_str())
    vocab = config["model"]["vocab"]
    byte = byte_of()
    ranks = {bytes(byte[c] for c in token): i for token, i in vocab.items()}
    for name, regex in PATTERNS.items():
        config["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = regex
        config["added_tokens"] = []
        plain = Tokenizer.from_str(json.dumps(config))
        encoding = tiktoken.Encoding(name, pat_str=regex, mergeable_ranks=ranks, special_tokens={})
        ids = encoding.encode_ordinary(TEXT)
        if name != "cl100k":  # (whose {1,3}+ means something else to Oniguruma)
            assert ids == plain.encode(TEXT, add_special_tokens=False).ids, name
        save_ids(name, ids)
    save_ids("special", t.encode(TEXT, add_special_tokens=False).ids)
    t.encode_special_tokens = True
    save_ids("added", t.encode(TEXT, add_special_tokens=False).ids)


main()
