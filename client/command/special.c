/*-------------------------------------------------------------------------
 *
 * special.c
 *	  Commands beyond a fixed statement: assembled statements, and results as an exit
 *	  status or a drawing.
 *
 * client/command/special.c
 *
 *-------------------------------------------------------------------------
 */
#include "command/command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Columns of a workflow step. */
enum
{
	STEP_NAME, STEP_STATE, STEP_JOB, STEP_NEEDS, STEP_ATTEMPT, STEP_ERROR,
	STEP_ELEMENTS, STEP_COMPLETED, STEP_DEAD
};

static const char *
type_of(const CommandOption *option)
{
	return strcmp(option->argument, "int") == 0 ? "int4"
		: strcmp(option->argument, "boolean") == 0 ? "bool" : option->argument;
}

/*
 * Append ", name => $n::type" for each given option with an argument, and add the values to
 * the "n" existing ones.  A value of an array option that is not an array stands for an array
 * with this element.  Returns the new number of values.
 */
static int
append_given(PQExpBuffer sql, const Command *command, const char *const *options, int n,
			 const char **values)
{
	for (int i = 0; i < MAX_OPTIONS && command->options[i].name != NULL; i++)
		if (options[i] != NULL && command->options[i].argument != NULL)
		{
			const char *type = type_of(&command->options[i]);
			bool		is_element = type[0] == '_' && options[i][0] != '{';

			values[n++] = options[i];
			appendPQExpBuffer(sql, is_element ? ", %s => ARRAY[$%d::pg_catalog.%s]" : ", %s => $%d::pg_catalog.%s",
							  command->options[i].name, n, type + is_element);
		}
	return n;
}

/* Return the value of an option, or NULL. */
static const char *
given_option(const Command *command, const char *const *options, const char *name)
{
	for (int i = 0; i < MAX_OPTIONS && command->options[i].name != NULL; i++)
		if (strcmp(command->options[i].name, name) == 0)
			return options[i];
	return NULL;
}

/*
 * Print the number of jobs that a call would change, and ask whether to go on.  "sql" returns the
 * number.  Without a job there is no question, and the answer is yes.
 */
static bool
user_agrees(const Command *command, const char *sql, int n, const char *const *values)
{
	PGresult   *result;
	char		reply[16];
	bool		agrees = true;
	PGconn	   *conn = connect_now();

	result = query(conn, sql, n, values);
	if (strcmp(PQgetvalue(result, 0, 0), "0") != 0)
	{
		const char *jobs = PQgetvalue(result, 0, 0);

		fprintf(stderr, "jobq %s: %s %s. Continue? [y/N] ", command->name, jobs, strcmp(jobs, "1") == 0 ? "job" : "jobs");
		fflush(stderr);
		agrees = fgets(reply, sizeof(reply), stdin) != NULL && (reply[0] == 'y' || reply[0] == 'Y');
	}
	PQclear(result);
	PQfinish(conn);
	return agrees;
}

/*
 * Run a call with options, for example enqueue.  command->sql is the statement up to the
 * last positional argument.
 */
int
run_call(const Command *command, int argc, char **argv)
{
	const char *given[MAX_VALUES];
	const char *values[MAX_VALUES];
	PQExpBufferData sql;
	int			n = command->max_arguments;

	command_parse(command, argc, argv, given);
	memcpy(values, given, n * sizeof(char *));
	initPQExpBuffer(&sql);
	appendPQExpBufferStr(&sql, command->sql);
	n = append_given(&sql, command, given + n, n, values);
	appendPQExpBufferStr(&sql, ") AS id");
	return statement_run(command, sql.data, n, values);
}

/*
 * Run a call for all jobs matching conditions; at least one condition is required.
 * command->sql is the statement up to its last positional argument, or to its parenthesis.  On
 * a terminal, first ask.
 */
