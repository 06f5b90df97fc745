/*-------------------------------------------------------------------------
 *
 * queue_settings.c
 *	  create_queue() and alter_queue(): queues and their settings.
 *
 * The settings are listed in store/queue_settings.h.  Both functions take the name of the
 * queue, followed by the settings.
 *
 * src/operate/queue_settings.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "tcop/utility.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/acl.h"
#include "utils/numeric.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "operate/inner.h"
#include "ready/ready.h"
#include "store/store.h"

PG_FUNCTION_INFO_V1(jobq_create_queue);
PG_FUNCTION_INFO_V1(jobq_alter_queue);

/* Type of value of a setting: see store/queue_settings.h. */
typedef enum Check
{
	CHECK_WORD,
	CHECK_NUMBER,
	CHECK_LIMIT,
	CHECK_RATE,
	CHECK_THROTTLE,
	CHECK_TENANT,
	CHECK_GROUP_WAIT,
	CHECK_WEIGHTS,
	CHECK_DURATION,
	CHECK_CARRY,
	CHECK_FLAG,
	CHECK_LIMITERS,
	CHECK_ROLE,
} Check;

typedef struct Setting
{
	const char *name;
	Oid			type;
	Check		check;
	const char *words;
} Setting;

#define TYPE_text		TEXTOID
#define TYPE_int		INT4OID
#define TYPE_boolean	BOOLOID
#define TYPE_interval	INTERVALOID
#define TYPE_jsonb		JSONBOID
#define TYPE_regrole	REGROLEOID
#define TYPE__text		TEXTARRAYOID

static const Setting settings[] = {
#define QUEUE_SETTING(name, NAME, type, column, check, words, comment) \
	{#name, TYPE_##type, CHECK_##check, words},
#include "store/queue_settings.h"
#undef QUEUE_SETTING
};

#define NSETTINGS	((int) lengthof(settings))

/* Argument numbers: the name of the queue, then the settings. */
enum
{
	NAME_ARG,
#define QUEUE_SETTING(name, NAME, type, column, check, words, comment) \
	NAME##_ARG,
#include "store/queue_settings.h"
#undef QUEUE_SETTING
};
#define MAX_WEIGHT	1000

/* The name of a queue and the settings that are not null among the arguments. */
typedef struct Given
{
	int			n;				/* settings; the first parameter is the name */
	Oid			types[NSETTINGS + 2];
	Datum		values[NSETTINGS + 2];
	char		nulls[NSETTINGS + 3];
	char		delegated;		/* ' ': run_as is set; 'n': removed; 0: not
								 * given */
	StringInfoData set;			/* assignments for UPDATE */
	StringInfoData same;		/* conditions: the queue has these settings */
} Given;

static void
check_number(const Setting *setting, int32 number)
{
	if (number < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s %d is out of range", setting->name, number),
				 errhint("It must be at least 1, or 0 for none.")));
}

/*
 * ERROR if this is not an object with tenants and their weights.
 */
static void
check_weights(Jsonb *weights)
{
	JsonbIterator *it = JsonbIteratorInit(&weights->root);
	JsonbIteratorToken token;
	JsonbValue	value;
	bool		valid = JB_ROOT_IS_OBJECT(weights) &&
		JB_ROOT_COUNT(weights) <= JOBQ_MAX_WEIGHTS;

	while (valid && (token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		if (token != WJB_VALUE)
			continue;
		valid = value.type == jbvNumeric;
		if (valid)
		{
			Datum		number = NumericGetDatum(value.val.numeric);
			double		weight = DatumGetFloat8(DirectFunctionCall1(numeric_float8,
																	number));

			valid = weight >= 1 && weight <= MAX_WEIGHT &&
				weight == (double) (int) weight;
		}
	}
	if (!valid)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid value for fair_weights: %s",
						JsonbToCString(NULL, &weights->root, VARSIZE(weights))),
				 errhint("It is an object of at most %d tenants and their weights, whole numbers from 1 to %d, such as {\"acme\": 3}.",
						 JOBQ_MAX_WEIGHTS, MAX_WEIGHT)));
}

/*
 * ERROR if this is not a valid definition of a tenant, or refers to a setting that jobs cannot
 * carry.
 */
static void
check_tenant(const char *word)
{
	char		by;
	char		name[JOBQ_MAX_TENANT_NAME + 1];

	if (!jobq_tenant_parse(word, &by, name))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid value for tenant: \"%s\"", word),
				 errhint("It is 'setting NAME', 'header NAME' with a name of at most %d bytes, 'schema', 'role', or 'none'.",
						 JOBQ_MAX_TENANT_NAME)));
	if (by == TENANT_BY_SETTING)
		jobq_check_carried(name);
}

