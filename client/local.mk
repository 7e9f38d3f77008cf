# client/: libkvt and its header; ctl/ is kvtctl, bench/ is kvtbench.
# The library's objects are in libkvtclient.la, so that unit tests can reach what
# libkvt.so hides. What kvt.h declares has default visibility, all else is hidden;
# libkvt.map gives the exported kvt_* their version.

EXTRA_DIST += client/libkvt.map

libkvt_files =
libkvt_files += client/socket.c client/socket.h client/protocol.h
libkvt_files += client/kvt_admin.c client/kvt_admin.h
libkvt_files += client/kvt_private.h
libkvt_files += client/errmsg.c
libkvt_files += client/fork.c
libkvt_files += client/wait.c
libkvt_files += client/link.c
libkvt_files += client/reconnect.c
libkvt_files += client/conn.c
libkvt_files += client/event.c
libkvt_files += client/memory.c client/memory.h
libkvt_files += client/move.c
libkvt_files += client/region.c client/suspend.c
libkvt_files += client/cache.c
libkvt_files += client/lists.c
libkvt_files += client/token_api.c
libkvt_files += client/grant.c
libkvt_files += client/xfer.c

kvtctl_files =
kvtctl_files += client/ctl/main.c client/ctl/ctl.h
kvtctl_files += client/ctl/ask.c client/ctl/objects.c client/ctl/status.c
kvtctl_files += client/ctl/table.c client/ctl/verbs.c
kvtctl_files += client/ctl/keygen.c client/ctl/keywrite.c client/ctl/keywrite.h

kvtbench_files =
kvtbench_files += client/bench/main.c client/bench/bench.h
kvtbench_files += client/bench/measure.c client/bench/fleet.c
kvtbench_files += client/bench/base.c client/bench/base.h
kvtbench_files += client/bench/base_poll.c
kvtbench_files += client/bench/base_copy.c
kvtbench_files += client/bench/base_stream.c client/bench/base_stream.h
kvtbench_files += client/bench/base_tls.c
kvtbench_files += client/bench/base_pingpong.c client/bench/base_messages.c
kvtbench_files += client/bench/cache.c client/bench/client.c client/bench/lane.c
kvtbench_files += client/bench/daemons.c client/bench/options.c client/bench/report.c
kvtbench_files += client/bench/shape.c client/bench/spawn.c client/bench/stats.c
kvtbench_files += client/bench/trace.c client/bench/extents.c

include_HEADERS += client/kvt.h

noinst_LTLIBRARIES += libkvtclient.la
libkvtclient_la_SOURCES = client/kvt.h $(libkvt_files)

lib_LTLIBRARIES += libkvt.la
libkvt_la_SOURCES =
libkvt_la_LIBADD = libkvtclient.la libkvtcommon.la libkvtproto.la $(PROTOBUF_C_LIBS)
libkvt_la_LDFLAGS = $(KVT_LDFLAGS) $(KVT_LIB_LDFLAGS) -version-info 0:0:0 \
	-Wl,--version-script=$(top_srcdir)/client/libkvt.map
EXTRA_libkvt_la_DEPENDENCIES = client/libkvt.map

## kvtctl and kvtbench speak the protocol themselves where kvt.h does not reach (admin
## requests), so they link the objects, not libkvt.so.
bin_PROGRAMS += kvtctl
kvtctl_SOURCES = $(kvtctl_files)
kvtctl_LDADD = libkvtclient.la libkvtkeyfile.la libkvtcommon.la libkvtproto.la \
	$(PROTOBUF_C_LIBS) $(SMARTCOLS_LIBS) $(JANSSON_LIBS) $(CRYPTO_LIBS)

bin_PROGRAMS += kvtbench
kvtbench_SOURCES = $(kvtbench_files)
kvtbench_LDADD = libkvtclient.la libkvtcommon.la libkvtproto.la \
	$(PROTOBUF_C_LIBS) $(JANSSON_LIBS) $(TLS_LIBS) $(CRYPTO_LIBS) -lm
