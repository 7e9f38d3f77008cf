# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by the legs. A leg runs in the source tree; status 0 is passed, 77 skipped (its
# last line says why), all else failed. scripts/check sets KVT_SRC, KVT_WORK (build trees),
# KVT_COUNTS (count adds to it), KVT_SKIPPED (a line "TEST: reason" for each test that was
# skipped), KVT_JOBS and KVT_LONG.
set -eu -o pipefail

# count PASSED FAILED SKIPPED: single tests. A leg that counts none is one test.
count() {
	echo "$1 $2 $3" >>"$KVT_COUNTS"
}

skip() {
	echo "$*"
	exit 77
}

# need_command COMMAND PACKAGE
need_command() {
	command -v "$1" >/dev/null || skip "no $1 (Debian: apt install $2)"
}

# files PATTERN...: the project's own files; also without git, in an unpacked tarball
files() {
	if [ -e "$KVT_SRC/.git" ]; then
		git ls-files --cached --others --exclude-standard -- "$@" | while read -r f; do
			[ ! -e "$f" ] || echo "$f"
		done
	else
		local find_args=() pattern
		for pattern; do
			find_args+=(-o -path "./$pattern")
		done
		find . -path ./build-check -prune -o -type f \( "${find_args[@]:1}" \) -print |
			sed 's|^\./||'
	fi
}

# configure_tree NAME ARGUMENT...: makes tree=KVT_WORK/NAME a configured build tree
configure_tree() {
	tree=$KVT_WORK/$1
	shift
	if [ ! -x configure ] || [ configure -ot configure.ac ]; then
		./bootstrap
	fi
	mkdir -p "$tree"
	if [ ! -e "$tree/Makefile" ] || [ "$(cat "$tree/.arguments" 2>/dev/null)" != "$*" ]; then
		(cd "$tree" && "$KVT_SRC/configure" "$@")
		echo "$*" >"$tree/.arguments"
	fi
}

# The tree that most legs share.
test_tree() {
	configure_tree gcc CC=gcc --enable-werror --enable-fault-injection
	make -C "$tree" -j"$KVT_JOBS" all
}

# unit_tests TREE [VARIABLE=VALUE...]: make check, counted
unit_tests() {
	local out=$1/check.out tree=$1 rc=0
	shift

	make -C "$tree" -j"$KVT_JOBS" check "$@" >"$out" 2>&1 || rc=$?
	awk '/^# (PASS|XFAIL):/ { p += $3 } /^# SKIP:/ { s += $3 }
		/^# (FAIL|XPASS|ERROR):/ { f += $3 }
		END { if (p + f + s) print p + 0, f + 0, s + 0 }' "$out" >>"$KVT_COUNTS"
	grep -v '^PASS: ' "$out" || true
	sed -n 's/^SKIP: \(.*\) # SKIP */\1: /p' "$out" >>"$KVT_SKIPPED"
	if [ $rc != 0 ]; then
		echo "make check failed: $rc; its failures once more:"
		grep -E '^(FAIL|ERROR|XPASS): ' "$out" || true
	elif ! grep -q '^# PASS: ' "$out"; then
		skip "no unit tests: Check is absent (Debian: apt install check)"
	fi
	return $rc
}

# some_unit_tests TREE "NAME..." [VARIABLE=VALUE...]: only tests/unit/test_NAME are built and run
some_unit_tests() {
	local tree=$1 programs
	# shellcheck disable=SC2086 # a list
	programs=$(printf 'tests/unit/test_%s ' $2)
	shift 2
	unit_tests "$tree" "check_PROGRAMS=$programs" "TESTS=$programs" "$@"
}

# integration_tests TREE [MARKS [FILE...]]: pytest over tests/integration or files of it, counted; of
# the tests those with these marks, as pytest's -m takes them. Several run at once, most of them wait;
# those marked `alone` come after, one by one.
integration_tests() {
	local tree=$1 marks=${2:+ and ($2)} rc=0 rest=0
	shift $(($# < 2 ? $# : 2))
	[ $# -gt 0 ] || set -- tests/integration

	[ -n "$(files 'tests/integration/test_*.py')" ] ||
		skip "no integration tests in tests/integration yet"
	/usr/bin/python3 -c 'import pytest' 2>/dev/null ||
		skip "no pytest for /usr/bin/python3 (Debian: apt install python3-pytest)"
	/usr/bin/python3 -c 'import xdist' 2>/dev/null ||
		skip "no xdist for pytest (Debian: apt install python3-pytest-xdist)"
	pytest_counted "$tree" "$tree/integration.xml" -m "not alone$marks" -n $((KVT_JOBS * 2)) "$@" ||
		rc=$?
	pytest_counted "$tree" "$tree/alone.xml" -m "alone$marks" "$@" || rest=$?
	[ $rest = 0 ] || [ $rest = 5 ] || rc=$rest # 5: there is none
	return $rc
}

pytest_counted() {
	local tree=$1 xml=$2 rc=0
	shift 2

	rm -f "$xml"
	KVT_BUILD=$tree PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 -m pytest -p no:cacheprovider \
		-ra --durations=8 --junitxml="$xml" "$@" || rc=$?
	[ ! -e "$xml" ] || /usr/bin/python3 - "$xml" >>"$KVT_COUNTS" <<-'EOF'
	import os, sys, xml.etree.ElementTree as tree
	n = {k: sum(int(s.get(k, 0)) for s in tree.parse(sys.argv[1]).iter("testsuite"))
	     for k in ("tests", "failures", "errors", "skipped")}
	failed = n["failures"] + n["errors"]
	print(n["tests"] - failed - n["skipped"], failed, n["skipped"])
	with open(os.environ["KVT_SKIPPED"], "a") as out:
	    for case in tree.parse(sys.argv[1]).iter("testcase"):
	        for skip in case.iter("skipped"):
	            print(f"{case.get('classname')}.{case.get('name')}: {skip.get('message')}", file=out)
	EOF
	return $rc
}

# guests OPTION... SCRIPT...: tests/vm/run with the programs of the test tree, counted
guests() {
	local out=$tree/vm.out rc=0

	KVT_BUILD=$tree tests/vm/run "$@" >"$out" || rc=$?
	cat "$out"
	[ $rc != 77 ] || skip "$(tail -n 1 "$out")"
	sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\1 \2 \3/p' "$out" >>"$KVT_COUNTS"
	sed -n 's/^skip \([^ ]*\) *[0-9.]* s *\(.*\)/\1: \2/p' "$out" >>"$KVT_SKIPPED"
	return $rc
}
