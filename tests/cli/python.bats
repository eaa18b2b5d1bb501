#!/usr/bin/env bats
# share/python: the module pt. tests/python/check_steps.py, which needs PyTorch, tests what saves steps.
load helpers

source=$BATS_TEST_DIRNAME/../../share/python
TORCH=$BATS_TEST_DIRNAME/../golden/torch
python=${PT_PYTHON:-python3}
export PYTHONPATH=$source PYTHONDONTWRITEBYTECODE=yes

setup() {
	cd "$BATS_TEST_TMPDIR" || exit 1
	"$python" -c 'import json, shutil, sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null || skip "no python3 (PT_PYTHON=PYTHON)"
}

# A step as save_step leaves it, with the files of a Trainer.
make_step() { # OPTIONS-AS-JSON
	mkdir step
	cp -r "$TORCH/trainer/checkpoint-0" step/before
	cp -r "$TORCH/trainer/checkpoint-1" step/after
	cp "$TORCH"/trainer/batch-?.pt step
	echo "{\"options\": $1, \"batch\": [\"batch-0.pt\", \"batch-1.pt\"]}" >step/step.json
}

@test "the module compiles, and has at most 300 lines" {
	export PYTHONPYCACHEPREFIX=$PWD/cache
	for file in "$source"/pt/*.py "$BATS_TEST_DIRNAME"/../python/*.py; do
		"$python" -m py_compile "$file"
	done
	[ "$(cat "$source"/pt/*.py | wc -l)" -le 300 ]
}

@test "check: the verdict as an object; facts that were saved, and options that override them" {
	make_step '{"clip": 0.5, "precision": null, "lr": 1e-3}'
	code_of 0 "$python" -c '
import pt
r = pt.check("step")
print(r.verdict, r.exit_code, r.tensors[0].name, r.gradients.checked)
pt.assert_step_is_right("step", dp=2, freeze=[])
r = pt.check("step", clip=0.4, precision="fp32", two_runs=False)
print(r.verdict, r.exit_code, r.findings[0].text)'
	says 'right 0 tok_embeddings.weight True'
	says 'wrong 1 clip: the clipped gradient has norm 0.5, above 0.4'
}

@test "assert_step_is_right: a failure shows the findings and the worst tensors" {
	make_step '{"lr": 2e-3}'
	code_of 1 "$python" -c 'import pt; pt.assert_step_is_right("step")'
	says $'AssertionError: step: wrong\n  learning rate 0.001 instead of 0.002\n  layers.0.attention.k_norm.weight: update off by 2.8'
}

@test "errors have the message of the program; names are not options and not read by a shell" {
	make_step '{"clip": 0.5}'
	code_of 1 "$python" -c 'import pt; pt.check("step", precision="fp99")'
	says "pt.programs.ProgramError: pt-check: --precision: 'fp99' is none of"
	mkdir -p './--help/$(touch owned)'
	mv step/* './--help/$(touch owned)'
	code_of 0 "$python" -c 'import pt; print(pt.check("--help/$(touch owned)").verdict)'
	[ "$output" = right ]
	not test -e owned
	echo '{"options": {}, "batch": []}' >step/step.json
	code_of 1 "$python" -c 'import pt; pt.check("step")'
	says 'no batch; call save_step with a batch'
	echo '{"options": {"report": "owned"}, "batch": ["batch-0.pt"]}' >step/step.json
	code_of 1 "$python" -c 'import pt; pt.check("step")'
	says "step.json: 'report' is not a fact of a step"
	code_of 1 "$python" -c 'import os, pt, sys
os.environ["PATH"] = "/nowhere"
sys.executable = "/nowhere/python3"
pt.compare("a", "b")'
	says 'pt-compare is missing'
}

@test "compare: the verdict as an object, also of a comparison that differs or is undecided" {
	for i in 1 2 3 4; do echo "step=$i loss=$i.5"; done >a.log
	sed 's/3.5/3.6/' a.log >-b.log
	code_of 0 "$python" -c '
import pt
r = pt.compare("a.log", "a.log")
print(r.verdict, r.exit_code)
r = pt.compare("a.log", "-b.log", rtol=0.5)
print(r.verdict, r.exit_code)
r = pt.compare(control=["a.log"], test=["./-b.log"], require="identical")
print(r.comparisons[0].tests[0].columns[0].n_differ, r.exit_code > 0)
try:
    pt.compare("a.log", "missing.log")
except pt.ProgramError as e:
    print(e)'
	says 'identical 0'
	says 'within 0'
	says '1 True'
	says 'pt-compare: missing.log: No such file'
}

@test "readers: runs, checkpoints and shards as arrays" {
	"$python" -c 'import h5py' 2>/dev/null || skip "no h5py (PT_PYTHON=PYTHON)"
	make_shard
	tiny -o run -n 3 >/dev/null
	code_of 0 "$python" -c '
import pt
run = pt.read_run("run")
print([int(x) for x in run["step"]] == [1, 2, 3], run["loss"].dtype, len(pt.read_run("run/run.h5")["loss"]))
model = pt.read_checkpoint("run")
print(model["tok_embeddings.weight"].shape[1], sorted(model) == sorted(pt.read_checkpoint("run", "exp_avg")))
print(pt.read_shard("data.h5").dtype, len(pt.read_shard("data.h5", "val")) > 0)'
	says 'True float32 3'
	says '16 True'
	says 'uint16 True'
	"$python" -c 'import pandas' 2>/dev/null || skip "no pandas (PT_PYTHON=PYTHON)"
	code_of 0 "$python" -c '
import pt
print(list(pt.read_run("run", frame=True)["step"]), pt.read_checkpoint("run", frame=True).columns[0])
text = b"".join(pt.read_shard("data.h5", frame=True)["text"])
print(text.decode()[:60] == open("text.txt").read()[:60])'
	says '[1, 2, 3] name'
	says 'True'
}
