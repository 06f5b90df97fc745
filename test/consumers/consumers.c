/*-------------------------------------------------------------------------
 *
 * consumers.c
 *	  Many consumers, a process for each; some consumers are killed at random.
 *
 * usage: consumers CONNINFO COUNT KILLS PAUSE_MS FILE
 *
 * Each consumer reserves and acknowledges jobs of the queue "work" until a
 * stop.  A consumer is killed each PAUSE_MS, KILLS times, and replaced.  FILE
 * gets a line per job after the return of ack().  At SIGTERM, all consumers end
 * after the current job.
 *
 * Output: the names of the killed consumers.
 *
 * test/consumers/consumers.c
 *
 *-------------------------------------------------------------------------
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <libpq-fe.h>

static volatile sig_atomic_t stop = 0;

static void
on_term(int signo)
{
	stop = 1;
}

static void
fail(PGconn *conn, const char *what)
{
	fprintf(stderr, "%s: %s", what, PQerrorMessage(conn));
	_exit(1);
}

static void
consume(const char *conninfo, int number, int file)
{
	PGconn	   *conn = PQconnectdb(conninfo);
	char		reserve[200];
	PGresult   *res;

	/* all consumers connect at once, so the queue of connections may be full */
	for (int tries = 0; tries < 100 && PQstatus(conn) != CONNECTION_OK; tries++)
	{
		usleep(100000);
		PQreset(conn);
	}
	if (PQstatus(conn) != CONNECTION_OK)
		fail(conn, "connect");
	snprintf(reserve, sizeof(reserve),
			 "SELECT array_agg(id), array_agg(token), string_agg(id || E'\\n', '') FROM"
			 " jobq.reserve('{work}', 10, '10 min', '100 ms', 'consumer %d')", number);
	while (!stop)
	{
		const char *values[2];

		res = PQexec(conn, reserve);
		if (PQresultStatus(res) != PGRES_TUPLES_OK)
			fail(conn, "reserve");
		if (!PQgetisnull(res, 0, 0))
		{
			PGresult   *ack;

			values[0] = PQgetvalue(res, 0, 0);
			values[1] = PQgetvalue(res, 0, 1);
			usleep(1000);		/* the work */
			ack = PQexecParams(conn, "SELECT jobq.ack_many($1::bigint[], $2::bigint[])",
							   2, NULL, values, NULL, NULL, 0);
			if (PQresultStatus(ack) != PGRES_TUPLES_OK)
				fail(conn, "ack");
			PQclear(ack);
			if (write(file, PQgetvalue(res, 0, 2), PQgetlength(res, 0, 2)) < 0)
				fail(conn, "write");
		}
		PQclear(res);
	}
	PQfinish(conn);
	_exit(0);
}

int
main(int argc, char **argv)
{
	int			count = argc > 5 ? atoi(argv[2]) : 0;
	int			kills = count ? atoi(argv[3]) : 0;
	int			file = count ? open(argv[5], O_WRONLY | O_CREAT | O_APPEND, 0600) : -1;
	int			started = 0;
	int			failed = 0;
	pid_t	   *pids = calloc(count + 1, sizeof(pid_t));
	int		   *numbers = calloc(count + 1, sizeof(int));
	struct sigaction action = {.sa_handler = on_term};

	if (file < 0)
		return 2;
	sigaction(SIGTERM, &action, NULL);
	srandom(getpid());
	for (int victim = 0, round = 0; !stop; round++)
	{
		if (round >= count)
		{
			usleep(atoi(argv[4]) * 1000);
			if (stop || kills-- <= 0)
			{
				while (!stop)
					pause();
				break;
			}
			victim = random() % count;
			kill(pids[victim], SIGKILL);
			waitpid(pids[victim], NULL, 0);
			printf("consumer %d\n", numbers[victim]);
			fflush(stdout);
		}
		else
			victim = round;
		numbers[victim] = ++started;
		pids[victim] = fork();
		if (pids[victim] == 0)
			consume(argv[1], started, file);
	}
	for (int i = 0; i < count; i++)
		if (pids[i] > 0)
			kill(pids[i], SIGTERM);
	for (int i = 0; i < count; i++)
	{
		int			status;

		if (pids[i] > 0 && waitpid(pids[i], &status, 0) > 0 && status != 0)
			failed = 1;
	}
	return failed;
}
