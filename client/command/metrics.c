/*-------------------------------------------------------------------------
 *
 * metrics.c
 *	  The command metrics.
 *
 * client/command/metrics.c
 *
 *-------------------------------------------------------------------------
 */
#include "command/command.h"

#include <stdio.h>
#include <stdlib.h>

/*
 * metrics: the metrics of a single database are printed as the server returns them.
 */
int
run_metrics(const Command *command, int argc, char **argv)
{
	const char *values[MAX_VALUES];
	int			n = command_parse(command, argc, argv, values);
	int			status = EXIT_DONE;
	Exposition	exposition = {0};
	PQExpBufferData text;
	PGresult   *result = query_databases(command->sql, false, n, values, &status);

	if (settings.json)
		fatal(EXIT_USAGE, "\"jobq metrics\" has no JSON");
	if (settings.ndatabases <= 1)
	{
		fputs(PQgetvalue(result, 0, 0), stdout);
		return status;
	}
	for (int row = 0; row < PQntuples(result); row++)
		exposition_add(&exposition, PQgetvalue(result, row, 1), PQgetvalue(result, row, 0));
	initPQExpBuffer(&text);
	exposition_append(&exposition, &text);
	fputs(text.data, stdout);
	return status;
}
