#!/usr/bin/env bats
# pt-compare: verdicts, where curves part, tolerances, inputs, graphs, plots, bad logs.
load helpers

log_of() { # LOSS...: a log, a row a loss
	local i=0
	for loss; do
		i=$((i + 1))
		echo "step=$i tokens=$((i * 10)) loss=$loss"
	done
}

# A folder of PATH with these programs only.
only() { # PROGRAM...
	mkdir -p only
	for p; do
		ln -sf "$(command -v "$p")" only/
	done
}

@test "verdicts and codes: 0 the same, 1 they differ, 2 trouble, 64 usage" {
	log_of 3 2 >a
	log_of 3 2 >same
	log_of 3 2.5 >other
	reports 0 'loss       identical, 2 values' pt-compare a same
	says 'verdict: identical bit for bit'
	reports 1 'verdict: different' pt-compare a other
	reports 2 'nowhere: No such file' pt-compare a nowhere
	reports 64 'too few runs' pt-compare a
	code_of 64 pt-compare
	reports 64 "did you mean 'step'" pt-compare a same --by stpe
	code_of 64 pt-compare a same --rtol=-1
	code_of 64 pt-compare a same --rtol nan
}

@test "a plot that cannot be is refused before anything is said" {
	log_of 3 2 >a
	code_of 64 pt-compare a a -p x.gif
	[ "$output" = "pt-compare: --plot: 'x.gif' ends in none of .svg, .png, .pdf" ]
}

