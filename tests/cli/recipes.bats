#!/usr/bin/env bats
# The recipes, in a hurry: their tables, and that a wrong row is found.
load helpers

recipes=$BATS_TEST_DIRNAME/../../share/recipes

setup() {
	cd "$BATS_TEST_TMPDIR" || exit 1
	unset PT_DATA
	case $BATS_TEST_DESCRIPTION in
	techniques* | convergence* | fsdp-table* | cp-accumulation* | beyond-memory* | muon* | edit-example* | experts*)
		for tool in bible gnuplot; do
			command -v $tool >/dev/null || skip "no $tool"
		done
		;;
	esac
}

# A pt-train that adds settings where the command line has a certain word.
spoil() { # WORD SETTING...
	mkdir -p spoilt
	cat >spoilt/pt-train <<-EOF2
		#!/bin/bash
		[[ " \$* " != *" $1 "* ]] || set -- "\$@" ${*:2}
		exec "$(command -v pt-train)" "\$@"
	EOF2
	chmod +x spoilt/pt-train
}

@test "a recipe deletes nothing that it did not make, and --help prints its comment" {
	local recipe name
	mkdir precious
	echo x >precious/thesis.txt
	for recipe in "$recipes"/* "${recipes%/recipes}/demo"; do
		name=${recipe##*/}
		[ -x "$recipe" ] || continue
		code_of 0 "$recipe" --help
		says "share/${recipe##*/share/} "
		[ "$name" != supervise ] || continue
		echo other >precious/.pt-recipe
		if [ "$name" = replay ]; then
			DIRECTORY=precious code_of 64 "$recipe" run
		else
			code_of 64 "$recipe" precious
		fi
		says "$name: cannot work in \"precious\": $name did not make the files there; give another directory"
		rm precious/.pt-recipe
		code_of 64 "$recipe" precious
		[ "$name" = replay ] || reports 64 'unknown option "--overwrite"' "$recipe" --overwrite
	done
	[ "$(ls -A)" = precious ]
	[ "$(ls -A precious)" = thesis.txt ]
}

@test "a recipe empties the directory that it made, whatever CDPATH is" {
	printf '#!/bin/bash\n. %q/functions\nwork_in_directory\n' "$recipes" >small
	chmod +x small
	mkdir -p elsewhere/mine
	touch elsewhere/mine/thesis.txt
	export CDPATH=$PWD/elsewhere
	code_of 0 ./small mine
	mkdir -p mine/run/.deep
	ln -s ../elsewhere mine/link
	code_of 0 ./small mine
	[ "$(ls -A mine)" = .pt-recipe ]
	[ -e elsewhere/mine/thesis.txt ]
	code_of 64 ./small elsewhere/mine
	# checked again where the work begins
	printf '#!/bin/bash\n. %q/functions\nmkdir late\ntouch late/thesis.txt\nwork_in_directory\n' "$recipes" >small
	code_of 64 ./small late
	[ "$(ls -A late)" = thesis.txt ]
}

@test "techniques: rows are identical, and their controls come along" {
	STEPS=4 ROWS='^hsdp$|^fsdp-zb|^cp-large$|^offload|^tile$' "$recipes/techniques" whole >out 2>err || {
		cat out err
		return 1
	}
	[ ! -s err ]
	[ "$(grep -cE '^(hsdp|fsdp-zb-h1|cp-large|offload|offload-params|tile) .* identical +0 ' out)" -eq 6 ]
	grep -q '^fsdp .* control ' out
	grep -q '^hsdp  *dp=2 fsdp=2 ' out
	tail -n 1 out | grep -q '^6 rows, 0 failed'
	# the table, for programs: eight cells, of which the last are numbers
	[ "$(awk -F'\t' 'NF == 8' whole/table.tsv | wc -l)" -eq 8 ]
	awk -F'\t' 'NR > 1 && !($6 > 0 && $7 > 1 && $8 > 0.1) { exit 1 }' whole/table.tsv
	head -n 1 whole/alone.svg | grep -q xml
	[ -s whole/pairs.svg ]
	[ -s whole/together.svg ]
	[ ! -e whole/ddp.svg ] && not grep -q "plots failed" out
	# what was run is what it says, and can be run again
	[ "$(wc -l <whole/commands)" -eq 7 ]
	[ "$(rows_of whole/hsdp)" -eq 4 ]
}

