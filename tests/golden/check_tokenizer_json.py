#!/usr/bin/env python3
"""Trains small vocabularies with Hugging Face's tokenizers, with each option of its parts, and compares the tokens
that pt-prepare makes of a text with those of the library; what pt-prepare refuses must be expected. Prints a
line for each; leaves nothing behind.

    venv/bin/pip install tokenizers h5py
    PATH=$PWD/build:$PATH venv/bin/python tests/golden/check_tokenizer_json.py [TEXT]
"""
import os
import random
import subprocess
import sys
import tempfile
import unicodedata

import h5py
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, trainers
from tokenizers.pre_tokenizers import (ByteLevel, Digits, Metaspace, Punctuation, Sequence, Split, Whitespace)

here = os.path.dirname(os.path.abspath(__file__))
LEVEL = ByteLevel(add_prefix_space=False, use_regex=True)
BYTES = ByteLevel(add_prefix_space=False, use_regex=False)
LLAMA = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def split(regex, behavior="isolated", invert=False):
    return Split(Regex(regex), behavior, invert)


def lone(regex):
    return Sequence([split(regex), BYTES])


PRE = {
    "gpt2": LEVEL,
    "trim": ByteLevel(add_prefix_space=False, trim_offsets=False),
    "llama3": lone(LLAMA),
    "removed inverted": Sequence([split(LLAMA, "removed", True), BYTES]),
    "isolated inverted": Sequence([split(LLAMA, "isolated", True), BYTES]),
    "digits": Sequence([Digits(individual_digits=True), LEVEL]),
    "numbers": Sequence([Digits(individual_digits=False), LEVEL]),
    "punctuation": Sequence([Punctuation(), LEVEL]),
    "punctuations": Sequence([Punctuation("contiguous"), Digits(True), LEVEL]),
    "three splits": Sequence([split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"), BYTES]),
    "line breaks": Sequence([split("[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split("[一-龥ࠀ-一가-\ud7ff]+"),
                             Digits(True), BYTES]),
    "string": Sequence([Split("e ", "isolated"), Split(".*", "isolated"), LEVEL]),
    "class in a class": lone(r" ?[^(\s|[.,!?…。，、।۔،])]+"),
    "possessive": lone(r"[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"),
    "ends of lines": lone(r"\w+$|\d+|."),
    "letters": lone(r"\w+|\h+|\v|\W"),
    "scripts": lone(r"\p{Han}+|\p{Cyrillic}+|\p{Arabic}+|\P{L}|\p{^Lu}"),
    "not a word": lone(r"(?>a|ab)+|(?<x>b)|(?=e)e|[^\s]+|\S"),
    "spaces": lone(r"\s|\S+"),
    "named classes": lone(r"[[:alpha:]]+|[[:punct:][:digit:]]|.")
}
REFUSED_PRE = {
    "prefix": ByteLevel(add_prefix_space=True),
    "no pattern": BYTES,
    "merged": Sequence([split(r"\s+", "merged_with_next"), BYTES]),
    "removed": Sequence([split(r"\s+", "removed"), BYTES]),
    "behind": lone(r"(?<=a)b|."),
    "intersection": lone(r"[\p{L}&&[^a]]+|."),
    "options": lone(r"(?m:a.b)|."),
    "named class": lone(r"[[:blank:]]+"),
    "whitespace": Sequence([Whitespace(), BYTES]),
    "metaspace": Sequence([Metaspace(), BYTES]),
    "after bytes": Sequence([LEVEL, Digits(True)]),
}
NORMALIZERS = {"empty": normalizers.Sequence([]), "nfc": normalizers.NFC(), "list": normalizers.Sequence([normalizers.NFKD(), normalizers.NFC()]),
               "nfd": normalizers.NFD(), "nfkc": normalizers.NFKC(), "nfkd": normalizers.NFKD()}
REFUSED_NORMALIZERS = {"lower": normalizers.Lowercase(), "list of lower": normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()]),
                       "strip": normalizers.Strip(), "replace": normalizers.Replace("a", "b")}
ADDED = {
    "plain": [AddedToken("<tool>", normalized=False), AddedToken("<too", normalized=False)],
    "orders": [AddedToken("ab", normalized=True), AddedToken("bc", normalized=False), AddedToken("abcd", normalized=True)],
    "spaces": [AddedToken(" " * n, normalized=True) for n in range(2, 9)],
    "special": [AddedToken("<|x|>", special=True, normalized=False), AddedToken("<|x|>y", normalized=False)],
    "normalized": [AddedToken("né", normalized=True), AddedToken("\u01f0", normalized=True), AddedToken("日本", normalized=False)],
}
REFUSED_ADDED = {k: [AddedToken("<tool>", normalized=False, **{k: True})] for k in ("lstrip", "rstrip", "single_word")}
MODEL = {"whole words": {"ignore_merges": True}, "unknown": {"unk_token": "?"}, "fuse": {"fuse_unk": True}}
REFUSED_MODEL = {"dropout": {"dropout": 0.1}, "fallback": {"byte_fallback": True}}
REFUSED_TRAINER = {"prefix of parts": {"continuing_subword_prefix": "##"}, "suffix": {"end_of_word_suffix": "</w>"}}


def make(texts, alphabet=True, model=(), normalizer=None, pre=LEVEL, added=(), trainer=()):
    t = Tokenizer(models.BPE(**dict(model)))
    if normalizer:
        t.normalizer = normalizer
    t.pre_tokenizer = pre
    first = ByteLevel.alphabet() if alphabet else []
    t.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=600, initial_alphabet=first, show_progress=False, **dict(trainer)))
    for token in added:
        (t.add_special_tokens if token.special else t.add_tokens)([token])
    return t


