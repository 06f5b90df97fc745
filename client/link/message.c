/*-------------------------------------------------------------------------
 *
 * message.c
 *	  Messages on standard error, in the style of PostgreSQL's programs; memory;
 *	  parsing of numbers and durations.
 *
 * A message may quote foreign text, for example the key of a job in a server error.
 * Quoted text must not control the terminal, or imitate a line of this program.
 *
 * client/link/message.c
 *
 *-------------------------------------------------------------------------
 */
#include "link/link.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#define MOST_TROUBLES	16		/* remembered */
#define SAID_AT_ONCE	5		/* lines before the first pause */
#define FIRST_SILENCE	60.0	/* in seconds; doubled each time */
#define LAST_SILENCE	3600.0

/* Where messages go, if not to standard error. */
static char *kept_line;			/* say_into(); or NULL */
static size_t kept_size;
static const char *result_head; /* say_as_result(); or NULL */

static void say_as(const char *level, const char *format, va_list arguments)
			__attribute__((format(printf, 2, 0)));

/*
 * Print a line, mostly on standard error, in a single write, so that lines of several
 * processes do not mix.  Further lines of a message, as in libpq's errors, begin with a tab.
 */
static void
say_as(const char *level, const char *format, va_list arguments)
{
	char		said[2048];
	char	   *at = said;
	PQExpBufferData line;

	if (vsnprintf(said, sizeof(said), format, arguments) < 0)
		said[0] = '\0';
	for (size_t n = strlen(said); n > 0 && said[n - 1] == '\n'; n--)
		said[n - 1] = '\0';
	initPQExpBuffer(&line);
	appendPQExpBuffer(&line, "jobq: %s", level);
	for (;;)
	{
		size_t		n = strcspn(at, "\n\t");
		char		stop = at[n];

		at[n] = '\0';
		append_text(&line, at, INT32_MAX);
		if (stop == '\0')
			break;
		at += n + 1;
		if (stop == '\n')
			appendPQExpBufferChar(&line, '\n');
		if (stop == '\t' || *at != '\t')
			appendPQExpBufferChar(&line, '\t');
	}
	if (kept_line == NULL && result_head == NULL)
		appendPQExpBufferChar(&line, '\n');
	if (PQExpBufferDataBroken(line))
		return;
	if (result_head != NULL)
	{
		const char *first = line.data + strlen("jobq: ");

		first += strncmp(first, "error: ", 7) == 0 ? 7 : 0;
		printf("%s%.*s\n", result_head, (int) strcspn(first, "\n"), first);
		result_head = NULL;
	}
	else if (kept_line != NULL)
		snprintf(kept_line, kept_size, "%s", line.data + strlen("jobq: "));
	else
	{
		fflush(stdout);
		fwrite(line.data, 1, line.len, stderr);
	}
	termPQExpBuffer(&line);
}

/*
 * From here on, keep the last message in this buffer, without "jobq: ".  NULL: print
 * messages on standard error.
 */
void
say_into(char *line, size_t size)
{
	kept_line = line;
	kept_size = size;
	result_head = NULL;
}

/*
 * Print the first line of the next message on standard output, behind "head" and without
 * "error: ".
 */
void
say_as_result(const char *head)
{
	result_head = head;
}

void
say(const char *format,...)
{
	va_list		arguments;

	va_start(arguments, format);
	say_as("", format, arguments);
	va_end(arguments);
}

void
error(const char *format,...)
{
	va_list		arguments;

	va_start(arguments, format);
	say_as("error: ", format, arguments);
	va_end(arguments);
}

void
hint(const char *format,...)
{
	va_list		arguments;

	va_start(arguments, format);
	say_as("hint: ", format, arguments);
	va_end(arguments);
}

void
fatal(int status, const char *format,...)
{
	va_list		arguments;

	va_start(arguments, format);
	say_as("error: ", format, arguments);
	va_end(arguments);
	exit(status);
}

