# pt: small programs that train language models in parallel, and prove the parallel run
# right. `make` builds, `make check` tests, `make demo` shows; `make help` tells the rest.

PREFIX = /usr/local
O = build
CC = gcc
CFLAGS = -O2 -g
DEPS = yes

PROGRAMS = $(notdir $(basename $(wildcard cmd/pt-*.c)))
FLOORS = base h5 comm data ckpt run parallel model train compare

# ---- flags --------------------------------------------------------------------------
PKGS = hdf5-serial mpich libxxhash
WARN = -Wall -Wextra -Wpedantic -Wshadow -Wvla -Wmissing-prototypes -Wstrict-prototypes \
  -Wconversion -Wno-sign-conversion -Wno-psabi -Wno-missing-field-initializers -Wundef -Wwrite-strings
# OpenMP is compiled but not linked: kernels/cpu/threads.c is its runtime.
override CPPFLAGS += -fopenmp -D_GNU_SOURCE -Ilibcore -I. $(shell pkg-config --cflags $(PKGS))
# Contraction of a*b+c is pinned, for the sake of equal bits.
override CFLAGS += -std=c11 -ffp-contract=off -fno-math-errno -fno-trapping-math \
  $(WARN) $(WERROR) $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-omit-frame-pointer)
LDLIBS = -Wl,--as-needed $(shell pkg-config --libs $(PKGS)) -ldl -lpthread -lm

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
TESTS = $(patsubst tests/%.c,$O/tests/%,$(wildcard tests/test_*.c tests/ranks_*.c))
# What tests share; a test links what it uses of it.
TEST_OBJ = $(patsubst %.c,$O/%.o,$(filter-out tests/test_% tests/ranks_%,$(wildcard tests/*.c)))
TEST_LIB = $O/tests/libtest.a

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

# Other flags are another build: everything depends on this file, which changes with them.
$O/flags: FORCE
	@mkdir -p $O
	@echo '$(CC) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS)' | cmp -s - $@ || \
	  echo '$(CC) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS)' >$@

-include $(LIB_OBJ:.o=.d) $(patsubst %,$O/cmd/%.d,$(PROGRAMS)) $(TESTS:=.d) $(TEST_OBJ:.o=.d)

tests: all $(TESTS)

check: tests
	tests/run $O

clean:
	rm -rf $O

.PHONY: all tests check clean FORCE
