#!/usr/bin/env bats
# pt-compare: reports as a page and as Markdown, speed, runs that are followed.
load helpers

log_of() { # SHIFT ROWS: a log with speeds
	awk -v shift="$1" -v n="$2" 'BEGIN {
		for (i = 1; i <= n; i++)
			printf "step=%d tokens=%d loss=%.7g grad_norm=%.7g dt=%.6g tps=%.6g mfu=0.4 mem=1048576 sent=1000%s\n",
				i, 64 * i, 2 + 2 / i + shift, 1 + i % 7 / 9, 0.01 + i % 5 / 1e4, 6400 - i % 5 * 60,
				i % 10 ? "" : " val_loss=" 2 + 2 / i + shift
	}'
}

# A log of two ranks, with options.
head_of() { # LAYOUT DTYPE
	printf '# meta ranks = 2\n# meta layout = %s\n# meta device = cpu\n# config lr = 0.001\n# config dtype = %s\n' "$1" "$2"
}

# The page after its script has run, as text; nothing without a browser.
browser() {
	local b
	for b in chromium chromium-browser chromium-headless-shell google-chrome; do
		command -v "$b" && return
	done
	return 1
}

dom_of() { # FILE
	timeout 60 "$(browser)" --headless --no-sandbox --disable-gpu --enable-logging=stderr --v=0 \
		--user-data-dir="$BATS_TEST_TMPDIR/profile" --virtual-time-budget=3000 \
		--dump-dom "file://$PWD/$1" 2>messages
}

@test "--report .html: tables, curves and data in one file that asks for nothing" {
	{ head_of fsdp=2 fp32 && log_of 0 60; } >a
	{ head_of tp=2 bf16 && log_of 0 60; } >b
	{ head_of tp=2 bf16 && log_of 0.5 60; } >c
	code_of 1 pt-compare a b c --report r.html
	for text in '<td>fsdp=2</td>' '<td>tp=2</td>' '<td>default</td>' '<td>bf16</td>' '40 %' '1.00 MiB' \
		'identical bit for bit' 'diverged' 'the same' 'Options and environment'; do
		grep -qF "$text" r.html
	done
	# (names of the namespace of SVG are no addresses)
	not grep -oE '(src|href)=|url\([^#]|@import|https?://[^w]' r.html
	sed -n 's|.*id="data">\(.*\)|\1|p;/^{"name"/p;/^\],/p' r.html | head -c 300 | grep -q '"column":"loss"'
	balanced r.html
	code_of 64 pt-compare a b --report r.htm
	[ "$output" = "pt-compare: report: 'r.htm' ends in none of .html, .md" ]
	code_of 2 pt-compare a b --report a/r.html
	says 'a/r.html: Not a directory'
}

@test "the page in a browser: curves, cursor, no error" {
	browser >/dev/null || skip 'no chromium'
	{ head_of fsdp=2 fp32 && log_of 0 60; } >a
	{ head_of tp=2 bf16 && log_of 0.5 60; } >b
	code_of 1 pt-compare a b --report r.html
	dom_of r.html >dom
	not grep -iE 'uncaught|error.*r\.html' messages
	[ "$(grep -o '<path class="curve"' dom | wc -l)" -eq 3 ] # two curves, a difference
	grep -q '<option value="val_loss">' dom
	grep -q '<option value="bytes">' dom
	grep -q '<title id="main-title">loss over step</title>' dom
	grep -q '(control)</span>' dom
	# the same with keys and a form: what a user would do
	sed 's|^addEventListener("resize", render);|&\
$("column").value = "val_loss"; $("column").dispatchEvent(new Event("change"));\
$("axis").value = "tokens"; $("axis").dispatchEvent(new Event("change"));\
$("main").dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight"}));\
$("main").dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight"}));\
$("main").dispatchEvent(new KeyboardEvent("keydown", {key: "+"}));|' r.html >used.html
	dom_of used.html >dom
	not grep -iE 'uncaught|error.*used\.html' messages
	grep -q '<title id="main-title">val_loss over tokens</title>' dom
	grep -q 'step 20, tokens 1280; a 2.1; b 2.6 Δ 0.5' dom
}

