# examples/: what a reader copies from. Written against kvt.h and libkvt.so alone.

## With the first file: remove one '#' from the lines below.
#noinst_PROGRAMS += examples/prefill examples/decode examples/scheduler
#
#examples_prefill_SOURCES = examples/prefill.c
#examples_prefill_CPPFLAGS = -D_GNU_SOURCE -I$(top_srcdir)/client $(KVT_CPPFLAGS)
#examples_prefill_LDADD = libkvt.la
#
#examples_decode_SOURCES = examples/decode.c
#examples_decode_CPPFLAGS = -D_GNU_SOURCE -I$(top_srcdir)/client $(KVT_CPPFLAGS)
#examples_decode_LDADD = libkvt.la
#
#examples_scheduler_SOURCES = examples/scheduler.c
#examples_scheduler_CPPFLAGS = -D_GNU_SOURCE -I$(top_srcdir)/client $(KVT_CPPFLAGS)
#examples_scheduler_LDADD = libkvt.la