@test "--quiet says the verdicts only, and has the code" {
	log_of 3 2 >a
	log_of 3 2.5 >b
	code_of 1 pt-compare -q a b
	[[ $output == 'verdict: different: '* && ${#lines[@]} -eq 1 ]]
	code_of 1 pt-compare -q a a b
	[ "${lines[0]}" = 'a: verdict: identical bit for bit' ]
	[[ ${lines[1]} == 'b: verdict: different: '* ]]
	# a table is a result of its own
	code_of 0 pt-compare -q -t a a
	[ "$output" = $'# step\ta\ta\n1\t3\t3\n2\t2\t2' ]
}

# A falling curve with noise; its numbers begin with those of the seed.
curve() { # SEED ROWS FORMAT
	awk -v seed="$1" -v n="$2" -v format="$3" 'BEGIN {
		srand(seed)
		for (i = 1; i <= n; i++)
			printf format "\n", i, 3 + 4 * exp(-i / 40) + 0.1 * (rand() - 0.5)
	}'
}

@test "undecided: where nothing is shown; more is demanded by a tolerance or --require identical" {
	curve 1 300 'step=%d loss=%.9g' >a
	curve 2 300 'step=%d loss=%.9g' >b
	code_of 3 pt-compare -q a b
	[[ $output == 'verdict: undecided: at the end loss is '*'; whether another seed differs as much is unknown: one run each; '*' three or more seeds'* ]]
	code_of 3 pt-compare -q --require equivalent a b
	[[ $output == 'verdict: undecided: '* ]]
	code_of 3 pt-compare --json a b
	jq -e '.verdict == "undecided" and .code == 3' <<<"$output"
	for demand in '--require identical' '--atol 1e-9' '--rtol 1e-9'; do
		code_of 1 pt-compare -q $demand a b
		[[ $output == 'verdict: different: '* ]]
	done
	# one that differs decides
	sed 's/loss=/loss=1/' a >far
	code_of 1 pt-compare -q a b far
	[[ $output == *'far: verdict: worse'* ]]
	# how many runs, or how long ones
	curve 3 300 'step=%d loss=%.9g' >c
	curve 4 300 'step=%d loss=%.9g' >d
	code_of 3 pt-compare -q --margin 2e-3 --control a b c --test d
	[[ $output =~ '; a decision may take '[0-9]+' controls and as many tests'$ ]]
	code_of 3 pt-compare -q --margin 1e-5 --control a b c --test d
	[[ $output == *'; a decision may take more than 32 controls and as many tests, or a larger --margin' ]]
	sed 's/loss=2/loss=9/; s/loss=3/loss=8/' d >unlike
	code_of 3 pt-compare -q --control a b c --test d unlike
	[[ $output == *'; the tests differ from each other by far more than the controls do; give only tests of the same configuration' ]]
	awk 'BEGIN {
		srand(5)
		for (i = 1; i <= 300; i++) {
			noise = 0.1 * rand()
			printf "step=%d loss=%.9g\n", i, 4 - i / 300 + noise >"same"
			printf "step=%d loss=%.9g\n", i, 4 - i / 300 + noise + 0.02 * (rand() - 0.5) >"near"
		}
	}'
	code_of 3 pt-compare -q --margin 3e-4 same near
	[[ $output =~ '; a decision may take '[0-9]+' steps, or four controls with different rounding '.*' three or more seeds' ]]
	# a row that one run lacks is a difference
	code_of 1 pt-compare -q a <(sed 300d b)
	[[ $output == 'verdict: different: '*'1 row is in some runs only; --common ignores such rows' ]]
	code_of 3 pt-compare -q a b -o r.html
	grep -q 'class="badge unclear">undecided' r.html
}

@test "a curve that is equal but for a few values: how many, the first, the largest" {
	curve 1 300 'step=%d loss=%.9g' >a
	sed 's/^step=7 .*/step=7 loss=6.5/; s/^step=90 .*/step=90 loss=5/' a >b
	code_of 1 pt-compare -q a b
	[[ $output =~ 'verdict: equivalent: 2 of 300 values of loss differ, first at step 7 and most at step 90, by 1.'[0-9]*'; all others are equal bit for bit; at the end loss is the same ' ]]
	code_of 0 pt-compare -q --require equivalent a b
	# so large, and in each half, that the noise seems to be of other batches
	sed 's/^step=90 .*/step=90 loss=5/; s/^step=224 .*/step=224 loss=5/' a >b
	reports 3 '"design": "same-batches"' pt-compare --json a b
	sed 's/^step=90 .*/step=90 loss=nan/' a >b
	code_of 1 pt-compare -q a b
	says '1 of 300 values of loss differs, first at step 90 and most at step 90, by NaN; all others are equal bit for bit'
	# equal in what was logged, and too few for statistics
	log_of 5.25 4.25 3.25 2.25 1.25 >a
	sed 's/4.25/4.5/' a >b
	code_of 1 pt-compare -q a b
	code_of 1 pt-compare -q --column loss <(sed 's/$/ lr=1 x=2/' a) <(sed 's/$/ lr=1 x=2/' b)
	says '1 of 5 values of loss differs, first at step 2 and most at step 2, by 0.25; all others are equal bit for bit'
	# many that differ are no exception
	code_of 1 pt-compare -q a <(sed 's/\(4.2\|3.2\)5/\10/' a)
	not grep -q 'all others' <<<"$output"
}

@test "--pattern: named groups of any text are columns" {
	curve 1 40 'epoch 0 it %d :: nll=%.9g, acc 50%%' | sed 's/$/\n(noise)/' >a
	curve 1 40 'step=%d loss=%.9g' >same
	code_of 0 pt-compare --pattern 'it (?<step>\d+) :: nll=(?<loss>[^,]+), acc (?<acc>\S+)' a a
	says 'loss       identical, 40 values'
	code_of 0 pt-compare -qt -y acc --pattern 'it (?<step>\d+) .* acc (?<acc>\S+)' a a
	[ "${lines[40]}" = $'40\t0.5\t0.5' ]
	# without a step rows are counted; names of other trainers stand for columns
	code_of 0 pt-compare -qt --column 'loss=nll' --pattern 'nll=(?<nll>[0-9.]+)' a a
	[ "${#lines[@]}" -eq 41 ]
	[[ ${lines[1]} == 0$'\t'6.* ]]
	# what is there and no number
	sed '/it 3 /s/nll=/&2x/' a >bad
	reports 1 "the first: loss '" pt-compare --pattern 'it (?<step>\S+) :: nll=(?<loss>\S+)' bad bad
	reports 2 'pt-compare: a: no line matches the pattern' pt-compare --pattern 'at (?<step>\d+)' a a
	reports 64 'no named group' pt-compare --pattern 'it (\d+)' a a
	reports 64 'character 11: missing closing parenthesis' pt-compare --pattern 'it (?<loss>' a a
	# of pt-train's logs what is in them is read
	make_shard
	tiny -n 3 -o run >/dev/null
	code_of 0 pt-compare --pattern '(?<loss>nothing)' run run
}

@test "--pattern: hostile patterns and lines end" {
	{
		echo loss=1
		printf 'loss=%04000d!\n' 1
	} >a
	for hostile in 'loss=(?<loss>(0|00|0+)+1)$' '(0+)(0+)(?<loss>[2-9!]1)'; do
		code_of 2 timeout 100 pt-compare --pattern "$hostile" a a
		says 'pt-compare: a: --pattern: matching takes too long on a line that begins with '"'loss=000"
	done
	# what is no more than many lines is read
	seq -f 'a b c d e f loss=%g' 20000 >many
	reports 0 'verdict: identical' pt-compare -q --pattern '.* .* .*loss=(?<loss>\d+)' many many
	printf 'loss=1\n%04097d\nloss=2\n' 1 >long
	reports 0 '1 lines are ignored, because they are longer than 4 KiB' pt-compare --pattern 'loss=(?<loss>\d+)' long long
	says 'loss       identical, 2 values'
}

@test "any column is judged, and loss need not exist" {
	curve 1 40 '{"step": %d, "accuracy": %.9g}' >a
	curve 2 40 '{"step": %d, "accuracy": %.9g}' >b
	code_of 2 pt-compare a b
	says 'none of the logs has a loss (choose a column by --column NAME, or specify the loss by --column loss=NAME); the columns are accuracy'
	reports 64 "none of the logs has a column 'accurcy'; the columns are accuracy" pt-compare -y accurcy a b
	reports 0 'accuracy   identical, 40 values' pt-compare -y accuracy a a
	reports 3 'accuracy   40 of 40 values differ' pt-compare -y accuracy a b
	says 'verdict: undecided: at the end accuracy'
	code_of 0 pt-compare -y accuracy --atol 1 a b
	# a name given by the user comes before others, whatever their order
	sed 's/accuracy/ce/; s/}/, "loss": 7}/' a >two
	sed 's/.*step": \([0-9]*\).*acy": \([0-9.]*\).*/step=\1 loss=\2/' a >one
	code_of 0 pt-compare --column loss=ce two one
	code_of 0 pt-compare --column loss=accuracy --column loss=ce two one a
	code_of 2 pt-compare two one
	reports 64 'expected OURS=THEIRS' pt-compare --column =ce two one
	# another program's name of a column is ours
	code_of 0 pt-compare -y 'lm loss' one one
	# where no log has a loss, the first curve that all have; and who lacks it
	sed 's/accuracy/val_loss/' a >'val'
	code_of 0 pt-compare -q 'val' 'val' -o r.md
	grep -q 'val_loss' r.md
	reports 2 'one: the log has no value of val_loss; its columns are loss' pt-compare -y val_loss val one
}

@test "evaluations that have diverged are not hidden by equal losses; a reward is a result" {
	local i
	curve 1 60 'step=%d loss=%.9g' >loss
	awk '{ print $0 (NR % 4 ? "" : " val_bpb=" 1 + 1 / NR + 0.001 * (NR * 7 % 5)) }' loss >a
	awk '{ print $0 (NR % 4 ? "" : " val_bpb=" 1.1 + 1 / NR + 0.001 * (NR * 7 % 5)) }' loss >b
	reports 1 'loss       identical, 60 values' pt-compare a b
	says 'val_bpb    15 of 15 values differ'
	says 'verdict: worse: at the end val_bpb is 0.1 '
	says '; first shown in steps 32 to 44: 0.1 higher, and the band'
	says '; loss: identical'
	# another test, and evaluations in other rows
	reports 1 'b: verdict: worse: at the end val_bpb is 0.1 ' pt-compare -q a b loss
	curve 2 60 'step=%d loss=%.9g' | awk '{ print $0 (NR % 6 ? "" : " val_bpb=" 1 + 1 / NR) }' >uneven
	code_of 3 pt-compare -q a uneven
	[[ $output == *'val_bpb: 15 rows are in some runs only'* ]]
	reports 0 'verdict: identical' pt-compare -y loss a b
	for i in 1 2 3 4; do
		echo "step:$i - actor/grad_norm:0.5 - critic/rewards/mean:0.$i"
	done >verl
	sed 's/mean:0.3/mean:0.9/' verl >other
	reports 1 'reward     1 of 4 values differ; first at step 3: 0.3, 0.9' pt-compare verl other
}

@test "with --column val_loss, losses in different rows are no matter" {
	curve 1 40 'step=%d val_loss=%.9g' >a
	sed 's/step=1 .*/& loss=3/' a >b
	sed 's/val_loss=\(.*\)/& loss=3/' a >c
	code_of 0 pt-compare --common -y val_loss a b
	code_of 2 pt-compare --common a b
	code_of 0 pt-compare --common -y val_loss b c
}

@test "a table of W&B's with several runs is all of them" {
	{
		echo '"Step","a - x - train/loss","a - x - train/loss__MIN","a - x - train/loss__MAX","b#2 - train/loss","b#2 - train/loss__MIN","b#2 - train/loss__MAX"'
		curve 1 40 '%d,%.9g' | sed 's/\(.*\),\(.*\)/"\1","\2","1","9","\2","1","9"/'
	} >w.csv
	curve 1 40 'step=%d loss=%.9g' >one
	code_of 0 pt-compare -q w.csv one
	[ "${lines[0]}" = 'w.csv#b#2: verdict: identical bit for bit' ]
	[ "${lines[1]}" = 'one: verdict: identical bit for bit' ]
	code_of 0 pt-compare one 'w.csv#a - x'
	code_of 0 pt-compare --control w.csv --test one one
	[ "$(grep -c '^one$' <<<"$output")" -eq 2 ]
	reports 2 'w.csv#c: no row with a value' pt-compare one w.csv#c
}

@test "where they part: the first, the largest, in ULPs; differences do not cancel" {
	log_of 2 2 2 2 2 >a
	log_of 2 2.0000002 2.5 1.5 2.25 >b
	code_of 1 pt-compare a b
	says 'loss       4 of 5 values differ; first at step 2: 2, 2.0000002 (test - control: +2.38e-07, 1 ULP); largest at step 3: 2, 2.5 (test - control: +0.5, 2097152 ULP)'
	log_of 1 2 >a
	log_of 2 1 >b
	reports 1 '2 of 2 values differ' pt-compare a b
	# one bit is a difference, and digits beyond a float are none
	log_of 1.0000001 >a
	log_of 1.0000002 >b
	reports 1 '1 ULP' pt-compare a b
	log_of 1.00000012 >b
	code_of 0 pt-compare a b
	# over zero, and with another sign
	log_of -1e-45 >a
	log_of 1e-45 >b
	reports 1 '2 ULP' pt-compare a b
}

@test "every curve counts, measurements do not" {
	echo 'step=1 loss=2 grad_norm=1 train_loss=3 val_loss=4 dt=1 mem=10 lr=1' >a
	echo 'step=1 loss=2 grad_norm=1 train_loss=3 val_loss=4 dt=2 mem=20 lr=2' >b
	code_of 0 pt-compare a b
	for c in loss grad_norm train_loss val_loss; do
		sed "s/ $c=/&1/" b >moved
		reports 1 "$c" pt-compare a moved
		says '1 of 1 values differ'
		[ "$(grep -c identical <<<"$output")" -eq 3 ]
	done
}

@test "--rtol is a part of the control, --atol is not, both add" {
	log_of 10 100 >a
	log_of 10.5 101 >b
	reports 1 '1 beyond the tolerance' pt-compare --rtol 0.049 a b
	reports 0 'the same within the tolerance' pt-compare --rtol 0.051 a b
	says '2 of 2 values differ, 0 beyond'
	reports 1 '1 beyond the tolerance' pt-compare --atol 0.9 a b
	says 'verdict: different: loss differs by more than 0.9 + 0 |control|, first at step 2; '
	code_of 0 pt-compare --atol 1 a b
	code_of 1 pt-compare --rtol 0.006 --atol 0.43 a b
	code_of 0 pt-compare --rtol 0.006 --atol 0.45 a b
	log_of 100 >a
	log_of 110 >b
	code_of 0 pt-compare --rtol 0.1 a b
	code_of 1 pt-compare --rtol 0.095 a b
	code_of 0 pt-compare --rtol 0.095 b a # 9.5 percent of 110
}

@test "rows that only one has differ, but for --common" {
	log_of 5 4 3 2 >a
	log_of 5 4 >short
	reports 1 'identical, 2 values; 2 only in the control, from step 3' pt-compare a short
	reports 1 '2 only in the test, from step 3' pt-compare short a
	reports 0 'verdict: identical' pt-compare --common a short
	code_of 0 pt-compare a short --rtol 1 --common
	code_of 1 pt-compare a short --rtol 1e9
	# a common row that differs still does
	log_of 5 4.5 >short
	code_of 1 pt-compare --common a short
	# nothing in common is trouble
	sed 1,2d a >late
	reports 2 'no value in common' pt-compare --common short late
	code_of 2 pt-compare short late
}

@test "a column that only one run has is not compared, but every run has a loss" {
	log_of 5 4 3 2 >a
	sed 's/$/ val_loss=1/' a >measured
	reports 0 'val_loss   not compared; 4 only in the test, from step 1' pt-compare a measured
	says 'verdict: identical'
	reports 0 'val_loss   not compared; 4 only in the control' pt-compare --common measured a
	# both have it, but not in the same rows
	sed 's/step=[12] .*/& val_loss=1/' a >early
	sed 's/step=[34] .*/& val_loss=1/' a >late
	reports 1 'val_loss   no value in common; 2 only in the control; 2 only in the test' pt-compare early late
	# the columns of local SGD; what both have is compared still
	make_shard
	tiny_on 2 -n 12 -o plain >/dev/null
	tiny_on 2 -n 12 -o edit -p edit --edit-workers 2 --edit-warmup-steps 4 --edit-sync-interval 4 >/dev/null
	reports 0 'pseudo_grad_norm not compared; ' pt-compare --atol 10 plain edit
	says 'verdict: the same within the tolerance'
	code_of 1 pt-compare plain edit
	# no loss
	sed 's/loss=/grad_norm=/' a >norms
	sed 's/loss=.*/& grad_norm=1/' a >both
	reports 2 'verdict: only one run has values of loss' pt-compare both norms
	code_of 2 pt-compare norms both
	code_of 2 pt-compare --common norms both
	code_of 0 pt-compare norms norms
}

@test "rows are matched by step or by tokens" {
	log_of 8 7 6 5 >a
	printf 'step=1 tokens=20 loss=7\nstep=2 tokens=40 loss=5\n' >twice
	reports 2 'first at step 1: 8, 7' pt-compare --common a twice
	says 'verdict: not comparable: tokens after step 1: 10, 20'
	reports 0 'identical, 2 values; 2 only in the control, from tokens 10' pt-compare --common --by tokens a twice
	code_of 1 pt-compare --by tokens a twice
	cut -d' ' -f1,3 a >untold
	code_of 2 pt-compare --by tokens untold a
	code_of 0 pt-compare untold a
}

@test "a run is its folder, its run.h5, its journal, its lines, or standard input" {
	make_shard
	tiny -n 5 -o run >lines
	for a in run run/ run/run.h5 run/journal.txt lines; do
		for b in run run/run.h5 run/journal.txt lines; do
			reports 0 'loss       identical, 5 values' pt-compare "$a" "$b"
		done
		[ -d "$a" ] || pt-compare run - <"$a" | grep -q '^standard input$'
	done
	cat run/run.h5 | pt-compare - run/journal.txt | grep -q 'identical, 5 values'
	# the same through a FIFO, and nothing stays in TMPDIR
	mkdir tmp
	cat lines | TMPDIR=tmp pt-compare run -
	TMPDIR=tmp pt-compare <(cat lines) <(cat run/run.h5)
	[ -z "$(ls tmp)" ]
}

@test "several tests, one control: the worst is the code" {
	log_of 3 2 >a
	log_of 3 2 >b
	log_of 3 1 >c
	code_of 0 pt-compare a b a
	[ "$(grep -c 'verdict: identical' <<<"$output")" -eq 2 ]
	for order in 'b c' 'c b'; do
		code_of 1 pt-compare a $order
		[ "$(grep -c 'verdict: identical' <<<"$output")" -eq 1 ]
		[ "$(grep -c 'verdict: different' <<<"$output")" -eq 1 ]
	done
	sed 's/step=/step=1/' c >far
	code_of 2 pt-compare a far c
	code_of 2 pt-compare a b nowhere
}

@test "what was logged again supersedes; a resumed run is one curve" {
	log_of 5 4 3 2 >a
	{
		log_of 5 4 9 9 9
		echo 'step=3 tokens=30 loss=3'
		echo 'step=4 tokens=40 loss=2'
	} >again
	code_of 0 pt-compare a again
	{
		log_of 5 4 9 9 9
		echo '# event 2026-11-20T10:51:00Z step=2 resume'
		sed 1,2d a
	} >resumed
	code_of 0 pt-compare a resumed
}

@test "the graph: as wide and high as told, each run its mark" {
	log_of 4 3 2 1 >a
	log_of 1 2 3 4 >b
	code_of 1 pt-compare a b --graph --width 40 --height 12
	graph=$(sed -n '/^  loss$/,/^ *++*-/p' <<<"$output" | sed '1d;$d')
	[ "$(wc -l <<<"$graph")" -eq 9 ] # and 3 of the axis
	[ "$(awk '{ if (length > n) n = length } END { print n }' <<<"$graph")" -eq 40 ]
	# falling from the upper left, rising to the upper right
	[[ $(head -n 1 <<<"$graph") =~ ^4\ \+o+\ +\++$ ]]
	[[ $(tail -n 1 <<<"$graph") =~ ^1\ \+\++\ +o+$ ]]
	says ' o a'
	says ' + b'
	[ "$(grep -c @ <<<"$graph")" -le 2 ] # where they cross
	# equal curves
	code_of 0 pt-compare a a --graph --width 40 --height 12
	not grep -E '^ *[-0-9.]* [|+].*o' <<<"$output"
	[ "$(COLUMNS=50 pt-compare a b -g | grep -E '^  \++-+' | wc -L)" -eq 49 ]
}

@test "the graph: braille in UTF-8 with colors or one curve, ascii else" {
	log_of 4 3 2 1 >a
	log_of 1 2 3 4 >b
	locale -a | grep -qi 'c.utf' || skip 'no locale with UTF-8'
	dots() { LC_ALL=C grep -cP '\xe2[\xa0-\xa3]' || true; }
	[ "$(LC_ALL=C.UTF-8 pt-compare a b -g | dots)" -eq 0 ]
	[ "$(LC_ALL=C.UTF-8 pt-compare a b -g --marks braille | dots)" -ge 12 ]
	[ "$(LC_ALL=C pt-compare a b -g --marks ascii | dots)" -eq 0 ]
	needs_terminal
	unset NO_COLOR
	on_terminal() { script -qc "TERM=xterm LC_ALL=$1 pt-compare a b --graph" /dev/null </dev/null; }
	[ "$(on_terminal C.UTF-8 | dots)" -ge 12 ]
	[ "$(on_terminal C | dots)" -eq 0 ]
}

@test "the graph and the table take --column and --by" {
	sed 's/$/ val_loss=7/' <(log_of 4 3) >a
	log_of 4 3 >b
	code_of 2 pt-compare a b --graph --column val_loss
	says $'\n  val_loss\n'
	reports 2 'no values of grad_norm' pt-compare b a --graph --column grad_norm
	pt-compare -q b a --table --common >t
	diff t - <<-END
		# step	b	a
		1	4	4
		2	3	3
	END
	pt-compare -qc b a --table --column val_loss --by tokens >t || [ $? -eq 2 ]
	diff t - <<-END
		# tokens	b	a
		10	-	7
		20	-	7
	END
}

@test "curves over steps, tokens, seconds and bytes: sums of what a step took" {
	printf 'step=%d tokens=%d loss=%d dt=%s sent=%s\n' 1 100 9 0.5 1000 3 300 8 0.25 500 7 700 7 1 0 >quick
	printf 'step=%d tokens=%d loss=%d dt=%s sent=%s\n' 1 100 9 5 1000 7 700 7 10 2000 >slow
	while read -r axis first last; do
		code_of 1 pt-compare -g --width 60 --axis "$axis" quick slow
		grep -qE "^ +$first .*$last.* $axis\$|^ +$first .* $axis $last\$" <<<"$output"
	done <<-END
		step 2 6
		tokens 200 600
		seconds 20 60
		bytes 5000 10000
	END
	code_of 1 pt-compare -q -x seconds -p curve.svg quick slow
	reports 1 'tokens 700' pt-compare -g --by tokens quick slow
	# a log without the axis is named, where it has the column
	sed 's/ dt=[^ ]*//' slow >untimed
	reports 2 "untimed: no column 'dt'" pt-compare -g -x seconds quick untimed
	code_of 2 pt-compare -q -g -x seconds quick quick --column val_loss
}

@test "colors on a terminal only, and not with NO_COLOR" {
	needs_terminal
	log_of 4 3 >a
	log_of 4 2 >b
	unset NO_COLOR
	colors() { grep -c $'\033' <(script -qc "$1 pt-compare a b --graph" /dev/null </dev/null) || true; }
	[ "$(colors 'env TERM=xterm')" -gt 3 ]
	[ "$(colors 'env TERM=xterm NO_COLOR=')" -gt 3 ]
	[ "$(colors 'env TERM=xterm NO_COLOR=1')" -eq 0 ]
	[ "$(colors 'env TERM=dumb')" -eq 0 ]
	code_of 1 env TERM=xterm pt-compare a b --graph
	not grep $'\033' <<<"$output"
}

@test "--plot: svg, png and pdf, by name" {
	command -v gnuplot >/dev/null || skip 'no gnuplot'
	log_of 4 3 >a
	log_of 4 2 >b
	code_of 1 pt-compare a b -p x.svg --plot x.png --plot sub.dir.pdf
	grep -q '<svg' x.svg
	grep -q '</svg>' x.svg
	grep -q '>a<' x.svg # the legend
	grep -q '>b<' x.svg
	[ "$(head -c 8 x.png | od -An -tx1)" = ' 89 50 4e 47 0d 0a 1a 0a' ]
	[ "$(head -c 5 sub.dir.pdf)" = '%PDF-' ]
	not ls *.tmp
	reports 64 "'x.gif' ends in none of" pt-compare a b --plot x.gif
	code_of 64 pt-compare a b --plot .svg
	reports 2 'a/x.svg: Not a directory' pt-compare a b --plot a/x.svg
	reports 2 'no values of val_loss' pt-compare a b --plot no.svg --column val_loss
	[ ! -e no.svg ]
}

@test "without gnuplot, or with one that fails: 2, a word what to do, no file lost" {
	log_of 4 3 >a
	only pt-compare
	echo before >x.svg
	reports 2 'gnuplot cannot be started' env PATH="$PWD/only" pt-compare a a --plot x.svg
	says '--graph does not need it'
	says 'verdict: identical'
	[ "$(cat x.svg)" = before ]
	printf '#!/bin/sh\necho partly; exit 3\n' >only/gnuplot
	chmod +x only/gnuplot
	reports 2 'gnuplot failed' env PATH="$PWD/only" pt-compare a a --plot x.svg
	[ "$(cat x.svg)" = before ]
	# it goes before it has read everything
	seq 20000 | sed 's/.*/step=& loss=&/' >long
	printf '#!/bin/sh\nexit 0\n' >only/gnuplot
	reports 2 'gnuplot failed' env PATH="$PWD/only" pt-compare long long --plot x.svg
	[ "$(cat x.svg)" = before ]
	[ ! -e x.svg.tmp ]
	# and none is needed for the rest
	rm only/gnuplot
	env PATH="$PWD/only" pt-compare a a --graph
}

@test "names of runs are no commands of gnuplot" {
	command -v gnuplot >/dev/null || skip 'no gnuplot'
	log_of 4 3 >a
	for name in "x' ; system('touch owned') ; y='" $'x\nsystem "touch owned"\n' \
		"\`touch owned\`" "x'.system('touch owned').'" '{:90 big}^2' "''" 'x"y' \
		$'EOD\nsystem "touch owned"' '@name' '%s%n' '<script>'; do
		cp a "$name"
		code_of 0 pt-compare a "$name" --plot x.svg
		[ ! -e owned ]
		grep -q '</svg>' x.svg
		rm x.svg
	done
	# as it is, without markup
	name="{:90 big}^2 it's''s \"x\" \\0471 ä"
	cp a "$name"
	pt-compare -q a "$name" --plot x.svg
	grep -qF "$name" <(sed "s/&quot;/\"/g; s/&apos;/'/g" x.svg)
}

@test "the last line, cut off, says nothing" {
	log_of 3.25 2.125 1.0625 >a
	size=$(wc -c <a)
	for n in $(seq $((size - 29)) $((size - 1))); do
		head -c "$n" a >torn
		code_of 0 pt-compare --common a torn
		reports 1 '; 1 only in the control, from step 3' pt-compare a torn
	done
	# in a pipe too
	head -c $((size - 3)) a | pt-compare --common a - | grep -q 'identical, 2 values'
}

@test "what is no log is trouble, not a verdict" {
	log_of 3 2 >a
	: >empty
	head -c 5000 /dev/zero >zeros
	make_shard
	head -c 700 data.h5 >torn.h5
	printf '\211HDF\r\n\032\n' >signature
	echo 'Step=1 loss=2' >text
	for f in empty zeros text torn.h5 signature data.h5 . nowhere; do
		code_of 2 pt-compare a $f
		code_of 2 pt-compare $f a
		says "${f#.}"
	done
	reports 2 'a pt-shard file instead of a pt-run file' pt-compare a data.h5
	reports 2 'standard input: unknown log format' pt-compare a - <empty
	reports 2 'standard input: not an HDF5 file, or damaged' pt-compare a - <torn.h5
	mkfifo fifo
	cat torn.h5 >fifo 3>&- &
	reports 2 'fifo: not an HDF5 file, or damaged' pt-compare a fifo
}

@test "a damaged run.h5 is not believed" {
	make_shard
	tiny -n 5 -o run >/dev/null
	size=$(stat -c %s run/run.h5)
	h5dump run/run.h5 | sed 1d >whole
	for at in $(seq 0 211 $((size - 1))) 7174 $((size - 1)); do
		damage run/run.h5 bad.h5 "$at"
		run pt-compare run bad.h5
		# where nothing is stored, nothing is lost
		[ "$status" -eq 2 ] || {
			says 'identical, 5 values'
			h5dump bad.h5 | sed 1d | cmp whole
		}
	done
	for n in 0 1 8 100 1000 $((size / 2)) $((size - 1)); do
		head -c $n run/run.h5 >bad.h5
		code_of 2 pt-compare run bad.h5
	done
}

@test "not a number: equal to itself, within no tolerance of a number" {
	log_of 3 nan >a
	log_of 3 2 >b
	code_of 0 pt-compare a a
	for o in '' '--rtol 1e30 --atol 1e30'; do
		reports 1 'nan, 2' pt-compare $o a b
		[[ $output != *'test - control'* ]]
		reports 1 '1 of 2 values differ' pt-compare $o b a
	done
	log_of 3 inf >a
	code_of 1 pt-compare --atol 1e30 a b
	code_of 1 pt-compare --atol 1e30 b a
	# it is not drawn, and does not spoil the rest
	log_of 4 nan inf 2 >a
	reports 0 '4.0 +@' pt-compare a a --graph --width 40
	log_of nan nan >a
	reports 2 'no values of loss' pt-compare a a --graph
}

@test "steps that are no whole numbers are passed over, and those that are numbers are counted" {
	log_of 3 2 >a
	for bad in nan inf -inf -1 1.5 1e300 9e18 0x x '' 99999999999999999999; do
		local code=0
		[[ ! $bad =~ [0-9] ]] || code=1
		{
			cat a
			echo "step=$bad tokens=$bad loss=7"
		} >b
		for by in step tokens; do
			code_of $code timeout 120 pt-compare --by $by a b --graph --table
			[ $code -eq 0 ] || says '  1 row cannot be read'
			code_of $code timeout 120 pt-compare --by $by b a
			code_of 0 timeout 120 pt-compare --by $by a b --common
		done
		sed "s/tokens=20/tokens=$bad/" a >b
		code_of 1 timeout 120 pt-compare --by tokens a b
		code_of 0 timeout 120 pt-compare --by step a b
	done
}

@test "lines are read as they come: spaces, CRLF, unknown words, any length" {
	log_of 3 2 >a
	{
		echo 'pt-train: hello step=9 loss=9'
		echo '# a comment'
		printf 'step=1  foo=bar\ttokens=10 loss=3 =5 loss= x=\r\n'
		head -c 200000 /dev/zero | tr '\0' x
		printf '\nstep=2 tokens=20 loss=2 loss=99999999999999999999999999999999999999999999999999\n'
	} >b
	code_of 0 pt-compare a b
}

@test "a hundred thousand rows" {
	awk 'BEGIN { for (i = 1; i <= 100000; i++) {
		printf "step=%d tokens=%d loss=%.8g grad_norm=%.8g lr=0.001 dt=0.00123456 tps=123456", i, 64 * i, 3 - i / 1e5 + i * i % 97 / 500, i % 89 / 9
		print i % 250 ? "" : " val_loss=" 3 - i / 1e5 } }' >a
	sed 's/^\(step=77777 .*\) loss=[^ ]*/\1 loss=7/' a >b
	limit='ulimit -v 1000000'
	! nm "$BUILD/pt-compare" | grep -q __asan_init || limit=:
	code_of 0 timeout 120 bash -c "$limit; exec pt-compare a a --graph --table"
	[ "${#lines[@]}" -gt 100000 ]
	code_of 1 timeout 120 bash -c "$limit; exec pt-compare a b --graph"
	says '1 of 100000 values differ; first at step 77777'
	command -v gnuplot >/dev/null || skip 'no gnuplot'
	code_of 1 timeout 120 pt-compare -q a b -p x.svg -p x.png
	# no larger than a picture can show, and the one value that sticks out is there
	[ "$(stat -c %s x.svg)" -lt 700000 ]
	code_of 0 timeout 120 pt-compare -q b b -p b.svg
	not cmp -s x.svg b.svg
}