int
run_many(const Command *command, int argc, char **argv)
{
	const char *given[MAX_VALUES];
	const char *values[MAX_VALUES];
	PQExpBufferData sql;
	PQExpBufferData count;
	PQExpBufferData conditions;
	int			first = command->max_arguments;
	int			n;

	command_parse(command, argc, argv, given);
	memcpy(values, given, first * sizeof(char *));
	initPQExpBuffer(&sql);
	initPQExpBuffer(&conditions);
	n = append_given(&conditions, command, given + first, first, values);
	if (n == first + (given_option(command, given + first, "dry_run") != NULL))
	{
		error("\"%s\" has no condition", command->name);
		hint("To mean all, give --older-than=0.");
		return EXIT_USAGE;
	}
	appendPQExpBuffer(&sql, "%s%s", command->sql, conditions.data + (first == 0 ? strlen(", ") : 0));
	initPQExpBuffer(&count);
	appendPQExpBuffer(&count, "%s, dry_run => true) AS jobs", sql.data);
	if (isatty(STDIN_FILENO) && given_option(command, given + first, "yes") == NULL &&
		given_option(command, given + first, "dry_run") == NULL && !user_agrees(command, count.data, n, values))
		return EXIT_REFUSED;
	appendPQExpBufferStr(&sql, ") AS jobs");
	return statement_run(command, sql.data, n, values);
}

/*
 * prune: at least one age is required.  On a terminal, first ask.  The number comes from the
 * views: prune() needs the privilege "manage", which shows all jobs.
 */
int
run_prune(const Command *command, int argc, char **argv)
{
	static const char count[] =
		"SELECT (SELECT pg_catalog.count(*) FROM jobq.jobs WHERE state OPERATOR(pg_catalog.<>) 'dead' "
		"AND finished_at OPERATOR(pg_catalog.<) (jobq_internal.clock() OPERATOR(pg_catalog.-) $1::pg_catalog.interval)) OPERATOR(pg_catalog.+) "
		"(SELECT pg_catalog.count(*) FROM jobq.dead_letters "
		"WHERE finished_at OPERATOR(pg_catalog.<) (jobq_internal.clock() OPERATOR(pg_catalog.-) $2::pg_catalog.interval)) AS jobs";
	const char *values[MAX_VALUES];

	command_parse(command, argc, argv, values);
	if (values[0] == NULL && values[1] == NULL)
	{
		error("\"prune\" has no age");
		hint("Give --older-than for finished jobs, --dead-older-than for dead letters, or both.");
		return EXIT_USAGE;
	}
	if (given_option(command, values, "dry-run") != NULL)
		return statement_run(command, count, 2, values);
	if (isatty(STDIN_FILENO) && given_option(command, values, "yes") == NULL && !user_agrees(command, count, 2, values))
		return EXIT_REFUSED;
	return statement_run(command, command->sql, 2, values);
}

/*
 * Run the statement of the command, and print the rows if JSON is requested.  See
 * query_databases() for "status".
 */
static PGresult *
rows_of(const Command *command, int argc, char **argv, int *status)
{
	const char *values[MAX_VALUES];
	int			n = command_parse(command, argc, argv, values);
	PGresult   *result = query_databases(command->sql, settings.json, n, values, status);

	if (settings.json)
		print_json_rows(result);
	return result;
}

/*
 * wait: the exit status is the worst outcome, or 1 after a timeout.
 */
int
run_wait(const Command *command, int argc, char **argv)
{
	int			status = EXIT_DONE;
	PGresult   *result = rows_of(command, argc, argv, &status);

	if (!settings.json)
		print_result(result);
	for (int row = 0; row < PQntuples(result); row++)
	{
		int			outcome = outcome_status(PQgetvalue(result, row, PQfnumber(result, "state")));

		if (outcome == -1)
			status = EXIT_REFUSED;
		else if (status != EXIT_REFUSED && outcome > 0 &&
				 (status == EXIT_DONE || outcome < status))
			status = outcome;
	}
	return status;
}

/*
 * Append a word for a shell.
 */
