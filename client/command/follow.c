/*-------------------------------------------------------------------------
 *
 * follow.c
 *	  The command tail: print the changes of a job as they happen.
 *
 * client/command/follow.c
 *
 *-------------------------------------------------------------------------
 */
#include "command/command.h"

#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FIRST_PAUSE	0.1
#define LAST_PAUSE	10.0

enum
{
	JOB_STATE, JOB_ATTEMPT, JOB_PROGRESS, JOB_MESSAGE, JOB_ERROR, JOB_RESULT, JOB_AT, JOB_LOGGED,
	JOB_NCOLUMNS
};

/* Schemas are named as in commands.c. */
static const char look[] =
"SELECT state, attempt, progress, message, error, result, "
"pg_catalog.to_char(jobq_internal.clock(), 'HH24:MI:SS') AS at, "
"log OPERATOR(pg_catalog.#>>) '{-1,at}' AS logged "
"FROM jobq.jobs WHERE id OPERATOR(pg_catalog.=) $1::pg_catalog.int8";

static const char log_lines[] =
"WITH lines AS MATERIALIZED (SELECT l.n, l.line OPERATOR(pg_catalog.->>) 'at' AS at, "
"l.line OPERATOR(pg_catalog.->>) 'level' AS level, l.line OPERATOR(pg_catalog.->>) 'message' AS message "
"FROM jobq.jobs AS j, pg_catalog.jsonb_array_elements(j.log) WITH ORDINALITY AS l(line, n) "
"WHERE j.id OPERATOR(pg_catalog.=) $1::pg_catalog.int8) "
"SELECT pg_catalog.to_char(l.at::pg_catalog.timestamptz, 'HH24:MI:SS'), l.level, l.message FROM lines AS l "
"WHERE l.n OPERATOR(pg_catalog.>) coalesce((SELECT pg_catalog.max(s.n) FROM lines AS s "
"WHERE s.at OPERATOR(pg_catalog.=) $2::pg_catalog.text), 0) "
"AND l.n OPERATOR(pg_catalog.<=) (SELECT pg_catalog.max(s.n) FROM lines AS s "
"WHERE s.at OPERATOR(pg_catalog.=) $3::pg_catalog.text) ORDER BY l.n";

/*
 * Wait for at most 1 s; progress does not end the wait, and is read afterwards.  Only
 * a waiting session learns the outcome of a job without a row.
 */
static const char wait_a_little[] =
"SELECT w.state, pg_catalog.to_char(jobq_internal.clock(), 'HH24:MI:SS') FROM jobq.wait($1::pg_catalog.int8, '1 s') AS w";

#define NO_SUCH_JOB	"JQ003"

/*
 * Return the result of a statement, or the error NO_SUCH_JOB.  After the loss of the
 * connection, reconnect without a time limit.
 */
static PGresult *
ask(PGconn **conn, const char *sql, int n, const char *const *values)
{
	double		pause = FIRST_PAUSE;

	for (;;)
	{
		PGresult   *result = PQexecParams(*conn, sql, n, NULL, values, NULL, NULL, 0);

		if (PQresultStatus(result) == PGRES_TUPLES_OK || strcmp(sqlstate_of(result), NO_SUCH_JOB) == 0)
			return result;
		if (PQstatus(*conn) == CONNECTION_OK)
		{
			say_result_error(result);
			exit(EXIT_REFUSED);
		}
		PQclear(result);
		say("the connection is lost; trying again in %.1f s", pause);
		while (PQstatus(*conn) != CONNECTION_OK)
		{
			usleep((useconds_t) (pause * 1e6));
			pause = fmin(2 * pause, LAST_PAUSE);
			PQreset(*conn);
		}
		say("connected again, to %s port %s", PQhost(*conn), PQport(*conn));
	}
}

/*
 * Print the lines of the log after the line with time "shown", up to the line with
 * time "last".  A long log drops its oldest lines, and may have dropped either of
 * these lines.
 */
