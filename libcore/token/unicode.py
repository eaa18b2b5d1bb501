#!/usr/bin/env python3
"""Writes unicode_runs.c: the classes of characters as runs of code points.

    pip install unicodedata2==16.0.0 && ./unicode.py >unicode_runs.c
"""
import unicodedata2

CLASS = {"Ll": "CHAR_LOWER", "Lu": "CHAR_UPPER", "Lt": "CHAR_UPPER", "Lm": "CHAR_LETTER", "Lo": "CHAR_LETTER"}
NUMBER = {"CHAR_OTHER": 0, "CHAR_SPACE": 1, "CHAR_NUMBER": 2, "CHAR_MARK": 3, "CHAR_LOWER": 4, "CHAR_UPPER": 5, "CHAR_LETTER": 6}
# White_Space of PropList.txt, which no category equals
SPACE = {*range(0x9, 0xE), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}


def class_of(code):
    category = unicodedata2.category(chr(code))
    if code in SPACE:
        return "CHAR_SPACE"
    if category[0] in "NM":
        return {"N": "CHAR_NUMBER", "M": "CHAR_MARK"}[category[0]]
    return CLASS.get(category, "CHAR_OTHER")


def main():
    runs, last = [], None
    for code in range(0x110000):
        c = NUMBER[class_of(code)]
        if c != last:
            runs.append(code << 3 | c)
        last = c
    print(f"/* Made by unicode.py of Unicode {unicodedata2.unidata_version}: do not edit. */")
    print('#include "token/unicode_internal.h"\n')
    print("/* Runs of characters of one class: the first code point * 8 + class. */\n/* clang-format off */")
    print("const uint32_t unicode_runs[] = {")
    for i in range(0, len(runs), 14):
        print("\t" + ",".join(f"{r:#x}" for r in runs[i : i + 14]) + ",")
    print("};\n/* clang-format on */\nconst int unicode_n_runs = ARRAY_LEN(unicode_runs);")


main()