@test "sets: each test with the nearest control; operands are the others" {
	log_of 3 2 >a
	log_of 3 2.5 >b
	log_of 3 2.5625 >c
	code_of 0 pt-compare --control a b --test b a
	[ "$(grep -c 'identical, 2 values' <<<"$output")" -eq 2 ]
	[ "$(grep -c 'verdict: identical bit for bit' <<<"$output")" -eq 1 ]
	code_of 1 pt-compare a --test c -q
	code_of 1 pt-compare --control a b -t c
	[ "${lines[0]} ${lines[1]}" = 'b c' ]
	code_of 1 pt-compare --test c -- a b
	[ "${lines[0]} ${lines[1]}" = 'b c' ]
	code_of 64 pt-compare --control a b
	reports 64 "'c' cannot be an operand: both --control and --test are given" pt-compare --control a --test b -q c
}

@test "--json: the verdict, its reason, every column; --require: what the code demands" {
	log_of 3 2 >a
	log_of 3 2.5 >b
	code_of 1 pt-compare --json a b
	jq -e '.verdict == "different" and .code == 1 and .comparisons[0].tests[0].columns[0].first.ulp == 2097152' \
		<<<"$output"
	code_of 0 pt-compare --json --atol 1 a b
	jq -e '.verdict == "within" and .code == 0' <<<"$output"
	code_of 1 pt-compare --atol 1 --require identical a b
	code_of 0 pt-compare --json --require identical a a
	jq -e '.verdict == "identical" and (.comparisons | length) == 1' <<<"$output"
}

