/*-------------------------------------------------------------------------
 *
 * limiter.c
 *	  create_limiter(), drop_limiter(): limits shared by several kinds and queues.
 *
 * A limiter is a row of jobq_internal.limiter, and kinds and queues name it
 * (jobq_limiters_of() in src/store/flow.c).  The scheduler loads limiters together with the
 * limits of kinds.  Permits are taken from both in the same way.
 *
 * Every limiter has at least one limit: a job in need of a permit waits until the limiter
 * gives permits.
 *
 * The key ("by") and the cost function of a limiter never change.  Therefore caches of kinds
 * and queues, and the lanes of jobs, need no update.
 *
 * src/operate/limiter.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/regproc.h"

#include "operate/inner.h"

PG_FUNCTION_INFO_V1(jobq_create_limiter);
PG_FUNCTION_INFO_V1(jobq_drop_limiter);

enum
{
	ARG_NAME, ARG_MAX_RUNNING, ARG_RATE, ARG_THROTTLE, ARG_BY, ARG_COST, ARG_WHEN_TAKEN,
	NARGS,
	NLIMITS = ARG_THROTTLE + 1
};

static const char *const columns[] = {
	"name", "max_running", "rate", "throttle", "by", "cost", "when_taken"
};
static const Oid types[] = {TEXTOID, INT4OID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID};
static const Oid text_types[] = {TEXTOID, TEXTOID};

/*
 * Read the arguments as values for the table.  taken_away[i] is set if argument i removes a
 * limit (0 or "none").  ERROR if an argument is not valid.
 */
static void
read_args(FunctionCallInfo fcinfo, Datum *values, char *nulls, bool *taken_away)
{
	int			length;

	for (int i = 0; i < NARGS; i++)
	{
		nulls[i] = PG_ARGISNULL(i) ? 'n' : ' ';
		values[i] = PG_ARGISNULL(i) ? (Datum) 0 : PG_GETARG_DATUM(i);
	}
	nulls[NARGS] = '\0';
	if (nulls[ARG_NAME] == 'n')
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("name must not be null")));
	length = VARSIZE_ANY_EXHDR(DatumGetTextPP(values[ARG_NAME]));
	if (length < 1 || length > JOBQ_MAX_LIMITER_NAME)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid name of a limiter: \"%s\"",
						TextDatumGetCString(values[ARG_NAME])),
				 errhint("It has 1 to %d bytes.", JOBQ_MAX_LIMITER_NAME)));
	if (nulls[ARG_MAX_RUNNING] == ' ')
	{
		int32		number = DatumGetInt32(values[ARG_MAX_RUNNING]);

		if (number < 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("max_running %d is out of range", number),
					 errhint("It must be at least 1, or 0 for none.")));
		taken_away[ARG_MAX_RUNNING] = number == 0;
	}
	for (int i = ARG_RATE; i <= ARG_THROTTLE; i++)
	{
		const char *word = nulls[i] == 'n' ? "none" : TextDatumGetCString(values[i]);
		JobqRate	rate = {0};
		JobqThrottle throttle = {0};

		taken_away[i] = nulls[i] == ' ' && strcmp(word, "none") == 0;
		if (strcmp(word, "none") == 0)
			continue;
		if (i == ARG_RATE)
			jobq_rate_parse(word, &rate);
		else
			jobq_throttle_parse(word, &throttle);
	}
	for (int i = ARG_MAX_RUNNING; i < NLIMITS; i++)
		if (taken_away[i])
			nulls[i] = 'n';
}

/*
 * ERROR if the limiter has no limit.  The caller must be connected to SPI.
 */
static void
check_limit(Datum name)
{
	if (jobq_query("SELECT FROM jobq_internal.limiter WHERE name = $1"
				   " AND max_running IS NULL AND rate IS NULL AND throttle IS NULL",
				   1, types, &name, NULL, SPI_OK_SELECT) > 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("limiter \"%s\" must have a limit", TextDatumGetCString(name)),
				 errhint("Give it max_running, rate, or throttle; jobq.drop_limiter() takes it away.")));
}

