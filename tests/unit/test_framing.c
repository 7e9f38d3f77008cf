// SPDX-License-Identifier: Apache-2.0
/*
 * Datagrams and fds: what arrives is what was sent, and whatever is wrong leaves no fd behind.
 */
#include "main.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include "framing.h"

static int sv[2], fds_before;

static int count_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	ck_assert_ptr_nonnull(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static void setup(void)
{
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv), 0);
	fds_before = count_fds();
}

static void teardown(void)
{
	ck_assert_int_eq(count_fds(), fds_before);
	close(sv[0]);
	close(sv[1]);
}

START_TEST(bytes)
{
	static char out[KVT_MSG_MAX + 1], in[KVT_MSG_MAX];
	struct kvt_fds fds;

	for (size_t i = 0; i < sizeof(out); i++)
		out[i] = i * 31;
	ck_assert_int_eq(kvt_recv(sv[1], in, sizeof(in), &fds), -EAGAIN);
	ck_assert_int_eq(fds.n, 0);
	ck_assert_int_eq(kvt_send(sv[0], out, 1, NULL, 0), 0);
	ck_assert_int_eq(kvt_send(sv[0], out, KVT_MSG_MAX, NULL, 0), 0);
	ck_assert_int_eq(kvt_send(sv[0], out, KVT_MSG_MAX + 1, NULL, 0), -EMSGSIZE);
	ck_assert_int_eq(kvt_send(sv[0], out, 0, NULL, 0), -EMSGSIZE);
	ck_assert_int_eq(kvt_recv(sv[1], in, sizeof(in), &fds), 1);
	ck_assert_int_eq(kvt_recv(sv[1], in, sizeof(in), &fds), KVT_MSG_MAX);
	ck_assert_int_eq(memcmp(in, out, KVT_MSG_MAX), 0);
}
END_TEST

START_TEST(full_socket_is_eagain)
{
	static char out[60000];
	struct kvt_fds fds;
	int n = 0, rc;

	while ((rc = kvt_send(sv[0], out, sizeof(out), NULL, 0)) == 0)
		ck_assert_int_lt(++n, 1000);
	ck_assert_int_eq(rc, -EAGAIN);
	for (int i = 0; i < n; i++)
		ck_assert_int_eq(kvt_recv(sv[1], out, sizeof(out), &fds), sizeof(out));
	ck_assert_int_eq(kvt_send(sv[0], out, sizeof(out), NULL, 0), 0);
}
END_TEST

START_TEST(descriptors)
{
	int out[KVT_FDS_MAX], pipefd[2];
	struct kvt_fds fds;
	struct stat a, b;
	char in[8];
	int taken;

	ck_assert_int_eq(pipe2(pipefd, O_CLOEXEC), 0);
	for (int i = 0; i < KVT_FDS_MAX; i++)
		out[i] = pipefd[i & 1];
	ck_assert_int_eq(kvt_send(sv[0], "x", 1, out, KVT_FDS_MAX), 0);
	ck_assert_int_eq(kvt_send(sv[0], "x", 1, out, KVT_FDS_MAX + 1), -EINVAL);
	ck_assert_int_eq(kvt_send(sv[0], "x", 1, out, -1), -EINVAL);
	ck_assert_int_eq(kvt_recv(sv[1], in, sizeof(in), &fds), 1);
	ck_assert_int_eq(fds.n, KVT_FDS_MAX);
	for (int i = 0; i < KVT_FDS_MAX; i++)
		ck_assert_int_eq(fcntl(fds.fd[i], F_GETFD), FD_CLOEXEC);
	ck_assert_int_eq(fstat(fds.fd[2], &a), 0);
	ck_assert_int_eq(fstat(pipefd[0], &b), 0);
	ck_assert_uint_eq(a.st_ino, b.st_ino);

	ck_assert_int_eq(kvt_fds_take(&fds, KVT_FDS_MAX), -1);
	ck_assert_int_eq(kvt_fds_take(&fds, -1), -1);
	taken = kvt_fds_take(&fds, 5);
	ck_assert_int_ge(taken, 0);
	ck_assert_int_eq(kvt_fds_take(&fds, 5), -1);
	kvt_fds_close(&fds);
	ck_assert_int_eq(fcntl(taken, F_GETFD), FD_CLOEXEC);
	close(taken);
	close(pipefd[0]);
	close(pipefd[1]);
}
END_TEST

