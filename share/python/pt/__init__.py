"""Saves steps of PyTorch trainers, runs pt-check and pt-compare, and reads the files of pt.

Around one optimizer step, on all ranks::

    pt.save_step("step", model, optimizer)
    ...                                       # forward, backward, clipping, optimizer.step()
    pt.save_step("step", model, optimizer, batch, loss=loss, grad_norm=norm, clip=1.0)
    print(pt.check("step").verdict)           # on one rank
"""
from .programs import ProgramError, assert_step_is_right, check, compare
from .read import read_checkpoint, read_run, read_shard


def __getattr__(name: str):
    if name == "save_step":  # needs PyTorch
        from .save import save_step
        return save_step
    raise AttributeError(f"module 'pt' has no attribute {name!r}")
