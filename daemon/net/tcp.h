/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp.h - private to transport tcp
 *
 *	tcp > tcp_peer > tcp_conn (a data connection, served by one tcp_thread)
 *			 tcp_job  (our half of a transfer)
 *
 * The loop makes and frees all of them. What threads and the loop share is under tp->lock, as said
 * at each field; a connection's frames (tx, rx) are its thread's alone. Threads never touch a
 * struct peer but for its atomic counters.
 */
#ifndef KVTD_NET_TCP_H
#define KVTD_NET_TCP_H

#include <event2/event.h>
#include <openssl/ssl.h>
#include <sys/queue.h>
#include <sys/uio.h>
#include <uthash.h>
#include "kvtd.h"
#include "log.h"
#include "net/end.h"
#include "net/sched.h"
#include "net/tcp_wire.h"
#include "net/thread.h"
#include "peer.h"

#define TCP_THREADS_MAX	  4 /* of the default */
#define TCP_STREAMS_MAX	  64
#define TCP_BUF_BYTES	  (128 * 1024) /* gathers and scatters small pieces; stays in the L2 cache */
#define TCP_BATCH_BYTES	  (1024 * 1024) /* of one system call */
#define TCP_TURN_BYTES	  (1024 * 1024) /* of one connection before the next one's turn */
#define TCP_CHUNK_MIN	  4096
#define TCP_CHUNK_MAX	  (64 * 1024 * 1024)
#define TCP_CHUNKS_MAX	  (1 << 26)
#define TCP_HANDSHAKE_MS  5000
#define TCP_HANDSHAKES	  256 /* accepted and not proven yet; per source: peer_listen.c */
#define TCP_REDIAL_MIN_MS 100
#define TCP_IOV		  512
#define TCP_TLS_STEP	  16384 /* of plain text that is copied and encrypted at a time: a record */

/* What a turn has read of records and not yet taken. */
struct tcp_tls_in {
	uint8_t bytes[TCP_TLS_STEP + 22]; /* a record: its header of 5, its end of 17 */
	size_t off, len;
	size_t turn; /* read in this turn */
	bool dry;    /* the socket has no more */
};

struct tcp_thread {
	struct tcp *t;
	pthread_t id;
	int epfd, evfd;	  /* evfd: leave */
	uint32_t n_conns; /* the loop's */
	uint8_t *buf;	  /* TCP_BUF_BYTES */
	struct iovec iov[TCP_IOV + 2];
	struct tcp_tls_in in;
};

struct tcp {
	struct kvtd *d;
	uint32_t refs; /* peers, and until close */
	uint32_t max_threads, n_threads;
	struct tcp_thread *threads[NET_THREADS_MAX];
	struct tcp_thread *small; /* serves connections for small transfers; or NULL */
	LIST_HEAD(, tcp_hs) handshakes;
	uint32_t n_accepted; /* of them */
	LIST_HEAD(, tcp_peer) peers;
	SSL_CTX *tls[2]; /* of acceptors, of diallers; at first use */
	struct log_limit limit;
};

/* One of our connections to be. */
struct tcp_stream {
	struct tcp_peer *tp;
	uint32_t index;
	struct event *timer; /* of the next try */
	uint64_t backoff_ms;
	struct tcp_hs *hs; /* or NULL */
};

struct tcp_peer {
	/* the loop's */
	struct kvtd *d;
	struct tcp *t;
	struct peer *peer; /* a reference */
	LIST_ENTRY(tcp_peer) link;
	uint32_t refs; /* jobs, connections, the peer itself */
	bool gone;
	bool ready; /* has connections, as the users of the path know it; the loop's */
	struct tcp_stream *streams; /* of a peer that we dialled */
	uint32_t n_streams;
	char why[KVT_ERR_TEXT]; /* there is no connection */

	/* constant */
	char node[KVT_NODE_MAX + 1];
	uint64_t gather;