/*
 * Return the argument when_taken as in the table.  ERROR if the argument is not valid.
 */
static Datum
when_taken_arg(Datum given)
{
	static const char *const words[] = {
		[JOBQ_WHEN_TAKEN_WAIT] = "wait",
		[JOBQ_WHEN_TAKEN_SKIP] = "skip",
		[JOBQ_WHEN_TAKEN_REPLACE] = "replace"
	};
	const char *word = TextDatumGetCString(given);
	int64		release_after;
	JobqWhenTaken when_taken = jobq_when_taken_parse(word, &release_after);

	return CStringGetTextDatum(when_taken == JOBQ_WHEN_TAKEN_RELEASE ? word : words[when_taken]);
}

/*
 * ERROR if the limiter has no max_running and when_taken is not "wait".  The caller must be
 * connected to SPI.
 */
static void
check_when_taken(Datum name)
{
	Datum		args[] = {name};

	if (jobq_query("SELECT when_taken FROM jobq_internal.limiter WHERE name = $1"
				   " AND max_running IS NULL AND when_taken <> 'wait'",
				   1, types, args, NULL, SPI_OK_SELECT) > 0)
	{
		Datum		value = jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc,
										1, TEXTOID, NULL);

		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("when_taken '%s' of limiter \"%s\" wants max_running",
						TextDatumGetCString(value), TextDatumGetCString(args[0])),
				 errhint("Only max_running has places that can be taken: give it, or when_taken => 'wait'.")));
	}
}

/*
 * ERROR if "by" or "cost" is given and differs from the existing limiter's, because neither
 * can change.  The caller must be connected to SPI.
 */
static void
check_unchanged(const Datum *values, const char *nulls)
{
	static const struct
	{
		const char *name;
		int			arg;
	}			fixed[] = {{"by", ARG_BY}, {"cost", ARG_COST}};

	for (int i = 0; i < (int) lengthof(fixed); i++)
	{
		Datum		args[] = {values[ARG_NAME], values[fixed[i].arg]};

		if (nulls[fixed[i].arg] == ' ' &&
			jobq_query(psprintf("SELECT FROM jobq_internal.limiter WHERE name = $1"
								" AND %s IS DISTINCT FROM $2", fixed[i].name),
					   2, text_types, args, NULL, SPI_OK_SELECT) > 0)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("%s of limiter \"%s\" cannot be changed", fixed[i].name,
							TextDatumGetCString(values[ARG_NAME])),
					 errhint("Create another limiter, and have kinds and queues name that.")));
	}
}

/*
 * True if the limiter exists and is as the arguments say, so that a repeated deployment writes
 * nothing.  The caller must be connected to SPI.
 */
static bool
is_as_given(const Datum *values, const char *nulls, const bool *taken_away)
{
	StringInfoData query;

	initStringInfo(&query);
	appendStringInfoString(&query, "SELECT FROM jobq_internal.limiter WHERE name = $1");
	for (int i = ARG_NAME + 1; i < NARGS; i++)
	{
		if (nulls[i] == ' ')
			appendStringInfo(&query, " AND %s = $%d", columns[i], i + 1);
		else if (i < NLIMITS && taken_away[i])
			appendStringInfo(&query, " AND %s IS NULL", columns[i]);
	}
	return jobq_query(query.data, NARGS, types, values, nulls, SPI_OK_SELECT) > 0;
}

/*
 * create_limiter(name, max_running, rate, throttle, by, cost, when_taken): create a limiter,
 * or change the given limits of an existing limiter.  0 or "none" removes a limit.  Writes
 * nothing if the limiter is so.  ERROR if an argument is not valid, if no slot for limits is
 * free, and without the privilege manage for all queues.
 */
