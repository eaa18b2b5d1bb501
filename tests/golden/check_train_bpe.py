#!/usr/bin/env python3
"""Trains vocabularies with pt-prepare and with Hugging Face's tokenizers, and compares the merges; then
compares what pt-prepare, tokenizers and tiktoken make of the text with the files that pt-prepare has
written. Prints merges and processor time; leaves nothing behind.

    venv/bin/pip install tokenizers tiktoken h5py
    PATH=$PWD/build:$PATH venv/bin/python tests/golden/check_train_bpe.py TOKENS TEXT ...
"""
import base64
import json
import os
import resource
import subprocess
import sys
import tempfile
import time

import h5py
import numpy
import tiktoken
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

PATTERNS = "gpt2", "cl100k", "llama3", "qwen2", "o200k", "tekken"


def run(*args):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(["pt-prepare", "-q", *args], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def merges(lines):
    return [m if isinstance(m, str) else " ".join(m) for m in lines]


def check(pattern, vocab, files, texts):
    ours = run("--train-bpe", str(vocab), "--vocab-out", "v", "--overwrite", "--pattern", pattern, *files)
    with open("v/merges.txt", encoding="utf-8") as f:
        found = f.read().splitlines()[1:]
    read = Tokenizer.from_file("v/tokenizer.json")
    theirs = Tokenizer(models.BPE())
    theirs.pre_tokenizer = read.pre_tokenizer  # so the words are those of the regular expression
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, min_frequency=2, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    begin = time.process_time()
    theirs.train_from_iterator(texts, trainer)
    cpu = time.process_time() - begin
    theirs.save("theirs.json")
    with open("theirs.json", encoding="utf-8") as f:
        expected = merges(json.load(f)["model"]["merges"])
    same = next((i for i, (a, b) in enumerate(zip(found, expected)) if a != b), min(len(found), len(expected)))
    assert found == expected, f"{pattern}: merge {same}: {found[same:same + 1]} {expected[same:same + 1]}"

    run("-t", "bpe", "--no-end-of-text", "--vocab-files", "v", "-f", "0", "-o", "all.h5", "--overwrite", *files[:1])
    with h5py.File("all.h5") as f:
        ids = f["train"][:]
    assert (numpy.array(read.encode(texts[0]).ids) == ids).all(), "tokenizers"
    with open("v/vocab.tiktoken") as f:
        ranks = {base64.b64decode(a): int(b) for a, b in (line.split() for line in f)}
    regex = json.loads(read.to_str())["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
    other = tiktoken.Encoding("v", pat_str=regex, mergeable_ranks=ranks, special_tokens={})
    assert (numpy.array(other.encode_ordinary(texts[0])) == ids).all(), "tiktoken"
    print(f"{pattern:8} {len(found)} equal merges, {len(ids)} equal tokens; "
          f"CPU {ours:.2f} s, tokenizers {cpu:.2f} s", flush=True)


def main():
    vocab, files = int(sys.argv[1]), [os.path.abspath(f) for f in sys.argv[2:]]
    texts = [open(f, encoding="utf-8", newline="").read() for f in files]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for pattern in PATTERNS:
            check(pattern, vocab, files, texts)


main()
