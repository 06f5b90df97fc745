/*-------------------------------------------------------------------------
 *
 * pickup.c
 *	  The time from a commit until an external consumer has the job.
 *
 * usage: pickup COUNT PAUSE_MS SEND TAKE [CHANNEL]
 *
 * SEND gets $1, the number of the round, as text.  A second process runs TAKE
 * repeatedly, each time after a notification if there is a channel.  TAKE
 * returns rows with the number, or "-" for foreign jobs, and a statement to run
 * after the time was recorded, or null.
 *
 * Output as of latency.c.
 *
 * test/bench/pickup.c
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <libpq-fe.h>

static char output[4 * 1024 * 1024];

static void
note(char event, const char *number)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	printf("%c %s %lld\n", event, number,
		   ts.tv_sec * 1000000LL + ts.tv_nsec / 1000);
}

static PGresult *
run(PGconn *conn, PGresult *res)
{
	if (PQresultStatus(res) != PGRES_TUPLES_OK &&
		PQresultStatus(res) != PGRES_COMMAND_OK)
	{
		fprintf(stderr, "%s", PQerrorMessage(conn));
		_exit(1);
	}
	return res;
}

static void
take(PGconn *conn, int count, const char *statement, const char *channel, int ready)
{
	struct pollfd p = {PQsocket(conn), POLLIN, 0};
	PGnotify   *notify;

	if (channel != NULL)
	{
		char		listen[200];

		snprintf(listen, sizeof(listen), "LISTEN %s", channel);
		PQclear(run(conn, PQexec(conn, listen)));
	}
	PQclear(run(conn, PQprepare(conn, "take", statement, 0, NULL)));
	if (write(ready, "", 1) != 1)
		_exit(1);
	for (int done = 0; done < count;)
	{
		PGresult   *res;

		if (channel != NULL)
		{
			while ((notify = PQnotifies(conn)) == NULL)
			{
				poll(&p, 1, -1);
				PQconsumeInput(conn);
			}
			PQfreemem(notify);
		}
		res = run(conn, PQexecPrepared(conn, "take", 0, NULL, NULL, NULL, 0));
		for (int i = 0; i < PQntuples(res); i++)
			if (strcmp(PQgetvalue(res, i, 0), "-") != 0)
			{
				note('r', PQgetvalue(res, i, 0));
				done++;
			}
		for (int i = 0; i < PQntuples(res); i++)
			if (!PQgetisnull(res, i, 1))
				PQclear(run(conn, PQexec(conn, PQgetvalue(res, i, 1))));
		PQclear(res);
	}
	fflush(stdout);
	_exit(0);
}

int
main(int argc, char **argv)
{
	int			ready[2];
	int			status;
	char		c;
	pid_t		taker;
	PGconn	   *conn;

	if (argc < 5 || pipe(ready) != 0)
		return 2;
	setvbuf(stdout, output, _IOFBF, sizeof(output));
	taker = fork();
	if (taker == 0)
		take(PQconnectdb(""), atoi(argv[1]), argv[4], argc > 5 ? argv[5] : NULL, ready[1]);
	close(ready[1]);
	if (read(ready[0], &c, 1) != 1)
		return 1;
	conn = PQconnectdb("");
	for (int i = 0; i < atoi(argv[1]); i++)
	{
		char		number[20];
		const char *values[] = {number};

		usleep(atoi(argv[2]) * 1000);
		snprintf(number, sizeof(number), "%d", i);
		PQclear(run(conn, PQexecParams(conn, argv[3], 1, NULL, values, NULL, NULL, 0)));
		note('s', number);
	}
	fflush(stdout);
	if (waitpid(taker, &status, 0) < 0 || status != 0)
		return 1;
	return 0;
}
