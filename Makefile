# pt: small programs that train language models in parallel, and prove the parallel run
# right. `make help` tells the targets.

PREFIX = /usr/local
O = build
CC = gcc
CFLAGS = -O2 -g
DEPS = yes

PROGRAMS = $(notdir $(basename $(wildcard cmd/pt-*.c)))
FLOORS = base h5 comm data ckpt run parallel edit model train compare

# ---- flags --------------------------------------------------------------------------
PKGS = hdf5-serial mpich libxxhash
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
PKG_LIBS := $(shell pkg-config --libs $(PKGS) 2>/dev/null)
WARN = -Wall -Wextra -Wpedantic -Wshadow -Wvla -Wmissing-prototypes -Wstrict-prototypes \
  -Wconversion -Wno-sign-conversion -Wno-psabi -Wno-missing-field-initializers -Wundef \
  -Wwrite-strings
# OpenMP is compiled but not linked: kernels/cpu/threads.c is its runtime.
OPENMP = -fopenmp
override CPPFLAGS += $(OPENMP) -D_GNU_SOURCE -Ilibcore -I. $(PKG_CFLAGS)
# Contraction of a*b+c is pinned, for the sake of equal bits.
override CFLAGS += -std=c11 -ffp-contract=off -fno-math-errno -fno-trapping-math \
  $(WARN) $(WERROR) $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-omit-frame-pointer)
LDLIBS = -Wl,--as-needed $(PKG_LIBS) -ldl -lpthread -lm

ISAS = sse2 $(if $(filter x86_64,$(shell uname -m)),avx2 avx512)
ISA_sse2 =
ISA_avx2 = -mavx2 -mfma -mf16c
ISA_avx512 = $(ISA_avx2) -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512

