/*
 * Runs the steps of test/t/produce_libraries.pl with the library for C, and prints a line
 * for each.
 */
#define _GNU_SOURCE
#include "jobq_consumer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static PGconn *connection;

static void
run(const char *statement)
{
	PQclear(PQexec(connection, statement));
}

static void
begin_again(const char *statement)
{
	run(statement);
	run("BEGIN");
}

static void
show_error(void)
{
	/* a verbose message begins with "ERROR:  22023: " */
	printf("error %.5s\n", PQerrorMessage(connection) + strlen("ERROR:  "));
	begin_again("ROLLBACK");
}

static void
show_text(char *text)
{
	if (text == NULL)
		show_error();
	else
		puts(text);
	free(text);
}

int
main(int argc, char **argv)
{
	connection = PQconnectdb("");
	PQsetErrorVerbosity(connection, PQERRORS_VERBOSE);
	run("BEGIN");
	for (int i = 1; i < argc; i++)
	{
		char	   *rest = argv[i];
		char	   *step = strsep(&rest, "\t");
		char	   *first = strsep(&rest, "\t");
		char	   *second = strsep(&rest, "\t");

		if (strcmp(step, "enqueue") == 0)
		{
			long long	id = jobq_enqueue(connection, first, second, rest);

			if (id < 0)
				show_error();
			else
				printf("%lld\n", id);
		}
		else if (strcmp(step, "many") == 0)
		{
			long long  *ids = NULL;
			int			n = jobq_enqueue_many(connection, first, second, rest, &ids);

			for (int j = 0; j < n; j++)
				printf("%s%lld", j > 0 ? " " : "", ids[j]);
			puts("");
			free(ids);
		}
		else if (strcmp(step, "status") == 0)
			show_text(jobq_status(connection, atoll(first)));
		else if (strcmp(step, "wait") == 0)
			show_text(jobq_wait(connection, atoll(first), atof(second)));
		else
			begin_again(step);
	}
	run("COMMIT");
	PQfinish(connection);
	return 0;
}