@test "no text of a log is part of the page or of the Markdown" {
	name='<script>alert(1)</script>|`x`'
	{ head_of '</script><script>alert(2)</script>' '"><img src=x onerror=alert(3)>' && log_of 0 20; } >"${name//\//_}"
	log_of 0 20 >b
	code_of 0 pt-compare "${name//\//_}" b --report r.html --report r.md
	[ "$(grep -o '<script' r.html | wc -l)" -eq 2 ]
	[ "$(grep -o '</script' r.html | wc -l)" -eq 2 ]
	not grep -q '<img' r.html
	not grep -qE '(^|[^\\])<(script|img)' <(grep -v '^    ' r.md)
	balanced r.html
	if browser >/dev/null; then
		dom_of r.html >dom
		not grep -iE 'uncaught|error.*r\.html' messages
		[ "$(grep -o '<path class="curve"' dom | wc -l)" -eq 3 ]
	fi
}

@test "--report .md: a table, the comparison, a graph, differences" {
	{ head_of fsdp=2 fp32 && log_of 0 60; } >a
	{ head_of tp=2 bf16 && log_of 0 60; } >b
	code_of 0 pt-compare a b --report r.md
	grep -qF '| Run | Layout | Techniques | Tokens/s | MFU | Peak memory | Verdict |' r.md
	grep -qF '| a | fsdp=2 | default | 6280 | 40 % | 1.00 MiB | control |' r.md
	grep -qF '| b | tp=2 | bf16 | 6280 | 40 % | 1.00 MiB | identical bit for bit |' r.md
	grep -qF '| dtype | fp32 | bf16 |' r.md
	grep -qE '^    +@ several at one place' r.md
	grep -qE '^      loss +identical, 60 values' r.md
}

@test "a page of a hundred thousand rows is small" {
	log_of 0 100000 >a
	sed 's/^\(step=77777 .*\) loss=[^ ]*/\1 loss=7/' a >b
	code_of 1 timeout 100 pt-compare -q a b --report r.html
	[ "$(stat -c %s r.html)" -lt 1500000 ]
	# the one value that differs is among the extremes of its group
	grep -q '"hi":\[[^]]*\b7\b' r.html
}

@test "--speed: medians and noise, no difference where there is none" {
	log_of 0 100 >a
	sed 's/ tps=[^ ]*/ tps=3000/; s/ mem=[^ ]*/ mem=2097152/' a >b
	code_of 0 pt-compare a a --speed
	says 'tokens/s              the same: control 6280, test 6280, +0.00 %'
	says 'peak memory of a rank the same'
	code_of 0 pt-compare a b --speed
	says 'tokens/s              slower: control 6280, test 3000, -52.2'
	says 'peak memory of a rank more: control 1.00 MiB, test 2.00 MiB, +100.00 %'
	log_of 0 8 >few
	sed 's/mfu=0.4/mfu=6.12/' a >over
	code_of 0 pt-compare over over --speed
	says '612 % (impossible)'
	code_of 0 pt-compare few few --speed
	says 'too few steps for a statement'
}

@test "any column: of measurements, and of none" {
	log_of 0 60 >a
	code_of 0 pt-compare a a --graph --column tps --axis bytes
	says '  tps'
	says 'bytes'
	code_of 0 pt-compare a a --table --column dt
	says $'60\t0.01\t0.01'
	code_of 0 pt-compare a a --graph --column mfu_causal
	says 'no values of mfu_causal'
	# one run alone is drawn; compared it is not
	code_of 0 pt-compare a --graph
	says '  loss'
	says '⠒⠒ a'
	says 'a alone is shown: nothing is compared'
	not grep -q verdict <<<"$output"
	code_of 0 pt-compare --test a --table --column dt
	says $'60\t0.01'
	if command -v gnuplot >/dev/null; then
		code_of 0 pt-compare -q a --plot a.svg
		[ -s a.svg ]
	fi
	for also in '' --json --speed '--require identical' '-o r.html' --follow --locate; do
		# shellcheck disable=SC2086 # words
		code_of 64 pt-compare a ${also:+--graph} $also
	done
	code_of 64 pt-compare --graph
	code_of 64 pt-compare a a --graph --column nothing
	says "none of the logs has a column 'nothing'"
}

