/*-------------------------------------------------------------------------
 *
 * carry.c
 *	  Settings that jobs can carry: the permitted elements of "carry" of a queue or a kind.
 *
 * The settings of a job are set for its handler as by SET LOCAL, with the rights of the job's
 * role.  The list therefore need not exclude dangerous settings.  Excluded are settings that
 * cannot be set, settings without meaning for a job, and settings that change how jobq runs
 * the job.
 *
 * src/store/carry.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "store/store.h"

/* Maximum number of settings in a list. */
#define MAX_CARRY	16

/* Return the reason why a job cannot carry this setting, or NULL. */
static const char *
refusal(const char *name)
{
	static const struct
	{
		const char *name;		/* or a prefix, with a final star */
		const char *why;
	}			refused[] = {
		{"role", "A job runs as its own role."},
		{"session_authorization", "A job runs as its own role."},
		{"is_superuser", "A job runs as its own role."},
		{"jobq.*", "Settings of jobq are not a job's."},
		{"statement_timeout", "A job may take as long as its timeout says."},
		{"transaction_timeout", "A job may take as long as its timeout says."},
		{"idle_*", "A job may take as long as its timeout says."},
		{"transaction_*", "It is too late for that when a handler begins."},
		{"default_transaction_*", "It is too late for that when a handler begins."},
		{"synchronous_commit", "How a job's commit is flushed is said by \"jobq.synchronous_commit\"."},
		{"session_replication_role", "It would keep triggers of jobq's own tables from firing."},
		{"client_encoding", "It belongs to a connection."},
		{"exit_on_error", "It would end the worker."},
		{"seed", "Its value cannot be read."},
	};

	for (int i = 0; i < (int) lengthof(refused); i++)
	{
		size_t		length = strlen(refused[i].name);

		if (refused[i].name[length - 1] == '*'
			? pg_strncasecmp(name, refused[i].name, length - 1) == 0
			: pg_strcasecmp(name, refused[i].name) == 0)
			return refused[i].why;
	}
	return NULL;
}

/*
 * Return whether this is a setting of the server or of a library loaded here. *settable: a
 * session can set it.
 */
static bool
is_known(const char *name, bool *settable)
{
	static const Oid types[] = {TEXTOID};
	Datum		values[] = {CStringGetTextDatum(name)};
	bool		found;

	SPI_connect();
	found = jobq_query("SELECT context IN ('user', 'superuser') FROM pg_catalog.pg_settings"
					   " WHERE pg_catalog.lower(name) = pg_catalog.lower($1)",
					   1, types, values, NULL, SPI_OK_SELECT) > 0;
	if (found)
		*settable = DatumGetBool(jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, BOOLOID, NULL));
	SPI_finish();
	return found;
}

/*
 * Return whether this is the name of a custom setting: identifiers separated by dots.
 */
static bool
is_custom(const char *name)
{
	bool		begins = true;
	bool		dotted = false;

	for (const char *c = name; *c != '\0'; c++)
	{
		if (*c == '.')
		{
			if (begins)
				return false;
			begins = dotted = true;
		}
		else if (IS_HIGHBIT_SET(*c) || *c == '_' ||
				 (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') ||
				 (!begins && ((*c >= '0' && *c <= '9') || *c == '$')))
			begins = false;
		else
			return false;
	}
	return dotted && !begins;
}

/* ERROR if jobs cannot carry the setting. */
void
jobq_check_carried(const char *name)
{
	const char *why = refusal(name);
	bool		settable = true;

	if (name[0] == '\0' || strlen(name) >= NAMEDATALEN)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("setting \"%s\" in carry must have 1 to %d bytes", name,
						NAMEDATALEN - 1)));
	if (why == NULL && is_known(name, &settable))
	{
		if (!settable)
			why = "A session cannot set it.";
	}
	else if (why == NULL && !is_custom(name))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("there is no setting \"%s\"", name),
				 errhint("The view pg_settings shows those of the server; one of your own has a dot in its name, such as app.tenant.")));
	if (why != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("jobs cannot take the setting \"%s\" along", name),
				 errdetail_internal("%s", why)));
}

/* Return the strings of an array, in the current memory context. */
List *
jobq_names_of_array(Datum array)
{
	List	   *names = NIL;
	Datum	   *elems;
	bool	   *nulls;
	int			n;

	deconstruct_array(DatumGetArrayTypeP(array), TEXTOID, -1, false,
					  TYPALIGN_INT, &elems, &nulls, &n);
	for (int i = 0; i < n; i++)
		if (!nulls[i])
			names = lappend(names, TextDatumGetCString(elems[i]));
	return names;
}

/* Copy the names to the current memory context. */
List *
jobq_copy_names(const List *names)
{
	List	   *copy = NIL;
	ListCell   *lc;

	foreach(lc, names)
		copy = lappend(copy, pstrdup(lfirst(lc)));
	return copy;
}

/* Return whether the setting is in the list.  Ignores case. */
bool
jobq_carries(const List *carry, const char *name)
{
	ListCell   *lc;

	foreach(lc, carry)
		if (pg_strcasecmp(lfirst(lc), name) == 0)
		return true;
	return false;
}

/*
 * ERROR if jobs cannot carry these settings.  Returns false for an empty array.
 */
bool
jobq_check_carry(ArrayType *array)
{
	Datum	   *names;
	bool	   *nulls;
	int			n;

	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &names, &nulls,
					  &n);
	if (n > MAX_CARRY)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("carry cannot have %d settings", n),
				 errhint("It has at most %d.", MAX_CARRY)));
	for (int i = 0; i < n; i++)
	{
		const char *name;

		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("setting %d in carry must not be null", i + 1)));
		name = TextDatumGetCString(names[i]);
		jobq_check_carried(name);
		for (int j = 0; j < i; j++)
			if (pg_strcasecmp(TextDatumGetCString(names[j]), name) == 0)
				ereport(ERROR,
						(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						 errmsg("setting \"%s\" is twice in carry", name)));
	}
	return n > 0;
}
