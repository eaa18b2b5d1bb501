#!/usr/bin/env bats
# Memory of the checks: --referee and --check-sums need at most a MiB per rank.
load helpers
export SETUP=make_shard

# A library that counts the bytes of the heap and of anonymous maps; each rank appends its peak to `peaks`.
make_counter() {
	cat >peak.c <<-'END'
		#define _GNU_SOURCE
		#include <dlfcn.h>
		#include <errno.h>
		#include <malloc.h>
		#include <stdatomic.h>
		#include <stdio.h>
		#include <stdlib.h>
		#include <sys/mman.h>
		void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
		void *__libc_memalign(size_t, size_t);
		void __libc_free(void *);
		static atomic_llong now, peak;
		static void *count(void *p, long long n)
		{
			long long at = (now += n), was = peak;
			while (at > was && !atomic_compare_exchange_weak(&peak, &was, at))
				;
			return p;
		}
		static void *on(void *p) { return count(p, p ? (long long)malloc_usable_size(p) : 0); }
		static void off(void *p) { now -= p ? (long long)malloc_usable_size(p) : 0; }
		void *malloc(size_t n) { return on(__libc_malloc(n)); }
		void *calloc(size_t n, size_t m) { return on(__libc_calloc(n, m)); }
		void *realloc(void *p, size_t n) { off(p); return on(__libc_realloc(p, n)); }
		void *memalign(size_t a, size_t n) { return on(__libc_memalign(a, n)); }
		void *aligned_alloc(size_t a, size_t n) { return memalign(a, n); }
		int posix_memalign(void **p, size_t a, size_t n) { return (*p = memalign(a, n)) ? 0 : ENOMEM; }
		void free(void *p) { off(p); __libc_free(p); }
		void *mmap(void *p, size_t n, int prot, int flags, int fd, off_t from)
		{
			static void *(*next)(void *, size_t, int, int, int, off_t);
			if (!next)
				*(void **)&next = dlsym(RTLD_NEXT, "mmap");
			void *x = next(p, n, prot, flags, fd, from);
			return count(x, x != MAP_FAILED && flags & MAP_ANONYMOUS ? (long long)n : 0);
		}
		__attribute__((destructor)) static void at_end(void)
		{
			FILE *f = getenv("PEAKS") ? fopen(getenv("PEAKS"), "a") : NULL;
			if (f)
				fprintf(f, "%s %lld\n", getenv("PMI_RANK"), (long long)peak), fclose(f);
		}
	END
	cc -O1 -shared -fPIC -o peak.so peak.c -ldl
}

MODEL=(--layers 4 --dim 128 --heads 4 -T 64 -m 2 -n 4 --log-every 4 --eval-every 0 --no-ckpt)

# Writes the peak of each rank to FILE, in the order of ranks. (UCX would replace mmap().)
peaks_of() { # FILE RANKS OPTION...
	rm -f "$1.raw"
	PEAKS=$PWD/$1.raw mpiexec -n "$2" env UCX_MEM_EVENTS=n LD_PRELOAD="$PWD/peak.so" pt-train "${TINY[@]}" "${MODEL[@]}" --overwrite -o run \
		"${@:3}" >/dev/null
	grep -E '^[0-9]+ ' "$1.raw" | sort -n >"$1"
	[ "$(wc -l <"$1")" -eq "$2" ]
}

@test "--referee 1 --check-sums yes: at most a MiB more per rank than without" {
	! sanitized || skip 'the sanitizer has its own heap'
	local layout
	make_counter
	for layout in '2 --dp 2 -b 16' '2 --fsdp 2 -b 8' '4 --tp 2 --dp 2 -b 8' '4 --pp 2 --dp 2 -b 16'; do
		# shellcheck disable=SC2086 # one word each
		peaks_of without $layout
		# shellcheck disable=SC2086
		peaks_of with $layout --referee 1 --check-sums yes
		grep -q ' audited=4 mismatches=0' run/journal.txt
		paste -d' ' without with | awk -v layout="$layout" '
			{ more = $4 - $2; printf "%s, rank %d: %d bytes, with checks %d more\n", layout, $1, $2, more }
			more > 2^20 { high = 1 }
			$2 < 2^24 { low = 1 } # the counter does not count
			END { exit high || low }'
	done
}
