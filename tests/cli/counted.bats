#!/usr/bin/env bats
# pt-train: the loss is the mean over the tokens that count, wherever they lie.
load helpers

# Prompts with short completions, of which the completions count.
make_pairs() { # LINES OPTION...
	awk -v lines="$1" 'BEGIN { srand(2); split("the of and lord shall unto him that in israel", w, " ")
		for (i = 0; i < lines; i++) {
			p = c = ""
			for (k = 0; k < 3 + rand() * 9; k++) p = p w[int(rand() * rand() * 10) + 1] " "
			for (k = 0; k < rand() * 4; k++) c = c w[int(rand() * rand() * 10) + 1] " "
			printf "{\"prompt\": \"%s\", \"completion\": \"%s\"}\n", p, c } }' >pairs.jsonl
	shift
	export PT_DATA=pairs.h5
	pt-prepare -q -t byte --record prompt "$@" pairs.jsonl -o "$PT_DATA"
}

total() { # of the values on standard input
	awk '{ s += $1 } END { print s }'
}

same() { # RUN RUN: every value has the same bits
	pt-compare "$1" "$2" | grep -qx 'verdict: identical bit for bit'
}

@test "micro-batches, ranks and workers do not weigh: tokens do" {
	make_pairs 200
	tiny -n 6 --eval-every 3 --virtual tp=2,cp=2 -o one >/dev/null
	grep -q ' counted=[0-9]' one/journal.txt
	grep -q ' val_loss=' one/journal.txt
	tiny_on 2 -n 6 --eval-every 3 --virtual tp=2,cp=2 -o two >/dev/null
	same one two
	tiny_on 4 -n 6 --eval-every 3 --dp 2 --cp 2 --virtual tp=2,cp=2 -o four >/dev/null
	same one four
	tiny_on 2 -n 6 --eval-every 3 --virtual tp=2,cp=2 --edit-workers 2 --edit-warmup-steps 6 \
		-o workers >/dev/null 2>&1
	same one workers
	# every number of targets, too
	for run in two four workers; do
		cmp <(grep -o 'counted=[0-9]*' one/journal.txt) <(grep -o 'counted=[0-9]*' $run/journal.txt)
	done
}

@test "where all tokens count, the bits are those of data without weights" {
	make_shard
	pt-prepare -q --to nanogpt data.h5 -o all
	for part in train val; do
		tr '\0-\377' '\1' <all_$part.bin | head -c $(($(stat -c %s all_$part.bin) / 2)) >$part.mask
	done
	pt-prepare -q --format nanogpt all_train.bin --val-file all_val.bin --mask-file train.mask --mask-file val.mask \
		--vocab-from data.h5 -o all.h5
	pt-prepare --info all.h5 | grep -qx 'version = 3'
	tiny -n 4 --eval-every 2 -o plain >/dev/null
	tiny -n 4 --eval-every 2 -d all.h5 -o all >/dev/null
	same plain all
	grep -q ' counted=128 ' all/journal.txt
	code_of 1 grep -q ' counted=' plain/journal.txt
}

@test "a step without a token that counts ends the run, or is left out on every layout" {
	make_pairs 200 --count none
	code_of 1 tiny -n 3 -o stops
	says 'step 1: no token of the batch counts in the loss (--empty-batch skip leaves such steps out)'
	reports 1 'step 1: no token of the batch counts' tiny_on 2 -n 3 -o stops_too
	tiny_on 2 -n 2 --empty-batch skip --eval-every 1 -o none >/dev/null 2>err
	[ "$(grep -c 'val_loss cannot be evaluated: no target in its windows has a weight' err)" -eq 1 ]
	# half of the windows of 16 tokens have none
	make_pairs 200 --overwrite
	few=(-b 1 -m 1 -n 12 --empty-batch skip --virtual tp=2)
	tiny "${few[@]}" --keep 0 --ckpt-every 4 -o one >/dev/null
	empty=$(grep -c 'no token of the batch counts: nothing is updated' one/journal.txt)
	[ "$empty" -gt 0 ]
	[ "$empty" -lt 12 ]
	[ "$(grep -c ' counted=0 ' one/journal.txt)" -eq "$empty" ]
	[ "$(grep -c ' counted=0 .* loss=' one/journal.txt)" -eq 0 ]
	tiny_on 2 "${few[@]}" --tp 2 -o two >/dev/null
	same one two
	# and where the run resumes on another layout
	mkdir -p goes/checkpoints
	tiny_on 2 "${few[@]}" --tp 2 -o goes --resume one/checkpoints/step-00000004.h5 >/dev/null
	pt-ckpt diff one/checkpoints/latest.h5 goes/checkpoints/latest.h5
}

