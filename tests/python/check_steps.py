"""Saves right and broken steps of four scripts, on two processes, with pt.save_step, and checks them.

    PATH=$PWD/build:$PATH python tests/python/check_steps.py [SCRIPT...]

Needs torch, transformers and accelerate, but no GPU. Prints for each step the verdict, the seconds and the first
finding, and for each script the number of lines that a user adds. Fails if a verdict is wrong, or 15 lines are added.
"""
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = str(HERE.parent.parent / "share/python")
sys.path.insert(0, SOURCE)

import pt  # noqa: E402

# What the finding of a planted bug must contain.
FINDINGS = {"ddp": {"reduce": "do not count", "divide": "2 times"},
            "fsdp2": {"reduce": "the reduce-scatter is missing", "divide": "2 times"},
            "accelerated": {"reduce": "do not count", "divide": "2 times"},
            "trainer": {"divide": "2 times"}}


def save(script: str, bug: str, directory: str) -> None:
    run = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                          str(HERE / f"{script}.py"), f"{directory}/step"], cwd=directory, capture_output=True, text=True,
                         env={"OMP_NUM_THREADS": "1", **os.environ, "BUG": bug,
                              "PYTHONPATH": f"{SOURCE}:{os.environ.get('PYTHONPATH', '')}"})
    if run.returncode:
        raise SystemExit(f"{script}, {bug or 'right'}: {run.stderr[-3000:]}")


def try_step(script: str, bug: str) -> bool:
    with tempfile.TemporaryDirectory() as directory:
        begin = time.monotonic()
        save(script, bug, directory)
        saved = time.monotonic()
        result = pt.check(f"{directory}/step")
        checked = time.monotonic()
        findings = [f.text for f in result.findings if not f.note]
        try:
            pt.assert_step_is_right(f"{directory}/step")
            failure = ""
        except AssertionError as e:
            failure = str(e)
    if bug:
        good = result.verdict == "wrong" and any(FINDINGS[script][bug] in f and f in failure for f in findings)
    else:
        good = result.verdict == "right" and not failure and result.gradients.checked and result.update.checked
    print(f"{'ok' if good else 'not ok'} - {script} {bug or 'right'}: {result.verdict}, {saved - begin:.1f} s to save, "
          f"{checked - saved:.1f} s to check; {(findings or ['no finding'])[0][:150]}", flush=True)
    return good


def main() -> int:
    good = True
    for script in sys.argv[1:] or FINDINGS:
        added = sum(line.endswith("# pt") for line in (HERE / f"{script}.py").read_text().splitlines())
        print(f"# {script}: {added} lines are added")
        good &= 0 < added < 15
        for bug in ("", *FINDINGS[script]):
            good &= try_step(script, bug)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
