#!/usr/bin/env bats
# The wheel of `make wheel` in a minimal Debian 12 and 13 and Ubuntu 24.04, without compiler and MPI: the first example
# of each page, then two ranks with `pip install mpich`. It needs root, debootstrap and the network.
load helpers

top=$BATS_TEST_DIRNAME/../..

try_release() { # RELEASE [OPTION OF DEBOOTSTRAP] [MIRROR SCRIPT]
	[ "$(id -u)" -eq 0 ] || skip 'only root can make a chroot'
	command -v debootstrap >/dev/null || skip 'no debootstrap'
	env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS make -s -C "$top" -o all O="$BUILD" DEPS=no CUDA=no wheel-now >out 2>&1 ||
		skip "make wheel: $(tail -n 1 out)"
	# shellcheck disable=SC2086 # no option, no script
	debootstrap --variant=minbase --include=python3-venv ${2:-} "$1" root "${3:-http://deb.debian.org/debian}" \
		${4:-} >out 2>&1 || skip "no $1: $(tail -n 1 out)"
	command -v python3 >/dev/null || skip 'no python3'
	python3 -m venv here
	here/bin/pip download -q --no-deps -d root/root mpich || skip 'no mpich from PyPI'
	cp "$BUILD"/wheel/pt_train-*.whl "$top/tests/tools/first_examples" root/root
	"$top/tests/tools/in_root" root sh -c 'set -e
		python3 -m venv /env
		pip install -q --no-index /root/pt_train-*.whl
		/root/first_examples /root/one
		pip install -q --no-index /root/mpich*.whl
		/root/first_examples /root/two
		pt-ckpt diff /root/one/test /root/two/test' >out 2>&1 || {
		cat out
		return 1
	}
	grep -q 'tensors are equal' out
	rm -rf root
}

@test "Debian 12: pip install, the first examples, then two ranks" {
	try_release bookworm
}

@test "Debian 13: pip install, the first examples, then two ranks" {
	try_release trixie
}

# (an older debootstrap has no script for it, but all of Ubuntu's scripts are one)
@test "Ubuntu 24.04: pip install, the first examples, then two ranks" {
	try_release noble --components=main,universe http://archive.ubuntu.com/ubuntu /usr/share/debootstrap/scripts/gutsy
}

@test "make deb: the dependencies are those of the programs, and lintian finds no error" {
	for tool in dpkg-shlibdeps lintian; do
		command -v $tool >/dev/null || skip "no $tool"
	done
	env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS make -s -C "$top" -o all O="$BUILD" DEPS=no CUDA=no deb-now
	deb=$(echo "$BUILD"/deb/pt-train_*.deb)
	[[ $(dpkg-deb -f "$deb" Depends) =~ libc6.*libjansson4 ]]
	[[ ! $(dpkg-deb -f "$deb" Depends) =~ mpi ]]
	[ "$(dpkg-deb -f "$deb" Recommends)" = mpich ]
	dpkg-deb -x "$deb" in
	in/usr/bin/pt-train -p shakespeare-char --print-config | grep -qx 'dim = 384'
}
