#!/usr/bin/env python3
"""Makes tests/golden/tokens/unicode: how Hugging Face's tokenizers splits a text of all characters.

    pip install tokenizers==0.23.3 && tests/golden/make_unicode.py

Each line is a regular expression of a tokenizer.json, the number of its words, and the sum of the squares of the
places (in characters) at which they end, modulo 2^64. tests/unit/test_unicode.c has the same text.
"""
import os

from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

CODES = [c for r in (range(1, 0xD800), range(0xE000, 0x32400), range(0xE0000, 0xE0200)) for c in r]
TEXT = "".join(chr(c) + "a" * (c % 3 == 0) + " " * (c % 7 == 0) for c in CODES)
CLASSES = r"L Lu Ll Lt Lm Lo M Mn Mc N Nd Nl No P Pc Pd Po S So Sm Sk Z C Han Hiragana Katakana Hangul Cyrillic Arabic Latin Greek Common Alphabetic".split()
# as in DeepSeek-V3, Kimi, BLOOM and Qwen
PATTERNS = [
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+",
    r" ?[^(\s|[.,!?…。，、।۔،])]+",
    r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s+",
    r"\w+|[^\w\s]+|\d",
]


def main():
    named = [f"[[:{x}:]]+" for x in "alpha alnum digit lower upper punct space word xdigit".split()]
    escapes = [r"\w+", r"\W+", r"\d+", r"\D+", r"\s+", r"\S+"]
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "tokens", "unicode"), "w") as f:
        for regex in [r"\p{%s}+" % c for c in CLASSES] + [r"\P{L}+", r"\p{^Nd}+", r"[^\P{L}\p{Lu}]+"] + escapes + named + PATTERNS:
            ends = [end for _, (_, end) in Split(Regex(regex), "isolated").pre_tokenize_str(TEXT)]
            f.write(f"{regex}\t{len(ends)}\t{sum(e * e for e in ends) % 2**64}\n")


main()
