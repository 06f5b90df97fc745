/*-------------------------------------------------------------------------
 *
 * output.c
 *	  Results as a table or as a record, for people.
 *
 * Values of jobs come from other programs, and may contain any bytes (text.c).  On a
 * terminal, wide columns are truncated so that a row stays a line.  A pipe receives the
 * complete values.
 *
 * The server produces JSON; see command.c.  There, remaining control characters are
 * escaped in JSON notation.
 *
 * client/link/output.c
 *
 *-------------------------------------------------------------------------
 */
#include "link/link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define COLUMN_GAP	2
#define MIN_COLUMN	12
#define MIN_NUMBER	4			/* the beginning of a title */

static const char *const states[][2] = {
	{"completed", "32"}, {"running", "36"}, {"dead", "31"}, {"failed", "31"}, {"failing", "31"},
	{"retryable", "33"}, {"expired", "33"}, {"cancelled", "2"}, {"blocked", "2"},
	{"critical", "31"}, {"warning", "33"}, {"ok", "32"},
};

static const char *colour_of(const char *value);

/*
 * Print a text, escaped.
 */
static void
put_text(const char *text, int most)
{
	PQExpBufferData buffer;

	initPQExpBuffer(&buffer);
	append_text(&buffer, text, most);
	fwrite(buffer.data, 1, buffer.len, stdout);
	termPQExpBuffer(&buffer);
}

/*
 * Print a line, escaped, after so many blanks.  On a terminal, the line is cut.
 */
void
print_line(int blanks, const char *text)
{
	int			width = terminal_width();

	printf("%*s", blanks, "");
	put_text(text, width == 0 ? INT32_MAX : width > blanks ? width - blanks : 1);
	putchar('\n');
}

/*
 * Print a text, escaped and complete.
 */
void
print_text(const char *text)
{
	put_text(text, INT32_MAX);
}

/*
 * Print JSON.  Control characters, which can occur only within strings, are written as
 * \uNNNN.
 */
void
print_json(const char *json)
{
	for (size_t left = strlen(json); left > 0;)
	{
		const unsigned char *at = (const unsigned char *) json;
		wchar_t		character;
		size_t		bytes = take_character(json, left, &character);

		if (character != 0 || *json == '\n')
			fwrite(json, 1, bytes, stdout);
		else if (at[0] == 0xC2 && (at[1] & 0xC0) == 0x80)
		{
			bytes = 2;
			printf("\\u%04X", at[1]);
		}
		else if (at[0] == 0xE2 && (at[1] & 0xC0) == 0x80 && (at[2] & 0xC0) == 0x80)
		{
			bytes = 3;
			printf("\\u%04X", 0x2000 | (at[1] & 0x3F) << 6 | (at[2] & 0x3F));
		}
		else
			printf("\\u%04X", at[0]);
		json += bytes;
		left -= bytes;
	}
}

/*
 * Print rows, each as JSON in the last column, as a JSON array.
 */
void
print_json_rows(const PGresult *result)
{
	putchar('[');
	for (int row = 0; row < PQntuples(result); row++)
	{
		fputs(row == 0 ? "" : ",\n ", stdout);
		print_json(PQgetvalue(result, row, PQnfields(result) - 1));
	}
	puts("]");
}

/*
 * Print a state in its colour.
 */
void
print_state(const char *state)
{
	const char *colour = colour_of(state);

	if (colour != NULL)
		printf("\033[%sm", colour);
	print_text(state);
	if (colour != NULL)
		fputs("\033[0m", stdout);
}

/*
 * The width of the terminal; 0 if standard output is not a terminal.
 */
int
terminal_width(void)
{
	struct winsize size;
	const char *columns = getenv("COLUMNS");

	if (!isatty(STDOUT_FILENO))
		return 0;
	if (columns != NULL && atoi(columns) > 0)
		return atoi(columns);
	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
		return size.ws_col;
	return 80;
}

static const char *
colour_of(const char *value)
{
	if (settings.colour)
		for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++)
			if (strcmp(states[i][0], value) == 0)
				return states[i][1];
	return NULL;
}