/*
 * ERROR if the current user cannot let jobs run as the role.  False if the value means no
 * role.
 */
static bool
check_role(Oid role)
{
	if (!OidIsValid(role))
		return false;
	if (!SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(role)))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("role with OID %u does not exist", role)));
	if (!jobq_may_become(role))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to have jobs run as role \"%s\"",
						GetUserNameFromId(role, false)),
				 errhint("You must be able to SET ROLE to it.")));
	if (superuser_arg(role) && !superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to have jobs run as a superuser"),
				 errhint("Only a superuser can say so.")));
	jobq_refuse_borrowed(role);
	return true;
}

/*
 * ERROR if settings of the queue contradict each other.  The caller must be connected to SPI.
 *
 * With run_as, the queue must be for workers, because consumers work as the roles of their
 * sessions.  Nor can such a queue carry server settings, because a setting such as search_path
 * would change the meaning of the role's own code.
 */
static void
check_together(Datum name)
{
	static const Oid types[] = {TEXTOID};

	if (jobq_query("SELECT FROM jobq_internal.queue WHERE name = $1"
				   " AND run_as IS NOT NULL AND mode <> 'worker'",
				   1, types, &name, NULL, SPI_OK_SELECT) > 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a queue of consumers cannot have run_as"),
				 errhint("Consumers do their work as the roles that they are connected as.")));
	if (jobq_query("SELECT FROM jobq_internal.queue WHERE name = $1 AND run_as IS NOT NULL"
				   " AND (tenant = 'schema' OR EXISTS (SELECT FROM unnest(carry) c"
				   " WHERE pg_catalog.strpos(c, '.') = 0)"
				   " OR tenant LIKE 'setting%' AND pg_catalog.strpos(tenant, '.') = 0)",
				   1, types, &name, NULL, SPI_OK_SELECT) > 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a queue with run_as can carry settings of your own only"),
				 errdetail("Settings of the server, such as search_path, would say what the role runs."),
				 errhint("Carry a setting with a dot in its name, such as app.tenant, and let the handler use it.")));

	if (jobq_query("SELECT FROM jobq_internal.queue WHERE name = $1"
				   " AND tenant IS NULL AND fair <> 'off'",
				   1, types, &name, NULL, SPI_OK_SELECT) > 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("queue \"%s\" cannot be fair without a tenant",
						TextDatumGetCString(name)),
				 errhint("Give tenant => 'setting NAME', 'header NAME', 'schema', or 'role'.")));
	if (jobq_query("SELECT FROM jobq_internal.queue WHERE name = $1 AND group_scope = 'database'"
				   " AND (group_max_running <> 1 OR group_on_failure = 'continue')",
				   1, types, &name, NULL, SPI_OK_SELECT) > 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a queue cannot have a policy of its own for groups of the whole database"),
				 errhint("With group_scope => 'database', group_max_running is 1, and group_on_failure is not 'continue'.")));
}

/*
 * ERROR if the queue has jobs in groups of another scope than the queue's group_scope.  The
 * caller must be connected to SPI.
 */
static void
check_groups(Datum name)
{
	static const Oid types[] = {TEXTOID};

	if (jobq_query("SELECT FROM jobq_internal.queue q JOIN jobq_internal.job j ON j.queue_id = q.id"
				   " WHERE q.name = $1 AND j.group_id IS NOT NULL"
				   " AND (q.group_scope = 'database') <> (j.group_id & 1 <> 0)"
				   " LIMIT 1",
				   1, types, &name, NULL, SPI_OK_SELECT) > 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("queue \"%s\" has jobs with a group_key",
						TextDatumGetCString(name)),
				 errhint("Change group_scope when they have ended, or are cancelled.")));
}

/*
 * Return the setting group_on_failure as in the table, in which queries compare words.  ERROR if
 * the value is not valid.
 */
static Datum
group_wait_arg(Datum given)
{
	const char *word = TextDatumGetCString(given);
	int64		patience;
	bool		waits = jobq_group_wait_parse(word, &patience);

	if (patience == 0)
		return CStringGetTextDatum(waits ? "wait" : "continue");
	return given;
}

/*
 * ERROR if the setting cannot have the value.  False if the value removes the setting.
 */
