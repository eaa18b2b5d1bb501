#!/usr/bin/env bats
# Options that change nothing are named, with the reason, on the first screen: no error.
load helpers

notes() { # OPTION...: those of a run, without "pt-train: note: "
	pt-train --dry-run --vocab 50 "$@" 2>&1 >/dev/null | sed -n 's/^pt-train: note: //p'
}

noted() { # TEXT OPTION...: there is one note, which begins so
	local text=$1
	shift
	notes "$@" >out
	[ "$(wc -l <out)" -eq 1 ] || {
		echo "not one note of $*:"
		cat out
		return 1
	}
	[[ $(cat out) == "$text no effect: "* ]] || {
		echo "not '$text':"
		cat out
		return 1
	}
}

effective() { # OPTION...: there is no note
	notes "$@" >out
	[ ! -s out ] || {
		echo "noted of $*:"
		cat out
		return 1
	}
}

@test "of the layout" {
	noted '--pp-stages has' --pp-stages 2
	noted '--pp-schedule, --pp-stages and --pp-split have' --pp-stages 2 --pp-schedule gpipe --pp-split even
	noted '--zero has' --zero 3
	noted '--fsdp-kind has' --fsdp-kind flat
	noted '--reshard-after-forward and --gather-dtype have' --reshard-after-forward no --gather-dtype fp32
	noted '--gather-dtype has' --fsdp 2 --dp 1 --zero 2 --gather-dtype fp32
	noted '--sp and --async-tp have' --no-sp --no-async-tp
	noted '--cp-comm has' --cp-comm gather
	noted '--cp-accumulate has' --cp-accumulate bf16
	noted '--ckpt-load has' --ckpt-load broadcast
	effective --pp 2 --dp 1 --pp-stages 2 --pp-schedule interleaved --pp-split even
	effective --fsdp 2 --dp 1 --zero 3 --fsdp-kind flat --reshard-after-forward no --gather-dtype fp32
	effective --cp 2 --dp 1 --zero 3 --cp-comm gather --cp-accumulate bf16 --ckpt-load broadcast
	effective --tp 2 --dp 1 --no-sp --no-async-tp
	effective --virtual cp=2 --cp-accumulate bf16
	effective --zero 0
}

@test "of the training" {
	noted '--loss-scale and --loss-scale-window have' --loss-scale 32 --loss-scale-window 9
	noted '--float8-skip-ends has' --no-float8-skip-ends
	noted '--min-lr and --decay-steps have' --lr-schedule constant --min-lr 1e-5 --decay-steps 9
	noted '--wsd-decay and --wsd-shape have' --wsd-decay 9 --wsd-shape sqrt
	noted '--lr-scale-batch has' --lr-scale-batch 4
	noted '--beta1, --beta2 and --eps have' --optimizer sgd --beta1 0.8 --beta2 0.8 --eps 1e-6
	noted '--rope-theta has' --rope-theta 9
	noted '--rope-factor has' -a llama --rope-factor 4
	noted '--rope-original has' -a llama --rope-scaling linear --rope-original 99
	noted '--edit-by-unit has' --no-edit-by-unit
	noted '--edit-normalize has' --edit-workers 1 --no-edit-normalize
	effective --dtype fp16 --loss-scale 32 --loss-scale-window 9
	effective --dtype float8 --no-float8-skip-ends
	effective --lr-schedule wsd --min-lr 1e-5 --decay-steps 9 --wsd-decay 9 --wsd-shape sqrt
	effective --lr-scale sqrt --lr-scale-batch 4
	effective --beta1 0.8 --beta2 0.8 --eps 1e-6
	effective -a llama --rope-theta 9 --rope-scaling llama3 --rope-factor 4 --rope-original 99
	effective --edit-workers 1 --edit-reducer linear --no-edit-normalize --no-edit-by-unit
}

@test "of evaluations, samples and checkpoints" {
	noted '--eval-windows has' --eval-every 0 --eval-windows 9
	noted '--ckpt-best has' --eval-every 0 --no-ckpt-best
	noted '--sample-tokens and --sample-prompt have' --sample-tokens 9 --sample-prompt x
	noted '--ckpt-every, --ckpt-secs and --keep have' --no-ckpt --ckpt-every 9 --ckpt-secs 9 --keep 9
	make_shard
	tiny -n 0 -o model >/dev/null
	noted '--init has' -d "$PT_DATA" --vocab 0 --init-from model --init llama
	effective --eval-windows 9 --no-ckpt-best --sample-every 9 --sample-tokens 9 --sample-prompt x
	effective --ckpt-every 9 --ckpt-secs 9 --keep 9 --init llama
}

@test "only what was given: no defaults, nothing that a run has saved; on one rank, on the first screen" {
	make_shard
	effective -d "$PT_DATA" --vocab 0
	local small=(--layers 1 --heads 2 --dim 16 -T 16 -t 1 --self-test no --eval-every 0)
	mpiexec -n 2 pt-train -q "${small[@]}" --dp 2 -n 2 --batch-per-rank 4 -o run >/dev/null
	pt-train "${small[@]}" -n 3 --resume run -o more >/dev/null 2>err
	not grep 'no effect' err
	rm -rf more
	mpiexec -n 2 pt-train "${TINY[@]:1}" -n 3 --dp 2 --pp-stages 2 -o more >/dev/null 2>err
	[ "$(grep -c 'note: --pp-stages has no effect' err)" -eq 1 ]
	mpiexec -n 2 pt-train "${TINY[@]}" -n 3 --dp 2 --pp-stages 2 -o quiet >/dev/null 2>err
	[ ! -s err ]
}

@test "pt-sample" {
	make_shard
	tiny -n 0 -o run >/dev/null
	pt-sample run the -n 3 -t 0 -k 5 -s 2 >greedy 2>err
	grep -qx 'pt-sample: note: --top-k and --seed have no effect: --temperature 0 .*' err
	[ "$(wc -l <err)" -eq 1 ]
	pt-sample run the -n 3 -t 0 2>&1 | cmp - greedy
	pt-sample run the --logits -n 3 -t 0 -k 5 >logits 2>err
	grep -qx 'pt-sample: note: --tokens, --temperature and --top-k have no effect: --logits .*' err
	pt-sample run the --logits 2>&1 | cmp - logits
	pt-sample -q run the --logits -n 3 2>&1 | cmp - logits
}

@test "pt-prepare" {
	make_text >text.txt
	pt-prepare text.txt --seed 3 --min-count 9 --end-token 1 -o data.h5 2>err
	grep -q 'note: --seed has no effect: ' err
	grep -q 'note: --min-count has no effect: ' err
	grep -q 'note: --end-token has no effect: ' err
	pt-prepare data.h5 --pattern gpt2 --tokenizer gpt2 --field x --to nanogpt -o bins 2>err
	grep -q 'note: --tokenizer and --pattern have no effect: ' err
	grep -q 'note: --field has no effect: ' err
	pt-prepare text.txt --format text --field x -o other.h5 2>err
	grep -q 'note: --field has no effect: ' err
	pt-prepare text.txt --train-bpe 300 --vocab-out v --val-fraction 0.2 2>err
	grep -q 'note: --val-fraction has no effect: ' err
	pt-prepare text.txt --split document --separator $'.\n' --seed 3 -o random.h5 2>err
	not grep 'no effect' err
}