static bool
is_number(Oid type)
{
	switch (type)
	{
		case 20:				/* int8 */
		case 21:				/* int2 */
		case 23:				/* int4 */
		case 700:				/* float4 */
		case 701:				/* float8 */
		case 1700:				/* numeric */
			return true;
		default:
			return false;
	}
}

/*
 * Shrink the widest columns until the table fits the terminal.  No column gets narrower than its
 * least width.  A table that is too wide has no empty columns: their width becomes 0.
 */
static void
fit_columns(int n, int *widths, const int *least)
{
	int			room = terminal_width();
	int			sum = -COLUMN_GAP;

	for (int i = 0; i < n; i++)
		sum += widths[i] + COLUMN_GAP;
	for (int i = 0; room > 0 && sum > room && i < n; i++)
		if (least[i] == 0)
		{
			sum -= widths[i] + COLUMN_GAP;
			widths[i] = 0;
		}
	while (room > 0 && sum > room)
	{
		int			widest = -1;

		for (int i = 0; i < n; i++)
			if (widths[i] > least[i] && (widest < 0 || widths[i] >= widths[widest]))
				widest = i;
		if (widest < 0)
			break;
		widths[widest]--;
		sum--;
	}
}

static void
print_cell(const char *text, int width, bool right, bool last, const char *colour)
{
	int			own = text_width(text);
	int			pad = own < width ? width - own : 0;

	if (right)
		printf("%*s", pad, "");
	if (colour != NULL)
		printf("\033[%sm", colour);
	put_text(text, width);
	if (colour != NULL)
		fputs("\033[0m", stdout);
	if (!right && !last)
		printf("%*s", pad, "");
	if (!last)
		printf("%*s", COLUMN_GAP, "");
}

/*
 * Print a table with a line for each row.  Nulls are empty.
 */
void
print_result(const PGresult *result)
{
	int			n = PQnfields(result);
	int		   *widths = allocate(n * sizeof(int));
	int		   *least = allocate(n * sizeof(int));
	int			last = 0;

	for (int i = 0; i < n; i++)
	{
		int			widest = 0;
		int			title = text_width(PQfname(result, i));

		for (int row = 0; row < PQntuples(result); row++)
		{
			int			width = text_width(PQgetvalue(result, row, i));

			if (width > widest)
				widest = width;
		}
		widths[i] = widest > title ? widest : title;
		/* the first digits of a number are another number */
		least[i] = !is_number(PQftype(result, i)) ? MIN_COLUMN : widest > MIN_NUMBER ? widest : MIN_NUMBER;
		if (widest == 0 && PQntuples(result) > 0)
			least[i] = 0;
		else if (least[i] > widths[i])
			least[i] = widths[i];
	}
	fit_columns(n, widths, least);
	for (int i = 0; i < n; i++)
		if (widths[i] > 0)
			last = i;
	for (int row = -1; row < PQntuples(result); row++)
	{
		for (int i = 0; i < n; i++)
		{
			const char *text = row < 0 ? PQfname(result, i) : PQgetvalue(result, row, i);

			if (widths[i] > 0)
				print_cell(text, widths[i], is_number(PQftype(result, i)), i == last,
						   row < 0 ? settings.colour ? "1" : NULL : colour_of(text));
		}
		putchar('\n');
	}
	free(widths);
	free(least);
}

/*
 * Print each row as lines of a column name and a value, without null columns.
 */
void
print_record(const PGresult *result)
{
	int			n = PQnfields(result);
	int			width = 0;

	for (int i = 0; i < n; i++)
		if (text_width(PQfname(result, i)) > width)
			width = text_width(PQfname(result, i));
	for (int row = 0; row < PQntuples(result); row++)
	{
		if (row > 0)
			putchar('\n');
		for (int i = 0; i < n; i++)
		{
			if (PQgetisnull(result, row, i))
				continue;
			print_cell(PQfname(result, i), width, false, false, settings.colour ? "1" : NULL);
			print_state(PQgetvalue(result, row, i));
			putchar('\n');
		}
	}
}