@test "every verdict has a reason in --json; --speed is there, pictures as text are not" {
	log_of 3 2 >a
	log_of 3 2.5 >b
	reason() { # TEXT OPTION...: of the comparison
		local text=$1
		shift
		pt-compare --json "$@" >out || true
		jq -e --arg text "$text" '.comparisons[0].reason == $text' out || cat out
		jq -e --arg text "$text" '.comparisons[0].reason == $text' out >/dev/null
	}
	reason '2 values of loss equal bit for bit' a a
	reason 'each of 2 values of loss differs by at most 1 + 0 |control|' --atol 1 a b
	sed 's/$/ grad_norm=1/' a >c
	sed 's/loss=2$/& grad_norm=1.5/; s/loss=3$/& grad_norm=1/' a >d
	reason 'grad_norm differs from step 2 on (4194304 ULP)' c d
	reports 1 'verdict: different: grad_norm differs from step 2 on (4194304 ULP)' pt-compare c d
	log_of 3 2 1 | sed 's/$/ dt=1 mem=1024/' >fast
	code_of 0 pt-compare --json --speed fast fast
	jq -e '.comparisons[0].speed[] | select(.name == "mem") | .ratio == 1' <<<"$output"
	reports 64 '--json: cannot be combined with --graph or --table' pt-compare --json -g a a
	code_of 64 pt-compare --json -t a a
}

