"""A GPU that is not there: a program of PyTorch that imports this first, and asks for "cuda" and NCCL, gets the
processor and gloo instead, in its own arithmetic. For pt-check's recipes on a machine without a GPU: slow, and of
kernels that are a GPU's only (flash attention, Triton, Transformer Engine) it knows nothing."""
import os
import types
import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode


class Nothing:
    """A stream, an event, a context: there is nothing to wait for."""

    def __init__(self, *args, **kwargs):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *args):
        pass

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: 1  # (a time that may divide)


def here(x):
    return "cpu" if isinstance(x, str) and x.split(":")[0] == "cuda" else x


class Processor(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(function, "__name__", "")
        if function is torch.Tensor.cuda or function is torch.Tensor.pin_memory:
            return args[0]
        if function is torch.Tensor.record_stream:
            return None
        if function == torch.Tensor.is_cuda.__get__:
            return True
        if function is torch.Tensor.type and len(args) == 1 and not kwargs:
            return function(*args).replace("torch.", "torch.cuda.")
        if isinstance(kwargs.get("device"), int):
            kwargs["device"] = "cpu"
        if function is torch.Tensor.to and len(args) > 1 and type(args[1]) is int:
            args = (args[0], "cpu", *args[2:])
        args, kwargs = [here(x) for x in args], {key: here(x) for key, x in kwargs.items()}
        if getattr(function, "__module__", None) == dist.distributed_c10d.__name__:
            with torch.no_grad():  # (NCCL writes into parameters without asking)
                return function(*args, **kwargs)
        return function(*args, **kwargs)


def no_gpu():
    cuda = torch.cuda
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    properties = types.SimpleNamespace(name="none", major=8, minor=0, total_memory=1 << 34, multi_processor_count=1)
    for value, names in (
            (None, "init _lazy_init set_device synchronize empty_cache reset_peak_memory_stats set_stream ipc_collect"
                   " reset_max_memory_allocated manual_seed_all set_per_process_memory_fraction"),
            (0, "memory_allocated memory_reserved max_memory_allocated max_memory_reserved utilization"
                " memory_usage"),
            (True, "is_available is_initialized is_bf16_supported"), (False, "is_current_stream_capturing"),
            (ranks, "device_count"), (0, "current_device"), ((8, 0), "get_device_capability"),
            ("none", "get_device_name"), (properties, "get_device_properties"), ({}, "memory_stats"),
            ((1 << 34, 1 << 34), "mem_get_info")):
        for name in names.split():
            setattr(cuda, name, lambda *args, value=value, **kwargs: value)
    for name in ("Stream", "Event", "stream", "device", "current_stream", "default_stream"):
        setattr(cuda, name, Nothing)
    for name in ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Byte", "Bool"):
        setattr(cuda, f"{name}Tensor", getattr(torch, f"{name}Tensor"))
    for place in (cuda, cuda.random):
        place.get_rng_state = lambda *args, **kwargs: torch.default_generator.get_state()
        place.set_rng_state = lambda state, *args, **kwargs: torch.default_generator.set_state(state)
    torch.accelerator.is_available = lambda: False
    cuda.default_generators = (torch.default_generator,) * ranks
    cuda.manual_seed = torch.default_generator.manual_seed
    cuda._lazy_call = lambda call, **kwargs: call()

    class Generator(torch.Generator):
        def __new__(cls, device=None):
            return super().__new__(cls)

    torch.Generator = Generator

    def gloo(make, **changed):
        def made(*args, **kwargs):
            for name in ("pg_options", "device_id"):
                kwargs.pop(name, None)
            return make(*args, **{**kwargs, **changed})
        return made

    dist.init_process_group = gloo(dist.init_process_group, backend="gloo")
    dist.new_group = gloo(dist.new_group, backend="gloo")
    Processor().__enter__()


no_gpu()
