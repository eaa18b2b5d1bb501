#!/usr/bin/env python3
"""Writes normalize_runs.c: which characters normalization knows, as runs of code points.

    ./normalize.py DIRECTORY >normalize_runs.c

DIRECTORY has UnicodeData.txt and DerivedAge.txt of any Unicode from 9.0 on, as /usr/share/unicode of Debian's package
unicode-data. A character that no normalization changes may be in a run or not, whichever makes fewer runs.
"""
import sys

VERSION = 9, 0  # of Hugging Face's tokenizers
HANGUL = [(0x1100, 19), (0x1161, 21), (0x11A8, 27), (0xAC00, 11172)]


def rows(name):
    with open(f"{sys.argv[1]}/{name}") as f:
        for line in f:
            fields = [x.strip() for x in line.partition("#")[0].split(";")]
            if len(fields) > 1:
                yield fields


def main():
    assigned, changed = set(), {c for first, n in HANGUL for c in range(first, first + n)}
    for codes, version in rows("DerivedAge.txt"):
        first, _, last = codes.partition("..")
        if tuple(map(int, version.split("."))) <= VERSION:
            assigned |= {*range(int(first, 16), int(last or first, 16) + 1)}
    for code, _, _, combining, _, decomposition, *_ in rows("UnicodeData.txt"):
        if int(code, 16) in assigned and (combining != "0" or decomposition):
            changed |= {int(code, 16), *(int(x, 16) for x in decomposition.split() if x[0] != "<")}
    runs, known = [], False
    for c in range(0x110000):
        if c in changed if not known else c not in assigned:
            runs.append(c)
            known = not known
    print(f"/* Made by normalize.py of Unicode {VERSION[0]}.{VERSION[1]}: do not edit. */")
    print('#include "token/unicode_internal.h"\n\n/* clang-format off */\nconst uint32_t normalize_runs[] = {')
    for i in range(0, len(runs), 13):
        print("\t" + ",".join(hex(r) for r in runs[i : i + 13]) + ",")
    print("};\n/* clang-format on */\nconst int normalize_n_runs = ARRAY_LEN(normalize_runs);")


main()