# ---- what is built -------------------------------------------------------------------
ONCE = kernels/cpu/blas.c kernels/cpu/device.c kernels/cpu/threads.c
PER_ISA = $(filter-out $(ONCE),$(wildcard kernels/cpu/*.c))
LIB_SRC = $(wildcard $(FLOORS:%=libcore/%/*.c)) $(wildcard kernels/*.c) $(ONCE)
LIB_OBJ = $(LIB_SRC:%.c=$O/%.o) $(foreach i,$(ISAS),$(PER_ISA:%.c=$O/%.$i.o))
LIB = $O/libpt.a
BINS = $(PROGRAMS:%=$O/%)
TEST_SRC = $(wildcard tests/test_*.c tests/ranks_*.c tests/bench_*.c)
TESTS = $(TEST_SRC:tests/%.c=$O/tests/%)
TEST_LIB = $O/tests/libtest.a
FUZZ_SRC = $(wildcard tests/fuzz_*.c)
FUZZERS = $(FUZZ_SRC:tests/%.c=$O/tests/%)
FUZZ_OBJ = $O/tests/fuzz.o $O/tests/hostile.o
TEST_OBJ = $(patsubst %.c,$O/%.o,$(filter-out $(TEST_SRC) tests/fuzz% tests/hostile.c,$(wildcard tests/*.c)))

all: $(BINS)

$(BINS): $O/%: $O/cmd/%.o $(LIB)
	@echo "  LD    $@"
	@$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(LDLIBS)

$(LIB): $(LIB_OBJ)
$(TEST_LIB): $(TEST_OBJ)
$(LIB) $(TEST_LIB):
	@echo "  AR    $@"
	@rm -f $@ && ar rcs $@ $^

$O/%.o: %.c $O/flags
	@mkdir -p $(@D)
	@echo "  CC    $<"
	@$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<

define isa_rule
$O/%.$1.o: %.c $O/flags
	@mkdir -p $$(@D)
	@echo "  CC    $$< ($1)"
	@$$(CC) $$(CPPFLAGS) $$(CFLAGS) -O3 $$(ISA_$1) -DISA=$1 -MMD -MP -c -o $$@ $$<
endef
$(foreach i,$(ISAS),$(eval $(call isa_rule,$i)))

$(TESTS): $O/tests/%: $O/tests/%.o $(TEST_LIB) $(LIB)
	@echo "  LD    $@"
	@$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ -lcmocka $(LDLIBS)

$(FUZZERS): $O/tests/%: $O/tests/%.o $(FUZZ_OBJ) $(LIB)
	@echo "  LD    $@"
	@$(CC) $(CFLAGS) -fsanitize=fuzzer -Wl,--wrap=h5_probe,--wrap=die_silently \
	  $(LDFLAGS) -o $@ $^ $(LDLIBS)

# Other flags are another build: everything depends on this file, which changes with them.
FLAGS = $(CC) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS)
$O/flags: FORCE
	@pkg-config --exists $(PKGS) || { echo "missing: $(PKGS); run make deps" >&2; exit 1; }
	@mkdir -p $O
	@echo '$(FLAGS)' | cmp -s - $@ || echo '$(FLAGS)' >$@

-include $(LIB_OBJ:.o=.d) $(PROGRAMS:%=$O/cmd/%.d) $(TEST_OBJ:.o=.d) $(TESTS:=.d) \
  $(FUZZ_OBJ:.o=.d) $(FUZZERS:=.d)

# ---- what is done with it -------------------------------------------------------------
# A target `X` makes sure of the packages, and then is `X-now`, in a make that sees them.
JOBS = -j$(shell nproc 2>/dev/null || echo 2)
NEEDS_demo = build demo
NEEDS_convergence = build demo
NEEDS_check = build check
NEEDS_check-long = build check
NEEDS_san = build check
NEEDS_bench = build check
NEEDS_lint = build check lint
NEEDS_fuzz = build fuzz
NEEDS_mutants = build check
demo convergence check check-long san lint bench fuzz mutants:
	@[ "$(DEPS)" = no ] || share/deps $(NEEDS_$@)
	@$(MAKE) --no-print-directory $(JOBS) $@-now

deps:
	@[ "$(DEPS)" = no ] || share/deps build check demo

demo-now: all
	@PATH="$(abspath $O):$$PATH" share/demo

convergence-now: all
	@PATH="$(abspath $O):$$PATH" share/recipes/convergence

check-now: all $(TESTS)
	@tests/run $O

check-long-now: all $(TESTS)
	@LONG=yes tests/run $O

# Leaks are not looked for: MPI and HDF5 keep what they have until the end.
san-now:
	@$(MAKE) --no-print-directory O=build-san SANITIZE=address,undefined \
	  CFLAGS='-O1 -g -fno-sanitize-recover=undefined' build-san-tests
build-lint-tests: $(TESTS)
build-san-tests: all $(TESTS)
	@ASAN_OPTIONS=detect_leaks=0 tests/run $O

# libFuzzer is clang's, whose OpenMP has another runtime: the kernels run without threads.
fuzz-now: all
	@ls "$$(clang -print-runtime-dir)"/libclang_rt.fuzzer* >/dev/null 2>&1 || { echo \
	  "make fuzz: clang's libFuzzer is missing; Debian's packages for it: share/deps fuzz" >&2; exit 1; }
	@$(MAKE) --no-print-directory O=build-fuzz CC=clang OPENMP=-fopenmp-simd \
	  SANITIZE=fuzzer-no-link,address,undefined \
	  CFLAGS='-O1 -g -fno-sanitize-recover=undefined -Wno-pass-failed' build-fuzzers
	@tests/fuzz/run build-fuzz $O
build-fuzzers: $(FUZZERS)

# With PATTERN=..., those whose name matches.
mutants-now: all $(TESTS)
	@tests/mutate $O $(PATTERN)

bench-now: all $(TESTS)
	@tests/bench $O

lint-now: all
	@tests/lint $O

generate: all
	completions/generate $O

# ---- installing -----------------------------------------------------------------------
BIN = $(DESTDIR)$(PREFIX)/bin
SHARE = $(DESTDIR)$(PREFIX)/share
RECIPES = $(filter-out functions hosts,$(notdir $(wildcard share/recipes/*)))
INSTALLED = $(PROGRAMS:%=$(BIN)/%) $(SHARE)/pt \
  $(foreach m,$(notdir $(wildcard man/*.[1-9])),$(SHARE)/man/man$(patsubst .%,%,$(suffix $m))/$m) \
  $(PROGRAMS:%=$(SHARE)/bash-completion/completions/%) \
  $(PROGRAMS:%=$(SHARE)/zsh/site-functions/_%) \
  $(PROGRAMS:%=$(SHARE)/fish/vendor_completions.d/%.fish)

install: all
	install -d $(BIN) $(SHARE)/pt/presets $(SHARE)/pt/recipes $(foreach s,1 5 7,$(SHARE)/man/man$s) \
	  $(SHARE)/bash-completion/completions $(SHARE)/zsh/site-functions \
	  $(SHARE)/fish/vendor_completions.d
	install $(BINS) $(BIN)
	install -m 644 share/presets/* $(SHARE)/pt/presets
	install $(RECIPES:%=share/recipes/%) $(SHARE)/pt/recipes
	install -m 644 share/recipes/functions share/recipes/hosts $(SHARE)/pt/recipes
	for s in 1 5 7; do install -m 644 man/*.$$s $(SHARE)/man/man$$s; done
	for p in $(PROGRAMS); do \
	  install -m 644 completions/$$p.bash $(SHARE)/bash-completion/completions/$$p; \
	  install -m 644 completions/_$$p $(SHARE)/zsh/site-functions; \
	  install -m 644 completions/$$p.fish $(SHARE)/fish/vendor_completions.d; done

uninstall:
	rm -rf $(INSTALLED)

clean:
	rm -rf $O build-san build-lint build-fuzz demo convergence

help:
	@echo 'all        build the programs into $O/ (the default)'
	@echo 'demo       the main job, from text to a compared model, command by command;'
	@echo '           DEMO_STEPS=60 make demo: in a hurry'
	@echo 'convergence  every technique against its control, in one table;'
	@echo '           STEPS=20 ROWS=^fsdp make convergence: in a hurry'
	@echo 'check      the tests;  check-long: the long ones too;  san: under sanitizers'
	@echo 'fuzz       every reader of foreign bytes, FUZZ_SECONDS=60 each, with hostile ones'
	@echo 'mutants    bugs of real systems, put into a copy: does a test find each?'
	@echo 'bench      how fast, against ceilings measured in the same run'
	@echo 'lint       warnings, format, manual pages, floors, generated files'
	@echo 'generate   make completions and option lists anew from the option tables'
	@echo 'clean      removes what was built'
	@echo 'install    into PREFIX=$(PREFIX), below DESTDIR;  uninstall removes it'
	@echo 'deps       install what is missing (Debian); DEPS=no skips that everywhere'

.PHONY: all demo convergence check check-long san lint bench fuzz mutants bench-now mutants-now \
  fuzz-now build-fuzzers demo-now convergence-now check-now check-long-now san-now \
  build-san-tests build-lint-tests lint-now deps generate install uninstall clean help FORCE
