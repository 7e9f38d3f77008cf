# examples/: what a reader copies from. Written against kvt.h and libkvt.so alone.

noinst_PROGRAMS += examples/scatter examples/hello examples/carry examples/prefill examples/decode examples/scheduler

examples_prefill_SOURCES = examples/prefill.c examples/cache_pattern.h
examples_prefill_CPPFLAGS = -I$(top_srcdir)/client $(KVT_CPPFLAGS)
examples_prefill_LDADD = libkvt.la

examples_decode_SOURCES = examples/decode.c examples/cache_pattern.h
examples_decode_CPPFLAGS = -I$(top_srcdir)/client $(KVT_CPPFLAGS)
examples_decode_LDADD = libkvt.la

examples_scheduler_SOURCES = examples/scheduler.c examples/cache_pattern.h
examples_scheduler_CPPFLAGS = -I$(top_srcdir)/client $(KVT_CPPFLAGS)
examples_scheduler_LDADD = libkvt.la

examples_scatter_SOURCES = examples/scatter.c
examples_scatter_CPPFLAGS = -I$(top_srcdir)/client $(KVT_CPPFLAGS)
examples_scatter_LDADD = libkvt.la

examples_hello_SOURCES = examples/hello.c
examples_hello_CPPFLAGS = -I$(top_srcdir)/client $(KVT_CPPFLAGS)
examples_hello_LDADD = libkvt.la

examples_carry_SOURCES = examples/carry.c
examples_carry_CPPFLAGS = -I$(top_srcdir)/client $(KVT_CPPFLAGS)
examples_carry_LDADD = libkvt.la
