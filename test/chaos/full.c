/*-------------------------------------------------------------------------
 *
 * full.c
 *	  Simulate a full disk on demand, for any user: a library loaded before the
 *	  server (LD_PRELOAD).
 *
 * While the file CHAOS_FULL_DATA exists, files outside pg_wal cannot grow.
 * CHAOS_FULL_WAL does the same for files in pg_wal.  Calls that would extend a
 * file fail with ENOSPC.  Existing blocks can be overwritten, as on a real
 * disk.
 *
 * test/chaos/full.c
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

/* Would writing up to "end" need disk space while the disk is full? */
static int
no_room(int fd, off_t end)
{
	const char *data = getenv("CHAOS_FULL_DATA");
	const char *wal = getenv("CHAOS_FULL_WAL");
	int			data_full = data != NULL && access(data, F_OK) == 0;
	int			wal_full = wal != NULL && access(wal, F_OK) == 0;
	char		link[64];
	char		path[1024];
	ssize_t		length;
	struct stat st;
	int			saved = errno;
	int			full = 0;

	if ((data_full || wal_full) && fstat(fd, &st) == 0 &&
		S_ISREG(st.st_mode) && end > st.st_size)
	{
		snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
		length = readlink(link, path, sizeof(path) - 1);
		if (length > 0)
		{
			path[length] = '\0';
			if (strstr(path, "/pg_wal/") != NULL)
				full = wal_full;
			else if (strstr(path, "/base/") != NULL)
				full = data_full;
		}
	}
	errno = full ? ENOSPC : saved;
	return full;
}

#define NEXT(name) \
	static __typeof__(name) *next = NULL; \
	if (next == NULL) \
		next = (__typeof__(name) *) dlsym(RTLD_NEXT, #name)

ssize_t
pwrite(int fd, const void *buf, size_t count, off_t offset)
{
	NEXT(pwrite);
	return no_room(fd, offset + (off_t) count) ? -1 : next(fd, buf, count, offset);
}

ssize_t
pwritev(int fd, const struct iovec *iov, int iovcnt, off_t offset)
{
	off_t		end = offset;

	NEXT(pwritev);
	for (int i = 0; i < iovcnt; i++)
		end += (off_t) iov[i].iov_len;
	return no_room(fd, end) ? -1 : next(fd, iov, iovcnt, offset);
}

int
posix_fallocate(int fd, off_t offset, off_t len)
{
	NEXT(posix_fallocate);
	return no_room(fd, offset + len) ? ENOSPC : next(fd, offset, len);
}
