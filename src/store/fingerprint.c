/*-------------------------------------------------------------------------
 *
 * fingerprint.c
 *	  The fingerprint of an error: equal for failed attempts with the same cause.
 *
 * The fingerprint is a hash of the SQLSTATE, the text of the error, and the place of the
 * error, without the values that differ between jobs.
 *
 * An error of the server provides its message before translation and before the insertion of
 * values.  This text, the function in C that raised the error, the table and the constraint
 * do not depend on the language or on the row.  The line in C is left out, because it changes
 * with each minor release of PostgreSQL.
 *
 * For any other error (RAISE, the errors of consumers and of jobq itself), one line of the
 * message is taken without numbers, quoted parts, and long random words.
 *
 * In both cases, the innermost line of a procedural language in the context is the place.  The
 * server has translated this line.
 *
 * The fingerprint is stored with each error in the job's row, and in a column of the dead
 * letter.  There are no counters of causes: the view jobq.failures reads the errors by partial
 * indexes of the jobs with errors.  Causes therefore need no limit, and a cause disappears with
 * its last job.
 *
 * src/store/fingerprint.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "common/hashfn.h"
#include "lib/stringinfo.h"
#include "utils/fmgrprotos.h"

#include "store/store.h"

PG_FUNCTION_INFO_V1(jobq_indexes);

/* Maximum length of the text and of the place in the hash, in bytes. */
#define MAX_PART	512

/* Only the beginning of a longer line is searched for quoted parts, in bytes. */
#define MAX_LINE	16384

/* A word with digits is left out from this length, in bytes; if hexadecimal, earlier. */
#define LONG_WORD	16
#define LONG_HEX	8

#define UUID_LENGTH	36

/* JSON cannot hold larger integers in all programs, so the hash is cut to 48 bits. */
#define HASH_MASK	((UINT64CONST(1) << 48) - 1)

/* Begins a stack trace of Python, whose last line is the error. */
#define TRACEBACK	"Traceback (most recent call last)"

/* Part of a text. */
typedef struct Piece
{
	const char *at;
	const char *end;
} Piece;

