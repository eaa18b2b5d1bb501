#!/usr/bin/env python3
"""Runs pt-check on cases that broken_runs.py has made, and compares its exit code and findings with
what must be said.

    tests/bench/oracle/try_cases.py FOLDER [CASE...]      with pt-check on the PATH

A line for each case: ok, unnamed (found, and another or no cause said), WRONG (not found, or an
alarm in a right run) or no case (a folder whose name cases.py no longer has; it is passed over). The
exit code is 1 if one is WRONG."""
import json
import re
import subprocess
import sys
from pathlib import Path

from cases import CASES

PRECISION = {"fp32": "fp32", "autocast": "autocast"}


def options(run):
    o = ["--precision", PRECISION.get(run["precision"], "bf16"), "--clip", run["clip"] or 0,
         "--beta1", run["betas"][0], "--beta2", run["betas"][1], "--eps", run["eps"],
         "--weight-decay", run["decay"], "--lr", run["lr"], "--grad-norm", run["grad_norm"],
         "--loss", run["loss"]]
    for axis, name in (("tp", "--tp"), ("fsdp", "--fsdp"), ("ddp", "--dp")):
        degree = re.search(axis + r"(\d)", run["layout"])
        o += [name, degree[1]] if degree else []
    if run["accumulate"] > 1:
        o += ["--accumulation", run["accumulate"]]
    return [str(x) for x in o]


def pattern(say):
    """Models differ in their number of tensors, and in the rank whose copy of a tensor is saved."""
    return re.sub(r"\\\(\d+\\\)|and\\ \d+\\ more|the\\ part\\ of\\ slice\\ \d",
                  lambda m: re.sub(r"\d+", r"\\d+", m[0]), re.escape(say))


def check(folder):
    run = json.loads((folder / "run.json").read_text())
    files = [next(x for x in (folder / name, folder / (name + ".pt")) if x.exists())
             for name in ("before", "after")]
    batch = sorted(folder.glob("batch-*"))
    seen = subprocess.run(["pt-check", "-c", folder / "config.json", *options(run), *files,
                           "--batch", *batch], capture_output=True, text=True)
    said = seen.stdout + seen.stderr
    if str(seen.returncode) not in str(CASES[folder.name].code):
        return "WRONG", run, said
    return "ok" if re.search(pattern(CASES[folder.name].say), said) else "unnamed", run, said


def main():
    root, names = Path(sys.argv[1]), sys.argv[2:]
    folders = [root / n for n in names] or sorted(x.parent for x in root.glob("*/run.json"))
    count = {"ok": 0, "unnamed": 0, "WRONG": 0}
    for folder in folders:
        if folder.name not in CASES:
            print(f"no case  {folder.name}: made by an older cases.py; remove it", flush=True)
            continue
        verdict, run, said = check(folder)
        count[verdict] += 1
        print(f"{verdict:<8} {folder.name}", flush=True)
        if verdict != "ok":
            print("    must say:", CASES[folder.name].say)
            for line in said.splitlines():
                if re.match(r"finding|verdict|first|pt-check", line):
                    print("    " + line[:180])
    print(", ".join(f"{n} {what}" for what, n in count.items()))
    sys.exit(count["WRONG"] > 0)


if __name__ == "__main__":
    main()