@test "--speed: a time and its rate have reciprocal intervals, so they cannot contradict each other" {
	for seed in 3 4; do
		awk -v seed=$seed 'BEGIN {
			srand(seed)
			print "step,loss,dt,tps"
			for (i = 1; i <= 200; i++) {
				d = 0.1 * exp(3 * rand() * rand())
				printf "%d,%.4f,%.9f,%.9f\n", i, 3 - i / 500, d, 1000 / d
			}
		}' >$seed.csv
	done
	pt-compare --json --speed 3.csv 4.csv >out
	jq -e '[.comparisons[0].speed[] | {(.name): .}] | add |
		(.tps.low * .dt.high - 1 | fabs) < 1e-6 and (.tps.ratio * .dt.ratio - 1 | fabs) < 1e-6' out
	# a time that was logged in few digits, and another number of ranks
	awk -F, -v OFS=, 'NR == 1 { print $0 ",tps_per_gpu"; next } { printf "%s,%s,%.1f,%s,%s\n", $1, $2, $3, $4, $4 / 4 }' 3.csv >a.csv
	awk -F, -v OFS=, 'NR == 1 { print $0 ",tps_per_gpu"; next } { printf "%s,%s,%.2f,%s,%s\n", $1, $2, $3 * 0.8, $4 / 0.8, $4 / 0.8 / 8 }' 4.csv >b.csv
	pt-compare --json --speed a.csv b.csv >out || true
	jq -e '[.comparisons[0].speed[] | {(.name): .verdict}] | add |
		(.tps == "faster") == (.dt == "faster") and (.tps == "slower") == (.dt == "slower") and .tps_per_gpu == "slower"' out
}

