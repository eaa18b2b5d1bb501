# Shared by the bats files: a folder of each test, small data, runs that take a second.
# (bats sets output and lines.)
# shellcheck disable=SC2154

# As in tests/run: ranks that wait leave the processors to others.
export PT_CROWDED=${PT_CROWDED:-yes}

# A file may set SETUP=make_shard: its tests begin with a shard.
setup() {
	cd "$BATS_TEST_TMPDIR" || exit 1
	${SETUP:-:}
}

# A text with some structure: 40,000 characters.
make_text() {
	awk 'BEGIN { srand(1); split("the of and lord shall unto him that in israel", w, " ")
		for (i = 0; i < 12000; i++)
			printf "%s%s", w[int(rand() * rand() * 10) + 1], i % 12 == 11 ? ".\n" : " " }' |
		head -c 40000
}

make_shard() { # FILE
	make_text >text.txt
	export PT_DATA=${1:-data.h5}
	pt-prepare -q text.txt -o "$PT_DATA"
}

# A run of a second; further options follow, and win.
TINY=(-q --layers 1 --heads 2 --dim 16 -T 16 -b 8 -m 2 -t 1 --self-test no
	--eval-every 10 --eval-windows 8 --log-every 1 --warmup 2)

tiny() { # OPTION...
	pt-train "${TINY[@]}" "$@"
}

tiny_on() { # RANKS OPTION...
	local n=$1
	shift
	mpiexec -n "$n" pt-train "${TINY[@]}" "$@"
}