	pthread_mutex_t lock;
	/* under it */
	TAILQ_HEAD(tcp_conn_list, tcp_conn) conns;
	uint32_t n_conns[SCHED_KINDS];
	struct sched sched;	       /* senders with chunks left */
	TAILQ_HEAD(, tcp_job) waiting; /* those that have not begun */
	TAILQ_HEAD(, tcp_job) active;  /* may have frames on the way */
	struct tcp_job *receivers;     /* by key */
	uint64_t were_up;	       /* a bit for each stream that has been up */
};

struct tcp_key {
	uint64_t xfer;
	uint64_t is_opener;
};

enum tcp_place { TCP_NOWHERE, TCP_WAITING, TCP_ACTIVE };

struct tcp_job {
	struct net_end end;
	struct tcp_peer *tp;
	bool send;
	uint64_t chunk, bytes;
	struct tcp_key key;
	/* under tp->lock */
	enum tcp_place place;
	TAILQ_ENTRY(tcp_job) link;
	UT_hash_handle hh;	 /* of a receiver */
	struct sched_entry turn; /* of a sender */
	uint64_t next;		 /* first byte that no frame has */
	uint64_t framed;	 /* bytes whose frames are complete */
	uint8_t *claimed;	 /* of a receiver: a bit for each chunk that has come */
};

/* A frame on its way out. */
struct tcp_tx {
	bool busy;
	bool aborted;
	struct tcp_job *tj; /* a reference; NULL: aborted */
	uint64_t pos;
	uint32_t len;
	uint64_t sent; /* of header, payload and trailer */
	uint8_t header[TCP_HEADER_BYTES];
	uint8_t trailer[TCP_TRAILER_BYTES];
};

/* A frame on its way in. */
struct tcp_rx {
	bool busy;
	struct tcp_job *tj; /* a reference; NULL: thrown away */
	uint64_t pos;
	uint32_t len;
	uint64_t got;	   /* of the payload */
	uint32_t ctl_have; /* of this frame's trailer and the next one's header */
	uint8_t ctl[TCP_CTL_BYTES];
};

struct tcp_conn {
	struct tcp_peer *tp; /* a reference */
	struct tcp_thread *th;
	int fd;
	uint32_t index;
	enum sched_kind kind; /* the transfers that it is for */
	struct tcp_tx tx;
	struct tcp_rx rx;
	struct tcp_tls *tls;	/* or NULL: in the clear, or the kernel does it */
	bool tls_in, tls_out;	/* the directions that it does */
	const char *encryption; /* "none", "tls", "ktls" */
	/* under tp->lock */
	TAILQ_ENTRY(tcp_conn) link;
	bool listed;
	bool want_out; /* EPOLLOUT is asked for */
	struct loop_call down_call;
	char why[160];
};

/* Connections whose threads are to be woken. */
struct tcp_kicked {
	struct tcp_conn *conns[TCP_STREAMS_MAX];
	uint32_t n;
};

static inline struct tcp *tcp_of(struct kvtd *d)
{
	return (struct tcp *)d->net[NET_TCP];
}

static inline struct tcp_peer *tcp_peer_of(struct peer *p)
{
	return p->net[NET_TCP];
}

static inline struct tcp_job *tcp_job_of(struct net_end *end)
{
	return container_of(end, struct tcp_job, end);
}

/* tcp.c */
void tcp_put(struct tcp *t);

/* tcp_hs.c: handshakes, on the loop */
struct tcp_hs *tcp_dial(struct tcp_stream *s, char *why, size_t len);
void tcp_hs_cancel(struct tcp_hs *hs);
void tcp_hs_close(struct tcp *t); /* all of them */

