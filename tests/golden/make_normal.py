#!/usr/bin/env python3
"""Makes tests/golden/tokens/qwen.json, a small tokenizer.json of the form of Qwen's, and tests/golden/tokens/normal.

    pip install tokenizers==0.23.3 && tests/golden/make_normal.py

The first lines of `normal` are a form, and a hash of the normal forms of all characters (of each alone, and between
some marks). The others are a text as JSON, and hashes of its tokens: with NFC, NFD, NFKC and NFKD, and with NFC
and special tokens. The token that is found in normalized text is not there in NFD and NFKD. tests/unit/test_normalize.c makes the same hashes.
"""
import json
import os
import random
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, trainers
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+")
FORMS = {name: getattr(normalizers, name)() for name in ("NFC", "NFD", "NFKC", "NFKD")}
# composed and decomposed, singletons, exclusions, Hangul, compatible ones, marks in disorder, later than Unicode 9.0
TEXTS = """e\u0301 \u00e9 caf\u00e9 cafe\u0301s\nTi\u1ebfng Vi\u1ec7t\nTie\u0302\u0301ng Vie\u0323\u0302t Vie\u0302\u0323t\n\u212b \u00c5 A\u030a
\u1112\u1161\u11ab\u1100\u1173\u11af \ud55c\uae00 \u1100\u1161\u11a8\u11a8 \uac00\u11a8 \uac01\u11a8 \u1161\u11a8\n\u0915\u093c \u0958\u0932\u092e \u0958\u0958\u0958
\uf900 \u8c48 \ufa10 \U0002f800\n\u2126 \u212a \u1fef \u037e \u0340 \u0344x\n\ufb01\u00bd\u2460\uff21\ufdfa\u3392
a\u0301\u0327 a\u0327\u0301 q\u0307\u0323 a\u0323\u0307\u0302\u0301\u031b\n\u0301 at the beginning, at the end\u0301\nx\u0340x\u0340x\u0340 12\u03403
\U0001d15e\U0001d157\U0001d165 \U00011131\U00011127 \U00011935\U00011930 \U000105d2\u0307 \u32ff \U0001f16c \u1df6\u0327\u0301
e\u0301<|im_start|>\u0301user\n<|im_end|>\u0338 <tool_call>\u0301\u0327e\u0301</tool_call> <\u0338tool_call>
don\u2019t I\u2019VE it's\u0301 'S\u0301 \u0130\u0307 \u01c4 1\u0301 2\u20e3\r\n\n \u0301 \u00a0\u0301\u3000\u2003x""".split("\n")


def random_texts():
    pick, codes = random.Random(1), [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
    marks = [c for c in codes if unicodedata.combining(chr(c))]
    touched = [c for c in codes if unicodedata.decomposition(chr(c))] + marks
    for n in [*range(31, 40), 200, 900]:
        yield "x" + "".join(chr(pick.choice(marks)) for _ in range(n)) + " y"
    for _ in range(150):
        from_what = [codes, touched, marks, range(0x1100, 0x1200), range(0xAC00, 0xAC40), range(32, 127), range(0xC0, 0x250)]
        yield "".join(chr(pick.choice(from_what[pick.randrange(7)])) for _ in range(pick.randint(4, 30)))


def hash_of(numbers):
    h = 0
    for x in numbers:
        h = (h * 31 + x + 1) % 2**64
    return f"{h:x}"


def tokenizer(normalized):
    t = Tokenizer(models.BPE())
    t.normalizer = FORMS["NFC"]
    t.pre_tokenizer = Sequence([Split(Regex(QWEN), "isolated"), ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(TEXTS * 2, trainers.BpeTrainer(vocab_size=400, initial_alphabet=ByteLevel.alphabet(), show_progress=False))
    t.add_special_tokens([AddedToken(x, normalized=False, special=True) for x in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")])
    t.add_tokens([AddedToken(x, normalized=False) for x in ("<tool_call>", "</tool_call>")] + normalized)
    return t


def main():
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tokens")
    t, codes = tokenizer([AddedToken("caf\u00e9", normalized=True)]), [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
    with open(f"{folder}/qwen.json", "w") as f:
        f.write(t.to_str() + "\n")
    of_forms = [tokenizer([AddedToken("caf\u00e9", normalized=True)] if name[-1] == "C" else []) for name in FORMS]
    for x, form in zip(of_forms, FORMS.values()):
        x.normalizer, x.encode_special_tokens = form, True
    of_forms.append(t)
    with open(f"{folder}/normal", "w") as f:
        for name, form in FORMS.items():
            lone = (ord(x) for c in codes for x in form.normalize_str(chr(c)))
            marked = (ord(x) for c in codes for x in form.normalize_str(f"a\u0301{chr(c)}\u0323{chr(c)}\u0301"))
            f.write(f"{name}\t{hash_of(lone)}\t{hash_of(marked)}\n")
        for text in [*TEXTS, *random_texts()]:
            hashes = [hash_of(x.encode(text, add_special_tokens=False).ids) for x in of_forms]
            f.write(json.dumps(text) + "\t" + "\t".join(hashes) + "\n")


main()
