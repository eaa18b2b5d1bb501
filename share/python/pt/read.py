"""Reads runs, checkpoints and token shards with h5py, as numpy arrays or pandas.DataFrame."""
from __future__ import annotations

import os
from typing import Any

from .programs import PathLike


def _open(path: PathLike, inside: str = ""):
    import h5py
    return h5py.File(os.path.join(path, inside) if os.path.isdir(path) else path)


def _frame(columns: dict[str, Any]):
    import pandas
    return pandas.DataFrame(columns)


def read_run(path: PathLike, frame: bool = False) -> Any:
    """Return the columns of a run, such as step and loss, by name. `path`: its directory, or its run.h5."""
    with _open(path, "run.h5") as f:
        columns = {name: data[()] for name, data in f["columns"].items()}
    return _frame(columns) if frame else columns


def read_checkpoint(path: PathLike, group: str = "model", frame: bool = False) -> Any:
    """Return the tensors of a checkpoint by name; as a frame, their shapes and statistics.

    `path`: a file, or the directory of a run. `group`: "model", or a state of the optimizer, such as "exp_avg".
    """
    with _open(path, "checkpoints/latest.h5") as f:
        tensors = {name: data[()] for name, data in f[group].items()}
    if not frame:
        return tensors
    rows = [(name, x.shape, x.mean(), x.std(), x.min(), x.max()) for name, x in tensors.items()]
    return _frame(dict(zip(("name", "shape", "mean", "std", "min", "max"), zip(*rows))))


def read_shard(path: PathLike, split: str = "train", frame: bool = False) -> Any:
    """Return the tokens of a split, "train" or "val"; as a frame, with the bytes of each token."""
    with _open(path) as f:
        tokens, ends, text = f[split][()], f["tokenizer/offsets"][()], f["tokenizer/bytes"][()].tobytes()
    return _frame({"token": tokens, "text": [text[ends[t]:ends[t + 1]] for t in tokens]}) if frame else tokens
