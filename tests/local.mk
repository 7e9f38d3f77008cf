# tests/: one unit test program per module, run by 'make check'. Integration tests are
# pytest, run by scripts/check.
#
# A new test of daemon/foo.c is three lines:
#	check_PROGRAMS += tests/unit/test_foo
#	tests_unit_test_foo_SOURCES = tests/unit/test_foo.c
#	tests_unit_test_foo_LDADD = $(unit_daemon)

EXTRA_DIST += tests/run-tap tests/valgrind.supp tests/legs tests/leg.d tests/integration tests/data tests/vm tests/model

# a client for integration tests that does what its standard input says
noinst_PROGRAMS += tests/integration/c/actor
tests_integration_c_actor_SOURCES = tests/integration/c/actor.c \
	tests/integration/c/actor_mem.c tests/integration/c/actor_region.c \
	tests/integration/c/actor.h
tests_integration_c_actor_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/client
tests_integration_c_actor_LDADD = libkvt.la

# many clients at once
noinst_PROGRAMS += tests/integration/c/crowd
tests_integration_c_crowd_SOURCES = tests/integration/c/crowd.c
tests_integration_c_crowd_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/client
tests_integration_c_crowd_LDADD = libkvt.la

# one end of a TLS connection that does what it should not
noinst_PROGRAMS += tests/integration/c/tlspipe
tests_integration_c_tlspipe_SOURCES = tests/integration/c/tlspipe.c
tests_integration_c_tlspipe_LDADD = $(TLS_LIBS) $(CRYPTO_LIBS)

LOG_DRIVER = env AM_TAP_AWK='$(AWK)' $(SHELL) $(top_srcdir)/build-aux/tap-driver.sh
LOG_COMPILER = $(top_srcdir)/tests/run-tap
AM_TESTS_ENVIRONMENT = \
	KVT_SRC='$(abs_top_srcdir)'; export KVT_SRC; \
	KVT_BUILD='$(abs_top_builddir)'; export KVT_BUILD;

if HAVE_CHECK
# what a test links, by the part that it tests
check_LTLIBRARIES += libunitmain.la
libunitmain_la_SOURCES = tests/unit/main.c tests/unit/main.h tests/unit/faults.h
libunitmain_la_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)

unit_common = libunitmain.la libkvtcommon.la libkvtproto.la $(PROTOBUF_C_LIBS) $(CHECK_LIBS)
unit_client = libunitmain.la libkvtclient.la libkvtcommon.la libkvtproto.la \
	$(PROTOBUF_C_LIBS) $(CHECK_LIBS)
unit_daemon = libunitmain.la libkvtdaemon.la $(kvtd_libs) $(CHECK_LIBS)

AM_CPPFLAGS += $(CHECK_CFLAGS)

check_PROGRAMS += tests/unit/test_sm
tests_unit_test_sm_SOURCES = tests/unit/test_sm.c
tests_unit_test_sm_LDADD = $(unit_daemon)

check_PROGRAMS += tests/unit/test_spin
tests_unit_test_spin_SOURCES = tests/unit/test_spin.c
tests_unit_test_spin_LDADD = $(unit_daemon)

check_PROGRAMS += tests/unit/test_copy
tests_unit_test_copy_SOURCES = tests/unit/test_copy.c
tests_unit_test_copy_LDADD = $(unit_daemon)

check_PROGRAMS += tests/unit/test_blocks
tests_unit_test_blocks_SOURCES = tests/unit/test_blocks.c
tests_unit_test_blocks_LDADD = $(unit_daemon)

check_PROGRAMS += tests/unit/test_ranges
tests_unit_test_ranges_SOURCES = tests/unit/test_ranges.c
tests_unit_test_ranges_LDADD = $(unit_daemon)

check_PROGRAMS += tests/unit/test_units
tests_unit_test_units_SOURCES = tests/unit/test_units.c
tests_unit_test_units_LDADD = $(unit_common)

check_PROGRAMS += tests/unit/test_keyfile
tests_unit_test_keyfile_SOURCES = tests/unit/test_keyfile.c
tests_unit_test_keyfile_LDADD = libkvtkeyfile.la $(unit_common) $(CRYPTO_LIBS)

check_PROGRAMS += tests/unit/test_extent
tests_unit_test_extent_SOURCES = tests/unit/test_extent.c
tests_unit_test_extent_LDADD = $(unit_common)

check_PROGRAMS += tests/unit/test_status
tests_unit_test_status_SOURCES = tests/unit/test_status.c
tests_unit_test_status_LDADD = $(unit_common)

check_PROGRAMS += tests/unit/test_arena
tests_unit_test_arena_SOURCES = tests/unit/test_arena.c
tests_unit_test_arena_LDADD = $(unit_common)