# ---- following -----------------------------------------------------------------------

slowly() { # FILE: its lines, a few at a time
	local line i=0
	while read -r line; do
		echo "$line"
		i=$((i + 1))
		[ $((i % 10)) -ne 0 ] || sleep 0.1
	done <"$1"
}

ending='# event 2026-01-01T00:00:00Z step=60 ends with code 0 after step 60'

@test "--follow: runs that train, until both have ended" {
	mkdir a b
	{ log_of 0 60 && echo "$ending"; } >whole
	slowly whole >a/journal.txt 3>&- &
	# (the journal of a run that has just begun)
	(sleep 0.5 && slowly whole >b/journal.txt) 3>&- &
	code_of 0 timeout 60 pt-compare --follow a b
	wait
	says 'identical, 60 values'
	says 'verdict: identical bit for bit'
	[[ ${lines[0]} == b,\ step*identical\ bit\ for\ bit ]]
}

@test "--follow: a run that differs is told at once, with 1" {
	log_of 0 60 >a
	sed 's/^\(step=5 .*\) loss=[^ ]*/\1 loss=7/' a >b
	mkfifo pipe
	{ head -n 20 b && exec sleep 60; } >pipe 3>&- &
	local writer=$!
	code_of 1 timeout 30 pt-compare --follow a pipe
	kill "$writer"
	says 'pipe, step 20: '
	says '1 of 20 values differ; first at step 5'
	code_of 0 timeout 30 pt-compare --follow --atol 10 --common --follow-timeout 1 a b
}

@test "--follow: runs that say nothing, SIGINT, a journal that begins again" {
	log_of 0 60 >a
	code_of 2 timeout 30 pt-compare --follow --follow-timeout 0.5 a nowhere
	says 'only one of them has values of loss'
	head -n 30 a >b
	set -m # (else it would ignore SIGINT)
	pt-compare --follow a b >out 3>&- &
	set +m
	wait_for 'b, step ' out
	kill -INT $!
	wait $!
	grep -q 'loss       identical, 30 values' out
	# another run in the same file
	log_of 0.5 50 >b
	(sleep 1 && log_of 0 20 >b && sleep 1 && { log_of 0 60 && echo "$ending"; } >b) 3>&- &
	echo "$ending" >>a
	timeout 30 pt-compare --follow --atol 10 a b >out
	grep -q 'loss       identical, 60 values' out
	wait
	# standard input, and files that do not grow
	pt-compare --follow a - <a | grep -q 'identical, 60 values'
	echo '# meta host = here' >longer
	truncate -s 65M longer
	code_of 2 timeout 30 pt-compare --follow --follow-timeout 1 a longer
	says 'longer: a line of more than 67108864 bytes'
}

@test "--follow: logs of other trainers, in files and pipes that grow" {
	log_of 0 30 >a
	# a table with a comment as its header, and lines behind a prefix
	sed -E 's/^step=([0-9]+) .* loss=([^ ]*).*/\1,\2/; 1i # step,loss' a >whole.csv
	sed -E 's/^step=([0-9]+) .* loss=([^ ]*).*/[12:00][INFO] step=\1 loss=\2 dt=0.5 sps=8/' a >whole.log
	for kind in csv log; do
		slowly whole.$kind >b.$kind 3>&- &
		code_of 0 timeout 30 pt-compare --follow --follow-timeout 1 --rtol 1e-4 a b.$kind
		wait
		says '30 values'
	done
	code_of 0 timeout 30 pt-compare --follow --follow-timeout 0.1 --format wordplay whole.log whole.log
	# --format holds for all logs
	code_of 2 timeout 30 pt-compare --follow --follow-timeout 0.1 --format nanogpt whole.log whole.log
	# through a pipe
	code_of 0 timeout 30 pt-compare --follow --follow-timeout 1 --rtol 1e-4 a - < <(slowly whole.log)
	says '30 values'
	# but not what must be read as a whole
	echo '{"0": {"lm loss": 2.5}}' >whole.json
	code_of 2 timeout 30 pt-compare --follow --format megatron-bridge a - <whole.json
	says 'standard input: a log of this format can be followed in a file, but not through a pipe'
}