rows_of() { # RUN
	grep -c '^step=' "$1/journal.txt"
}

@test "techniques: a row that computes something else, or fails, ends it with 1" {
	spoil dp=2 seed=2
	PATH=$PWD/spoilt:$PATH STEPS=3 ROWS='^hsdp$|^flat$' code_of 1 "$recipes/techniques" other
	grep -qP '^hsdp\t.*\tDIFFERS\t0\.' other/table.tsv
	grep -qP '^flat\t.*\tidentical\t0\t' other/table.tsv
	says 'seed: 1, 2' # pt-compare's reason
	says '2 rows, 1 failed'
	spoil dp=2 tp=3
	PATH=$PWD/spoilt:$PATH STEPS=2 ROWS='^hsdp$' code_of 1 "$recipes/techniques" failed
	grep -qP '^hsdp\t.*\tfailed\t-\t-' failed/table.tsv
	says 'pt-train: '
	# nothing that was compared is no success
	STEPS=2 ROWS=nosuch code_of 1 "$recipes/techniques" none
	says '0 rows'
}

@test "techniques: a plot that fails is told and counts, and without gnuplot there is none" {
	mkdir -p spoilt bin
	printf '#!/bin/sh\necho no such terminal >&2\nexit 1\n' >spoilt/gnuplot
	chmod +x spoilt/gnuplot
	PATH=$PWD/spoilt:$PATH STEPS=2 ROWS='^hsdp$' code_of 1 "$recipes/techniques" unplotted
	says 'no plot of alone: '
	says '1 rows, 0 failed'
	says '1 plots failed'
	(
		IFS=:
		# The first of each name is the one that counts: ln leaves it, and complains.
		for folder in $PATH; do
			ln -s "$folder"/* bin/ 2>/dev/null || true
		done
		rm -f bin/gnuplot*
	)
	PATH=$PWD/bin STEPS=2 ROWS='^hsdp$' code_of 0 "$recipes/techniques" none
	says 'gnuplot is missing: no plot of alone'
	not ls none/*.svg
}

@test "convergence: the note's table, verdicts for every seed, a plot" {
	STEPS=2 SEEDS=1 ROWS='^2d-tp$' "$recipes/convergence" whole >out 2>err || {
		cat out err
		return 1
	}
	[ ! -s err ]
	grep -q '^| Parallelism  *| Techniques  *| Remarks ' whole/table.md
	grep -q '^| FSDP 8 .* 1D control set  *|.* control  *|' whole/table.md
	grep -q '^| FSDP 8  *| Float8 .* within 0.05  *| 0\.0' whole/table.md
	grep -q '^| FSDP 8, TP 2  *| fused, async TP .* 2D test set  *|.* identical to fsdp  *| 0 |' whole/table.md
	[ "$(grep -c '^| FSDP' whole/table.md)" -eq 3 ]
	[ -s whole/loss-1.svg ]
	tail -n 1 out | grep -q '^3 runs, 0 failed'
	# all of them begin with the seed checkpoint
	[ "$(grep -c 'init-from=seed-1/' whole/commands)" -eq 3 ]
}

@test "convergence: a test set that computes something else, or fails, ends it with 1" {
	spoil pp=2 seed=2
	mv spoilt differs
	PATH=$PWD/differs:$PATH spoil dtype=float8 tp=3
	PATH=$PWD/spoilt:$PATH STEPS=2 SEEDS=2 ROWS='^2d-pp$' code_of 1 "$recipes/convergence" other
	grep -q '2D test set .* DIFFERS ' other/table.md
	grep -q 'control set of Float8 .* failed ' other/table.md
	says 'pt-train: '
	says '3 runs, 2 failed'
	SIZE=large code_of 64 "$recipes/convergence" none
}

@test "fsdp-table: both kinds of sharding, their measured memory, one curve" {
	STEPS=4 ROWS='-none-8-1d-fp32-fused|-full-8-1d-bf16-fused' "$recipes/fsdp-table" whole >out 2>err || {
		cat out err
		return 1
	}
	[ ! -s err ]
	[ "$(grep -c ' identical$' out)" -eq 4 ]
	[ "$(grep -c ' control$' out)" -eq 2 ]
	# What is resident is what the arenas hold, when the program itself is left out.
	plain_memory
	awk -F'\t' 'NR > 1 { if (!($9 > 0.95 * $8 && $9 < 1.15 * $8 && $10 > 0 && ($11 + 0 > 0 || $11 == "impossible"))) exit 1
			active[$1 $2 $3] = $8 + 0 }
		END { exit !(active["fsdp2yesfull"] < 0.7 * active["fsdp2yesnone"] &&
			active["fsdp2yesnone"] < active["fsdp2nonone"]) }' whole/table.tsv
	grep -q '^fsdp2	no	.*[0-9] (10[2-9]\.[0-9]%)	' whole/table.tsv # of flat sharding
	tail -n 1 out | grep -q '^6 runs, 0 failed'
	spoil fsdp-kind=flat seed=2
	PATH=$PWD/spoilt:$PATH STEPS=3 ROWS='none-6-1d-fp32-ref' code_of 1 "$recipes/fsdp-table" other
	says 'different'
	# a peak that was measured too low
	spoil fsdp-kind=flat peak-flops=1000
	PATH=$PWD/spoilt:$PATH STEPS=4 ROWS='none-6-1d-fp32-ref' "$recipes/fsdp-table" slow >out
	grep -qP '^fsdp1\t.*\timpossible\tcontrol$' slow/table.tsv
}

@test "cp-accumulation: sums in bf16 lead further away than those in fp32" {
	STEPS=4 DEGREES=2 "$recipes/cp-accumulation" whole >out 2>err || {
		cat out err
		return 1
	}
	awk -F'\t' '$2 == "fp32" { a = $4 } $2 == "bf16" { b = $4 } END { exit !(b > 10 * a) }' whole/table.tsv
	spoil cp-accumulate=fp32 cp-accumulate=bf16
	PATH=$PWD/spoilt:$PATH STEPS=2 DEGREES=2 code_of 1 "$recipes/cp-accumulation" other
}

@test "beyond-memory: a model of twice the limit trains as without limit" {
	plain_memory
	TIMES=2 STEPS=1 "$recipes/beyond-memory" whole >out 2>err || {
		cat out err
		return 1
	}
	[ ! -s err ]
	grep -qP '^without\t256.00\t.*\tout of memory: [0-9]+ MiB for parameters' whole/table.tsv
	grep -qP '^offloaded\t256.00\t.*\tidentical$' whole/table.tsv
	[ "$(awk -F'\t' '$1 == "free" { free = $3 } $1 == "offloaded" { print (free > 4 * $3) }' whole/table.tsv)" = 1 ]
}

@test "muon: the table has both, and their losses fell" {
	STEPS=6 SEEDS='1 2' LRS=2e-3 WINDOWS=4 "$recipes/muon" whole >out 2>err || [ $? -eq 1 ]
	[ ! -s err ]
	[ "$(awk -F'\t' '$2 == "2e-3" && $3 > 1 && $3 < 5 { printf "%s ", $1 }' whole/table.tsv)" = 'adamw muon ' ]
	[ "$(wc -l <whole/commands)" -eq 4 ]
	[ "$(rows_of whole/muon-2e-3-2)" -eq 6 ]
}

@test "experts: equal FLOPs, a table of runs, a verdict and a picture" {
	export STEPS=30 SEEDS=1 WINDOWS=2
	spoil ffn-dim=256 lr=1e-4
	PATH=$PWD/spoilt:$PATH "$recipes/experts" whole >out 2>err || {
		cat out err
		return 1
	}
	[ ! -s err ]
	grep -q '^FLOPs per token: dense 3.5424e+06, mixture 3.55469e+06: 0.35 % more' out
	grep -q '^seed 1: better: ' out
	[ "$(awk -F'\t' 'NR > 1 && $2 > 5 && $3 > 5 { printf "%s ", $1 }' whole/table.tsv)" = \
		'dense-1 mixture-1 no-balance balance-sequence ' ]
	awk -F'\t' '$1 == "dense-1" && $4 != "-" || $1 != "dense-1" && NR > 1 && !($4 > 0.1) { exit 1 }' whole/table.tsv
	[ -s whole/loss.svg ]
	grep -q '</html>' whole/report.html
	# a mixture that is not better, or computes more
	spoil ffn-dim=128 lr=1e-4
	PATH=$PWD/spoilt:$PATH code_of 1 "$recipes/experts" whole
	says 'seed 1: worse: '
	spoil experts=8 experts-per-token=3
	PATH=$PWD/spoilt:$PATH code_of 1 "$recipes/experts" whole
	says '% more'
	[ ! -e whole/table.tsv ]
}

@test "replay: a stretch on other ranks is equal, and a step that differs is named with its tensor" {
	make_shard
	unset PT_DATA
	tiny_on 4 -d data.h5 -o run --fsdp 2 --tp 2 -n 9 -c 3 --keep 0 --eval-every 0
	reports 0 'steps 7 to 9 of run are equal, on 1 rank; param_hash 0x' "$recipes/replay" run
	RANKS=3 reports 0 'steps 1 to 6 of run are equal, on 3 ranks' "$recipes/replay" run 0 6 --fsdp 3
	says "param_hash $(pt-ckpt hash run/checkpoints/step-00000006.h5 | cut -d' ' -f1)"
	grep -q '^mpiexec -n 3 pt-train .* -n 6 --decay-steps 9 ' replay/commands

	# a state of another run after step 6
	cp -r run wrong
	tiny -d data.h5 -o other -n 6 --decay-steps 9 -c 3 --virtual tp=2 --lr 2e-3 --eval-every 0
	cp other/checkpoints/step-00000006.h5 wrong/checkpoints/
	reports 1 'the rows are equal, but the state after step 6 of wrong differs' "$recipes/replay" wrong 3 6
	says 'no tensor differs when both are computed again; the difference is not reproducible'
	says 'first tensor that differs: model/tok_embeddings.weight: '
	reports 1 'step 7 of wrong differs; the steps before it are equal' "$recipes/replay" wrong 6 9
	says 'first tensor that differs: step 7, '

	reports 64 'step-00000004.h5 does not exist; checkpoints: 3 6 9' "$recipes/replay" run 4 9
	reports 64 'step 9 is not before step 6' "$recipes/replay" run 9 6
	reports 64 'give two steps, FROM and TO' "$recipes/replay" run 6
	reports 64 '"data.h5" is not a run with checkpoints' "$recipes/replay" data.h5
	tiny -d data.h5 --edit-workers 1 -n 2 -o edit --eval-every 0
	reports 64 'a run with workers of local SGD is not supported' "$recipes/replay" edit
}

@test "edit-example: each synchronization is told of, and workers end as one" {
	STEPS=22 "$recipes/edit-example" whole >out
	[ "$(awk -F'\t' '$2 ~ /^[0-9]+$/ { printf "%s:%s ", $1, $2 }' whole/table.tsv)" = '15:1 20:2 22:3 ' ]
	grep -q '^val_loss [0-9]' out
	grep -q '^# meta layout = fsdp=4' whole/run/journal.txt
	grep -q '^mpiexec -n 8 ' whole/commands
}

@test "check-fsdp: a step of PyTorch is right, and a lost batch is found" {
	PYTHON=nowhere code_of 1 "$recipes/check-fsdp" none
	says 'nowhere is missing'
	export PYTHON=${PT_PYTHON:-python3} RANKS=2
	command -v "$PYTHON" >/dev/null || skip "no $PYTHON (PT_PYTHON=PYTHON)"
	"$PYTHON" -c 'import torch.distributed.fsdp' 2>/dev/null || {
		reports 1 'has no PyTorch' "$recipes/check-fsdp" none
		[ ! -e none ]
		skip 'no PyTorch (PT_PYTHON=PYTHON)'
	}
	reports 0 'grads   21 of 21 within bounds' "$recipes/check-fsdp" whole
	says 'verdict: the step is right'
	[ "$(wc -l <whole/commands)" -eq 1 ]
	BUG=lost code_of 1 "$recipes/check-fsdp" other
	says 'sequences 5 6 7 8 of 8 do not count'
}

@test "check-trainer: a step of Trainer is right" {
	PYTHON=nowhere code_of 1 "$recipes/check-trainer" none
	says 'nowhere is missing'
	export PYTHON=${PT_PYTHON:-python3}
	command -v "$PYTHON" >/dev/null || skip "no $PYTHON (PT_PYTHON=PYTHON)"
	"$PYTHON" -c 'import accelerate, torch, transformers' >/dev/null 2>&1 || {
		reports 1 'has no PyTorch, transformers or accelerate' "$recipes/check-trainer" none
		[ ! -e none ]
		skip 'no transformers (PT_PYTHON=PYTHON)'
	}
	CASE=other reports 64 'unknown CASE "other"' "$recipes/check-trainer" none
	reports 0 'verdict: the step is right' "$recipes/check-trainer" whole
	says 'clipping to 1, 2 micro-batches, from the files of Trainer'
}

@test "check-deepspeed: a step of ZeRO is right" {
	PYTHON=nowhere code_of 1 "$recipes/check-deepspeed" none
	says 'nowhere is missing'
	export PYTHON=${PT_PYTHON:-python3}
	command -v "$PYTHON" >/dev/null || skip "no $PYTHON (PT_PYTHON=PYTHON)"
	"$PYTHON" -c 'import deepspeed, transformers' >/dev/null 2>&1 || {
		reports 1 'has no DeepSpeed' "$recipes/check-deepspeed" none
		[ ! -e none ]
		skip 'no DeepSpeed (PT_PYTHON=PYTHON)'
	}
	reports 0 'grads   21 of 21 within bounds' "$recipes/check-deepspeed" whole
	says 'verdict: the step is right'
	[ "$(wc -l <whole/commands)" -eq 1 ]
}

@test "check-megatron, check-nanotron: a checkout that is missing is told" {
	reports 1 'MEGATRON=DIRECTORY, a checkout of Megatron-LM, is missing' "$recipes/check-megatron" none
	reports 1 'NANOTRON=DIRECTORY, a checkout of nanotron, is missing' "$recipes/check-nanotron" none
	[ ! -e none ]
}

@test "no_gpu.py: what is asked of a GPU is done on the processor" {
	export PYTHON=${PT_PYTHON:-python3}
	"$PYTHON" -c 'import torch.distributed' 2>/dev/null || skip 'no PyTorch (PT_PYTHON=PYTHON)'
	PYTHONPATH=$recipes "$PYTHON" - <<-'END'
		import no_gpu
		import torch
		x = torch.ones(3, device="cuda:0") + torch.ones(3).cuda()
		assert x.is_cuda and x.cpu().sum() == 6 and x.type() == "torch.cuda.FloatTensor"
		assert torch.zeros(2, device=torch.cuda.current_device()).device.type == "cpu"
		torch.cuda.manual_seed(1)
		state = torch.cuda.get_rng_state()
		a = torch.rand(4, device="cuda")
		torch.cuda.set_rng_state(state)
		assert torch.equal(a, torch.rand(4, device="cuda"))
	END
}

@test "emulated hosts: who may not have them is told" {
	unshare -U true 2>/dev/null || skip 'no user namespaces'
	reports 77 'skipped: network namespaces need root' unshare -U "$recipes/edit-bandwidth" none
	[ ! -e none ]
}