Datum
jobq_create_limiter(PG_FUNCTION_ARGS)
{
	Datum		values[NARGS];
	char		nulls[NARGS + 1];
	bool		taken_away[NLIMITS] = {false};
	bool		created;

	jobq_require_all(JOBQ_MAY_MANAGE, "create a limiter");
	read_args(fcinfo, values, nulls, taken_away);
	if (!PG_ARGISNULL(ARG_BY))
		jobq_check_limit_by(TextDatumGetCString(values[ARG_BY]));
	if (!PG_ARGISNULL(ARG_COST))
		values[ARG_COST] =
			CStringGetTextDatum(format_procedure_qualified(jobq_cost_function(TextDatumGetCString(values[ARG_COST]))));
	if (!PG_ARGISNULL(ARG_WHEN_TAKEN))
		values[ARG_WHEN_TAKEN] = when_taken_arg(values[ARG_WHEN_TAKEN]);
	SPI_connect();
	if (is_as_given(values, nulls, taken_away))
	{
		SPI_finish();
		PG_RETURN_VOID();
	}
	created = jobq_query("INSERT INTO jobq_internal.limiter (name, max_running, rate, throttle, by, cost, when_taken)"
						 " VALUES ($1, $2, $3, $4, $5, $6, coalesce($7, 'wait')) ON CONFLICT DO NOTHING",
						 NARGS, types, values, nulls, SPI_OK_INSERT) > 0;
	if (!created)
	{
		check_unchanged(values, nulls);
		if (jobq_query(psprintf("UPDATE jobq_internal.limiter SET max_running = %s,"
								" rate = %s, throttle = %s, when_taken = coalesce($7, when_taken) WHERE name = $1",
								taken_away[ARG_MAX_RUNNING] ? "$2" : "coalesce($2, max_running)",
								taken_away[ARG_RATE] ? "$3" : "coalesce($3, rate)",
								taken_away[ARG_THROTTLE] ? "$4" : "coalesce($4, throttle)"),
					   NARGS, types, values, nulls, SPI_OK_UPDATE) == 0)
			jobq_check_limiter(TextDatumGetCString(values[ARG_NAME]));
	}
	check_limit(values[ARG_NAME]);
	check_when_taken(values[ARG_NAME]);
	SPI_finish();
	if (created)
		jobq_check_limited();
	jobq_audit(fcinfo, -1);
	PG_RETURN_VOID();
}

/*
 * drop_limiter(name): drop a limiter.  ERROR if a kind or queue names the limiter, and without
 * the privilege manage for all queues.  Locks the limiter's row, so that nobody names the
 * limiter meanwhile (jobq_check_limiters()).
 */
Datum
jobq_drop_limiter(PG_FUNCTION_ARGS)
{
	Datum		name = PG_GETARG_DATUM(0);
	bool		isnull;

	jobq_require_all(JOBQ_MAY_MANAGE, "drop a limiter");
	SPI_connect();
	if (jobq_query("SELECT FROM jobq_internal.limiter WHERE name = $1 FOR UPDATE", 1,
				   types, &name, NULL, SPI_OK_SELECT) == 0)
		jobq_check_limiter(TextDatumGetCString(name));
	(void) jobq_query_latest("SELECT pg_catalog.string_agg(what, ', ' ORDER BY what COLLATE \"C\") FROM ("
							 "(SELECT 'kind \"' || kind || '\"' AS what FROM jobq_internal.handler"
							 " WHERE $1 = ANY (limiters) LIMIT 5) UNION ALL"
							 " (SELECT 'queue \"' || name || '\"' FROM jobq_internal.queue"
							 " WHERE $1 = ANY (limiters) LIMIT 5)) u",
							 1, types, &name, SPI_OK_SELECT);
	name = jobq_column(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, TEXTOID,
					   &isnull);
	if (!isnull)
		ereport(ERROR,
				(errcode(ERRCODE_DEPENDENT_OBJECTS_STILL_EXIST),
				 errmsg("limiter \"%s\" is in use",
						text_to_cstring(PG_GETARG_TEXT_PP(0))),
				 errdetail("It is named by %s.", TextDatumGetCString(name)),
				 errhint("Register the kinds anew, and alter the queues, with limiters that do not include it.")));
	name = PG_GETARG_DATUM(0);
	(void) jobq_query("DELETE FROM jobq_internal.limiter WHERE name = $1", 1, types, &name,
					  NULL, SPI_OK_DELETE);
	SPI_finish();
	jobq_audit(fcinfo, -1);
	PG_RETURN_VOID();
}