@test "--column: this column alone is judged; an unknown one is an error" {
	for i in {1..30}; do
		echo "step=$i loss=$((40 - i)) lr=0.1 mem=5 mfu=nan"
	done >a
	sed 's/mem=5/mem=6/' a >b
	reports 0 'verdict: identical' pt-compare --column lr a b
	reports 3 'mem        30 of 30 values differ, all higher; first at step 1: 5, 6 (test - control: +1' pt-compare --column mem a b
	reports 2 'verdict: they have no value in common: the runs have no mfu' pt-compare --column mfu a b
	reports 2 'verdict: they have no value in common: the runs have no val_loss' pt-compare --column val_loss a b
	# equal values of a column that was asked for, and losses that differ
	sed 's/loss=/loss=1/' a >c
	reports 0 'verdict: identical' pt-compare --column lr a c
	[[ $output != *loss* ]]
	code_of 1 pt-compare --require identical a c
	reports 64 "column: none of the logs has a column 'none'" pt-compare --column none a b
}

@test "--require auto: a tolerance or a rule comes before several controls" {
	log_of 3 2 >a
	log_of 3 2.5 >b
	reports 0 'verdict: the same within the tolerance' pt-compare --control a a --test b --atol 1
	code_of 1 pt-compare --control a a --test b --atol 1 --require identical
	# a test of which nothing was shown may still be equivalent
	code_of 1 pt-compare -q --control a a --test b -o r.html
	grep -q 'class="badge unclear">different' r.html
	code_of 1 pt-compare -q a b -o r.html
	grep -q 'class="badge unclear">different' r.html
}