# The GPU of tests that want one: emulated, or of the library that GPU=yes tests/run names.
gpu_setup() {
	cd "$BATS_TEST_TMPDIR" || exit 1
	export PT_CUDA=${GPU_LIBRARY:-$BUILD/emu/pt-cuda.so} PT_EMU_GUARD=no
	[ -e "$PT_CUDA" ] || skip 'nvcc and its headers are not here'
	# NCCL that is installed knows nothing of emulated GPUs
	[[ $PT_CUDA != */emu/* ]] || export PT_NCCL=none
}

gpu_name() { # as journals have it
	[ -z "${GPU_NAME:-}" ] || { echo "$GPU_NAME" && return; }
	"$BUILD/tests/test_device" name
}

# (PT_EMU_NAME gives the emulated GPU another name, and so rehearses what is for real ones.)
real_gpu() {
	local name
	name=$(gpu_name) || exit 1 # a test program that does not run must not skip tests
	[[ $name != *emulated* ]]
}

# A start takes seconds on a real GPU, so that it does little there unless LONG=yes: what kernels
# compute, test_kernels, test_endtoend, ranks_layouts and ranks_edit try in one process each, and what the
# program does beside is seen on the emulated GPU.
spare_starts() {
	[ "${LONG:-no}" != yes ] && real_gpu
}

# Of lines, on a real GPU the first N.
spared() { # N
	if spare_starts; then head -n "$1"; else cat; fi
}

# Are the programs built with AddressSanitizer?
sanitized() {
	nm "$BUILD/pt-train" | grep -q __asan_init
}

# Are the programs slower than they are built by make: with AddressSanitizer, or for coverage?
instrumented() {
	nm "$BUILD/pt-train" | grep -qE '__(asan|gcov)_init'
}

# For tests that limit memory, or measure it.
plain_memory() {
	! sanitized || skip 'the sanitizer needs memory of its own'
}

# For tests that use script(1).
needs_terminal() {
	script -qc true /dev/null </dev/null >/dev/null 2>&1 || skip 'no script(1), or no pseudo-terminal'
}

same() { # RUN RUN: their curves and latest checkpoints are equal
	pt-compare "$1" "$2" >cmp.txt || {
		cat cmp.txt
		return 1
	}
	cmp "$1/checkpoints/latest.h5" "$2/checkpoints/latest.h5"
}

wait_for() { # TEXT FILE: until it is there, for ten minutes at most, since the machine may be slow
	for _ in $(seq 12000); do
		grep -q "$1" "$2" 2>/dev/null && return
		sleep 0.05
	done
	echo "no '$1' in $2"
	return 1
}

ranks_of() { # PID: of mpiexec; the processes that it started, or waits until there are some
	local proxy
	for _ in $(seq 20000); do
		proxy=$(pgrep -P "$1") && pgrep -P "${proxy%%$'\n'*}" && return
		kill -0 "$1" 2>/dev/null || return 1
		sleep 0.01
	done
}

# Waits until none of these processes runs; those that nobody waits for stay as zombies.
gone() { # PID...
	local pid
	for pid in "$@"; do
		for _ in $(seq 2400); do
			[[ $(ps -o stat= -p "$pid") =~ ^[^Z] ]] || continue 2
			sleep 0.05
		done
		echo "process $pid lives"
		return 1
	done
}

# While $pid starts, or a moment after it has printed a row to `out`.
random_moment() { # MS: the latest moment of the start
	local row
	if [ $((RANDOM % 4)) -eq 0 ]; then
		sleep "0.$(printf %03d $((RANDOM % $1)))"
		return
	fi
	row=$((RANDOM % 37 + 1))
	while ! grep -q "^step=$row " out && kill -0 "$pid" 2>/dev/null; do sleep 0.005; done
	sleep "0.0$(printf %02d $((RANDOM % 30)))"
}

ended() { # PID: its code in $status
	status=0
	wait "$1" || status=$?
}

# The run writes to a pipe that is read a line at a time, so it never runs far ahead.
until_step() { # STEP: reads rows from descriptor 4
	local line
	while read -r line <&4; do
		[[ $line != "step=$1 "* ]] || return 0
	done
	echo "the run ended before step $1"
	return 1
}

# (mpiexec itself would read all there is.)
paced() { # RANKS OPTION...: its rows come to descriptor 4
	local n=$1
	shift
	rm -f rows
	mkfifo rows
	timeout 900 mpiexec -n "$n" sh -c 'if [ "$PMI_RANK" = 0 ]; then echo $$ >pid; exec >rows; fi; exec "$@"' sh \
		pt-train "${TINY[@]}" "$@" 2>err 3>&- &
	# shellcheck disable=SC2034 # the tests wait for it
	pid=$!
	exec 4<rows
}

# Code of a command, with its messages in $output.
code_of() { # CODE COMMAND...
	local want=$1
	shift
	run "$@"
	[ "$status" -eq "$want" ] || {
		echo "code $status, not $want: $*"
		echo "$output"
		return 1
	}
}

# bats overlooks a failing `! COMMAND` that is not the last.
not() { # COMMAND...
	if "$@"; then
		echo "succeeded: $*"
		return 1
	fi
}

# The number of messages in $output, but for those of what MPI left when another test killed a job.
messages() {
	grep '^pt-' <<<"$output" | grep -vc 'removed /dev/shm/.*, which MPI left'
}

says() { # TEXT: it is in $output
	[[ $output == *"$1"* ]] || {
		echo "not said: $1"
		echo "$output"
		return 1
	}
}

# The command exits with this code, and the text is in its messages.
reports() { # CODE TEXT COMMAND...
	code_of "$1" "${@:3}" && says "$2"
}

damage() { # FILE COPY OFFSET: the copy has one bit flipped
	cp "$1" "$2"
	printf '%b' "\\x$(printf '%x' $((0x$(od -An -tx1 -j"$3" -N1 "$1" | tr -d ' ') ^ 1 << $3 % 8)))" |
		dd of="$2" bs=1 seek="$3" conv=notrunc status=none
}

# The first N lines of standard input, or with LONG=yes all.
some_of() { # N
	if [ "${LONG:-no}" = yes ]; then cat; else head -n "$1"; fi
}

# Is every element closed, in its order?
balanced() { # FILE
	command -v python3 >/dev/null || return 0
	python3 - "$1" <<-'END'
		import sys, html.parser
		class Page(html.parser.HTMLParser):
		    open = []
		    def handle_starttag(self, tag, attrs):
		        if tag not in ("meta", "input"): self.open.append(tag)
		    def handle_endtag(self, tag):
		        assert self.open.pop() == tag, (tag, self.getpos())
		page = Page()
		page.feed(open(sys.argv[1]).read())
		assert not page.open, page.open
	END
}