/* isalnum() and similar functions depend on the locale. */
static bool
is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static bool
is_hex(char c)
{
	return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static bool
is_word(char c)
{
	return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool
is_space(char c)
{
	return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* Return the length of the uuid at "at", or 0. */
static int
uuid_length(const char *at, const char *end)
{
	if (end - at < UUID_LENGTH || (end - at > UUID_LENGTH && is_word(at[UUID_LENGTH])))
		return 0;
	for (int i = 0; i < UUID_LENGTH; i++)
		if (i == 8 || i == 13 || i == 18 || i == 23 ? at[i] != '-' : !is_hex(at[i]))
			return 0;
	return UUID_LENGTH;
}

/* Return the end of the number at "at", with its separators, as in 1,234.5 and 12:30. */
static const char *
number_end(const char *at, const char *end)
{
	while (at < end && (is_digit(*at) ||
						(strchr(".,:", *at) != NULL && at + 1 < end && is_digit(at[1]))))
		at++;
	return at;
}

/* Return the end of the quoted part at "at", or NULL without an end. */
static const char *
quoted_end(const char *at, const char *end)
{
	for (const char *to = at + 1; to < end; to++)
		if (*to == *at && (to + 1 == end || !is_word(to[1])))
			return to + 1;
	return NULL;
}

/* Append the word at "at" without values.  Returns the end of the word. */
static const char *
append_word(StringInfo key, const char *at, const char *end)
{
	const char *to = at + uuid_length(at, end);
	bool		hex = true;
	int			digits = 0;

	if (to > at)
	{
		appendStringInfoChar(key, '#');
		return to;
	}
	for (; to < end && is_word(*to); to++)
	{
		digits += is_digit(*to);
		hex = hex && is_hex(*to);
	}
	if (digits == to - at)
		to = number_end(at, end);
	else if (digits == 0 ||
			 (to - at < LONG_WORD && !(hex && to - at >= LONG_HEX) &&
			  !(at[0] == '0' && at[1] == 'x')))
	{
		for (; at < to; at++)
			if (!is_digit(*at))
				appendStringInfoChar(key, *at);
			else if (key->data[key->len - 1] != '#')
				appendStringInfoChar(key, '#');
		return to;
	}
	appendStringInfoChar(key, '#');
	return to;
}

/*
 * Return the line of the message that names the cause: the last line of a stack trace of
 * Python, or the first line with a text.
 */
static Piece
line_of_cause(const char *message)
{
	Piece		line = {message, message};

	while (is_space(*line.at))
		line.at++;
	if (strstr(line.at, TRACEBACK) != NULL)
	{
		line.end = line.at + strlen(line.at);
		while (is_space(line.end[-1]))
			line.end--;
		while (line.end - line.at > (ptrdiff_t) strcspn(line.at, "\n"))
			line.at += strcspn(line.at, "\n") + 1;
	}
	else
		line.end = line.at + strcspn(line.at, "\n");
	line.end = Min(line.end, line.at + MAX_LINE);
	return line;
}

/*
 * Append the line without numbers, quoted parts and long random words.  In JSON the texts are
 * quoted, and stay.
 */
static void
append_line(StringInfo key, Piece line)
{
	const char *at = line.at;
	bool		json = at < line.end && (*at == '{' || *at == '[');
	int			most = key->len + MAX_PART;

	while (at < line.end && key->len < most)
	{
		bool		after_word = at > line.at && is_word(at[-1]);
		const char *to;

		if (is_space(*at))
		{
			while (at < line.end && is_space(*at))
				at++;
			appendStringInfoChar(key, ' ');
		}
		else if (!json && !after_word && strchr("\"'`", *at) != NULL &&
				 (to = quoted_end(at, line.end)) != NULL)
		{
			appendStringInfoChar(key, '?');
			at = to;
		}
		else if (is_word(*at))
			at = append_word(key, at, line.end);
		else if (!after_word && (*at == '-' || *at == '+') && at + 1 < line.end &&
				 is_digit(at[1]))
			at++;				/* the sign of a number */
		else
			appendStringInfoChar(key, *at++);
	}
}

/*
 * True if the untranslated message has a text of its own.  The message of RAISE, for example,
 * is "%s".
 */
static bool
has_text(const char *message_id)
{
	for (; *message_id != '\0'; message_id++)
	{
		if (*message_id == '%' && message_id[1] != '\0')
			message_id++;
		else if (is_word(*message_id))
			return true;
	}
	return false;
}

/*
 * Append the innermost line of the context that names a function of a procedural language and
 * the line in the function.  Other lines of the context quote statements and rows.
 */
static void
append_place(StringInfo key, const char *context)
{
	const char *named = context;

	while ((named = strstr(named, "PL/")) != NULL)
	{
		const char *line = named;

		while (line > context && line[-1] != '\n')
			line--;
		if (memchr(line, '"', named - line) == NULL)
		{
			while (is_space(*line))
				line++;
			appendBinaryStringInfo(key, line, Min(strcspn(line, "\n"), MAX_PART));
			return;
		}
		named += strcspn(named, "\n");
	}
}

/* Append a part of the hash, which may be NULL, with a separator. */
static void
append_part(StringInfo key, const char *part)
{
	appendBinaryStringInfo(key, part == NULL ? "" : part,
						   part == NULL ? 1 : (int) strlen(part) + 1);
}

/*
 * Return the fingerprint of an error: a number from 1 to 2^48 - 1.
 */
int64
jobq_fingerprint(const JobqError *error)
{
	const ErrorData *raised = error->raised;
	StringInfoData key;
	int64		hash;

	initStringInfo(&key);
	append_part(&key, unpack_sql_state(error->sqlerrcode));
	if (raised != NULL && raised->message_id != NULL && has_text(raised->message_id))
	{
		append_part(&key, raised->message_id);
		append_part(&key, raised->funcname);
	}
	else
	{
		append_line(&key, line_of_cause(error->message));
		append_part(&key, NULL);
	}
	if (raised != NULL)
	{
		append_part(&key, raised->table_name);
		append_part(&key, raised->constraint_name);
		if (raised->context != NULL)
			append_place(&key, raised->context);
	}
	hash = (int64) (hash_bytes_extended((const unsigned char *) key.data, key.len, 0) & HASH_MASK);
	pfree(key.data);
	return Max(hash, 1);
}

/*
 * indexes(first, last): generate_series(), for the errors of a job.  The declaration has another
 * estimate of the number of rows.
 */
Datum
jobq_indexes(PG_FUNCTION_ARGS)
{
	return generate_series_int4(fcinfo);
}
