#!/usr/bin/env bats
# The wheel that `make wheel` makes, here linked against this machine's C library, which needs no network.
load helpers

top=$BATS_TEST_DIRNAME/../..

setup() {
	cd "$BATS_TEST_TMPDIR" || exit 1
	command -v python3 >/dev/null || skip 'no python3'
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
	diff <(cd root && find share bin -type f ! -path share/pt/directories | sort) \
		<(cd "$data" && find data scripts -type f | sed 's,^data/,,; s,^scripts,bin,' | sort)
	diff -r -x directories root/share "$data/data/share"
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
