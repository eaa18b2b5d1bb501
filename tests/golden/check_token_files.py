#!/usr/bin/env python3
"""Token files between pt-prepare and the code of llm.c and Megatron-LM: what theirs writes, ours
reads, and the other way round. Prints; leaves nothing behind.

    venv/bin/pip install numpy h5py && venv/bin/pip install --no-deps megatron-core
    PATH=$PWD/build:$PATH venv/bin/python tests/golden/check_token_files.py LLM.C/dev/data

Of Megatron-LM, indexed_dataset.py is loaded alone, because the rest of the package needs PyTorch.
"""
import importlib.util
import os
import random
import subprocess
import sys
import tempfile
import types

import h5py
import numpy


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stub(name, **values):
    sys.modules[name] = types.SimpleNamespace(__spec__=None, **values)


def stub_megatron():
    folder = os.path.join(
        importlib.util.find_spec("numpy").submodule_search_locations[0], "../megatron/core/datasets/")
    data = types.SimpleNamespace(Dataset=object)
    stub("torch", utils=types.SimpleNamespace(data=data), Tensor=object)
    stub("torch.utils", data=data)
    for name in "megatron", "megatron.core", "megatron.core.datasets":
        stub(name)
    names = ("ObjectStorageConfig S3Config cache_index_file dataset_exists get_index_cache_path "
             "get_object_storage_access is_object_storage_path parse_s3_path").split()
    stub("megatron.core.datasets.object_storage_utils",
         **{n: (lambda *a, **k: False) for n in names})
    stub("megatron.core.msc_utils",
         MultiStorageClientFeature=types.SimpleNamespace(is_enabled=lambda: False))
    stub("megatron.core.utils", log_single_rank=lambda *a, **k: None)
    return load("indexed_dataset", folder + "indexed_dataset.py")


def stub_llmc(folder):
    stub("requests")
    stub("tqdm", tqdm=None)
    return load("data_common", folder + "/data_common.py")


def prepare(*args):
    subprocess.run(["pt-prepare", "-q", *args], check=True)


def tokens(shard):
    with h5py.File(shard) as f:
        return f["train"][:].astype(numpy.int64)


def check_llmc(llmc, vocab, model, ids):
    llmc.write_datafile("theirs.bin", ids, model)
    prepare("theirs.bin", "--vocab", str(vocab), "-f", "0", "-o", "ours.h5", "--overwrite")
    assert (tokens("ours.h5") == ids).all()
    prepare("--to", "llmc", "ours.h5", "-o", "ours", "--overwrite")
    with open("theirs.bin", "rb") as a, open("ours_train.bin", "rb") as b:
        assert a.read() == b.read()
    print(f"llm.c, {model}: equal bytes, {len(ids)} tokens")


def check_megatron(megatron, vocab, documents):
    kind = megatron.DType.optimal_dtype(vocab)
    builder = megatron.IndexedDatasetBuilder("theirs.bin", dtype=kind)
    for d in documents:
        builder.add_document(numpy.array(d, kind), [len(d)])
    builder.finalize("theirs.idx")
    prepare("theirs", "--to", "megatron", "--vocab", str(vocab), "-f", "0", "-o", "ours", "--overwrite")
    for end in "bin", "idx":
        with open("theirs." + end, "rb") as a, open("ours_train." + end, "rb") as b:
            assert a.read() == b.read(), end
    prepare("theirs.idx", "--vocab", str(vocab), "-f", "0", "-o", "ours.h5", "--overwrite")
    assert (tokens("ours.h5") == numpy.concatenate(documents)).all()
    read = megatron.IndexedDataset("ours_train", mmap=True)
    assert len(read) == len(documents)
    for i, d in enumerate(documents):
        assert (read[i] == numpy.array(d)).all()
    print(f"Megatron-LM, {kind.__name__}: equal bytes, {len(documents)} documents")


def main():
    random.seed(1)
    llmc, megatron = stub_llmc(os.path.abspath(sys.argv[1])), stub_megatron()
    os.chdir(tempfile.mkdtemp(dir=os.environ.get("TMPDIR")))
    try:
        for vocab, model in (50257, "gpt-2"), (128256, "llama-3"):
            ids = [random.randrange(vocab) for _ in range(300000)]
            ids[7] = vocab - 1
            check_llmc(llmc, vocab, model, ids)
            cuts = sorted(random.sample(range(1, len(ids)), 999))
            check_megatron(megatron, vocab, [ids[a:b] for a, b in zip([0] + cuts, cuts + [len(ids)])])
        ids = numpy.array(ids) % 50257
        os.remove("theirs.idx")
        ids.astype(numpy.uint16).tofile("theirs.bin")  # as nanoGPT's prepare.py
        prepare("theirs.bin", "--to", "nanogpt", "-f", "0", "-o", "ours", "--overwrite")
        assert (numpy.fromfile("ours_train.bin", numpy.uint16) == ids).all()
        print("nanoGPT: equal bytes")
    finally:
        subprocess.run(["rm", "-r", os.getcwd()], check=True)


main()