@test "--rule: the verdicts of other projects" {
	log_of 3 2 2 >a
	log_of 3 2.05 2 >b
	code_of 1 pt-compare --rule torchtitan a b
	reports 1 'verdict: rejected by the rule torchtitan: ' pt-compare --like torchtitan a b
	reports 0 'verdict: accepted by the rule megatron-approximate: ' pt-compare --rule megatron-approximate a b
	# whatever a rule says of NaN
	log_of 4 3.5 3 2.5 2 1.5 1 0.9 0.8 0.7 0.6 0.5 0.4 >c
	log_of 4 3.5 3 2.5 2 1.5 1 0.9 0.8 0.7 0.6 0.5 nan >d
	for rule in megatron megatron-approximate; do
		code_of 1 pt-compare --rule $rule c d
		says "verdict: diverged: loss of d is nan at step 13; the rule $rule itself accepts it: "
		code_of 0 pt-compare --rule $rule c c
	done
}

@test "vacuous: a loss that is constant, or that never fell" {
	log_of 3 3 3 3 3 3 3 3 3 >dead
	reports 2 'verdict: vacuous: loss of dead is constant: 3' pt-compare dead dead
	log_of nan nan >none
	reports 2 'verdict: vacuous: none has no finite loss' pt-compare none none
	# bits are bits; but what did not fall says little
	for i in {1..30}; do
		echo "step=$i loss=$((3 + i % 2))"
	done >flat
	reports 0 'nothing was learned: loss of flat went from 4 to 3.42857' pt-compare flat flat
	says 'verdict: identical bit for bit'
	for i in {1..30}; do
		echo "step=$i loss=$((40 - i))"
	done >learns
	# equal values that are no numbers are told
	sed 's/^\(step=[23].\) .*/\1 loss=nan/' learns >ends
	code_of 0 pt-compare ends ends
	says 'verdict: identical bit for bit; 11 values of loss are NaN or infinite in both, from step 20'
	reports 1 'verdict: diverged: none has no finite loss' pt-compare learns none
}

# Curves of one seed's batches as CSV, moved by an expression of awk in the step i; with OPTIONS of awk.
moved() { # EXPRESSION [COLUMN]
	awk -v name="${2:-loss}" 'BEGIN {
		srand(1)
		print "step," name
		for (i = 1; i <= 400; i++)
			printf "%d,%.5f\n", i, 2 + 3 * exp(-i / 60) + 0.1 * rand() + '"$1"'
	}'
}