static bool
check_value(const Setting *setting, Datum value)
{
	char	   *word = setting->type == TEXTOID ? TextDatumGetCString(value)
		: NULL;
	JobqRate	rate;
	JobqThrottle throttle;
	Interval   *interval;

	switch (setting->check)
	{
		case CHECK_WORD:
			if (jobq_word_number(setting->words, word) < 0)
				ereport(ERROR,
						(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						 errmsg("invalid value for %s: \"%s\"", setting->name,
								word),
						 errhint("It is one of %s.", setting->words)));
			return true;
		case CHECK_NUMBER:
			check_number(setting, DatumGetInt32(value));
			return true;
		case CHECK_LIMIT:
			check_number(setting, DatumGetInt32(value));
			return DatumGetInt32(value) > 0;
		case CHECK_RATE:
			if (strcmp(word, "none") == 0)
				return false;
			jobq_rate_parse(word, &rate);
			return true;
		case CHECK_THROTTLE:
			if (strcmp(word, "none") == 0)
				return false;
			jobq_throttle_parse(word, &throttle);
			return true;
		case CHECK_GROUP_WAIT:
			return true;		/* checked by group_wait_arg() */
		case CHECK_FLAG:
			return true;
		case CHECK_LIMITERS:
			return jobq_check_limiters(DatumGetArrayTypeP(value));
		case CHECK_TENANT:
			if (strcmp(word, "none") == 0)
				return false;
			check_tenant(word);
			return true;
		case CHECK_WEIGHTS:
			check_weights(DatumGetJsonbP(value));
			return true;
		case CHECK_DURATION:
			interval = DatumGetIntervalP(value);
			if (interval->month == 0 && interval->day == 0 &&
				interval->time == 0)
				return false;
			(void) jobq_interval_ms(interval, setting->name, 1,
									JOBQ_MAX_DELAY_MS);
			return true;
		case CHECK_ROLE:
			return check_role(DatumGetObjectId(value));
		case CHECK_CARRY:
			return jobq_check_carry(DatumGetArrayTypeP(value));
	}
	return true;
}

/*
 * Return the first argument, the name of a queue.  ERROR if it is null.
 */
static char *
name_arg(FunctionCallInfo fcinfo)
{
	jobq_not_null(fcinfo, 0, "name");
	return text_to_cstring(PG_GETARG_TEXT_PP(0));
}

/*
 * Record that the current user has set run_as of the queue, or with delegated = false, that
 * there is no run_as.  The caller must be connected to SPI.
 */
static void
set_delegator(Datum name, bool delegated)
{
	static const Oid types[] = {TEXTOID, OIDOID};
	Datum		values[] = {name, ObjectIdGetDatum(GetUserId())};

	(void) jobq_query("DELETE FROM jobq_internal.delegation"
					  " WHERE queue_id = (SELECT id FROM jobq_internal.queue WHERE name = $1)",
					  1, types, values, NULL, SPI_OK_DELETE);
	if (delegated)
		(void) jobq_query("INSERT INTO jobq_internal.delegation"
						  " SELECT id, $2 FROM jobq_internal.queue WHERE name = $1",
						  2, types, values, NULL, SPI_OK_INSERT);
}

/*
 * Read all settings that are not null among the arguments.  ERROR if a setting is not valid.
 */
static void
read_settings(FunctionCallInfo fcinfo, const char *name, Given *given)
{
	int			n = 0;

	given->types[0] = TEXTOID;
	given->values[0] = CStringGetTextDatum(name);
	given->nulls[0] = ' ';
	given->delegated = '\0';
	initStringInfo(&given->set);
	initStringInfo(&given->same);
	for (int i = 0; i < NSETTINGS; i++)
	{
		if (PG_ARGISNULL(i + 1))
			continue;
		appendStringInfo(&given->set, "%s%s = $%d", n > 0 ? ", " : "",
						 settings[i].name, n + 2);

		/* equal intervals can have other units: 30 days and 1 month */
		appendStringInfo(&given->same, settings[i].type == INTERVALOID
						 ? " AND %s::text IS NOT DISTINCT FROM $%d::text"
						 : " AND %s IS NOT DISTINCT FROM $%d",
						 settings[i].name, n + 2);
		n++;
		given->types[n] = settings[i].type;
		given->values[n] = settings[i].check == CHECK_GROUP_WAIT
			? group_wait_arg(PG_GETARG_DATUM(i + 1)) : PG_GETARG_DATUM(i + 1);
		given->nulls[n] = check_value(&settings[i], given->values[n]) ? ' ' : 'n';
		if (settings[i].check == CHECK_ROLE)
			given->delegated = given->nulls[n];
	}
	given->n = n;
	given->nulls[n + 1] = '\0';
}

