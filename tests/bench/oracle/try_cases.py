#!/usr/bin/env python3
"""Makes steps of other trainers, right ones and broken ones, and compares pt-check's verdicts with the truth.

    try_cases.py [--build DIR] [--seeds 1,2,3] [--only REGEX] [--ranks] [--unsaid] [--keep DIR] [--json FILE]

Makes, checks and removes the cases of strangers.py on --jobs processes (default: 2). --ranks adds the cases of
cases.py, whose bugs need several processes. --unsaid also checks each right step in bf16 without its precision: pt-check
must not decide. --keep DIR leaves the files of the cases in DIR. --json FILE appends a
line per case with the command, the output and the verdict. The README explains the columns of the table.

The exit code is 1 if pt-check calls a right step wrong or a broken one right, or if a case could not be made."""
import argparse
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

GENERIC = (r"no known cause|the batch differs, or the function|^scale: .* [-\d.e+]+ times$|learning rate of its own"
           r"|update differs from AdamW's|exp_avg_sq did not gain|farthest")
UNCHECKED = {"update": r"update was not checked|update of .* not checked", "norm": r"scale +NOT checked|scale.* not checked"}
NAMES = r"^(finding|note) +(.*?\(\d+\): |\S+\.\S+( and \d+ more)?: )?"
CLAIMS = r"loss is right|forward pass is right|so are the batch and the forward"
KINDS = {"false alarm": "RIGHT STEPS CALLED WRONG", "called right": "BROKEN STEPS CALLED RIGHT",
         "not checked": "BROKEN, AND NOT CHECKED", "wrong cause": "WRONG CAUSES", "false claim": "FOUND, WITH A FALSE CLAIM", "refused": "REFUSED",
         "no cause": "NO CAUSE", "named, more": "NAMED, AND ANOTHER CAUSE BESIDE IT", "right": "", "named": "", "unknowable": "", "error": "NOT MADE"}


def pt_check(build, options, before, after, batch):
    program = Path(build) / "pt-check" if build else "pt-check"
    command = [str(x) for x in (program, *options, before, after, "--batch", *batch)]
    begin = time.time()
    try:
        seen = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        return command, seen.returncode, seen.stdout + seen.stderr, time.time() - begin
    except subprocess.TimeoutExpired:
        return command, 124, "pt-check: took more than 300 s", 300


def kind_of(code, said, broken, words, codes, visible):
    """Returns the column of a verdict, and the lines that matter."""
    lines = [x for x in said.splitlines() if re.match(r"finding|note|verdict|pt-check: (?!warn)|update  NOT", x)]
    found = [x for x in lines if code > 1 or x.startswith("finding") or code == 0 and x.startswith("note")]
    found = [re.sub(NAMES, "", x) for x in found]
    named = bool(words) and any(re.search(words.lstrip("~"), x, re.I) and (words[0] == "~" or not re.search(GENERIC, x))
                                for x in found)
    if not broken:
        return ("right" if str(code) == codes else "false alarm" if code == 1 else "refused"), lines
    if code > 1 and not re.search(codes, str(code)):
        return "refused", lines
    hidden = [k for k in visible if re.search(UNCHECKED.get(k, "$^"), said)]
    if code == 0:
        return ("named" if named else "unknowable" if not words or not visible else
                "not checked" if len(hidden) == len(visible) else "called right"), lines
    if not words or not visible:
        return "unknowable", lines
    if visible.get("loss") and re.search(CLAIMS, said):
        return "false claim", lines
    if named:
        besides = [x for x in found if not re.search(GENERIC + "|^(loss|scale|clip)", x) and not re.search(words.lstrip("~"), x, re.I)]
        return ("named, more" if besides else "named"), lines
    return ("wrong cause" if any(not re.search(GENERIC, x) for x in found) else "no cause"), lines


@functools.cache
def cases_of(seed, unsaid=False):
    import strangers  # only where cases are made: it loads PyTorch and transformers
    return strangers.cases_of(seed, unsaid)


def try_one(seed, name, build, keep):
    """Makes and checks a case of strangers.py, in a process of its own."""
    import step
    warnings.simplefilter("ignore")
    step.torch.set_num_threads(1)
    case = cases_of(seed, True)[name]
    directory = Path(keep, f"seed-{seed}", name) if keep else Path(tempfile.mkdtemp(prefix="oracle-"))
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    r = {"seed": seed, "name": name, "run": vars(case.c), "words": case.words, "expected": case.code}
    begin = time.time()
    try:
        made = step.make(case, directory)
        r["seconds to make"] = time.time() - begin
        command, code, said, seconds = pt_check(build, made["options"], made["before"], made["after"], made["batch"])
        broken = case.bug is not None
        kind, lines = kind_of(code, said, broken, case.words, case.code, made["visible"])
        if not broken and made["visible"]:
            kind, lines = "error", [f"judge: a right step is off: {made['visible']}"]
        r |= {"kind": kind, "code": code, "lines": lines, "said": said, "seconds": seconds, "command": command,
              "judge": made["seen"], "visible": made["visible"]}
    except Exception:  # a case that cannot be made is reported, and the others go on
        r |= {"kind": "error", "code": -1, "lines": traceback.format_exc().splitlines()[-3:], "command": []}
    if not keep:
        shutil.rmtree(directory)
    return r


def options_of_ranks(run):
    o = ["--precision", {"fp32": "fp32", "autocast": "autocast"}.get(run["precision"], "bf16"), "--clip", run["clip"] or 0,
         "--beta1", run["betas"][0], "--beta2", run["betas"][1], "--eps", run["eps"],
         "--weight-decay", run["decay"], "--lr", run["lr"], "--grad-norm", run["grad_norm"], "--loss", run["loss"]]
    for axis, name in (("tp", "--tp"), ("fsdp", "--fsdp"), ("ddp", "--dp")):
        degree = re.search(axis + r"(\d)", run["layout"])
        o += [name, degree[1]] if degree else []
    return [*o, *(["--accumulation", run["accumulate"]] if run["accumulate"] > 1 else [])]