check_PROGRAMS += tests/unit/test_framing
tests_unit_test_framing_SOURCES = tests/unit/test_framing.c
tests_unit_test_framing_LDADD = $(unit_common)

check_PROGRAMS += tests/unit/test_token
tests_unit_test_token_SOURCES = tests/unit/test_token.c
tests_unit_test_token_LDADD = $(unit_common)

check_PROGRAMS += tests/unit/test_sched
tests_unit_test_sched_SOURCES = tests/unit/test_sched.c
tests_unit_test_sched_LDADD = $(unit_daemon)

check_PROGRAMS += tests/unit/test_loop
tests_unit_test_loop_SOURCES = tests/unit/test_loop.c
tests_unit_test_loop_LDADD = $(unit_daemon)

check_PROGRAMS += tests/unit/test_conf
tests_unit_test_conf_SOURCES = tests/unit/test_conf.c
tests_unit_test_conf_LDADD = $(unit_daemon)

check_PROGRAMS += tests/unit/test_mem
tests_unit_test_mem_SOURCES = tests/unit/test_mem.c
tests_unit_test_mem_LDADD = $(unit_daemon)

net_fixture = tests/unit/net_fixture.c tests/unit/net_fixture.h

check_PROGRAMS += tests/unit/test_net
tests_unit_test_net_SOURCES = tests/unit/test_net.c $(net_fixture)
tests_unit_test_net_LDADD = $(unit_daemon)

check_PROGRAMS += tests/unit/test_net_fence
tests_unit_test_net_fence_SOURCES = tests/unit/test_net_fence.c $(net_fixture)
tests_unit_test_net_fence_LDADD = $(unit_daemon)

check_PROGRAMS += tests/unit/test_net_tcp
tests_unit_test_net_tcp_SOURCES = tests/unit/test_net_tcp.c $(net_fixture) \
	tests/unit/net_raw.c tests/unit/net_raw.h
tests_unit_test_net_tcp_LDADD = $(unit_daemon)

check_PROGRAMS += tests/unit/test_net_tls
tests_unit_test_net_tls_SOURCES = tests/unit/test_net_tls.c $(net_fixture) \
	tests/unit/net_raw.c tests/unit/net_raw.h
tests_unit_test_net_tls_LDADD = $(unit_daemon)

# the recorder of tests/data/wire is no test: built on demand
# how fast the iterator of extents is: make tests/bench/extents && tests/bench/extents
EXTRA_PROGRAMS += tests/bench/extents
tests_bench_extents_SOURCES = tests/bench/extents.c
tests_bench_extents_LDADD = libkvtcommon.la

EXTRA_PROGRAMS += tests/unit/wire_record
wire_samples = tests/unit/wire_samples.c tests/unit/wire_samples.h
tests_unit_wire_record_SOURCES = tests/unit/wire_record.c $(wire_samples)
tests_unit_wire_record_LDADD = libkvtpeerproto.la libkvtcommon.la libkvtproto.la \
	$(PROTOBUF_C_LIBS)
CLEANFILES += tests/unit/wire_record

check_PROGRAMS += tests/unit/test_wire
tests_unit_test_wire_SOURCES = tests/unit/test_wire.c $(wire_samples)
tests_unit_test_wire_LDADD = $(unit_common) libkvtpeerproto.la

check_PROGRAMS += tests/unit/test_addr
tests_unit_test_addr_SOURCES = tests/unit/test_addr.c
tests_unit_test_addr_LDADD = $(unit_daemon)

trust_fixture = tests/unit/trust_fixture.c tests/unit/trust_fixture.h

check_PROGRAMS += tests/unit/test_trust
tests_unit_test_trust_SOURCES = tests/unit/test_trust.c $(trust_fixture)
tests_unit_test_trust_LDADD = $(unit_daemon)

check_PROGRAMS += tests/unit/test_tls_cert
tests_unit_test_tls_cert_SOURCES = tests/unit/test_tls_cert.c $(trust_fixture)
tests_unit_test_tls_cert_LDADD = $(unit_daemon)

check_PROGRAMS += tests/unit/test_tls
tests_unit_test_tls_SOURCES = tests/unit/test_tls.c $(trust_fixture)
tests_unit_test_tls_LDADD = $(unit_daemon)

peer_fixture = tests/unit/peer_fixture.c tests/unit/peer_fixture.h \
	tests/unit/peer_worlds.c tests/unit/peer_worlds.h
peer_strangers = $(peer_fixture) tests/unit/peer_strangers.c tests/unit/peer_strangers.h

check_PROGRAMS += tests/unit/test_peer
tests_unit_test_peer_SOURCES = tests/unit/test_peer.c $(peer_fixture)
tests_unit_test_peer_LDADD = $(unit_daemon)