/*
 * True if the queue exists, was not created by a first use, and has the given settings, so
 * that a repeated deployment writes nothing.  A run_as set by another role counts as another
 * setting.
 */
static bool
is_as_given(const Given *given)
{
	Given		copy = *given;
	const char *by = "";
	bool		same;

	if (given->delegated == ' ')
		by = psprintf(" AND EXISTS (SELECT FROM jobq_internal.delegation d"
					  " WHERE d.queue_id = q.id AND d.set_by = $%d)", given->n + 2);
	copy.types[given->n + 1] = OIDOID;
	copy.values[given->n + 1] = ObjectIdGetDatum(GetUserId());
	copy.nulls[given->n + 1] = ' ';
	copy.nulls[given->n + 2] = '\0';
	SPI_connect();
	same = jobq_query(psprintf("SELECT FROM jobq_internal.queue q"
							   " WHERE name = $1 AND made_by IS NULL%s%s", given->same.data, by),
					  given->n + 2, copy.types, copy.values, copy.nulls, SPI_OK_SELECT) > 0;
	SPI_finish();
	return same;
}

/*
 * Apply the given settings.  ERROR if the settings contradict each other, or if the queue no
 * longer exists.
 */
static void
change_settings(FunctionCallInfo fcinfo, const Given *given)
{
	Datum		name = given->values[0];
	bool		limited;

	if (given->n == 0)
		return;
	SPI_connect();
	if (!PG_ARGISNULL(LIMITERS_ARG))
		jobq_lock_limiters(PG_GETARG_DATUM(LIMITERS_ARG));
	limited = jobq_queue_is_limited(name);
	if (jobq_query(psprintf("UPDATE jobq_internal.queue SET %s WHERE name = $1", given->set.data),
				   given->n + 1, given->types, given->values, given->nulls,
				   SPI_OK_UPDATE) == 0)
		(void) jobq_existing_queue(TextDatumGetCString(name));	/* ERROR if dropped
																 * meanwhile */
	if (given->delegated != '\0')
		set_delegator(name, given->delegated == ' ');
	check_together(name);
	if (!PG_ARGISNULL(GROUP_SCOPE_ARG))
		check_groups(name);
	if (!limited && jobq_queue_is_limited(name))
		jobq_check_limited();
	SPI_finish();
}

/*
 * If the queue was created implicitly by its first use, open to all producers, make it a queue
 * as created by create_queue().
 */
static void
make_own(const char *name)
{
	static const Oid types[] = {TEXTOID};
	Datum		value = CStringGetTextDatum(name);

	SPI_connect();
	(void) jobq_query("UPDATE jobq_internal.queue SET made_by = NULL, open = name = 'default'"
					  " WHERE name = $1 AND made_by IS NOT NULL",
					  1, types, &value, NULL, SPI_OK_UPDATE);
	SPI_finish();
}

/*
 * create_queue(name, ...settings): create a queue, or change the given settings of an existing
 * queue.  Writes nothing if the queue has these settings.  ERROR if a setting is not valid,
 * and without the privilege manage for all queues.
 */
Datum
jobq_create_queue(PG_FUNCTION_ARGS)
{
	char	   *name = name_arg(fcinfo);
	Given		given;

	jobq_require_all(JOBQ_MAY_MANAGE, "create a queue");
	PreventCommandIfReadOnly("jobq.create_queue()");
	read_settings(fcinfo, name, &given);
	if (is_as_given(&given))
		PG_RETURN_VOID();
	if (!jobq_insert_queue(name, NULL, strcmp(name, "default") == 0, NULL))
		make_own(name);
	change_settings(fcinfo, &given);
	jobq_audit(fcinfo, -1);
	PG_RETURN_VOID();
}

/*
 * alter_queue(name, ...settings): change the settings that are not null.  Writes nothing if
 * the queue has these settings, or if none is given.  ERROR if the queue does not exist or a
 * setting is not valid, and without the privilege manage for the queue.
 */
Datum
jobq_alter_queue(PG_FUNCTION_ARGS)
{
	char	   *name = name_arg(fcinfo);
	Given		given;

	PreventCommandIfReadOnly("jobq.alter_queue()");
	jobq_require_queue(jobq_known_queue(name), name, JOBQ_MAY_MANAGE);
	read_settings(fcinfo, name, &given);
	if (given.n == 0 || is_as_given(&given))
		PG_RETURN_VOID();
	change_settings(fcinfo, &given);
	jobq_audit(fcinfo, -1);
	PG_RETURN_VOID();
}
