# daemon/: kvtd. All but main.c is in libkvtdaemon.la, so that unit tests can link it.

kvtd_files =
kvtd_files += daemon/addr.c daemon/addr.h
kvtd_files += daemon/alloc.h daemon/sm.c daemon/sm.h daemon/blocks.c daemon/blocks.h
kvtd_files += daemon/block_ids.c daemon/block_ids.h
kvtd_files += daemon/ranges.c daemon/ranges.h
kvtd_files += daemon/grant.c daemon/grant.h daemon/grant.tbl daemon/grant_impl.h
kvtd_files += daemon/grant_event.c daemon/grant_req.c daemon/gopen.c
kvtd_files += daemon/service.c daemon/service.tbl
kvtd_files += daemon/service_frames.c daemon/service_start.c
kvtd_files += daemon/transfer.c daemon/transfer.h daemon/transfer.tbl daemon/transfer_impl.h
kvtd_files += daemon/transfer_frames.c daemon/transfer_req.c daemon/hold.c daemon/token_status.c
kvtd_files += daemon/path.c daemon/path.h daemon/peer_msg.c
kvtd_files += daemon/admin.c daemon/admin.h
kvtd_files += daemon/cache.c daemon/cache.h
kvtd_files += daemon/client.c daemon/client.h
kvtd_files += daemon/client_conn.c daemon/client_conn.h
kvtd_files += daemon/client_hello.c
kvtd_files += daemon/drain.c
kvtd_files += daemon/list.c
kvtd_files += daemon/listen.c daemon/listen.h
kvtd_files += daemon/rlimits.c daemon/rlimits.h
kvtd_files += daemon/region.c daemon/region.h daemon/region_impl.h daemon/region_register.c daemon/region_suspend.c
kvtd_files += daemon/request.c daemon/request.h
kvtd_files += daemon/sd.c daemon/sd.h
kvtd_files += daemon/start.c
kvtd_files += daemon/status.c
kvtd_files += daemon/conf.c daemon/conf.h daemon/conf.tbl
kvtd_files += daemon/conf_files.c daemon/conf_files.h
kvtd_files += daemon/conf_scan.c daemon/conf_scan.h daemon/conf_value.c daemon/conf_value.h
kvtd_files += daemon/fault.c daemon/fault.h daemon/fault_event.h
kvtd_files += daemon/kvtd.c daemon/kvtd.h
kvtd_files += daemon/log.c daemon/log.h
kvtd_files += daemon/loop.c daemon/loop.h
kvtd_files += daemon/mem/host.c daemon/mem/kinds.h
kvtd_files += daemon/mem/mem.c daemon/mem/mem.h
kvtd_files += daemon/net/end.c daemon/net/end.h
kvtd_files += daemon/net/copy.c daemon/net/copy.h daemon/net/copy_measure.c
kvtd_files += daemon/net/local.c daemon/net/transports.h
kvtd_files += daemon/net/local_copy.c daemon/net/local_copy.h
kvtd_files += daemon/net/net.c daemon/net/net.h
kvtd_files += daemon/net/prefetch.h daemon/net/sched.c daemon/net/sched.h
kvtd_files += daemon/net/spin.c daemon/net/spin.h
kvtd_files += daemon/net/ahead.h
kvtd_files += daemon/net/tcp.c daemon/net/tcp.h daemon/net/tcp_wire.h
kvtd_files += daemon/net/tcp_hs.c daemon/net/tcp_io.c daemon/net/tcp_job.c
kvtd_files += daemon/net/tcp_peer.c daemon/net/tcp_psk.c daemon/net/tcp_recv.c
kvtd_files += daemon/net/tcp_send.c daemon/net/tcp_tls.c
kvtd_files += daemon/net/thread.c daemon/net/thread.h
kvtd_files += daemon/obj.c daemon/obj.h
kvtd_files += daemon/peer.c daemon/peer.h
kvtd_files += daemon/peer_alive.c
kvtd_files += daemon/peer_conn.c daemon/peer_conn.h
kvtd_files += daemon/peer_dial.c
kvtd_files += daemon/peer_hello.c
kvtd_files += daemon/peer_listen.c
kvtd_files += daemon/peer_lookup.c
kvtd_files += daemon/peer_start.c
kvtd_files += daemon/quota.c daemon/quota.h
kvtd_files += daemon/tls.c daemon/tls.h daemon/trust.c daemon/trust.h daemon/trust_impl.h
kvtd_files += daemon/trust_cert.c daemon/trust_key.c daemon/trust_pem.c daemon/trust_pem.h
kvtd_files += daemon/trust_why.c
kvtd_files += daemon/timers.c daemon/timers.h
kvtd_files += daemon/worker.c daemon/worker.h

kvtd_libs = libkvtkeyfile.la libkvtcommon.la libkvtproto.la libkvtpeerproto.la \
	$(LIBEVENT_LIBS) $(TLS_LIBS) $(PROTOBUF_C_LIBS) $(CONFUSE_LIBS) $(CRYPTO_LIBS) \
	$(JANSSON_LIBS)

noinst_LTLIBRARIES += libkvtdaemon.la
# so that every system call of the daemon can be made to fail; empty without fault points
libkvtdaemon_la_CPPFLAGS = $(AM_CPPFLAGS) -include $(top_srcdir)/daemon/fault_event.h
libkvtdaemon_la_SOURCES = $(kvtd_files)

sbin_PROGRAMS += kvtd
kvtd_CPPFLAGS = $(libkvtdaemon_la_CPPFLAGS)
kvtd_SOURCES = daemon/main.c
kvtd_LDADD = libkvtdaemon.la $(kvtd_libs)