START_TEST(too_long_closes_fds_and_stays_in_step)
{
	struct kvt_fds fds;
	char in[8];
	int fd[2] = { 0, 0 };

	ck_assert_int_eq(kvt_send(sv[0], "123456789", 9, fd, 2), 0);
	ck_assert_int_eq(kvt_send(sv[0], "ok", 2, NULL, 0), 0);
	ck_assert_int_eq(kvt_recv(sv[1], in, sizeof(in), &fds), -EMSGSIZE);
	ck_assert_int_eq(fds.n, 0);
	ck_assert_int_eq(kvt_recv(sv[1], in, sizeof(in), &fds), 2);
	ck_assert_int_eq(memcmp(in, "ok", 2), 0);
}
END_TEST

START_TEST(end_and_empty)
{
	struct kvt_fds fds;
	char in[8];
	int fd = 0;
	union {
		struct cmsghdr cm;
		char buf[CMSG_SPACE(sizeof(int))];
	} control = { .cm = { .cmsg_len = CMSG_LEN(sizeof(int)),
			      .cmsg_level = SOL_SOCKET,
			      .cmsg_type = SCM_RIGHTS } };
	struct msghdr mh = { .msg_control = &control, .msg_controllen = sizeof(control) };

	/* an empty datagram that carries an fd */
	memcpy(CMSG_DATA(&control.cm), &fd, sizeof(fd));
	ck_assert_int_eq(sendmsg(sv[0], &mh, MSG_NOSIGNAL), 0);
	ck_assert_int_eq(kvt_recv(sv[1], in, sizeof(in), &fds), 0);
	ck_assert_int_eq(fds.n, 0);
	shutdown(sv[0], SHUT_RDWR);
	ck_assert_int_eq(kvt_recv(sv[1], in, sizeof(in), &fds), 0);
	ck_assert_int_eq(kvt_send(sv[1], "x", 1, NULL, 0), -EPIPE);
}
END_TEST

/* The last words of an end that closed with our datagrams unread are not lost. */
START_TEST(words_before_a_reset)
{
	struct kvt_fds fds;
	char in[8];

	ck_assert_int_eq(kvt_send(sv[0], "unread", 6, NULL, 0), 0);
	ck_assert_int_eq(kvt_send(sv[1], "bye", 3, NULL, 0), 0);
	close(sv[1]);
	ck_assert_int_eq(kvt_recv(sv[0], in, sizeof(in), &fds), 3);
	ck_assert_mem_eq(in, "bye", 3);
	ck_assert_int_eq(kvt_recv(sv[0], in, sizeof(in), &fds), 0);
	sv[1] = dup(sv[0]); /* for teardown */
}
END_TEST

START_TEST(list_memfds)
{
	uint32_t a[3] = { 1, 2, 0xfffffffe }, b[2] = { 7, 8 }, out[6] = { 0 };
	const uint32_t *const lists[2] = { a, b };
	const size_t counts[2] = { 3, 2 };
	uint8_t raw[20];
	int fd = kvt_list_write(lists, counts, 2), pipefd[2], file;
	char path[] = "/tmp/kvt-test-XXXXXX";

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(kvt_list_read(fd, out, 5), 0);
	ck_assert_uint_eq(out[2], 0xfffffffe);
	ck_assert_uint_eq(out[4], 8);
	ck_assert_int_eq(pread(fd, raw, 20, 0), 20);
	ck_assert_int_eq(memcmp(raw, "\1\0\0\0\2\0\0\0\xfe\xff\xff\xff\7\0\0\0\10\0\0\0", 20), 0);
	ck_assert_int_eq(kvt_list_read(fd, out, 4), -EINVAL);
	ck_assert_int_eq(kvt_list_read(fd, out, 6), -EINVAL);
	ck_assert_int_eq(kvt_list_read(fd, out, (size_t)1 << 62), -EINVAL);
	close(fd);

	ck_assert_int_eq(pipe2(pipefd, O_CLOEXEC), 0);
	ck_assert_int_eq(kvt_list_read(pipefd[0], out, 5), -EINVAL);
	close(pipefd[0]);
	close(pipefd[1]);
	file = mkstemp(path);
	ck_assert_int_ge(file, 0);
	unlink(path);
	ck_assert_int_eq(ftruncate(file, 20), 0);
	/* on tmpfs a plain file can be a fine list; elsewhere it is refused: never a crash */
	ck_assert(kvt_list_read(file, out, 5) == -EINVAL || out[0] == 0);
	close(file);
}
END_TEST

Suite *test_suite(void)
{
	Suite *s = suite_create("framing");
	TCase *t = tcase_create("framing");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, bytes);
	tcase_add_test(t, full_socket_is_eagain);
	tcase_add_test(t, descriptors);
	tcase_add_test(t, too_long_closes_fds_and_stays_in_step);
	tcase_add_test(t, end_and_empty);
	tcase_add_test(t, words_before_a_reset);
	tcase_add_test(t, list_memfds);
	suite_add_tcase(s, t);
	return s;
}