def hard(seed):
    """A text of characters that these options tell apart."""
    pick = random.Random(seed)
    parts = ["the ", "word", "e ", ".*", "don't", " DON'T", "12", "1234567", "٣", "½", "日本語", "ひらがな", "中文", "한국어", "привет", "سلام",
             "\n", "\r\n", "\n\n", "  ", "     ", "\t", "\x0b", "\x85", "\xa0", "\u180e", "\u2028", "\u3000", "!", "?!", "$+<", "…", "।", "(x|y)",
             "[.,]", "<tool>", "<tool", "<|x|>", "<|x|>y", "abc", "abcd", "ab", "é", "e\u0301", "ne\u0301", "né", "j\u030c", "a\u0323\u0301", "a\u0301\u0323", "क़",
             "\u0958", "\u212b", "\u1100\u1161\u11a8", "가\u11a8", "ﬁ", "😀", "q\u0307\u0323", "\u0344", "\U0001d160", "\u0301", "_", "x_1", "ʰ", "Ⅷ", "aab"]
    return "".join(pick.choice(parts) for _ in range(3000))


def encode(folder, options):
    command = ["pt-prepare", "-q", "-t", "bpe", "--vocab-files", f"{folder}/tokenizer.json", "-f", "0",
               "--no-end-of-text", "--overwrite", "-o", f"{folder}/s.h5", *options, f"{folder}/text"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return None, done.stderr.strip().split("\n")[-1]
    with h5py.File(f"{folder}/s.h5") as f:
        return f["train"][:].tolist(), None


def check(folder, name, t, text):
    """None: refused; else do all agree?"""
    t.save(f"{folder}/tokenizer.json")
    with open(f"{folder}/text", "w", newline="") as f:
        f.write(text)
    t.encode_special_tokens = False
    ours, why = encode(folder, ["--allow-special"])
    if ours is None:
        print(f"{name}: {why}")
        return None
    theirs = t.encode(text, add_special_tokens=False).ids
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), -1)
    if ours == theirs:
        return True
    print(f"{name}: DIFFERS at token {at}: {t.decode(ours[at - 3:at + 4])!r}, {t.decode(theirs[at - 3:at + 4])!r}")
    return False


def main():
    if len(sys.argv) > 1:
        with open(sys.argv[1], encoding="utf-8", errors="replace", newline="") as f:
            more = f.read(1 << 20)
    else:
        with open(os.path.join(here, "tokens", "text"), encoding="utf-8", newline="") as f:
            more = f.read()
    texts = [hard(1), more]
    cases = [("pre-tokenizer " + k, {"pre": v}, True) for k, v in PRE.items()]
    cases += [("pre-tokenizer " + k, {"pre": v}, False) for k, v in REFUSED_PRE.items()]
    cases += [("normalizer " + k, {"normalizer": v}, True) for k, v in NORMALIZERS.items()]
    cases += [("normalizer " + k, {"normalizer": v}, False) for k, v in REFUSED_NORMALIZERS.items()]
    cases += [("added tokens " + k, {"added": v}, True) for k, v in ADDED.items()]
    cases += [("added tokens " + k, {"added": v}, False) for k, v in REFUSED_ADDED.items()]
    cases += [("model " + k, {"model": v}, True) for k, v in MODEL.items()]
    cases += [("model " + k, {"model": v}, False) for k, v in REFUSED_MODEL.items()]
    cases += [("trainer " + k, {"trainer": v}, False) for k, v in REFUSED_TRAINER.items()]
    cases += [("added tokens normalized, nfc", {"added": ADDED["normalized"], "normalizer": normalizers.NFC()}, True)]
    cases += [("added tokens normalized, nfd", {"added": ADDED["normalized"], "normalizer": normalizers.NFD()}, False)]
    cases += [("no alphabet", {"alphabet": False}, True)]
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, how, taken in cases:
            t = make(texts, **how)
            good = [check(folder, name, t, text) for text in (hard(2), hard(3), more)]
            as_expected = all(good) if taken else all(g is None for g in good)
            wrong += not as_expected
            print(f"{name}: {'as expected' if as_expected else 'WRONG'}", flush=True)
    sys.exit(bool(wrong))


main()
