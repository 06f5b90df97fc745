/*-------------------------------------------------------------------------
 *
 * exposition.c
 *	  The metrics of several databases as a single exposition.
 *
 * An exposition may contain each family of metrics once.  The samples of all databases
 * therefore stand below the same head, and differ in the label "database".
 *
 * client/link/exposition.c
 *
 *-------------------------------------------------------------------------
 */
#include "link/link.h"

#include <stdlib.h>
#include <string.h>

#define END_LINE	"# EOF"

/*
 * Find or make the family of this name.
 */
static Family *
family_of(Exposition *exposition, const char *name, size_t length)
{
	Family	   *family;

	for (int i = 0; i < exposition->n; i++)
	{
		family = &exposition->families[i];
		if (strncmp(family->name, name, length) == 0 && family->name[length] == '\0')
			return family;
	}
	exposition->families = enlarge(exposition->families, (exposition->n + 1) * sizeof(Family));
	family = &exposition->families[exposition->n++];
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
 * Add the exposition of a database, in which the lines of a family follow each other.  The label
 * is the value of "database".
 */
void
exposition_add(Exposition *exposition, const char *text, const char *label)
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
				family = family_of(exposition, name, name_length);
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
 * Append all families to a buffer.
 */
void
exposition_append(const Exposition *exposition, PQExpBuffer out)
{
	for (int i = 0; i < exposition->n; i++)
	{
		const Family *family = &exposition->families[i];

		if (PQExpBufferDataBroken(family->head) || PQExpBufferDataBroken(family->samples))
			fatal(EXIT_REFUSED, "out of memory");
		appendBinaryPQExpBuffer(out, family->head.data, family->head.len);
		appendBinaryPQExpBuffer(out, family->samples.data, family->samples.len);
	}
	appendPQExpBufferStr(out, END_LINE "\n");
	if (PQExpBufferBroken(out))
		fatal(EXIT_REFUSED, "out of memory");
}

void
exposition_free(Exposition *exposition)
{
	for (int i = 0; i < exposition->n; i++)
	{
		free(exposition->families[i].name);
		termPQExpBuffer(&exposition->families[i].head);
		termPQExpBuffer(&exposition->families[i].samples);
	}
	free(exposition->families);
}
