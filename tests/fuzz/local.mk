# tests/fuzz/: libFuzzer targets. A build with --enable-fuzzing makes fuzzers of them ('make
# fuzzers'); any other makes programs that replay tests/fuzz/corpus/TARGET/, for 'make check'.
#
# A new target is tests/fuzz/fuzz_foo.c with LLVMFuzzerTestOneInput, the name below, two lines, and
# a folder tests/fuzz/corpus/foo.

EXTRA_DIST += tests/fuzz/corpus

check_LTLIBRARIES += libfuzzmain.la
libfuzzmain_la_SOURCES = tests/fuzz/fuzz.h tests/fuzz/input.c
if !FUZZING
libfuzzmain_la_SOURCES += tests/fuzz/replay.c
endif

fuzz_daemon = $(FUZZ_LDFLAGS) libfuzzmain.la libkvtdaemon.la $(kvtd_libs)
fuzz_world = tests/fuzz/world.c tests/fuzz/world.h

fuzzers =

fuzzers += tests/fuzz/fuzz_text
tests_fuzz_fuzz_text_SOURCES = tests/fuzz/fuzz_text.c
tests_fuzz_fuzz_text_LDADD = $(fuzz_daemon)

fuzzers += tests/fuzz/fuzz_token
tests_fuzz_fuzz_token_SOURCES = tests/fuzz/fuzz_token.c
tests_fuzz_fuzz_token_LDADD = $(fuzz_daemon)

fuzzers += tests/fuzz/fuzz_conf
tests_fuzz_fuzz_conf_SOURCES = tests/fuzz/fuzz_conf.c
tests_fuzz_fuzz_conf_LDADD = $(fuzz_daemon)

fuzzers += tests/fuzz/fuzz_session
tests_fuzz_fuzz_session_SOURCES = tests/fuzz/fuzz_session.c $(fuzz_world)
tests_fuzz_fuzz_session_LDADD = $(fuzz_daemon)

fuzzers += tests/fuzz/fuzz_peer
tests_fuzz_fuzz_peer_SOURCES = tests/fuzz/fuzz_peer.c $(fuzz_world)
tests_fuzz_fuzz_peer_LDADD = $(fuzz_daemon)

if FUZZING
EXTRA_PROGRAMS += $(fuzzers)
else
check_PROGRAMS += $(fuzzers)
endif

fuzzers: $(BUILT_SOURCES)
	@$(MAKE) $(AM_MAKEFLAGS) $(fuzzers)
.PHONY: fuzzers