static void
show_log(PGconn **conn, const char *id, const char *shown, const char *last)
{
	const char *values[3] = {id, shown, last};
	PGresult   *lines;

	lines = ask(conn, log_lines, 3, values);
	for (int i = 0; i < PQntuples(lines); i++)
	{
		printf("%s  %s: ", PQgetvalue(lines, i, 0), PQgetvalue(lines, i, 1));
		print_text(PQgetvalue(lines, i, 2));
		putchar('\n');
	}
	PQclear(lines);
}

/*
 * True if the reader of standard output is gone.
 */
static bool
reader_left(void)
{
	struct pollfd out = {STDOUT_FILENO, 0, 0};

	return fflush(stdout) != 0 || (poll(&out, 1, 0) > 0 && (out.revents & (POLLERR | POLLHUP)) != 0);
}

/*
 * The row of a known job is gone.  Print the outcome if the last wait has returned
 * it, and return the exit status.
 */
static int
left_no_row(const char *id, const PGresult *waited)
{
	const char *state = PQntuples(waited) > 0 ? PQgetvalue(waited, 0, 0) : "";
	int			status = outcome_status(state);

	if (status < 0)
		fatal(EXIT_REFUSED, "job %s is not there any more, and it is not known how it has ended", id);
	printf("%s  ", PQgetvalue(waited, 0, 1));
	print_state(state);
	putchar('\n');
	return status;
}

/*
 * jobq tail ID
 */
int
run_tail(const Command *command, int argc, char **argv)
{
	const char *values[MAX_VALUES];
	int			n = command_parse(command, argc, argv, values);
	PGconn	   *conn = connect_now();
	PGresult   *before = NULL;
	PGresult   *waited = NULL;
	int			status = -1;

	while (status < 0)
	{
		PGresult   *now = ask(&conn, look, n, values);
		const char *state;
		const char *shown = before != NULL ? PQgetvalue(before, 0, JOB_LOGGED) : "";
		bool		same;

		if (PQntuples(now) == 0 && before == NULL)
			fatal(EXIT_REFUSED, "job %s does not exist, or is another role's", values[0]);
		if (PQntuples(now) == 0)
		{
			status = left_no_row(values[0], waited);
			PQclear(now);
			break;
		}
		state = PQgetvalue(now, 0, JOB_STATE);
		if (strcmp(PQgetvalue(now, 0, JOB_LOGGED), shown) != 0)
			show_log(&conn, values[0], shown, PQgetvalue(now, 0, JOB_LOGGED));
		same = before != NULL;
		for (int i = JOB_STATE; same && i <= JOB_ERROR; i++)
			same = strcmp(PQgetvalue(before, 0, i), PQgetvalue(now, 0, i)) == 0;
		status = outcome_status(state);
		if (!same)
		{
			printf("%s  ", PQgetvalue(now, 0, JOB_AT));
			print_state(state);
			if (strcmp(PQgetvalue(now, 0, JOB_ATTEMPT), "0") != 0)
				printf("  attempt %s", PQgetvalue(now, 0, JOB_ATTEMPT));
			if (!PQgetisnull(now, 0, JOB_PROGRESS) && status != EXIT_DONE)
				printf("  %s %%  ", PQgetvalue(now, 0, JOB_PROGRESS));
			if (status != EXIT_DONE)
				print_text(PQgetvalue(now, 0, JOB_MESSAGE));
			if (!PQgetisnull(now, 0, JOB_ERROR) && strcmp(state, "running") != 0)
			{
				printf("  ");
				print_text(PQgetvalue(now, 0, JOB_ERROR));
			}
			putchar('\n');
		}
		if (status == EXIT_DONE && !PQgetisnull(now, 0, JOB_RESULT))
		{
			print_text(PQgetvalue(now, 0, JOB_RESULT));
			putchar('\n');
		}
		if (reader_left())
			return EXIT_REFUSED;
		PQclear(before);
		before = now;
		PQclear(waited);
		waited = status < 0 ? ask(&conn, wait_a_little, n, values) : NULL;
	}
	PQclear(before);
	PQclear(waited);
	PQfinish(conn);
	return status;
}