@test "better, worse, diverged: words, codes, colors; test minus control" {
	moved 0 >c.csv
	moved '1e-4 * (i % 3)' >same.csv
	moved '-0.1 * (i > 100)' >better.csv
	moved '0.1 * (i > 100)' >worse.csv
	moved '3 * (i > 250)' >blown.csv
	moved 0 | sed 's/^250,.*/250,nan/' >nan.csv
	code_of 0 pt-compare -q c.csv same.csv # no log can have equal bits
	[[ $output == 'verdict: equivalent: '* ]]
	reports 1 'the exit code is 1, because the required verdict is identical; see --require' pt-compare --require identical c.csv same.csv
	reports 1 'the exit code is 1, because the required verdict is equivalent; see --require' pt-compare c.csv better.csv
	says '(test - control: -0.1)'
	says 'verdict: better: at the end loss is 0.1 '
	says ' lower (test 1.9'
	[[ $output != *ULP* ]]
	reports 1 'verdict: worse: at the end loss is 0.1 ' pt-compare c.csv worse.csv
	reports 1 'verdict: diverged: loss of blown.csv was 2.' pt-compare c.csv blown.csv
	reports 1 '; loss of nan.csv is nan at step 250' pt-compare c.csv nan.csv
	for test in same better; do
		code_of 0 pt-compare -q --require not-worse c.csv $test.csv
		code_of 1 pt-compare -q --require not-worse c.csv $test.csv worse.csv
	done
	for test in worse blown nan; do
		code_of 1 pt-compare -q --require not-worse c.csv $test.csv
	done
	# the page: red for what is worse only
	pt-compare -q c.csv same.csv better.csv worse.csv blown.csv nan.csv -o r.html || [ $? -eq 1 ]
	for words in 'good">equivalent' 'better">better' 'bad">worse' 'bad">diverged'; do
		grep -q "class=\"badge $words" r.html
	done
	[ "$(grep -o 'badge bad">[a-z]*' r.html | sort -u | tr '\n' ' ')" = 'badge bad">diverged badge bad">worse ' ]
	code_of 1 pt-compare --json c.csv better.csv worse.csv
	jq -e '[.comparisons[].judgement | .direction, .better, .difference.value < 0] == ["lower", true, true, "higher", false, false]' <<<"$output"
	jq -e '.comparisons[0].tests[0].columns[0] | .direction == null and .n_lower == 300 and .largest.difference < -0.09' <<<"$output" ||
		jq -e '.comparisons[0].tests[0].columns[0] | .direction == "lower" and .better and .largest.difference < -0.09 and .first.ulp == null' <<<"$output"
	needs_terminal
	unset NO_COLOR
	for word in 34mbetter 31mworse; do
		script -qc "TERM=xterm pt-compare -q c.csv ${word#*m}.csv" /dev/null </dev/null | grep -qF $'\033[1;'$word
	done
}

@test "senses of columns: by their names, by :min and :max; without one there is neither better nor worse" {
	moved 0 accuracy >a.csv
	moved '0.1 * (i > 100)' accuracy >b.csv
	reports 1 'verdict: better: at the end accuracy is 0.1 ' pt-compare --column accuracy a.csv b.csv
	reports 1 'verdict: worse: ' pt-compare --column accuracy:min a.csv b.csv
	code_of 0 pt-compare -q --column accuracy:max --require not-worse a.csv b.csv
	sed -i s/accuracy/turnips/ a.csv b.csv
	reports 1 'verdict: different: at the end turnips is 0.1 ' pt-compare --column turnips a.csv b.csv
	says '; specify which is better by --column turnips:min or turnips:max'
	code_of 1 pt-compare --json --column turnips a.csv b.csv
	jq -e '.comparisons[0].judgement | .direction == "higher" and .better == null' <<<"$output"
	reports 64 'specify --column NAME:min or NAME:max' pt-compare --column turnips --require not-worse a.csv b.csv
	code_of 0 pt-compare -q --column turnips:max --require not-worse a.csv b.csv
}

@test "rows that are missing at the end do not decide, unless equal bits are demanded" {
	moved 0 >a.csv
	moved '1e-4 * (i % 3)' | head -n 393 >b.csv
	reports 0 'verdict: equivalent: ' pt-compare a.csv b.csv
	says '; the test ends 8 steps earlier'
	reports 0 '; the control ends 8 steps earlier' pt-compare b.csv a.csv
	head -n 393 a.csv >c.csv
	reports 0 'logs; the test ends 8 steps earlier' pt-compare a.csv c.csv
	code_of 1 pt-compare -q --require identical a.csv c.csv
	[[ $output == 'verdict: different: '* ]]
	# many, or within
	reports 1 '80 rows are in some runs only' pt-compare a.csv <(head -n 321 b.csv)
	reports 1 '1 row is in some runs only' pt-compare a.csv <(sed 200d b.csv)
	code_of 0 pt-compare --rtol 0.1 a.csv b.csv
}

# trainer_state.json of 12 rows: losses that fall, norms times 1 + PART, TOKENS a row.
trainer_state() { # DIRECTORY PART TOKENS SHIFT
	mkdir -p "$1"
	awk -v part="$2" -v tokens="$3" -v shift="$4" 'BEGIN {
		printf "{\"log_history\": ["
		for (i = 1; i <= 12; i++)
			printf "%s{\"step\": %d, \"loss\": %.4f, \"grad_norm\": %.17g, \"num_tokens\": %d}",
				(i > 1 ? ", " : ""), i, 3 - i / 10 + shift, (1 + i % 5 / 7) * (1 + part * (i % 3)), i * tokens + i * i % 7
		print "], \"global_step\": 12}"
	}' >"$1/trainer_state.json"
}

@test "trainer_state.json: norms that were rounded in another order are equivalent; other numbers of tokens are other data" {
	trainer_state a 0 18080 0
	trainer_state b 1e-6 18080 0
	trainer_state c 1e-3 18080 0
	trainer_state d 0 20690 0.5
	reports 0 'verdict: equivalent: 12 values of loss equal in the ' pt-compare a b
	says '; grad_norm differs by at most 2e-06 of its value'
	code_of 0 pt-compare -q --require equivalent a b
	code_of 1 pt-compare -q --require identical a b
	trainer_state c 0.1 18080 0
	reports 1 'verdict: different: grad_norm differs' pt-compare a c
	reports 2 'verdict: not comparable: tokens after step 1: 18081, 20691' pt-compare a d
	# samples of any length: other seeds have other numbers of tokens, by chance
	for seed in 1 2 3; do
		awk -v seed=$seed 'BEGIN {
			srand(seed)
			for (i = 1; i <= 40; i++)
				printf "{\"step\": %d, \"loss\": %.4f, \"num_tokens\": %d}\n", i, 3 - i / 20 + 0.01 * rand(), n += int(15000 + 6000 * rand() + (seed == 3) * 3000)
		}' >s$seed.jsonl
	done
	pt-compare -q s1.jsonl s2.jsonl >out || [ $? -ne 2 ]
	reports 2 'verdict: not comparable: tokens after step 40: ' pt-compare s1.jsonl s3.jsonl
}
