"""Saves one optimizer step of a PyTorch trainer for pt-check."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Mapping

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import save as save_shards
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from .programs import PathLike

_complete: set[Path] = set()  # directories with a step of this process


def _plain(name: str) -> str:  # without the prefixes of wrappers
    return name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "").removeprefix("module.")


def _state(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    names = {p: _plain(name) for name, p in model.named_parameters()}
    if any(p not in names for group in optimizer.param_groups for p in group["params"]):
        raise ValueError("the model lacks a parameter of the optimizer; make the optimizer after wrapping it")
    state = {"model": {_plain(name): x for name, x in model.state_dict().items()}}
    if optimizer.state:
        groups = [{**group, "params": [names[p] for p in group["params"]]} for group in optimizer.param_groups]
        state["optimizer"] = {"state": {names[p]: s for p, s in optimizer.state.items()}, "param_groups": groups}
    return state


def _save_checkpoint(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, rank: int) -> None:
    if hasattr(model, "get_global_grad_norm"):  # DeepSpeed
        model.save_checkpoint(str(path))
    elif any(isinstance(m, FullyShardedDataParallel) for m in model.modules()):
        # (before the first step, get_state_dict would run a step with zero gradients)
        states = get_state_dict(model, optimizer) if optimizer.state else [get_model_state_dict(model)]
        save_shards(dict(zip(("model", "optimizer"), states)), checkpoint_id=path)
    elif any(isinstance(p, DTensor) for p in model.parameters()):  # FSDP2
        save_shards(_state(model, optimizer), checkpoint_id=path)
    elif rank == 0:
        torch.save(_state(model, optimizer), path)


def _copy(micro: Any) -> Any:  # torch.save of a view would save the whole tensor
    if isinstance(micro, torch.Tensor):
        return micro.detach().cpu().clone()
    if isinstance(micro, Mapping):
        return {k: _copy(x) for k, x in micro.items() if isinstance(x, torch.Tensor)}
    return [_copy(x) for x in micro]


def _number(x: Any) -> float | None:
    if isinstance(x, (list, tuple)):
        return sum(map(_number, x)) / len(x)
    x = x.full_tensor() if isinstance(x, DTensor) else x
    return None if x is None else float(x.item() if isinstance(x, torch.Tensor) else x)


def _layout(model: torch.nn.Module, world: int) -> dict[str, int]:
    if isinstance(model, DistributedDataParallel):
        return {"dp": world}
    meshes = {(p.device_mesh.ndim, p.device_mesh.size()) for p in model.parameters() if isinstance(p, DTensor)}
    return {"fsdp": world} if meshes == {(1, world)} else {}


def save_step(directory: PathLike, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, batch: Any = None,
              *, loss: Any = None, grad_norm: Any = None, clip: float | None = None,
              layout: dict[str, int] | None = None, precision: str | None = None, config: dict | None = None,
              save_batch: bool = True, **options: Any) -> None:
    """Save a step for `check`. Call it on all ranks before an optimizer step, and after it with the batch.

    The model may be plain, or wrapped by DDP, FSDP, FSDP2 or DeepSpeed; the optimizer of DeepSpeed may be None.
    After the second call, further calls with this directory do nothing, so both may stay in the loop.

    Parameters
    ----------
    directory
        A directory that all ranks share. It gets before, after, batch-RANK-N.pt, config.json and step.json.
    batch
        The tokens of this rank. A micro-batch is a dictionary (input_ids, labels, ...), a tuple (inputs, labels), or
        a tensor [sequences, length + 1]; a list holds several micro-batches.
    loss
        The loss of this rank, or a list for its micro-batches; the mean over all ranks is saved.
    grad_norm, clip
        The norm of the gradients before clipping, and the norm that they are clipped to (0: no clipping).
    layout
        The degrees dp, fsdp, tp and cp, if it is neither plain DDP nor FSDP2.
    config
        The model's configuration, if ``model.config`` is not of Hugging Face's kind.
    save_batch
        False on ranks with the tokens of another rank, such as all tensor-parallel ranks except the first.
    precision, **options
        Options of pt-check, such as ``lr=1e-3``. Precision: "bf16" if FSDP2 computes in bf16, or "autocast".
    """
    if isinstance(batch, list) and any(isinstance(x, torch.Tensor) for x in batch):
        raise ValueError("batch is a list of tensors; give a tuple (inputs, labels) for one micro-batch, "
                         "or a list of dictionaries or tuples for several")
    directory = Path(directory).absolute()
    if directory in _complete:
        return
    directory.mkdir(parents=True, exist_ok=True)
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    micro = [] if batch is None or not save_batch else batch if isinstance(batch, list) else [batch]
    _save_checkpoint(directory / ("before" if batch is None else "after"), model, optimizer, rank)
    names = [f"batch-{rank}-{n}.pt" for n in range(len(micro))]
    for name, x in zip(names, micro):
        torch.save(_copy(x), directory / name)
    norm = model.get_global_grad_norm() if grad_norm is None and hasattr(model, "get_global_grad_norm") else grad_norm
    saved, norm = [(names, _number(loss))], _number(norm)
    if world > 1:
        saved = saved * world
        dist.all_gather_object(saved, saved[0])
    losses = [x for _, x in saved if x is not None]
    if batch is not None:
        _complete.add(directory)
    if rank == 0:
        facts = {"loss": _number(losses) if losses else None, "grad_norm": norm, "clip": clip, "precision": precision,
                 "accumulation": max(len(micro), 1), **(_layout(model, world) if layout is None else layout), **options}
        own = getattr(getattr(model, "module", model), "config", None)
        if config is not None or hasattr(own, "to_json_string"):
            (directory / "config.json").write_text(json.dumps(config) if config is not None else own.to_json_string())
        text = json.dumps({"options": facts, "batch": sum((names for names, _ in saved), [])}, indent=1)
        (directory / "step.json").write_text(text)
