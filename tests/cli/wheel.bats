#!/usr/bin/env bats
# The wheel that `make wheel` makes, here linked against this machine's C library, which needs no network.
load helpers

top=$BATS_TEST_DIRNAME/../..

setup() {
	cd "$BATS_TEST_TMPDIR" || exit 1
	command -v python3 >/dev/null || skip 'no python3'
}

stage() {
	local option=
	[ -e "$BUILD/pt-cuda.so" ] || option=CUDA=no
	env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS make -s -C "$top" -o all O="$BUILD" DEPS=no $option \
		install DESTDIR="$PWD/root" PREFIX= >/dev/null
	for a in libaec.a libsz.a libjansson.a; do
		[ "$(gcc -print-file-name=$a)" != $a ] || skip "no $a"
	done
}

@test "the wheel has what make install installs, and licenses; its programs need only the C library" {
	nm "$BUILD/libpt.a" 2>/dev/null | grep -q __asan_ && skip 'built with a sanitizer'
	stage
	"$top/share/python/make_wheel" --here "$BUILD" root out
	wheel=$(echo out/pt_train-*-py3-none-linux_x86_64.whl)
	[ "$(stat -c %s "$wheel")" -le 25000000 ]
	python3 - "$wheel" <<-'END'
		import base64, hashlib, sys, zipfile
		z = zipfile.ZipFile(sys.argv[1])
		z.extractall("in")
		record = [n for n in z.namelist() if n.endswith("/RECORD")][0]
		rows = [r.split(",") for r in z.read(record).decode().splitlines()]
		assert sorted(r[0] for r in rows) == sorted(z.namelist()) == sorted(set(z.namelist()))
		for name, digest, size in rows[:-1]:
		    hashed = base64.urlsafe_b64encode(hashlib.sha256(z.read(name)).digest()).rstrip(b"=").decode()
		    assert (digest, int(size)) == ("sha256=" + hashed, len(z.read(name))), name
		executable = [n for n in z.namelist() if z.getinfo(n).external_attr >> 16 & 0o111]
		assert all("/scripts/pt-" in n or "/share/pt/" in n for n in executable), executable
		assert sum("/scripts/" in n for n in executable) == sum("/scripts/" in n for n in z.namelist()) >= 8
	END
	data=$(echo in/*.data) info=$(echo in/*.dist-info)
	diff <(cd root && find share bin -type f ! -path share/pt/directories ! -path 'share/pt/python/*' | sort) \
		<(cd "$data" && find data scripts -type f | sed 's,^data/,,; s,^scripts,bin,' | sort)
	diff -r -x directories -x python root/share "$data/data/share"
	diff -r root/share/pt/python/pt in/pt
	for l in libaec libhdf5 libjansson libpcre2 libutf8proc libxxhash libzstd zlib1g; do
		[ -s "$info/licenses/LICENSE.$l" ]
		grep -qx "License-File: LICENSE.$l" "$info/METADATA"
	done
	cmp "$info/licenses/LICENSE" "$top/LICENSE"
	# as pip installs them
	mkdir env
	cp -r "$data/data/share" env
	cp -r "$data/scripts" env/bin
	chmod +x env/bin/*
	for p in env/bin/*; do
		[ -z "$(ldd "$p" | awk '{ print $1 }' | grep -vE '/ld-linux|^(linux-vdso|libc|libm|libdl|libpthread|librt)\.so')" ]
		"$p" --version >/dev/null
		# Of the C library's variables, only environ has a second name, which make_wheel defines.
		[ -z "$(readelf -rW "$p" | awk '/COPY/ { print $5 }' | grep -vE '^(_*environ|opt(arg|err|ind|opt)|std(in|out|err))@')" ]
	done
	env/bin/pt-train -p shakespeare-char --print-config | grep -qx 'dim = 384'
	make_shard
	tiny -n 2 -o one >/dev/null
	env/bin/pt-train "${TINY[@]}" -n 2 -o two >/dev/null
	same one two
	# equal contents, equal bytes
	cp "$wheel" first.whl
	"$top/share/python/make_wheel" --here "$BUILD" root out
	cmp "$wheel" first.whl
}

library() { # FILE SONAME OPTION... <SOURCE
	mkdir -p "$(dirname "$1")"
	gcc -x c -shared -fPIC -Wl,--no-as-needed -Wl,-soname,"$2" -o "$1" - "${@:3}"
}

@test "the wheel of the CUDA plugin; the plugin gets cuBLASLt and NCCL from the wheels in its environment" {
	packages='an [env]*/lib/python3.9/site-packages' # with what glob() would match
	echo 'int cublasLtOfTest(void) { return 0; }' |
		library "$packages/nvidia/cu13/lib/libcublasLt.so.13" libcublasLt.so.13
	echo 'int cublasLtOfTest(void); int version(void) { return cublasLtOfTest(); }' |
		library in/pt-cuda.so pt-cuda.so "-L$packages/nvidia/cu13/lib" -l:libcublasLt.so.13
	"$top/share/python/make_wheel" --here --cuda in out
	version=$(pt-train --version | awk 'NR == 1 { print $2 }')
	python3 -m zipfile -e out/pt_train_cuda-"$version"-py3-none-linux_x86_64.whl wheel
	cmp in/pt-cuda.so wheel/*.data/data/lib/pt/pt-cuda.so
	for line in "Requires-Dist: pt-train ==$version" 'Requires-Dist: nvidia-cublas >=13,<14'; do
		grep -qx "$line" wheel/*.dist-info/METADATA
	done
	mkdir 'an [env]*/bin'
	cp "$BUILD/pt-train" "$BUILD/pt-collbench" 'an [env]*/bin'
	cp -r wheel/*.data/data/lib 'an [env]*'
	unset PT_CUDA PT_NCCL LD_LIBRARY_PATH
	reports 1 'pt-cuda.so is not the CUDA plugin of pt' 'an [env]*/bin/pt-collbench' --device cuda
	mv "$packages/nvidia/cu13" .
	reports 1 'cannot open the CUDA plugin of pt: ' 'an [env]*/bin/pt-collbench' --device cuda
	[ -e "$BUILD/emu/pt-cuda.so" ] || return 0
	echo 'int x;' | library "$packages/nvidia/nccl/lib/libnccl.so.2" libnccl.so.2
	make_shard
	cp "$BUILD/emu/pt-cuda.so" 'an [env]*/lib/pt'
	'an [env]*/bin/pt-train' "${TINY[@]}" -n 1 --device cuda -o one >/dev/null
	export PT_CUDA=$BUILD/emu/pt-cuda.so
	reports 1 'site-packages/nvidia/nccl/lib/libnccl.so.2 has no function nccl' mpiexec -n 2 \
		"$top/tests/tools/nccl_rank" 'an [env]*/bin/pt-train' "${TINY[@]}" --dim 32 -n 1 --device cuda --comm nccl
}
