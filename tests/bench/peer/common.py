"""Shared by the PyTorch programs: a clock that waits for the device, medians, versions."""

import statistics
import time

import torch


def wait(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def seconds(device, call):
    wait(device)
    begin = time.perf_counter()
    call()
    wait(device)
    return time.perf_counter() - begin


def seconds_a_call(device, call, tiny):
    """The median over rounds of many calls; the device is idle before and after each."""
    call()
    one = seconds(device, call)
    calls = 1 if tiny else min(2000, max(3, int(0.02 / (one + 1e-9))))

    def many():
        for _ in range(calls):
            call()

    return statistics.median(seconds(device, many) / calls for _ in range(1 if tiny else 7))


def say(*fields):
    print(*fields, sep="\t", flush=True)


def about(device):
    say("torch", torch.__version__)
    say("torch-cuda", torch.version.cuda)
    if device.type == "cuda":
        say("cudnn", torch.backends.cudnn.version())
        say("gpu", torch.cuda.get_device_name())
        say("gpu-bytes", torch.cuda.get_device_properties(0).total_memory)
