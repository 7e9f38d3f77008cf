# proto/: C from the .proto files, into the build tree.
# libkvtproto.la is for everyone; libkvtpeerproto.la is the daemon's alone.

EXTRA_DIST += \
	proto/kvt.proto \
	proto/peer.proto \
	proto/token.proto

kvt_proto_built = \
	proto/kvt.pb-c.c \
	proto/kvt.pb-c.h \
	proto/token.pb-c.c \
	proto/token.pb-c.h

kvt_peerproto_built = \
	proto/peer.pb-c.c \
	proto/peer.pb-c.h

noinst_LTLIBRARIES += libkvtproto.la
nodist_libkvtproto_la_SOURCES = $(kvt_proto_built)

noinst_LTLIBRARIES += libkvtpeerproto.la
nodist_libkvtpeerproto_la_SOURCES = $(kvt_peerproto_built)

BUILT_SOURCES += $(kvt_proto_built) $(kvt_peerproto_built)
CLEANFILES += $(kvt_proto_built) $(kvt_peerproto_built)

proto/%.pb-c.c proto/%.pb-c.h: proto/%.proto
	$(AM_V_GEN)$(MKDIR_P) proto && \
		$(PROTOC_C) --proto_path=$(top_srcdir)/proto --c_out=proto $(<F)
