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

static const char *const states[][2] = {
	{"completed", "32"}, {"running", "36"}, {"dead", "31"}, {"failed", "31"}, {"failing", "31"},
	{"retryable", "33"}, {"expired", "33"}, {"cancelled", "2"}, {"blocked", "2"},
	{"critical", "31"}, {"warning", "33"}, {"ok", "32"},
};

static void put_text(const char *text, int most);
static int	terminal_width(void);
static const char *colour_of(const char *value);
static bool is_number(Oid type);
static void fit_columns(int n, int *widths);
static void print_cell(const char *text, int width, bool right, bool last, const char *colour);

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
static int
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
 * Shrink the widest columns until the table fits the terminal.
 */
static void
fit_columns(int n, int *widths)
{
	int			room = terminal_width();
	int			sum = 0;

	for (int i = 0; i < n; i++)
		sum += widths[i] + (i > 0 ? COLUMN_GAP : 0);
	while (room > 0 && sum > room)
	{
		int			widest = 0;

		for (int i = 1; i < n; i++)
			if (widths[i] >= widths[widest])
				widest = i;
		if (widths[widest] <= MIN_COLUMN)
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

	for (int i = 0; i < n; i++)
	{
		widths[i] = text_width(PQfname(result, i));
		for (int row = 0; row < PQntuples(result); row++)
		{
			int			width = text_width(PQgetvalue(result, row, i));

			if (width > widths[i])
				widths[i] = width;
		}
	}
	fit_columns(n, widths);
	for (int i = 0; i < n; i++)
		print_cell(PQfname(result, i), widths[i], is_number(PQftype(result, i)), i == n - 1,
				   settings.colour ? "1" : NULL);
	putchar('\n');
	for (int row = 0; row < PQntuples(result); row++)
	{
		for (int i = 0; i < n; i++)
			print_cell(PQgetvalue(result, row, i), widths[i], is_number(PQftype(result, i)),
					   i == n - 1, colour_of(PQgetvalue(result, row, i)));
		putchar('\n');
	}
	free(widths);
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
