#!/usr/bin/env python3
"""Writes unicode_runs.c: categories, scripts and some properties of characters as runs of code points.

    ./unicode.py DIRECTORY >unicode_runs.c

DIRECTORY has UnicodeData.txt, Scripts.txt and PropList.txt of https://www.unicode.org/Public/16.0.0/ucd/
"""
import re
import sys

CODES = 0x110000
CATEGORIES = "Cn Cc Cf Co Cs Ll Lm Lo Lt Lu Mc Me Mn Nd Nl No Pc Pd Pe Pf Pi Po Ps Sc Sk Sm So Zl Zp Zs".split()
FLAGS = ["Other_Alphabetic", "Other_Lowercase", "Other_Uppercase"]


def rows(name):
    with open(f"{sys.argv[1]}/{name}") as f:
        for line in f:
            fields = [x.strip() for x in line.partition("#")[0].split(";")]
            if len(fields) > 1:
                yield fields


def properties(name):
    for codes, value in rows(name):
        first, _, last = codes.partition("..")
        yield range(int(first, 16), int(last or first, 16) + 1), value


def main():
    category, script, flags, first = ["Cn"] * CODES, ["Unknown"] * CODES, [0] * CODES, None
    for code, name, value, *_ in rows("UnicodeData.txt"):
        code = int(code, 16)
        for c in range(first if name.endswith(", Last>") else code, code + 1):
            category[c] = value
        first = code
    for codes, value in properties("Scripts.txt"):
        script[codes.start : codes.stop] = [value] * len(codes)
    for codes, value in properties("PropList.txt"):
        for c in codes if value in FLAGS else ():
            flags[c] |= 1 << FLAGS.index(value)
    scripts = ["Unknown", *sorted({*script} - {"Unknown"})]
    all_kinds = [*zip(category, script, flags)]
    kinds = sorted({*all_kinds})
    number = {k: i for i, k in enumerate(kinds)}
    runs = [c << 11 | number[k] for c, k in enumerate(all_kinds) if not c or k != all_kinds[c - 1]]
    version = re.search(r"-([0-9.]+)\.txt", open(f"{sys.argv[1]}/Scripts.txt").readline()).group(1)
    assert len(kinds) <= 1 << 11 and len(scripts) <= 1 << 8
    print(f'/* Made by unicode.py of Unicode {version}: do not edit. */\n#include "token/unicode_internal.h"\n\n/* clang-format off */')

    def table(head, items, each):
        print(f"{head} = {{")
        for i in range(0, len(items), each):
            print("\t" + ",".join(items[i : i + each]) + ",")
        print("};")

    table("const char *const unicode_categories[]", [f'"{x}"' for x in CATEGORIES], 15)
    table("const char *const unicode_scripts[]", [f'"{x}"' for x in scripts], 9)
    print("const int unicode_n_categories = ARRAY_LEN(unicode_categories);\nconst int unicode_n_scripts = ARRAY_LEN(unicode_scripts);")
    print("/* Kinds of characters: category | script << 5 | flags << 13. */")
    table("const uint16_t unicode_kinds[]", [hex(CATEGORIES.index(c) | scripts.index(s) << 5 | f << 13) for c, s, f in kinds], 18)
    print("/* Runs of characters of one kind: the first code point * 2048 + kind. */")
    table("const uint32_t unicode_runs[]", [hex(r) for r in runs], 13)
    print("/* clang-format on */\nconst int unicode_n_runs = ARRAY_LEN(unicode_runs);")


main()