def pattern(say):
    """Models differ in their number of tensors, and in the rank whose copy of a tensor is saved."""
    return re.sub(r"\\\(\d+\\\)|and\\ \d+\\ more|the\\ part\\ of\\ slice\\ \d",
                  lambda m: re.sub(r"\d+", r"\\d+", m[0]), re.escape(say))


def try_ranks(seed, only, build, keep):
    """Makes the cases of cases.py with broken_runs.py, and checks them."""
    directory = Path(keep, f"ranks-{seed}") if keep else Path(tempfile.mkdtemp(prefix="oracle-"))
    here, environment = Path(__file__).parent, os.environ | {"SEED": str(seed)}
    listed = subprocess.run([sys.executable, "-c", "import cases; print(*cases.CASES)"], cwd=here, env=environment,
                            capture_output=True, text=True, check=True).stdout.split()
    names = [n for n in listed if re.search(only, n)]
    records = []
    if names:
        subprocess.run([sys.executable, here / "broken_runs.py", directory, *names], env=environment, check=False,
                       stdout=sys.stderr)
    for name in names:
        run = json.loads((directory / name / "run.json").read_text())
        files = [next(x for x in (directory / name / n, directory / name / (n + ".pt")) if x.exists()) for n in ("before", "after")]
        command, code, said, seconds = pt_check(build, ["-c", directory / name / "config.json", *options_of_ranks(run)], *files,
                                                sorted((directory / name).glob("batch-*")))
        broken = not str(run["code"]).startswith("0")
        words = pattern(re.sub(r"^(finding )?(.*?\(\d+\): |\S+\.\S+: )?", "", run["say"]))  # as kind_of() shortens lines
        kind, lines = kind_of(code, said, broken or "1" in str(run["code"]), words, str(run["code"]), {"": 1})
        if not broken and "1" not in str(run["code"]):
            kind, lines = kind_of(code, said, False, "", "0", {})
        records.append({"seed": seed, "name": name, "kind": kind, "code": code, "lines": lines, "said": said,
                        "seconds": seconds, "command": command, "words": run["say"], "expected": run["code"]})
    if not keep:
        shutil.rmtree(directory, ignore_errors=True)
    return records


def report(records):
    for kind, title in KINDS.items():
        some = [r for r in records if r["kind"] == kind]
        if title and some:
            print(f"\n{title}: {len(some)}")
        for r in some if title else []:
            c = r.get("run", {})
            print(f"  seed {r['seed']} {r['name']} {c.get('family', '')} {c.get('precision', '')}, exit {r['code']}, "
                  f"expected /{r['words']}/")
            for line in r["lines"]:
                print("      " + (line if len(line) < 230 else line[:70] + " ... " + line[-150:]))
    seeds = sorted({r["seed"] for r in records})
    print(f"\n{'seed':<14}" + "".join(f"{k:>13}" for k in KINDS) + f"{'all':>8}")
    for seed in [*seeds, None] if len(seeds) > 1 else seeds:
        for right in (True, False):
            some = [r for r in records if seed in (None, r["seed"]) and right == (not r["name"].startswith(("wrong", "mistake")))]
            print(f"{seed or 'all'!s:>4} {'right' if right else 'broken':<9}" +
                  "".join(f"{sum(r['kind'] == k for r in some):>13}" for k in KINDS) + f"{len(some):>8}")
    for precision in sorted({r["run"]["precision"] for r in records if r["kind"] == "right" and "run" in r}):
        near = max((float(a) / float(b), r["seed"], r["name"]) for r in records if r["kind"] == "right" and "run" in r
                   and r["run"]["precision"] == precision for a, b in re.findall(r"worst ([\d.e-]+) of ([\d.e-]+)", r["said"]))
        print(f"{precision}: the right step nearest to a bound is at {near[0]:.2f} of it: seed {near[1]} {near[2]}")
    made = [r["seconds to make"] for r in records if "seconds to make" in r]
    print(f"\n{sum(made) / max(1, len(made)):.2f} s to make a case, {sum(r.get('seconds', 0) for r in records) / max(1, len(records)):.2f} s to check it")


def add(records, r, path):
    records.append(r)
    if path:
        with open(path, "a", encoding="utf-8") as f:
            print(json.dumps(r, default=str), file=f)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default=os.environ.get("BUILD"), help="the directory of pt-check; default: $BUILD, then the PATH")
    p.add_argument("--seeds", default="1"), p.add_argument("--only", default=""), p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--ranks", action="store_true"), p.add_argument("--unsaid", action="store_true"), p.add_argument("--keep"), p.add_argument("--json")
    a = p.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.path.insert(0, str(Path(__file__).parent))
    records, seeds = [], [int(s) for s in a.seeds.split(",")]
    work = [(seed, n) for seed in seeds for n in cases_of(seed, a.unsaid) if re.search(a.only, n)]
    with ProcessPoolExecutor(a.jobs, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(try_one, *case, a.build, a.keep) for case in work]):
            add(records, done.result(), a.json)
            print(f"\r{len(records)} of {len(work)}", end="", file=sys.stderr)
    if a.ranks:
        for seed in seeds:
            for r in try_ranks(seed, a.only, a.build, a.keep):
                add(records, r, a.json)
    records.sort(key=lambda r: (r["seed"], r["name"]))
    report(records)
    sys.exit(any(r["kind"] in ("false alarm", "called right", "error") for r in records))


if __name__ == "__main__":
    main()