check_PROGRAMS += tests/unit/test_peer_strangers
tests_unit_test_peer_strangers_SOURCES = tests/unit/test_peer_strangers.c $(peer_strangers)
tests_unit_test_peer_strangers_LDADD = $(unit_daemon)

check_PROGRAMS += tests/unit/test_peer_tls
tests_unit_test_peer_tls_SOURCES = tests/unit/test_peer_tls.c $(peer_strangers)
tests_unit_test_peer_tls_LDADD = $(unit_daemon)

check_PROGRAMS += tests/unit/test_peer_twice
tests_unit_test_peer_twice_SOURCES = tests/unit/test_peer_twice.c $(peer_strangers)
tests_unit_test_peer_twice_LDADD = $(unit_daemon)

check_PROGRAMS += tests/unit/test_bench
tests_unit_test_bench_SOURCES = tests/unit/test_bench.c client/bench/base.c \
	client/bench/base_poll.c client/bench/base_stream.c client/bench/base_tls.c \
	client/bench/base_copy.c \
	client/bench/base_pingpong.c \
	client/bench/base_messages.c client/bench/cache.c client/bench/shape.c \
	client/bench/stats.c client/bench/client.c client/bench/lane.c client/bench/options.c \
	client/bench/trace.c \
	client/bench/base.h client/bench/bench.h
tests_unit_test_bench_LDADD = $(unit_client) $(TLS_LIBS) $(CRYPTO_LIBS)

check_PROGRAMS += tests/unit/test_request
tests_unit_test_request_SOURCES = tests/unit/test_request.c
tests_unit_test_request_LDADD = $(unit_daemon)
# libkvt against a daemon that a test directs
check_LTLIBRARIES += libfakedaemon.la
libfakedaemon_la_SOURCES = tests/unit/fake_daemon.c tests/unit/fake_daemon.h
libfakedaemon_la_CPPFLAGS = $(AM_CPPFLAGS) $(CHECK_CFLAGS)
unit_fake = libfakedaemon.la $(unit_client)

check_PROGRAMS += tests/unit/test_kvt_open
tests_unit_test_kvt_open_SOURCES = tests/unit/test_kvt_open.c
tests_unit_test_kvt_open_LDADD = $(unit_fake)

check_PROGRAMS += tests/unit/test_kvt_memory
tests_unit_test_kvt_memory_SOURCES = tests/unit/test_kvt_memory.c
tests_unit_test_kvt_memory_LDADD = $(unit_fake)

check_PROGRAMS += tests/unit/test_kvt_move
tests_unit_test_kvt_move_SOURCES = tests/unit/test_kvt_move.c
tests_unit_test_kvt_move_LDADD = $(unit_fake)
tests_unit_test_kvt_move_LDFLAGS = $(AM_LDFLAGS) \
	-Wl,--wrap=memfd_create,--wrap=ftruncate,--wrap=madvise,--wrap=mprotect,--wrap=mmap \
	-Wl,--wrap=mremap,--wrap=fcntl

check_PROGRAMS += tests/unit/test_kvt_grant
tests_unit_test_kvt_grant_SOURCES = tests/unit/test_kvt_grant.c
tests_unit_test_kvt_grant_LDADD = $(unit_fake)

check_PROGRAMS += tests/unit/test_kvt_xfer
tests_unit_test_kvt_xfer_SOURCES = tests/unit/test_kvt_xfer.c
tests_unit_test_kvt_xfer_LDADD = $(unit_fake)

check_PROGRAMS += tests/unit/test_kvt_reconnect
tests_unit_test_kvt_reconnect_SOURCES = tests/unit/test_kvt_reconnect.c
tests_unit_test_kvt_reconnect_LDADD = $(unit_fake)

check_PROGRAMS += tests/unit/test_kvt_admin
tests_unit_test_kvt_admin_SOURCES = tests/unit/test_kvt_admin.c
tests_unit_test_kvt_admin_LDADD = $(unit_fake)

check_PROGRAMS += tests/unit/test_kvt_abi
tests_unit_test_kvt_abi_SOURCES = tests/unit/test_kvt_abi.c
tests_unit_test_kvt_abi_LDADD = $(unit_common)
EXTRA_tests_unit_test_kvt_abi_DEPENDENCIES = libkvt.la
endif

# what the integration tests run
noinst_PROGRAMS += tests/integration/c/libkvt_real
tests_integration_c_libkvt_real_SOURCES = tests/integration/c/libkvt_real.c
tests_integration_c_libkvt_real_LDADD = libkvt.la

TESTS += $(check_PROGRAMS)

if !HAVE_CHECK
check-local:
	@echo "make check: no unit tests were run: configure did not find Check" \
		"(Debian: apt install check)"
endif