/* tcp_peer.c: peers and their connections, on the loop */
struct tcp_peer *tcp_peer_get(struct tcp_peer *tp);
void tcp_peer_put(struct tcp_peer *tp);
void tcp_peer_add(struct peer *p);
void tcp_peer_del(struct peer *p);
/* Ends its dialling and cuts its connections, which come down by themselves. */
void tcp_peer_close(struct tcp_peer *tp);
/* After the threads have ended: frees what is left. */
void tcp_peer_destroy(struct tcp_peer *tp);
bool tcp_peer_ready(struct peer *p, char *why, size_t len);
/* Takes the fd of a proven connection, and its TLS; NULL: in the clear. */
void tcp_conn_up(struct tcp_peer *tp, int fd, SSL *ssl, const struct tcp_hello *hello);
/* A dialled stream failed before it was up. */
void tcp_stream_failed(struct tcp_stream *s, const char *why);
/* From its thread, which does not touch it afterwards: ends the jobs, posts the rest. */
void tcp_conn_break(struct tcp_conn *c, const char *why);

/* tcp_io.c: data threads */
/* The thread of a new connection, or NULL. */
struct tcp_thread *tcp_thread_pick(struct tcp *t, enum sched_kind kind, char *why, size_t len);
int tcp_thread_adopt(struct tcp_thread *th, struct tcp_conn *c);
void tcp_threads_stop(struct tcp *t);
void tcp_threads_free(struct tcp *t);
/*
 * Locked: at most n connections of the peer begin to look for frames of this kind to send. Their
 * threads are woken, or, with later, are to be when the lock is free: by tcp_wake(), on the loop.
 */
void tcp_kick(struct tcp_peer *tp, enum sched_kind kind, uint64_t n, struct tcp_kicked *later);
void tcp_wake(struct tcp_kicked *k);
/* Locked: what the connection may send: its own kind, and another that no connection is for. */
unsigned tcp_conn_kinds(const struct tcp_conn *c);
/* Locked: the connection has nothing to send. */
void tcp_conn_rest(struct tcp_conn *c);
/* The region that faults in the n bytes from pos on, or that of the first. The caller is inside. */
uint32_t tcp_find_fault(struct tcp_job *tj, uint64_t pos, uint64_t n);

/* tcp_job.c: jobs */
void tcp_submit(struct net_job *job);
void tcp_fence(struct net_job *job);
enum kvt_status tcp_offer(struct net_job *job, uint64_t *key, struct kvt_err *e);
/* Locked: a chunk of the sender is claimed. */
void tcp_job_begins(struct tcp_job *tj);
/* Locked: every byte of it is in the sockets, or placed; the caller is inside. Unlocks meanwhile.
 */
void tcp_job_moved(struct tcp_job *tj);

/* tcp_send.c, tcp_recv.c: a turn of a connection; 0, or -errno and why: it is broken */
int tcp_conn_send(struct tcp_conn *c);
int tcp_conn_recv(struct tcp_conn *c);

/* tcp_psk.c: an SSL for the connection of this hello. Returns new, NULL: no memory. */
SSL *tcp_psk_ssl(struct tcp *t, bool dialler, const uint8_t key[TCP_PSK_BYTES],
		 const struct tcp_hello *hello);
/* After the handshake: the other side has the key. */
bool tcp_psk_proven(const SSL *ssl);

/*
 * tcp_tls.c: TLS in user space, for the directions that c->tls_in and c->tls_out name. start takes
 * ssl, whose handshake is over; -ENOMEM: it stays the caller's.
 */
int tcp_tls_start(struct tcp_conn *c, SSL *ssl);
void tcp_tls_free(struct tcp_tls *tls); /* takes NULL */
/* Encrypts and sends n bytes, TCP_TLS_STEP at most, after a flush that gave 0. n, or a -errno. */
ssize_t tcp_tls_write(struct tcp_conn *c, const void *p, size_t n);
/* What the socket did not take of a record. 0: all is in it, or a -errno. */
int tcp_tls_flush(struct tcp_conn *c);
bool tcp_tls_unsent(const struct tcp_conn *c);
/* A turn of reading begins. It must go on until read answers -EAGAIN. */
void tcp_tls_turn(struct tcp_conn *c);
/* As readv. -EAGAIN also when the turn has read its share. */
ssize_t tcp_tls_read(struct tcp_conn *c, const struct iovec *iov, int n_iov);

#endif
