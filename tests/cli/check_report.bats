#!/usr/bin/env bats
# pt-check: reports in HTML and Markdown.
load helpers

# Two checkpoints, a step apart, and tokens that are not the step's.
make_step() {
	make_shard
	tiny --layers 3 -n 3 -c 1 -k 0 -o run >/dev/null
	mv run/checkpoints/step-00000002.h5 before.h5
	mv run/checkpoints/step-00000003.h5 after.h5
	for ((i = 0; i < 4 * 17; i++)); do
		printf "\\$(printf %o $((i * i % 17)))\\0"
	done >batch.u16
}

@test "--report .html: verdict, what was checked, findings and maps in one self-contained file" {
	make_step
	reports 1 'verdict: wrong' pt-check before.h5 after.h5 --batch batch.u16 --shape 4,17 -o r.html -o r.md
	for text in '<span class="badge bad">wrong</span>' 'The step from before.h5 to after.h5' \
		'<td>batch.u16: 4 sequences of 16 positions, 64 targets</td>' '<th>Gradients</th><td>0 of ' \
		'<th>norm of the gradient (grad_norm)</th>' 'layers.*.attention.wq.weight' 'no known cause' \
		'title="layers.1.feed_forward.w2.weight: residual ' '<td class="b3"' '<td class="w'; do
		grep -qF -- "$text" r.html
	done
	# three maps of twelve rows, with signs and colors, linked to the rows of the table
	[ "$(grep -c '^<table class="heat' r.html)" -eq 3 ]
	[ "$(grep -o '">·</td>' r.html | wc -l)" -ge 60 ]
	[ "$(grep -oE '"><a href="#t[0-9]+">×</a></td>' r.html | wc -l)" -ge 20 ]
	for i in $(grep -oE 'href="#t[0-9]+' r.html | cut -d '#' -f 2 | sort -u); do
		grep -q "<tr id=\"$i\" class=\"wrong\">" r.html
	done
	not grep -oE '(src|href)="[^#]|url\([^#]|@import|https?://|<script|script-src' r.html
	balanced r.html
	grep -q '^\*\*wrong\*\*: ' r.md
	grep -qE '^    attention\.wq +×××$' r.md
	grep -qE '^    attention\.wq +···$' r.md
	grep -qE '^\| layers\.2\.attention\.wq\.weight \| Gradients \| [^|]+ \| [^|]+ \| [^|]+ \|$' r.md
}

@test "--report: without a batch, and of two runs" {
	make_step
	code_of 0 pt-check before.h5 after.h5 -o r.html -o r.md
	grep -qF '<span class="badge good">right</span> as far as it shows without a batch' r.html
	[ "$(grep -c '^<table class="heat' r.html)" -eq 2 ]
	not grep -qF '<h2 id="h-findings">' r.html
	balanced r.html
	grep -q '^| Batch | none: gradients are not tested |$' r.md
	code_of 0 pt-check --two-runs after.h5 after.h5 -o r.html -o r.md
	grep -qF '<title>One step of after.h5 and after.h5</title>' r.html
	[ "$(grep -c '^<table class="heat' r.html)" -eq 1 ]
	balanced r.html
	grep -qF '**right**: the gradients of both runs are the same' r.md
	grep -q 'The scale is not checked: clipping may hide a wrong scale' r.md
}

@test "--report: findings without a distance are marked, too" {
	make_step
	reports 1 'within bounds' pt-check before.h5 after.h5 --weight-decay 0.3 -o r.html -o r.md
	# the matrices decayed by another factor; biases do not decay
	grep -qE '^    attention\.wq +×××$' <(sed -n '/^    Update/,$p' r.md)
	grep -qE '^    attention\.wq\.bias +···$' <(sed -n '/^    Update/,$p' r.md)
	grep -qE '^    attention\.wq +···$' <(sed -n '/^    Moments/,/^    Update/p' r.md)
	grep -qF 'These parameters did not change as AdamW would change them' r.html
}

@test "--report: file names are escaped in HTML and Markdown, and other suffixes are rejected" {
	make_step
	name='<img src=x onerror=alert(1)>|`"&.h5'
	mv before.h5 "$name"
	code_of 0 pt-check "$name" after.h5 -o r.html -o r.md
	grep -qF '&lt;img src=x onerror=alert(1)&gt;|`&quot;&amp;.h5' r.html
	not grep -q '<img' r.html
	not grep -qE '(^|[^\])<img' <(grep -v '^    ' r.md)
	balanced r.html
	code_of 64 pt-check "$name" after.h5 -o r.htm
	[ "$output" = "pt-check: --report: 'r.htm' ends in none of .html, .md" ]
	reports 74 'after.h5/r.html: Not a directory' pt-check "$name" after.h5 -o after.h5/r.html
}
