#!/usr/bin/env bats
# make install and uninstall, below the test's own folder, from what is built already.
load helpers

top=$BATS_TEST_DIRNAME/../..

# `-o all`: whatever flags it was built with, it is not built again; and the CUDA plugin is installed
# where it was built.
pt_make() { # TARGET VARIABLE...
	[ -e "$BUILD/pt-cuda.so" ] || set -- "$@" CUDA=no
	env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS make -s -C "$top" -o all O="$BUILD" DEPS=no "$@"
}

# What is installed, as paths below the prefix.
want() {
	for p in "$top"/cmd/pt-*.c; do
		p=$(basename "$p" .c)
		echo "bin/$p"
		echo "share/bash-completion/completions/$p"
		echo "share/fish/vendor_completions.d/$p.fish"
	done
	echo share/zsh/site-functions/_pt-programs
	for m in "$top"/man/*.[1-9]; do
		echo "share/man/man${m##*.}/$(basename "$m")"
	done
	[ ! -e "$BUILD/pt-cuda.so" ] || echo lib/pt/pt-cuda.so
	for p in "$top"/share/presets/*; do
		echo "share/pt/presets/$(basename "$p")"
	done
	for p in "$top"/share/logs/*; do
		echo "share/pt/logs/$(basename "$p")"
	done
	for p in "$top"/share/recipes/*; do
		echo "share/pt/recipes/$(basename "$p")"
	done
	for p in "$top"/share/jobs/*; do
		echo "share/pt/jobs/$(basename "$p")"
	done
	(cd "$top/share" && printf 'share/pt/%s\n' python/pt/*.py action/{action.yml,judge,examples/*})
	echo share/pt/museum.md
	echo share/pt/directories
}

@test "install: every program, page, completion and preset, with sane modes" {
	umask 077
	pt_make install PREFIX="$PWD/opt"
	diff <(want | sort) <(cd opt && find . -type f | sed 's,^\./,,' | sort)
	[ -z "$(find opt/bin -type f ! -perm 755)" ]
	[ -z "$(find opt/share -name '*.[157]' ! -perm 644)" ]
	[ -z "$(find opt/share/zsh opt/share/fish opt/share/bash-completion -type f ! -perm 644)" ]
	# others can read all of it, whatever the umask of who installed it
	[ -z "$(find opt/share/pt ! -perm -o=r)" ]
	[ -z "$(find opt -mindepth 1 -type d ! -perm -o=rx)" ]
	cmp opt/bin/pt-train "$BUILD/pt-train"
	cmp opt/share/man/man7/pt.7 "$top/man/pt.7"
	# again, over what is there
	pt_make install PREFIX="$PWD/opt"
	diff <(want | sort) <(cd opt && find . -type f | sed 's,^\./,,' | sort)
}

@test "what is installed works from anywhere, without the source" {
	pt_make install PREFIX="$PWD/opt"
	mkdir moved
	mv opt moved # it finds its presets where it is
	mkdir elsewhere
	cd elsewhere
	for p in prepare train ckpt compare sample collbench; do
		../moved/opt/bin/pt-$p --version >/dev/null
	done
	../moved/opt/bin/pt-train -p shakespeare-char --print-config | grep -qx 'dim = 384'
	ln -s ../moved/opt/bin/pt-train linked
	./linked -p shakespeare-char --print-config | grep -qx 'dim = 384'
	PATH="$PWD/../moved/opt/bin:$PATH" pt-train -p gpt2-124m --print-config | grep -qx 'layers = 12'
	reports 64 "did you mean 'shakespeare-char'" ../moved/opt/bin/pt-train -p shakespeare-chra --print-config
	says "in $BATS_TEST_TMPDIR/moved/opt/share/pt/presets"
	if command -v python3 >/dev/null; then
		PATH="$PWD/../moved/opt/bin:$PATH" PYTHONPATH=../moved/opt/share/pt/python \
			python3 -Bc 'import pt; print(pt.compare.__doc__)' | grep -q pt-compare
	fi
	# another folder of presets
	mkdir -p mine/presets
	echo 'layers = 3' >mine/presets/small.conf
	PT_SHARE=$PWD/mine ./linked -p small --print-config | grep -qx 'layers = 3'
}

@test "DESTDIR is put before, and in no file" {
	pt_make install PREFIX=/usr DESTDIR="$PWD/stage"
	diff <(want | sort) <(cd stage/usr && find . -type f | sed 's,^\./,,' | sort)
	[ "$(ls stage)" = usr ]
	not grep -rlF "$PWD/stage" stage
	stage/usr/bin/pt-train -p shakespeare-char --print-config | grep -qx 'dim = 384'
}

@test "uninstall leaves nothing of ours, and all of others" {
	mkdir -p opt/{bin,lib,share/man/man1,share/bash-completion/completions,share/zsh}
	for f in bin/other bin/pt-other share/man/man1/other.1 share/bash-completion/completions/other; do
		echo mine >"opt/$f"
	done
	find opt | sort >before
	pt_make install PREFIX="$PWD/opt"
	pt_make install PREFIX="$PWD/opt"
	pt_make uninstall PREFIX="$PWD/opt"
	find opt | sort | diff before -
	pt_make uninstall PREFIX="$PWD/opt" # nothing there is no error
	pt_make install PREFIX=/usr DESTDIR="$PWD/stage"
	echo mine >stage/usr/share/fish/other # in a directory of ours
	pt_make uninstall PREFIX=/usr DESTDIR="$PWD/stage"
	[ "$(find stage | sort | paste -sd' ')" = 'stage stage/usr stage/usr/share stage/usr/share/fish stage/usr/share/fish/other' ]
}

@test "make help and README.md tell how to install without CUDA" {
	env -u MAKEFLAGS -u MAKELEVEL make -s -C "$top" help >help
	for f in help "$top/README.md"; do
		grep -q 'CUDA=no' "$f"
		grep -q GENCODE "$f"
	done
}

@test "make clean deletes what make and recipes made, and keeps other directories" {
	cp "$top/Makefile" .
	mkdir -p precious build-san demo convergence
	touch precious/thesis.txt build-san/flags demo/.pt-recipe convergence/thesis.txt
	reports 0 '"precious" is kept' env -u MAKEFLAGS -u MAKELEVEL make clean O=precious </dev/null
	says '"convergence" is kept'
	[ -e precious/thesis.txt ]
	[ -e convergence/thesis.txt ]
	not ls build-san
	not ls demo
}
