/*-------------------------------------------------------------------------
 *
 * latency.c
 *	  Runs a statement repeatedly, and records the time of each commit.
 *
 * usage: latency COUNT PAUSE_MS STATEMENT [CHANNEL]
 *
 * STATEMENT gets $1, the number of the round, as text.  With a channel, a
 * second process listens on the channel and records the time of the
 * notification, whose payload must be the number.
 *
 * Output: a line per event with "s" (commit returned) or "r" (received), the
 * number, and CLOCK_REALTIME in microseconds, like the server's
 * clock_timestamp().
 *
 * test/bench/latency.c
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <libpq-fe.h>

static char output[4 * 1024 * 1024];

static long long
now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return ts.tv_sec * 1000000LL + ts.tv_nsec / 1000;
}

static PGconn *
connect_or_die(void)
{
	PGconn	   *conn = PQconnectdb("");

	if (PQstatus(conn) != CONNECTION_OK)
	{
		fputs(PQerrorMessage(conn), stderr);
		exit(1);
	}
	return conn;
}

static void
check(PGconn *conn, PGresult *result)
{
	ExecStatusType status = PQresultStatus(result);

	if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK)
	{
		fputs(PQerrorMessage(conn), stderr);
		exit(1);
	}
	PQclear(result);
}

/*
 * Record notifications until all have arrived, or until none arrives for five
 * seconds.
 */
static void
listen_for(const char *channel, int count, int ready)
{
	PGconn	   *conn = connect_or_die();
	char		command[200];

	snprintf(command, sizeof(command), "LISTEN \"%s\"", channel);
	check(conn, PQexec(conn, command));
	if (write(ready, "x", 1) != 1)
		exit(1);
	while (count > 0)
	{
		struct pollfd fd = {PQsocket(conn), POLLIN, 0};
		PGnotify   *notify;
		long long	at;

		if (poll(&fd, 1, 5000) <= 0)
			break;
		PQconsumeInput(conn);
		at = now();
		while ((notify = PQnotifies(conn)) != NULL)
		{
			printf("r %s %lld\n", notify->extra, at);
			PQfreemem(notify);
			count--;
		}
	}
	PQfinish(conn);
	fflush(stdout);
	_exit(0);
}

int
main(int argc, char **argv)
{
	int			count;
	struct timespec pause;
	PGconn	   *conn;
	pid_t		listener = 0;

	if (argc < 4)
	{
		fputs("usage: latency COUNT PAUSE_MS STATEMENT [CHANNEL]\n", stderr);
		return 2;
	}
	/* all output at the end: nothing disturbs the measurement */
	setvbuf(stdout, output, _IOFBF, sizeof(output));
	count = atoi(argv[1]);
	pause.tv_sec = atoi(argv[2]) / 1000;
	pause.tv_nsec = atoi(argv[2]) % 1000 * 1000000L;

	if (argc > 4)
	{
		int			ready[2];
		char		c;

		if (pipe(ready) != 0 || (listener = fork()) < 0)
			return 1;
		if (listener == 0)
			listen_for(argv[4], count, ready[1]);
		close(ready[1]);
		if (read(ready[0], &c, 1) != 1)
			return 1;
	}

	conn = connect_or_die();
	check(conn, PQprepare(conn, "statement", argv[3], 0, NULL));
	for (int i = 1; i <= count; i++)
	{
		char		number[16];
		const char *values[1] = {number};
		PGresult   *result;
		long long	at;

		nanosleep(&pause, NULL);
		snprintf(number, sizeof(number), "%d", i);
		result = PQexecPrepared(conn, "statement", 1, values, NULL, NULL, 0);
		at = now();
		check(conn, result);
		printf("s %d %lld\n", i, at);
	}
	PQfinish(conn);
	if (listener != 0)
		waitpid(listener, NULL, 0);
	return 0;
}
