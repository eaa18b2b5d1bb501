# pt: small programs that train language models in parallel, and prove the parallel run
# right. `make help` lists the targets.

PREFIX = /usr/local
O = build
CC = gcc
CFLAGS = -O2 -g
DEPS = yes

PROGRAMS = $(notdir $(basename $(wildcard cmd/pt-*.c)))

# ---- flags --------------------------------------------------------------------------
# (MPICH: only its header; the library is loaded at run time)
LINKED = hdf5-serial jansson libpcre2-8 libutf8proc libxxhash libzstd zlib
PKGS = $(LINKED) mpich
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
PKG_LIBS := $(shell pkg-config --libs $(LINKED) 2>/dev/null)
WARN = -Wall -Wextra -Wpedantic -Wshadow -Wvla -Wmissing-prototypes -Wstrict-prototypes \
  -Wconversion -Wno-sign-conversion -Wno-psabi -Wno-missing-field-initializers -Wundef \
  -Wwrite-strings
# OpenMP is compiled but not linked: kernels/cpu/threads.c is its runtime.
OPENMP = -fopenmp
override CPPFLAGS += $(OPENMP) -D_GNU_SOURCE -Ilibcore -I. $(PKG_CFLAGS)
# No contraction of a*b+c: bits must not depend on the compiler's choice.
override CFLAGS += -std=c11 -ffp-contract=off -fno-math-errno -fno-trapping-math
override CFLAGS += $(WARN) $(WERROR) $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-omit-frame-pointer)
LDLIBS = -Wl,--dynamic-list=kernels/cuda/host.list -Wl,--as-needed $(subst -lhdf5,$$(cat $O/hdf5),$(PKG_LIBS)) \
  -ldl -lpthread -lrt -lm

# Tests are a hundred programs, and take a third of the time with these.
TEST_LD := $(firstword $(foreach l,lld gold,$(if $(shell command -v ld.$l 2>/dev/null),-fuse-ld=$l)))

ISAS = sse2 $(if $(filter x86_64,$(shell uname -m)),avx2 avx512)
ISA_sse2 =
ISA_avx2 = -mavx2 -mfma -mf16c
ISA_avx512 = $(ISA_avx2) -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512

# The CUDA plugin is a shared library that programs load. The emulator for the tests is built from
# the same sources. CUDA=no: neither.
NVCC := $(if $(filter no,$(CUDA)),,$(or $(shell command -v nvcc 2>/dev/null),$(wildcard \
  /usr/local/cuda/bin/nvcc)))
CUDA_INC = $(dir $(realpath $(NVCC)))../include
# sm_80 and sm_90a, and PTX of compute_80 for later GPUs. Kernels that need a fused a*b+c call fmaf.
# GENCODE='-gencode arch=compute_90a,code=sm_90a': in half the time, for H100 and H200 only.
GENCODE = -gencode arch=compute_80,code=[sm_80,compute_80] -gencode arch=compute_90a,code=sm_90a
override NVCCFLAGS += -Ikernels/cuda/ptx -O3 -std=c++17 -fmad=false -lineinfo -Xcompiler -fPIC,-Wall,-Wno-unknown-pragmas $(GENCODE)
CXX = g++
# (fmaf as one instruction where the CPU has it: the same bits)
EMU_ISA := $(if $(shell grep -wm1 fma /proc/cpuinfo 2>/dev/null),-mavx2 -mfma)
# (-g1: functions and lines, which addr2line is asked for, in three quarters of the time)
EMU_FLAGS = -O2 -g1 $(EMU_ISA) -std=c++17 -fPIC -fno-strict-aliasing -ffp-contract=off -fno-math-errno -DPT_EMULATED -D_GNU_SOURCE \
  -Ilibcore -I. -Itests/emu/include -isystem $(CUDA_INC) -Wall -Wextra -Wno-unknown-pragmas -Wno-psabi $(WERROR)
# Misaligned addresses, which a GPU refuses too, and indices out of bounds.
EMU_CHECKS = -fsanitize=alignment,bounds,signed-integer-overflow -fno-sanitize-recover=all

