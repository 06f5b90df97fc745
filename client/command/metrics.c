/*-------------------------------------------------------------------------
 *
 * metrics.c
 *	  The command metrics: the metrics of several databases as a single exposition.
 *
 * An exposition may contain each family of metrics once.  The samples of all databases
 * therefore stand below the same head, and differ in the label "database".
 *
 * client/command/metrics.c
 *
 *-------------------------------------------------------------------------
 */
#include "command/command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define END_LINE	"# EOF"

typedef struct Family
{
	char	   *name;
	PQExpBufferData head;		/* lines that begin with "#" */
	PQExpBufferData samples;
} Family;

static Family *families;
static int	nfamilies;

static Family *family_of(const char *name, size_t length);
static void append_label(PQExpBuffer buffer, const char *label);
static void append_sample(PQExpBuffer buffer, const char *line, size_t length, const char *label);
static void add_exposition(const char *text, const char *label);

/*
 * Find or make the family of this name.
 */
static Family *
family_of(const char *name, size_t length)
{
	Family	   *family;

	for (int i = 0; i < nfamilies; i++)
		if (strncmp(families[i].name, name, length) == 0 && families[i].name[length] == '\0')
			return &families[i];
	families = enlarge(families, (nfamilies + 1) * sizeof(Family));
	family = &families[nfamilies++];
	family->name = copy_text(name);
	family->name[length] = '\0';
	initPQExpBuffer(&family->head);
	initPQExpBuffer(&family->samples);
	return family;
}

/*
 * Append the label "database" with its value.
 */
static void
append_label(PQExpBuffer buffer, const char *label)
{
	appendPQExpBufferStr(buffer, "database=\"");
	for (const char *c = label; *c != '\0'; c++)
	{
		if (*c == '\\' || *c == '"')
			appendPQExpBufferChar(buffer, '\\');
		appendPQExpBufferStr(buffer, *c == '\n' ? "\\n" : "");
		if (*c != '\n')
			appendPQExpBufferChar(buffer, *c);
	}
	appendPQExpBufferChar(buffer, '"');
}

/*
 * Append a sample with the label "database" before the other labels.
 */
static void
append_sample(PQExpBuffer buffer, const char *line, size_t length, const char *label)
{
	size_t		name = strcspn(line, "{ ");
	bool		labelled = line[name] == '{';

	appendBinaryPQExpBuffer(buffer, line, name);
	appendPQExpBufferChar(buffer, '{');
	append_label(buffer, label);
	appendPQExpBufferChar(buffer, labelled ? ',' : '}');
	appendBinaryPQExpBuffer(buffer, line + name + labelled, length - name - labelled);
	appendPQExpBufferChar(buffer, '\n');
}

/*
 * Add the exposition of a database.  The lines of a family follow each other.
 */
static void
add_exposition(const char *text, const char *label)
{
	Family	   *family = NULL;
	bool		known = false;

	for (const char *line = text; *line != '\0';)
	{
		size_t		length = strcspn(line, "\n");

		if (line[0] == '#' && strncmp(line, END_LINE, length) != 0)
		{
			/* "# TYPE name gauge", and likewise HELP and UNIT */
			const char *name = strchr(line + 2, ' ') + 1;
			size_t		name_length = strcspn(name, " \n");

			if (family == NULL || strlen(family->name) != name_length || strncmp(family->name, name, name_length) != 0)
			{
				family = family_of(name, name_length);
				known = family->head.len > 0;
			}
			if (!known)
				appendPQExpBuffer(&family->head, "%.*s\n", (int) length, line);
		}
		else if (family != NULL && line[0] != '#' && length > 0)
			append_sample(&family->samples, line, length, label);
		line += length + (line[length] == '\n');
	}
}

/*
 * metrics: the metrics of a single database are printed as the server returns them.
 */
int
run_metrics(const Command *command, int argc, char **argv)
{
	const char *values[MAX_VALUES];
	int			n = command_parse(command, argc, argv, values);
	int			status = EXIT_DONE;
	PGresult   *result = query_databases(command->sql, false, n, values, &status);

	if (settings.json)
		fatal(EXIT_USAGE, "\"jobq metrics\" has no JSON");
	if (settings.ndatabases <= 1)
	{
		fputs(PQgetvalue(result, 0, 0), stdout);
		return status;
	}
	for (int row = 0; row < PQntuples(result); row++)
		add_exposition(PQgetvalue(result, row, 1), PQgetvalue(result, row, 0));
	for (int i = 0; i < nfamilies; i++)
	{
		if (PQExpBufferDataBroken(families[i].head) || PQExpBufferDataBroken(families[i].samples))
			fatal(EXIT_REFUSED, "out of memory");
		fputs(families[i].head.data, stdout);
		fputs(families[i].samples.data, stdout);
	}
	puts(END_LINE);
	return status;
}