static void
append_word(PQExpBuffer line, const char *word)
{
	if (word[0] != '\0' && strspn(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.:/-") == strlen(word))
	{
		appendPQExpBufferStr(line, word);
		return;
	}
	appendPQExpBufferChar(line, '\'');
	for (; *word != '\0'; word++)
		appendPQExpBuffer(line, *word == '\'' ? "'\\''" : "%c", *word);
	appendPQExpBufferChar(line, '\'');
}

/*
 * Print a cause of failures, with the command that retries its dead letters.
 */
static void
print_cause(const PGresult *causes, int row)
{
#define VALUE(name)	PQgetvalue(causes, row, PQfnumber(causes, name))
	const char *dead = VALUE("dead_letters");
	bool		is_new = strcmp(VALUE("new"), "t") == 0;
	PQExpBufferData line;

	initPQExpBuffer(&line);
	appendPQExpBuffer(&line, "%s%s %s", is_new ? "new: " : "", VALUE("sqlstate"), VALUE("message"));
	if (settings.colour)
		fputs(is_new ? "\033[1;33m" : "\033[1m", stdout);
	print_line(0, line.data);
	if (settings.colour)
		fputs("\033[0m", stdout);
	resetPQExpBuffer(&line);
	appendPQExpBuffer(&line, "%s dead, %s failed, %s in the last hour, last job %s", dead, VALUE("failed"),
					  VALUE("failed_last_hour"), VALUE("job_id"));
	print_line(4, line.data);
	resetPQExpBuffer(&line);
	appendPQExpBuffer(&line, "first %s, last %s", VALUE("first_seen"), VALUE("last_seen"));
	print_line(4, line.data);
	resetPQExpBuffer(&line);
	if (settings.ndatabases > 1)
		appendPQExpBuffer(&line, "database %s, ", PQgetvalue(causes, row, 0));
	appendPQExpBuffer(&line, "queue %s, kinds %s", VALUE("queue"), VALUE("kinds"));
	print_line(4, line.data);
	if (VALUE("fingerprint")[0] != '\0')
	{
		printf("    jobq %s ", strcmp(dead, "0") != 0 ? "retry-many" : "list");
		resetPQExpBuffer(&line);
		if (settings.ndatabases == 1)
		{
			appendPQExpBufferStr(&line, "-d ");
			append_word(&line, settings.databases[0]);
			appendPQExpBufferChar(&line, ' ');
		}
		if (VALUE("queue")[0] != '\0')
		{
			appendPQExpBufferStr(&line, "--queue=");
			append_word(&line, VALUE("queue"));
			appendPQExpBufferChar(&line, ' ');
		}
		appendPQExpBuffer(&line, "--fingerprint=%s", VALUE("fingerprint"));
		/* a command is not cut */
		print_text(line.data);
		putchar('\n');
	}
	termPQExpBuffer(&line);
#undef VALUE
}

/*
 * failures: on a terminal, some lines for each cause, because the table is too wide.
 */
int
run_failures(const Command *command, int argc, char **argv)
{
	int			status = EXIT_DONE;
	PGresult   *result = rows_of(command, argc, argv, &status);

	if (!settings.json && terminal_width() == 0)
		print_result(result);
	else if (!settings.json)
		for (int row = 0; row < PQntuples(result); row++)
		{
			if (row > 0)
				putchar('\n');
			print_cause(result, row);
		}
	if (PQntuples(result) == 0 && !settings.json && terminal_width() > 0)
		puts("No attempt has failed, as far as this role may see.");
	PQclear(result);
	return status;
}

/*
 * doctor: print each problem, with its remedy below.  The exit status is 1 if a problem is
 * critical, and 3 if a database cannot be reached.
 */
int
run_doctor(const Command *command, int argc, char **argv)
{
	int			status = EXIT_DONE;
	PGresult   *result = rows_of(command, argc, argv, &status);
	int			first = settings.ndatabases > 1 ? 1 : 0;

	for (int row = 0; row < PQntuples(result); row++)
	{
		const char *severity = PQgetvalue(result, row, first);

		if (strcmp(severity, "critical") == 0 && status == EXIT_DONE)
			status = EXIT_REFUSED;
		if (settings.json)
			continue;
		print_state(severity);
		printf("%*s", 10 - (int) strlen(severity), "");
		if (first > 0)
		{
			print_text(PQgetvalue(result, row, 0));
			printf(": ");
		}
		print_text(PQgetvalue(result, row, first + 1));
		printf("\n%10s", "");
		print_text(PQgetvalue(result, row, first + 2));
		putchar('\n');
	}
	if (PQntuples(result) == 0 && status == EXIT_DONE && !settings.json)
		puts("All is well, as far as this role may see.");
	return status;
}

/*
 * The exit status for a job in this state; -1 if the job has not ended.
 */
int
outcome_status(const char *state)
{
	return strcmp(state, "completed") == 0 ? EXIT_DONE
		: strcmp(state, "dead") == 0 ? EXIT_JOB_DEAD
		: strcmp(state, "cancelled") == 0 ? EXIT_JOB_CANCELLED
		: strcmp(state, "expired") == 0 ? EXIT_JOB_EXPIRED : -1;
}

int
run_drain(const Command *command, int argc, char **argv)
{
	const char *values[MAX_VALUES];
	int			n = command_parse(command, argc, argv, values);
	PGconn	   *conn = connect_now();
	PGresult   *result = query(conn, command->sql, n, values);
	bool		empty = strcmp(PQgetvalue(result, 0, 0), "t") == 0;

	PQclear(result);
	PQfinish(conn);
	if (!empty)
		error("queue \"%s\" has jobs that run or may run still", values[0]);
	return empty ? EXIT_DONE : EXIT_REFUSED;
}

/*
 * check 'mail:100,default:500', as a Nagios check: the exit status is 0, or 2 if a
 * queue exceeds its limit, or 3 if the state is unknown.
 */
int
run_check(const Command *command, int argc, char **argv)
{
	const char *values[MAX_VALUES];
	const char *arrays[2];
	const char *names[100];
	const char *most[100];
	int			n = 0;
	PGresult   *result;
	int			status = 0;
	PQExpBufferData line;

	command_parse(command, argc, argv, values);
	for (char *word = strtok(copy_text(values[0]), ","); word != NULL || n == 0; word = strtok(NULL, ","))
	{
		char	   *colon = word != NULL ? strrchr(word, ':') : NULL;

		/* an invalid list must not be reported as CRITICAL */
		if (colon == NULL || colon == word || n == 100 ||
			colon[1] == '\0' || strlen(colon + 1) > 18 || colon[1 + strspn(colon + 1, "0123456789")] != '\0')
			fatal(EXIT_NO_CONNECTION, "invalid list of queues: \"%s\" (such as mail:100,default:500)", values[0]);
		*colon = '\0';
		names[n] = word;
		most[n++] = colon + 1;
	}
	arrays[0] = array_of(n, names);
	arrays[1] = array_of(n, most);
	say_as_result("JOBQ UNKNOWN - ");
	result = PQexecParams(connect_now(), command->sql, 2, NULL, (const char *const *) arrays, NULL, NULL, 0);
	if (PQresultStatus(result) != PGRES_TUPLES_OK)
	{
		say_result_error(result);
		return EXIT_NO_CONNECTION;
	}
	initPQExpBuffer(&line);
	for (int row = 0; row < PQntuples(result); row++)
	{
		bool		unknown = PQgetisnull(result, row, 1);

		if (unknown)
			status = 3;
		else if (status != 3 && strtoll(PQgetvalue(result, row, 1), NULL, 10) > strtoll(PQgetvalue(result, row, 2), NULL, 10))
			status = 2;
		appendPQExpBuffer(&line, unknown ? "%s%s does not exist" : "%s%s %s of %s", row > 0 ? ", " : "",
						  PQgetvalue(result, row, 0), PQgetvalue(result, row, 1), PQgetvalue(result, row, 2));
	}
	printf("JOBQ %s - %s\n", status == 0 ? "OK" : status == 2 ? "CRITICAL" : "UNKNOWN", line.data);
	return status;
}

/*
 * True if the array has this element.  The array is in the text format of the server.
 */
static bool
array_has(const char *array, const char *element)
{
	PQExpBufferData word;
	bool		found = false;

	initPQExpBuffer(&word);
	for (const char *c = array + 1; *c != '\0' && !found;)
	{
		bool		quoted = *c == '"';

		resetPQExpBuffer(&word);
		for (c += quoted; *c != '\0' && (quoted ? *c != '"' : *c != ',' && *c != '}'); c++)
		{
			if (*c == '\\' && c[1] != '\0')
				c++;
			appendPQExpBufferChar(&word, *c);
		}
		c += quoted && *c == '"';
		found = strcmp(word.data, element) == 0;
		if (*c != '\0')
			c++;
	}
	termPQExpBuffer(&word);
	return found;
}

/*
 * Draw a step, with the dependent steps below.  A step with several dependencies is drawn
 * in full below the first of them.  Below the rest, only the name appears.
 */
static void
draw_step(const PGresult *steps, int step, bool *drawn, const char *before, const char *corner,
		  const char *below)
{
	const char *name = PQgetvalue(steps, step, STEP_NAME);
	int			last = -1;
	PQExpBufferData deeper;

	printf("%s%s", before, corner);
	print_text(name);
	if (drawn[step])
	{
		printf("  (above)\n");
		return;
	}
	printf("  ");
	print_state(PQgetvalue(steps, step, STEP_STATE));
	printf("  job %s", PQgetvalue(steps, step, STEP_JOB));
	if (!PQgetisnull(steps, step, STEP_ELEMENTS))
		printf("  %s of %s elements", PQgetvalue(steps, step, STEP_COMPLETED),
			   PQgetvalue(steps, step, STEP_ELEMENTS));
	if (!PQgetisnull(steps, step, STEP_DEAD) &&
		strcmp(PQgetvalue(steps, step, STEP_DEAD), "0") != 0)
		printf(", %s dead", PQgetvalue(steps, step, STEP_DEAD));
	if (!PQgetisnull(steps, step, STEP_ERROR))
	{
		printf("  ");
		print_text(PQgetvalue(steps, step, STEP_ERROR));
	}
	putchar('\n');
	drawn[step] = true;
	for (int i = 0; i < PQntuples(steps); i++)
		if (array_has(PQgetvalue(steps, i, STEP_NEEDS), name))
			last = i;
	initPQExpBuffer(&deeper);
	appendPQExpBuffer(&deeper, "%s%s", before, below);
	for (int i = 0; i <= last; i++)
		if (array_has(PQgetvalue(steps, i, STEP_NEEDS), name))
			draw_step(steps, i, drawn, deeper.data, i == last ? "\u2514\u2500 " : "\u251C\u2500 ",
					  i == last ? "   " : "\u2502  ");
	termPQExpBuffer(&deeper);
}

int
run_workflow(const Command *command, int argc, char **argv)
{
	const char *values[MAX_VALUES];
	int			n = command_parse(command, argc, argv, values);
	PGresult   *steps;
	bool	   *drawn;

	if (settings.json)
		return statement_run(command, command->sql, n, values);
	steps = query(connect_now(), command->sql, n, values);
	drawn = allocate(PQntuples(steps) * sizeof(bool));
	for (int i = 0; i < PQntuples(steps); i++)
		if (strcmp(PQgetvalue(steps, i, STEP_NEEDS), "{}") == 0)
			draw_step(steps, i, drawn, "", "", "");
	if (PQntuples(steps) == 0)
	{
		error("there is no workflow %s", values[0]);
		return EXIT_REFUSED;
	}
	return EXIT_DONE;
}
