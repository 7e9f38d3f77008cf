# common/: linked by the daemon, the library and the tools. Never logs; needs nothing but
# libc and protobuf-c, as all of it becomes part of libkvt.so.

noinst_LTLIBRARIES += libkvtcommon.la
libkvtcommon_la_CPPFLAGS = $(AM_CPPFLAGS) -include $(top_srcdir)/common/fault_sys.h
libkvtcommon_la_SOURCES =
libkvtcommon_la_SOURCES += common/fault_sys.c common/fault_sys.h
libkvtcommon_la_SOURCES += common/units.c common/units.h
libkvtcommon_la_SOURCES += common/extent.c common/extent.h
libkvtcommon_la_SOURCES += common/status.c common/status.h
libkvtcommon_la_SOURCES += common/arena.c common/arena.h
libkvtcommon_la_SOURCES += common/framing.c common/framing.h
libkvtcommon_la_SOURCES += common/token.c common/token.h

# files of cluster keys: needs libcrypto, so not a part of libkvt.so
noinst_LTLIBRARIES += libkvtkeyfile.la
libkvtkeyfile_la_CPPFLAGS = $(libkvtcommon_la_CPPFLAGS)
libkvtkeyfile_la_SOURCES = common/keyfile.c common/keyfile.h