# ---- build -------------------------------------------------------------------
ONCE = kernels/cpu/device.c kernels/cpu/isa.c kernels/cpu/threads.c
PER_ISA = $(filter-out $(ONCE),$(wildcard kernels/cpu/*.c))
# Floors, kernels, and the wings of the programs, in one archive: a program links what it calls.
LIB_SRC = $(wildcard libcore/*/*.c kernels/*.c cmd/*/*.c) $(ONCE)
LIB_OBJ = $(LIB_SRC:%.c=$O/%.o) $(foreach i,$(ISAS),$(PER_ISA:%.c=$O/%.$i.o))
LIB = $O/libpt.a
BINS = $(PROGRAMS:%=$O/%)
CHECK_SRC = $(wildcard tests/unit/*.c tests/mpi/*.c)
TEST_SRC = $(CHECK_SRC) $(wildcard tests/bench/*.c)
CHECKS = $(addprefix $O/tests/,$(notdir $(CHECK_SRC:.c=)))
TESTS = $(addprefix $O/tests/,$(notdir $(TEST_SRC:.c=)))
TEST_LIB = $O/tests/libtest.a
FUZZ_SRC = $(wildcard tests/fuzz/fuzz_*.c)
FUZZERS = $(addprefix $O/tests/,$(notdir $(FUZZ_SRC:.c=)))
FUZZ_OBJ = $O/tests/fuzz/fuzz.o $O/tests/fuzz/hostile.o $O/tests/support/vault_file.o
TEST_OBJ = $(patsubst %.c,$O/%.o,$(filter-out tests/support/io_faults.c,$(wildcard tests/support/*.c)))
# Loaded before the C library, it makes calls fail.
IO_FAULTS = $O/tests/io_faults.so
CUDA_SRC = $(if $(NVCC),$(wildcard kernels/cuda/*.cu))
# LAB=yes: with the kernels that are on trial, for tests/bench/gpu_lab and tests.
TRIAL_SRC = $(if $(NVCC),$(wildcard tests/bench/*.cu))
CUDA_OBJ = $(patsubst %.cu,$O/%.o,$(CUDA_SRC) $(if $(LAB),$(TRIAL_SRC)))
EMU_OBJ = $(patsubst %,$O/emu/%.o,$(basename $(CUDA_SRC) $(TRIAL_SRC) $(wildcard tests/emu/*.cu tests/emu/*.cc)))
CUDA_LIB = $(if $(CUDA_SRC),$O/pt-cuda.so)
EMU_LIB = $(if $(NVCC),$O/emu/pt-cuda.so)

all: programs $(CUDA_LIB)
# Tests and the demo need only these: the CUDA plugin takes minutes to compile.
programs: $(BINS)

$(BINS): $O/%: $O/cmd/%.o $(LIB) kernels/cuda/host.list
	@echo "  LD    $@"
	@$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $(filter-out %.list,$^) $(LDLIBS)

# The archive of HDF5, where it links: Debian's shared library needs thirty others, which can read URLs,
# and the start of a program takes twice as long with them. HDF5=-lhdf5: the shared one.
$O/hdf5: $O/flags
	@for l in $(if $(HDF5),'$(HDF5)','-l:libhdf5.a -lsz' -l:libhdf5.a) -lhdf5; do \
	  echo 'int H5open(void); int main(void) { return H5open(); }' | $(CC) -x c -o /dev/null - \
	  $(subst -lhdf5,$$l,$(PKG_LIBS)) -ldl -lm 2>/dev/null && break; done; echo "$$l" >$@

$(LIB): $(LIB_OBJ) $O/objects | $O/hdf5
$(TEST_LIB): $(TEST_OBJ) $O/objects
$(LIB) $(TEST_LIB):
	@echo "  AR    $@"
	@rm -f $@ && ar rcs $@ $(filter %.o,$^)

# Changes when a source is added or deleted; the archives must not keep the object of a deleted one.
$O/objects: FORCE
	@mkdir -p $O
	@echo '$(LIB_OBJ) $(TEST_OBJ)' | cmp -s - $@ || echo '$(LIB_OBJ) $(TEST_OBJ)' >$@

# Only programs, wings and tests find the headers of wings.
$O/cmd/%.o $O/tests/%.o: private override CPPFLAGS += -Icmd
$O/%.o: %.c $O/flags
	@mkdir -p $(@D)
	@echo "  CC    $<"
	@$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<

# (the assembler reads these, of which the compiler does not know)
$O/libcore/draw/page.o $O/cmd/report/page.o $O/cmd/check/report_page.o: $(wildcard share/report/*)
$O/cmd/logs/formats.o: share/logs/trainers
$O/cmd/table/table.o: share/python/read_table.py

define isa_rule
$O/%.$1.o: %.c $O/flags
	@mkdir -p $$(@D)
	@echo "  CC    $$< ($1)"
	@$$(CC) $$(CPPFLAGS) $$(CFLAGS) -O3 $$(ISA_$1) -DISA=$1 -MMD -MP -c -o $$@ $$<
endef
$(foreach i,$(ISAS),$(eval $(call isa_rule,$i)))

# Test programs are in one directory, whatever the directory of their source.
define test_rule
$O/tests/$(notdir $(1:.c=)): $O/$(1:.c=.o)
endef
$(foreach s,$(TEST_SRC) $(FUZZ_SRC),$(eval $(call test_rule,$s)))

$(IO_FAULTS): tests/support/io_faults.c $O/flags
	@mkdir -p $(@D)
	@echo "  CC    $<"
	@$(CC) $(CPPFLAGS) -O2 -g -std=c11 -Wall -Wextra -fPIC -shared -o $@ $<

$O/tests/test_probe: private override LDFLAGS += -Wl,--wrap=H5Fopen
, := ,
$O/tests/test_reduction: private override LDFLAGS += $(addprefix -Wl$(,)--wrap=,sum_begin sum_end reduce_end comm_send comm_recv comm_shared_open comm_shared_close)
$(TESTS): $(TEST_LIB) $(LIB) kernels/cuda/host.list
	@echo "  LD    $@"
	@$(CC) $(CFLAGS) $(TEST_LD) $(LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) -lcmocka $(LDLIBS)

# All tests of kernels in one program, for a GPU, where each start takes a second.
GPU_KERNELS := $(shell grep -l '^ \* device: .*cuda' $(wildcard tests/unit/test_kernels_*.c))
KERNELS_OBJ = $(GPU_KERNELS:tests/unit/%.c=$O/tests/kernels/%.o)
KERNELS_TEST = $O/tests/test_kernels
$(KERNELS_OBJ): $O/tests/kernels/%.o: $O/tests/unit/%.o
	@mkdir -p $(@D)
	@objcopy --redefine-sym main=$* $< $@
$O/tests/kernel_tests.o: tests/tools/kernel_tests.c $(GPU_KERNELS) $O/flags
	@mkdir -p $(@D)
	@echo "  CC    $<"
	@$(CC) $(CPPFLAGS) '-DPROGRAMS=$(patsubst tests/unit/%.c,PROGRAM(%),$(GPU_KERNELS))' $(CFLAGS) -MMD -MP -c -o $@ $<
$(KERNELS_TEST): $O/tests/kernel_tests.o $(KERNELS_OBJ) $(TEST_LIB) $(LIB) kernels/cuda/host.list
	@echo "  LD    $@"
	@$(CC) $(CFLAGS) $(TEST_LD) $(LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) -lcmocka $(LDLIBS)

$(FUZZERS): $(FUZZ_OBJ) $(LIB)
	@echo "  LD    $@"
	@$(CC) $(CFLAGS) -fsanitize=fuzzer -Wl,--wrap=h5_probe,--wrap=silence_messages \
	  $(LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(LDLIBS)

$O/%.o: %.cu $O/flags-cuda
	@mkdir -p $(@D)
	@echo "  NVCC  $<"
	@$(NVCC) -Ilibcore -I. $(NVCCFLAGS) -MMD -MP -MF $(@:.o=.d) -c -o $@ $<

# The machine code of kernels with wgmma is checked before it is linked. pt-cuda.so.checked has the result, and
# tests/bench/gpu_machine packs no library that was not checked.
HOPPER_OBJ = $(filter %/attn_hopper_fwd.o %/attn_hopper_bwd.o %/matmul.o %/groups_hopper.o %/matmul_hopper.o,$(CUDA_OBJ))

$O/pt-cuda.so: $(CUDA_OBJ)
	@rm -f $@.checked
	@if [ -z "$(findstring 90a,$(NVCCFLAGS))" ]; then \
	  echo "no machine code for sm_90a" >$@.new; \
	elif tool=$$(tests/tools/find_cuobjdump $O) && command -v python3 >/dev/null; then \
	  echo "  CHECK machine code"; CUOBJDUMP=$$tool tests/tools/machine_code $(HOPPER_OBJ) >$@.new; rc=$$?; \
	  cat $@.new; [ $$rc -eq 0 ] || exit 1; \
	  $$tool --version | sed -n 's/^.*, V/cuobjdump /p' >>$@.new; \
	else \
	  echo "machine code NOT checked: cuobjdump or python3 is missing" >$@.new; \
	  echo "$@: machine code NOT checked: cuobjdump or python3 is missing; make deps installs it" >&2; \
	fi
	@echo "  LD    $@"
	@$(NVCC) $(NVCCFLAGS) -shared -cudart static -Xlinker -rpath,$(realpath $(CUDA_INC)/../lib64) \
	  -o $@ $(filter %.o,$^) -lcublasLt
	@{ cat $@.new; "$(dir $(realpath $(NVCC)))ptxas" --version | sed -n 's/^.*, V/ptxas /p'; cksum <$@; } >$@.checked; rm $@.new

$O/emu/tests/emu/%.o: override EMU_FLAGS += -O3
# Kernels whose blocks share counters or sums: each access calls tests/emu/races.cc.
$(patsubst %,$O/emu/%.o,$(addprefix kernels/cuda/,attn_hopper_fwd attn_hopper_bwd grid sums) tests/emu/tests_races): \
  override EMU_FLAGS += -fsanitize=thread --param tsan-instrument-func-entry-exit=0
$O/emu/%.o: %.cu $O/flags-cuda
	@mkdir -p $(@D)
	@echo "  CXX   $<"
	@$(CXX) -x c++ $(EMU_FLAGS) $(EMU_CHECKS) -MMD -MP -c -o $@ $<

$O/emu/%.o: %.cc $O/flags-cuda
	@mkdir -p $(@D)
	@echo "  CXX   $<"
	@$(CXX) $(EMU_FLAGS) -MMD -MP -c -o $@ $<

$O/emu/pt-cuda.so: $(EMU_OBJ)
	@echo "  LD    $@"
	@mkdir -p $(@D)
	@$(CXX) -shared $(EMU_CHECKS) -Wl,-Bsymbolic -o $@ $^ -lpthread -ldl

# Everything depends on this file, which changes when the flags change.
FLAGS = $(CC) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS) $(HDF5)
$O/flags: FORCE
	@pkg-config --exists $(PKGS) || { echo "missing: $(PKGS); run make deps" >&2; exit 1; }
	@mkdir -p $O
	@echo '$(FLAGS)' | cmp -s - $@ || echo '$(FLAGS)' >$@

$O/flags-cuda: FORCE
	@mkdir -p $O
	@echo '$(NVCC) $(NVCCFLAGS) $(CXX) $(EMU_FLAGS) $(EMU_CHECKS)' | cmp -s - $@ || \
	  echo '$(NVCC) $(NVCCFLAGS) $(CXX) $(EMU_FLAGS) $(EMU_CHECKS)' >$@

-include $(LIB_OBJ:.o=.d) $O/tests/kernel_tests.d $(CUDA_OBJ:.o=.d) $(EMU_OBJ:.o=.d) $(PROGRAMS:%=$O/cmd/%.d) $(TEST_OBJ:.o=.d) $(TEST_SRC:%.c=$O/%.d) \
  $(FUZZ_OBJ:.o=.d) $(FUZZ_SRC:%.c=$O/%.d)

# For clangd, which looks for it in build/: the command of each source. A source that is compiled for several
# instruction sets has the command of the first one.
SOURCES = $(wildcard cmd/*.c) $(LIB_SRC) $(PER_ISA) $(TEST_SRC) $(FUZZ_SRC) $(wildcard tests/support/*.c) \
  $(patsubst $O/%.o,%.c,$(FUZZ_OBJ))
compile_commands.json: $O/compile_commands.json
$O/compile_commands.json: $O/flags FORCE
	@echo "  GEN   $@"
	@next='['; for f in $(SOURCES); do \
	  case $$f in cmd/*|tests/*) more=-Icmd ;; kernels/cpu/*) more=-DISA=$(firstword $(ISAS)) ;; *) more= ;; esac; \
	  printf '%s{"directory": "%s", "file": "%s", "command": "%s"}\n' "$$next" '$(CURDIR)' $$f \
	    '$(subst ",\",$(subst \,\\,$(CC) $(CPPFLAGS) $(CFLAGS)))'" $$more -c $$f"; next=,; done >$@; echo ']' >>$@

# ---- targets -------------------------------------------------------------
# A target `X` installs missing packages, then runs `X-now` in a new make, which finds them.
JOBS = -j$(shell nproc 2>/dev/null || echo 2)
NEEDS_demo = build demo
NEEDS_convergence = build demo
NEEDS_check = build check
NEEDS_check-long = build check long
NEEDS_check-gpu = build check
NEEDS_san = build check
NEEDS_bench = build check
NEEDS_calibrate = build check long
NEEDS_bench-gpu = build check
NEEDS_lint = build check lint
NEEDS_coverage = build check
NEEDS_fuzz = build fuzz
NEEDS_mutants = build check long
NEEDS_public-bugs = build check long
NEEDS_wheel = build wheel
NEEDS_wheel-cuda = build wheel cuda
NEEDS_deb = build deb
NEEDS_pack-gpu = build check
demo convergence check check-long check-gpu san coverage lint bench bench-gpu calibrate fuzz mutants public-bugs wheel wheel-cuda deb pack-gpu:
	@[ "$(DEPS)" = no ] || share/deps $(NEEDS_$@)
	@$(MAKE) --no-print-directory $(JOBS) $(if $(filter %-gpu,$@),LAB=yes) $@-now

deps:
	@[ "$(DEPS)" = no ] || share/deps build check demo $(if $(NVCC),cuda)
	@[ "$(DEPS)" = no ] || $(if $(NVCC),tests/tools/find_cuobjdump $O --fetch >/dev/null ||) true

demo-now: programs
	@PATH="$(abspath $O):$$PATH" share/demo

convergence-now: programs
	@PATH="$(abspath $O):$$PATH" share/recipes/convergence

check-now: programs $(CHECKS) $(IO_FAULTS) $(EMU_LIB)
	@tests/run $O

check-long-now: programs $(TESTS) $(KERNELS_TEST) $(IO_FAULTS) $(EMU_LIB)
	@LONG=yes tests/run $O

# PATTERN=...: only tests whose name matches; PART=1/3: the first third;
# SANITIZER=memcheck|racecheck|synccheck|initcheck: under that tool of compute-sanitizer.
check-gpu-now: all $(CHECKS) $(KERNELS_TEST)
	@[ -n "$(CUDA_LIB)" ] || { echo "make check-gpu: there is no nvcc" >&2; exit 1; }
	@GPU=yes tests/run $O $(PATTERN)

# Without leak detection: MPI and HDF5 do not free their memory at exit.
san-now:
	@$(MAKE) --no-print-directory O=build-san SANITIZE=address,undefined \
	  CFLAGS='-O1 -g -fno-sanitize-recover=undefined' build-san-tests
build-lint-tests: $(TESTS) $(KERNELS_TEST) $(EMU_LIB)
build-san-tests: programs $(CHECKS) $(IO_FAULTS) $(EMU_LIB)
	@ASAN_OPTIONS=detect_leaks=0 tests/run $O

# PATTERN=...: what these tests execute.
coverage-now:
	@$(MAKE) --no-print-directory O=build-coverage CFLAGS='-O1 -g --coverage' build-coverage-tests
build-coverage-tests: programs $(CHECKS) $(IO_FAULTS) $(EMU_LIB)
	@find $O -name '*.gcda' -delete
	@tests/run $O $(PATTERN) || echo 'make coverage: the figures are without what failed tests did not reach'
	@tests/tools/coverage $O

# libFuzzer is clang's, whose OpenMP has another runtime: the kernels run without threads.
fuzz-now: programs
	@ls "$$(clang -print-runtime-dir)"/libclang_rt.fuzzer* >/dev/null 2>&1 || { echo \
	  "make fuzz: clang's libFuzzer is missing; Debian's packages for it: share/deps fuzz" >&2; exit 1; }
	@$(MAKE) --no-print-directory O=build-fuzz CC=clang OPENMP=-fopenmp-simd \
	  SANITIZE=fuzzer-no-link,address,undefined \
	  CFLAGS='-O1 -g -fno-sanitize-recover=undefined -Wno-pass-failed' build-fuzzers
	@tests/fuzz/run build-fuzz $O
build-fuzzers: $(FUZZERS)

# PATTERN=...: only mutants whose name matches.
mutants-now: programs $(CHECKS) $(IO_FAULTS)
	@tests/tools/mutate $O $(PATTERN)

# Bugs that other trainers had: two steps, and pt-compare --locate. Writes share/museum.md, unless there is a
# PATTERN as above.
public-bugs-now: programs
	@tests/tools/museum $O $(PATTERN)

bench-now: programs $(TESTS)
	@tests/bench/run $O

# RUNS=DIRECTORY: keeps the runs there, and makes only those that are missing. SEEDS=20 ROUND_SEEDS=5
# BUG_SEEDS=5: few of them.
calibrate-now: programs $O/tests/calibrate_verdicts
	@tests/bench/calibrate $O $(RUNS)

# ROWS=...: the file named in tests/bench/validate_plan.
validate-plan: programs
	@tests/bench/validate_plan $O $(ROWS)

validate-plan-here: programs
	@tests/bench/validate_plan_here $O

validate-titan: programs
	@tests/bench/validate_titan $O

# ITEMS=...: only these. On a machine without compilers: tests/bench/gpu_machine; with little time:
# tests/bench/gpu_lab.
bench-gpu-now: all $(TESTS) $(KERNELS_TEST)
	@[ -n "$(CUDA_LIB)" ] || { echo "make bench-gpu: there is no nvcc" >&2; exit 1; }
	@tests/bench/gpu $O $(ITEMS)

pack-gpu-now: all $(TESTS) $(KERNELS_TEST)
	@tests/bench/gpu_machine $O

lint-now: programs
	@tests/lint $O

generate: programs
	man/generate $O

# ---- install -----------------------------------------------------------------------
ROOT = $(DESTDIR)$(PREFIX)
BIN = $(ROOT)/bin
SHARE = $(ROOT)/share
RECIPES = $(filter-out functions hosts no_gpu.py,$(notdir $(wildcard share/recipes/*)))
# (programs look for it in ../lib/pt)
LIBRARIES = $(ROOT)/lib/pt
INSTALLED = $(PROGRAMS:%=$(BIN)/%) $(SHARE)/pt $(LIBRARIES) \
  $(foreach m,$(notdir $(wildcard man/*.[1-9])),$(SHARE)/man/man$(patsubst .%,%,$(suffix $m))/$m) \
  $(PROGRAMS:%=$(SHARE)/bash-completion/completions/%) \
  $(SHARE)/zsh/site-functions/_pt-programs \
  $(PROGRAMS:%=$(SHARE)/fish/vendor_completions.d/%.fish)

# Parents come first. `install` writes the names of those that it makes to share/pt/directories.
DIRECTORIES = bin $(if $(CUDA_LIB),lib lib/pt) share $(addprefix share/,pt $(addprefix pt/,presets logs recipes jobs python python/pt action action/examples) \
  man man/man1 man/man5 man/man7 bash-completion bash-completion/completions zsh zsh/site-functions \
  fish fish/vendor_completions.d)

install_for = sed "s/@PROGRAMS@/$1/" completions/pt.$2 | install -m 644 /dev/stdin

install: all
	made=; for d in $(DIRECTORIES); do [ -d $(ROOT)/$$d ] || { install -d $(ROOT)/$$d && made="$$made $$d"; } || exit; done; \
	  printf '%s\n' $$made >>$(SHARE)/pt/directories && chmod 644 $(SHARE)/pt/directories
	install $(BINS) $(BIN)
	$(if $(CUDA_LIB),install $(CUDA_LIB) $(LIBRARIES))
	install -m 644 share/presets/* $(SHARE)/pt/presets
	install -m 644 share/logs/* $(SHARE)/pt/logs
	install -m 644 share/museum.md $(SHARE)/pt
	install $(RECIPES:%=share/recipes/%) $(SHARE)/pt/recipes
	install -m 644 share/recipes/functions share/recipes/hosts share/recipes/no_gpu.py $(SHARE)/pt/recipes
	install share/jobs/* $(SHARE)/pt/jobs
	install -m 644 share/python/pt/*.py $(SHARE)/pt/python/pt
	install share/action/judge $(SHARE)/pt/action
	install -m 644 share/action/action.yml $(SHARE)/pt/action
	install -m 644 share/action/examples/* $(SHARE)/pt/action/examples
	for s in 1 5 7; do install -m 644 man/*.$$s $(SHARE)/man/man$$s; done
	for p in $(PROGRAMS); do \
	  $(call install_for,$$p,bash) $(SHARE)/bash-completion/completions/$$p; \
	  $(call install_for,$$p,fish) $(SHARE)/fish/vendor_completions.d/$$p.fish; done
	$(call install_for,$(PROGRAMS),zsh) $(SHARE)/zsh/site-functions/_pt-programs

uninstall:
	made=$$(sort -ru $(SHARE)/pt/directories 2>/dev/null); rm -rf $(INSTALLED); \
	  for d in $$made; do [ ! -d $(ROOT)/$$d ] || rmdir --ignore-fail-on-non-empty $(ROOT)/$$d; done

# ---- packages ------------------------------------------------------------------------
# What `make install` installs, in a directory of its own. The programs are built already.
STAGED = env -u MAKEFLAGS -u MAKELEVEL $(MAKE) --no-print-directory -s -o all CUDA=no O=$O install

# A wheel for pip, with all libraries except the C library and MPI in the programs: for any Linux.
wheel-now: programs
	@rm -rf $O/wheel/root && mkdir -p $O/wheel
	@$(STAGED) DESTDIR=$(abspath $O/wheel/root) PREFIX=
	@share/python/make_wheel $O $O/wheel/root $O/wheel

# A wheel of the CUDA plugin, which needs the first one, and cuBLASLt and NCCL from NVIDIA's wheels.
wheel-cuda-now: all
	@[ -n "$(CUDA_LIB)" ] || { echo "make wheel-cuda: nvcc is missing" >&2; exit 1; }
	@NVCC=$(NVCC) share/python/make_wheel --cuda $O $O/wheel

# A package for the Debian of this machine, which needs the libraries that it links.
deb-now: programs
	@rm -rf $O/deb/root && mkdir -p $O/deb
	@$(STAGED) DESTDIR=$(abspath $O/deb/root) PREFIX=/usr
	@share/make_deb $O/deb

# A build leaves the file `flags`, a recipe the file .pt-recipe. Directories without them are kept.
clean:
	@for d in $O build-san build-lint build-fuzz build-coverage demo convergence; do \
	  if [ -e "$$d/flags" ] || [ -e "$$d/.pt-recipe" ]; then echo "rm -rf $$d" && rm -rf "$$d"; \
	  elif [ -e "$$d" ]; then echo "make clean: \"$$d\" is kept: neither make nor a recipe made it" >&2; fi; done

help:
	@echo 'all        build the programs into $O/ (the default)'
	@echo 'demo       the main job, from text to a compared model, command by command;'
	@echo '           DEMO_STEPS=60 make demo: a short one'
	@echo 'convergence  compare parallel runs with a control set, in one table; SIZE=medium: for a night;'
	@echo '           STEPS=20 SEEDS=1 make convergence: a short one'
	@echo 'check      run the tests;  check-long: also the long ones;  san: under sanitizers'
	@echo 'check-gpu  run the GPU tests on this GPU; SANITIZER=memcheck: under compute-sanitizer'
	@echo 'coverage   run the tests, and print how many lines they execute, and the ten files with the fewest'
	@echo 'fuzz       fuzz every parser of untrusted input, FUZZ_SECONDS=60 each'
	@echo 'mutants    plant bugs of real systems in a copy: does a test detect each?'
	@echo 'public-bugs  plant bugs that other trainers had: which tensor does pt-compare --locate name?'
	@echo '           Writes share/museum.md; PATTERN=...: only bugs whose name matches, without the page'
	@echo 'bench      measure speed, relative to limits measured in the same run'
	@echo 'validate-plan  compare predicted step times with published ones (ROWS=: a file)'
	@echo 'validate-titan  the same with the figures of torchtitan'
	@echo 'validate-plan-here  the same with runs of pt-train on this machine'
	@echo 'bench-gpu  measure speed on this GPU, beside PyTorch; ITEMS="attn:exact attn:torch": only these'
	@echo 'pack-gpu   write .gpu: programs and tests for a GPU machine without a compiler; tests/bench/gpu_machine explains it'
	@echo 'calibrate  train 1,500 small models, some with planted bugs: how often are verdicts wrong?'
	@echo 'lint       check warnings, format, manual pages, floors, generated files'
	@echo 'compile_commands.json  write $O/compile_commands.json, which clangd reads'
	@echo 'generate   regenerate the option lists of manual pages from the option tables'
	@echo 'clean      remove build outputs'
	@echo 'install    install into PREFIX=$(PREFIX), below DESTDIR;  uninstall: remove it'
	@echo '           With nvcc, all and install compile CUDA kernels for minutes. CUDA=no: without them;'
	@echo "           GENCODE='-gencode arch=compute_90a,code=sm_90a': for H100 and H200 only, in half the time"
	@echo 'wheel      make $O/wheel/pt_train-*.whl for pip: any Linux with glibc 2.28, without root'
	@echo 'wheel-cuda  make $O/wheel/pt_train_cuda-*.whl: the CUDA plugin; it needs the wheel of the same version'
	@echo 'deb        make $O/deb/pt_*.deb for the Debian of this machine'
	@echo 'deps       install missing packages (Debian); DEPS=no: never'

.PHONY: all programs compile_commands.json demo convergence check check-long check-gpu san coverage lint bench bench-gpu calibrate fuzz mutants public-bugs wheel wheel-cuda deb pack-gpu \
  demo-now convergence-now check-now check-long-now check-gpu-now san-now coverage-now lint-now bench-now \
  bench-gpu-now fuzz-now mutants-now public-bugs-now wheel-now wheel-cuda-now deb-now pack-gpu-now build-fuzzers build-san-tests build-lint-tests build-coverage-tests \
  deps validate-plan validate-plan-here validate-titan generate install uninstall clean help FORCE