/*
 * True if a line about this trouble is due.  A program that runs for years must not fill
 * its log with a trouble of every second.  After some lines about the same trouble,
 * pauses follow, which grow up to an hour.  A count of omitted lines ends each pause.
 */
bool
trouble_is_news(const char *trouble)
{
	static struct Trouble
	{
		char		what[200];
		double		came_at;
		double		next_at;
		double		silence;
		int			said;
		int			left_out;
	}			troubles[MOST_TROUBLES];
	struct Trouble *known = &troubles[0];
	double		now = seconds();

	for (int i = 0; i < MOST_TROUBLES; i++)
	{
		if (strncmp(troubles[i].what, trouble, sizeof(known->what) - 1) == 0)
		{
			known = &troubles[i];
			break;
		}
		if (troubles[i].came_at < known->came_at)
			known = &troubles[i];
	}
	if (strncmp(known->what, trouble, sizeof(known->what) - 1) != 0 || now > known->came_at + 2 * known->silence)
	{
		*known = (struct Trouble)
		{
			.silence = FIRST_SILENCE
		};
		snprintf(known->what, sizeof(known->what), "%s", trouble);
	}
	known->came_at = now;
	if (++known->said > SAID_AT_ONCE)
	{
		if (now < known->next_at)
		{
			known->left_out++;
			return false;
		}
		if (known->left_out > 0)
			say("%d lines like the next one were left out", known->left_out);
		known->left_out = 0;
		known->silence = fmin(2 * known->silence, LAST_SILENCE);
	}
	known->next_at = now + known->silence;
	return true;
}

void *
allocate(size_t size)
{
	void	   *memory = calloc(1, size > 0 ? size : 1);

	if (memory == NULL)
		fatal(EXIT_REFUSED, "out of memory");
	return memory;
}

void *
enlarge(void *old, size_t size)
{
	void	   *memory = realloc(old, size);

	if (memory == NULL)
		fatal(EXIT_REFUSED, "out of memory");
	return memory;
}

char *
copy_text(const char *text)
{
	size_t		size = strlen(text) + 1;

	return memcpy(allocate(size), text, size);
}

/*
 * A copy of a text, escaped, for messages.
 */
char *
harmless_text(const char *text, int most)
{
	PQExpBufferData buffer;

	initPQExpBuffer(&buffer);
	append_text(&buffer, text, most);
	if (PQExpBufferDataBroken(buffer))
		fatal(EXIT_REFUSED, "out of memory");
	return buffer.data;
}

/*
 * Seconds of a monotonic clock.
 */
double
seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

/*
 * Parse the number for "what"; on an error, end the program.
 */
int64_t
whole_number(const char *text, const char *what, int64_t min, int64_t max)
{
	char	   *end;
	long long	number;

	errno = 0;
	number = strtoll(text, &end, 10);
	if (end == text || *end != '\0' || errno != 0 || number < min || number > max)
		fatal(EXIT_USAGE, "invalid value for %s: \"%s\" (%lld to %lld)", what, text,
			  (long long) min, (long long) max);
	return number;
}

/*
 * Parse a duration in seconds, or with a unit: ms, s, min, h, d.
 */
double
duration(const char *text, const char *what)
{
	static const struct
	{
		const char *unit;
		double		factor;
	}			units[] = {
		{"", 1}, {"ms", 0.001}, {"s", 1}, {"min", 60}, {"m", 60}, {"h", 3600}, {"d", 86400}
	};
	char	   *end;
	double		number;

	errno = 0;
	number = strtod(text, &end);
	if (end != text && errno == 0 && number >= 0 && number <= 1e9)
	{
		while (*end == ' ')
			end++;
		for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
			if (strcasecmp(end, units[i].unit) == 0)
				return number * units[i].factor;
	}
	fatal(EXIT_USAGE, "invalid value for %s: \"%s\" (a number with ms, s, min, h or d)",
		  what, text);
}
