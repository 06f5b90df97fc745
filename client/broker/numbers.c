/*-------------------------------------------------------------------------
 *
 * numbers.c
 *	  Numbers in the headers of a message keep all their digits.
 *
 * JSON has numbers of any size.  The protocol has integers of 64 bits and doubles, and
 * programs read no other numbers of it.  A number that neither holds is sent as a string.
 *
 * In the other direction, JSON holds all numbers of the protocol.  jansson does not: a
 * double 0.1 would be written as 0.10000000000000001.  The digits are therefore written
 * here, as a string that begins with a zero byte.  No other string in a header has a zero
 * byte, so numbers_unmark() finds these strings in the written JSON.
 *
 * client/broker/numbers.c
 *
 *-------------------------------------------------------------------------
 */
#ifdef HAVE_RABBITMQ

#include "broker/inner.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS			"0123456789"
#define DOUBLE_DIGITS	17		/* identify a double */
#define FLOAT_DIGITS	9
#define MARK			"\"\\u0000" /* the zero byte in written JSON */

/*
 * Store the digits of a number without leading and trailing zeros, at most DOUBLE_DIGITS.
 * Returns the number of digits, which may be larger.
 */
static int
digits_of(const char *number, char *digits)
{
	int			n = 0;
	int			significant = 0;

	for (; *number != '\0' && *number != 'e' && *number != 'E'; number++)
	{
		if (strchr(DIGITS, *number) == NULL || (n == 0 && *number == '0'))
			continue;
		if (n < DOUBLE_DIGITS)
			digits[n] = *number;
		n++;
		if (*number != '0')
			significant = n;
	}
	return significant;
}

/*
 * True if an integer of 64 bits or a double has all digits of the number.
 */
static bool
is_exact(const char *number)
{
	char		digits[DOUBLE_DIGITS];
	char		held[DOUBLE_DIGITS];
	char		buffer[DOUBLE_DIGITS + 16];
	int			n;

	if (number[strspn(number, "-" DIGITS)] == '\0')
	{
		errno = 0;
		(void) strtoll(number, NULL, 10);
		return errno == 0;
	}
	n = digits_of(number, digits);
	if (n > DOUBLE_DIGITS)
		return false;
	snprintf(buffer, sizeof(buffer), "%.*e", n > 0 ? n - 1 : 0, strtod(number, NULL));
	return digits_of(buffer, held) == n && memcmp(digits, held, n) == 0;
}

/*
 * The length of the JSON string at the beginning of the text.
 */
static size_t
string_length(const char *json)
{
	size_t		n = 1;

	while (json[n] != '\0' && json[n] != '"')
		n += json[n] == '\\' && json[n + 1] != '\0' ? 2 : 1;
	return json[n] == '"' ? n + 1 : n;
}

/*
 * Return a copy of the JSON, in which each number that the protocol does not hold is a
 * string.
 */
char *
numbers_quote(const char *json)
{
	PQExpBufferData text;

	initPQExpBuffer(&text);
	for (size_t length; *json != '\0'; json += length)
	{
		bool		number = strchr("-" DIGITS, *json) != NULL;
		const char *quote = "";

		length = number ? strspn(json, DIGITS "+-.eE")
			: *json == '"' ? string_length(json) : strcspn(json, "\"-" DIGITS);
		if (number)
		{
			char	   *copy = strndup(json, length);

			if (copy == NULL)
				fatal(EXIT_REFUSED, "out of memory");
			quote = is_exact(copy) ? "" : "\"";
			free(copy);
		}
		appendPQExpBufferStr(&text, quote);
		appendBinaryPQExpBuffer(&text, json, length);
		appendPQExpBufferStr(&text, quote);
	}
	if (PQExpBufferDataBroken(text))
		fatal(EXIT_REFUSED, "out of memory");
	return text.data;
}

/*
 * Write a double, or a float, with as few digits as identify it.
 */
static void
write_shortest(char *text, size_t size, double value, bool single)
{
	int			most = single ? FLOAT_DIGITS : DOUBLE_DIGITS;
	int			digits = 1;

	do
		snprintf(text, size, "%.*g", digits, value);
	while (digits++ < most && (single ? strtof(text, NULL) != (float) value : strtod(text, NULL) != value));
}

/*
 * Return a number of the protocol, marked for numbers_unmark().  NULL if JSON has no form
 * of it.
 */
json_t *
number_of(const amqp_field_value_t *field)
{
	char		marked[64] = "";	/* the first byte is the mark */
	char	   *number = marked + 1;
	size_t		size = sizeof(marked) - 1;

	switch (field->kind)
	{
		case AMQP_FIELD_KIND_U64:
		case AMQP_FIELD_KIND_TIMESTAMP:
			snprintf(number, size, "%" PRIu64, field->value.u64);
			break;
		case AMQP_FIELD_KIND_F32:
			if (!isfinite(field->value.f32))
				return NULL;
			write_shortest(number, size, field->value.f32, true);
			break;
		case AMQP_FIELD_KIND_F64:
			if (!isfinite(field->value.f64))
				return NULL;
			write_shortest(number, size, field->value.f64, false);
			break;
		case AMQP_FIELD_KIND_DECIMAL:
			/* a signed integer, as clients write it */
			snprintf(number, size, "%de-%u", (int32_t) field->value.decimal.value, (unsigned) field->value.decimal.decimals);
			break;
		default:
			return NULL;
	}
	return json_stringn(marked, strlen(number) + 1);
}

/*
 * Make numbers of the marked strings in written JSON.  Returns the JSON, which may be NULL.
 */
char *
numbers_unmark(char *json)
{
	char	   *to = json;
	const char *from = json;

	if (json == NULL)
		return NULL;
	while (*from != '\0')
	{
		if (strncmp(from, MARK, strlen(MARK)) != 0)
		{
			*to++ = *from++;
			continue;
		}
		for (from += strlen(MARK); *from != '"'; from++)
			*to++ = *from;
		from++;
	}
	*to = '\0';
	return json;
}

#endif							/* HAVE_RABBITMQ */
