"""Runs the programs, and returns their JSON as objects."""
from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, Iterable, Union

PathLike = Union[str, "os.PathLike[str]"]


# The options that step.json may have: no option that names a file, because a step may come from someone else.
FACTS = set("loss grad_norm clip precision accumulation dp fsdp tp cp lr beta1 beta2 eps weight_decay freeze "
            "lr_scale_of document_end divide_by".split())


class ProgramError(RuntimeError):
    """The message of a program that failed."""


def _run(program: str, options: dict[str, Any], operands: Iterable[PathLike]) -> SimpleNamespace:
    path = shutil.which(program, path=os.path.dirname(sys.executable)) or shutil.which(program)
    if not path:
        raise FileNotFoundError(f"{program} is missing: it is neither next to {sys.executable} nor in PATH")
    command = [path, "--json"]
    for name, value in options.items():
        for v in value if isinstance(value, (list, tuple)) else [value]:
            if v is not None and v is not False:
                command.append("--" + name.replace("_", "-") + ("" if v is True else f"={v}"))
    run = subprocess.run([*command, "--", *map(str, operands)], stdin=subprocess.DEVNULL, capture_output=True,
                         text=True, errors="replace")
    if run.returncode not in range(4) or not run.stdout.startswith("{"):
        raise ProgramError(run.stderr.strip() or f"{program}: exit status {run.returncode}")
    result = json.loads(run.stdout, object_hook=lambda d: SimpleNamespace(**d))
    result.exit_code = run.returncode
    return result


def check(directory: PathLike, **options: Any) -> SimpleNamespace:
    """Check the step in a directory that `save_step` wrote, with pt-check.

    Options of pt-check, such as ``freeze=["tok_"]``, override the facts that `save_step` wrote. Returns what
    ``pt-check --json`` prints, such as ``.verdict`` and ``.findings[0].text``, and ``.exit_code``, 0 to 3.
    Other exit codes raise `ProgramError`.
    """
    with open(os.path.join(directory, "step.json")) as f:
        saved = json.load(f)
    if not saved["batch"] and "batch" not in options:
        raise ValueError(f"{directory}: the step has no batch; call save_step with a batch after the step")
    if unknown := saved["options"].keys() - FACTS:
        raise ValueError(f"{directory}: step.json: {min(unknown)!r} is not a fact of a step")
    batch = [os.path.join(directory, os.path.basename(name)) for name in saved["batch"]]
    return _run("pt-check", {"batch": batch, **saved["options"], **options},
                [os.path.join(directory, when) for when in ("before", "after")])


def compare(*runs: PathLike, **options: Any) -> SimpleNamespace:
    """Compare runs, or logs of any trainer, with pt-compare; return what it prints, as `check` does.

    Parameters
    ----------
    *runs, **options
        The control and the tests, and options such as ``rtol=0.01``. For sets of runs: ``control=[...], test=[...]``.
    """
    return _run("pt-compare", options, runs)


def assert_step_is_right(directory: PathLike, **options: Any) -> None:
    """Fail with the findings and the worst tensors, unless `check` calls the step right. For pytest."""
    __tracebackhide__ = True
    result = check(directory, **options)
    if result.verdict != "right":
        parts = [(part.residual / part.bound, f"{t.name}: {kind} off by {part.residual}, bound {part.bound}")
                 for t in result.tensors for kind in ("gradient", "moments", "update")
                 if (part := getattr(t, kind, None)) and part.residual is not None and part.bound]
        lines = [f.text for f in result.findings] + [text for _, text in sorted(parts, reverse=True)[:5]]
        raise AssertionError("\n  ".join([f"{directory}: {result.verdict}", *lines]))