@test "with the context of the windows, they are the samples" {
	make_pairs 200 --window 32
	tiny -n 8 -T 32 -b 4 -o run >/dev/null
	# tokens of completions are never the first of a window, so no window loses one
	tiny_on 2 -n 8 -T 32 -b 4 -o two >/dev/null
	same run two
	# an epoch has every window once, so that all tokens that count have been seen after it
	windows=$((($(pt-prepare --info pairs.h5 | sed -n 's/^train_tokens = //p') - 1) / 32))
	tiny -n "$windows" -T 32 -b 1 -m 1 --empty-batch skip --eval-every 0 --no-ckpt -o epoch >/dev/null
	seen=$(grep -o ' counted=[0-9]*' epoch/journal.txt | cut -d= -f2 | total)
	all=$(pt-prepare --show 100000 pairs.h5 | sed -nE 's/^# document .*train: .* tokens, ([0-9]+) count.*/\1/p' | total)
	[ "$seen" -eq "$all" ]
	tiny -n 1 -T 16 -b 4 --no-ckpt -o other >/dev/null 2>err
	grep -q 'the data are windows of 32 tokens: with --context 16, samples begin at any offset' err
}

@test "workers with files of their own: validation weighs tokens, not workers, on every layout" {
	local f count=() loss=() on
	make_pairs 200 --window 64
	mv pairs.h5 0.h5
	make_pairs 60 --window 64 --count none
	mv pairs.h5 2.h5
	make_pairs 60 --window 64 # the same prompts, with a word each
	sed -E 's/(completion": "[a-z]*)[^"]*/\1/' pairs.jsonl >short.jsonl
	pt-prepare -q -t byte --record prompt --window 64 short.jsonl -o 1.h5
	unset PT_DATA
	on=(-n 6 -T 64 -b 12 -m 2 --eval-every 3 --eval-windows 100 --virtual tp=2 --empty-batch skip --data-per-rank
		-d 0.h5 -d 1.h5 -d 2.h5 --edit-workers 3 --edit-warmup-steps 2 --edit-sync-interval 2)
	tiny_on 3 "${on[@]}" -o run >/dev/null
	[ "$(grep -c ' val_loss=' run/journal.txt)" -eq 2 ]
	# the third worker has none; the parameters of step 6 are those of all workers
	for f in 0 1; do
		loss[f]=$(tiny -T 64 -b 2 -m 2 --virtual tp=2 --eval-windows 100 --edit-workers 0 --no-data-per-rank --eval-only --resume run -d $f.h5 2>err |
			sed -nE 's/.* val_loss=([^ ]*).*/\1/p')
		count[f]=$(pt-prepare --show 100000 $f.h5 | sed -nE 's/^# document .*val: .* tokens, ([0-9]+) count.*/\1/p' | total)
	done
	echo "${count[@]}" "${loss[@]}"
	sed -nE 's/^step=6 .* val_loss=([^ ]*).*/\1/p' run/journal.txt >have
	awk -v a="${count[0]}" -v b="${count[1]}" -v x="${loss[0]}" -v y="${loss[1]}" \
		'{ d = $1 - (a * x + b * y) / (a + b); exit !(a > 2 * b && b > 0 && d * d < 1e-12) }' have
	cmp <(grep -o ' val_loss=[^ ]*' run/journal.txt | tail -n 1) \
		<(grep -o ' val_loss=[^ ]*' run/worker-2/journal.txt | tail -n 1)
	tiny_on 6 "${on[@]}" --tp 2 -o slices >/dev/null
	tiny_on 6 "${on[@]}" --cp 2 --virtual tp=2,cp=2 -o chunks >/dev/null
	tiny_on 3 "${on[@]}" --virtual tp=2,cp=2 -o whole >/dev/null
	same run slices
	same whole chunks
}

@test "on a GPU, whose graphs are captured with another number of tokens" {
	gpu_setup
	make_pairs 200
	tiny -n 5 -b 4 --device cuda -o each >/dev/null
	tiny -n 5 -b 4 --device cuda --cuda-graph -o graph >/dev/null
	code_of 1 grep -q ' dt_forward=' graph/journal.txt # a graph is not timed
	same each graph
	tiny_on 2 -n 5 -b 4 --device cuda -o two >/dev/null
	same graph two
}
