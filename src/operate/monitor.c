/*-------------------------------------------------------------------------
 *
 * monitor.c
 *	  create_monitor() and drop_monitor(): conditions that are reported by events.
 *
 * A monitor is a row of jobq_internal.monitor.  The scheduler evaluates all monitors
 * (worker/scheduler/monitors.c), and the row records whether the condition was reported.  A
 * monitor belongs to no role: a role with the privilege operate for all queues can create
 * and drop monitors.
 *
 * src/operate/monitor.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include <math.h>

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "commit/commit.h"
#include "operate/inner.h"

PG_FUNCTION_INFO_V1(jobq_create_monitor);
PG_FUNCTION_INFO_V1(jobq_drop_monitor);

#define MAX_NAME	127
#define MAX_MONITORS	"1000"

/* Arguments of create_monitor(), in the order of the query's parameters. */
enum
{
	ARG_NAME, ARG_CONDITION, ARG_ABOVE, ARG_QUEUE, ARG_KIND, ARG_UNTIL, NARGS
};

/* The measurable conditions, and whether each can be limited to a queue or a kind. */
static const struct
{
	const char *name;
	bool		of_queue;
	bool		of_kind;
}			conditions[] =

{
	{"ready", true, true},
	{"oldest", true, false},
	{"failing", true, true},
	{"silent", true, true},
	{"slow", true, true},
	{"dead", true, true},
	{"new", true, true},
	{"late", false, true},
	{"unattended", true, false},
	{"xmin", false, true},
};

static void
check_condition(const char *condition, bool has_queue, bool has_kind)
{
	int			i = 0;

	while (i < (int) lengthof(conditions) && strcmp(conditions[i].name, condition) != 0)
		i++;
	if (i == lengthof(conditions))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid condition \"%s\"", condition),
				 errhint("It is one of ready, oldest, failing, silent, slow, dead, new, late, unattended, xmin.")));
	if ((has_queue && !conditions[i].of_queue) || (has_kind && !conditions[i].of_kind))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("condition \"%s\" cannot be of a %s", condition,
						has_queue && !conditions[i].of_queue ? "queue" : "kind")));
}

/*
 * ERROR if the name has no or too many bytes.  most: the maximum.
 */
static void
check_name(const char *what, Datum value, int most)
{
	int			length = (int) VARSIZE_ANY_EXHDR(DatumGetPointer(value));

	if (length < 1 || length > most)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s of a monitor must have 1 to %d bytes, and has %d",
						what, most, length)));
}

static void
check_bounds(double above, double until)
{
	if (!isfinite(above) || above < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("above is %g, and must not be negative or infinite", above)));
	if (!(until >= 0 && until <= above))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("until is %g, and must be between 0 and above, which is %g",
						until, above)));
}

/* Condition: the monitor measures the same as before, so earlier results stay valid. */
#define SAME	" (m.condition, m.queue, m.kind) IS NOT DISTINCT FROM ($2, $4, $5)"

/*
 * create_monitor(name, condition, above, queue, kind, until): create a monitor, or replace the
 * monitor with this name.  until defaults to above.  Writes nothing if the monitor is so.  ERROR if an argument is not valid, if
 * there are MAX_MONITORS already, and without the privilege operate for all queues.
 */
Datum
jobq_create_monitor(PG_FUNCTION_ARGS)
{
	static const Oid types[NARGS + 1] = {
		TEXTOID, TEXTOID, FLOAT8OID, TEXTOID, TEXTOID, FLOAT8OID, TIMESTAMPTZOID
	};
	static const char *const names[] = {"name", "condition", "above"};
	Datum		values[NARGS + 1];
	char		nulls[NARGS + 2] = "       ";

	PreventCommandIfReadOnly("jobq.create_monitor()");
	jobq_require_all(JOBQ_MAY_OPERATE, "have jobq monitored");
	for (int i = 0; i < NARGS; i++)
	{
		if (i <= ARG_ABOVE)
			jobq_not_null(fcinfo, i, names[i]);
		nulls[i] = PG_ARGISNULL(i) ? 'n' : ' ';
		values[i] = PG_ARGISNULL(i) || types[i] != TEXTOID ? PG_GETARG_DATUM(i)
			: PointerGetDatum(PG_GETARG_TEXT_PP(i));
	}
	check_name("name", values[ARG_NAME], MAX_NAME);
	if (!PG_ARGISNULL(ARG_QUEUE))
		check_name("queue", values[ARG_QUEUE], JOBQ_MAX_QUEUE_NAME);
	if (!PG_ARGISNULL(ARG_KIND))
		check_name("kind", values[ARG_KIND], JOBQ_MAX_KIND_NAME);
	check_condition(TextDatumGetCString(values[ARG_CONDITION]),
					!PG_ARGISNULL(ARG_QUEUE), !PG_ARGISNULL(ARG_KIND));
	if (PG_ARGISNULL(ARG_UNTIL))
		values[ARG_UNTIL] = values[ARG_ABOVE];
	nulls[ARG_UNTIL] = ' ';
	check_bounds(DatumGetFloat8(values[ARG_ABOVE]), DatumGetFloat8(values[ARG_UNTIL]));
	values[NARGS] = TimestampTzGetDatum(jobq_now());

	SPI_connect();
	if (jobq_query("SELECT FROM jobq_internal.monitor m WHERE name = $1 AND" SAME
				   " AND (above, until) = ($3, $6)",
				   NARGS, types, values, nulls, SPI_OK_SELECT) > 0)
	{
		SPI_finish();
		PG_RETURN_VOID();
	}
	if (jobq_query("INSERT INTO jobq_internal.monitor AS m (name, condition, above, queue, kind, until, made_at)"
				   " SELECT $1, $2, $3, $4, $5, $6, $7"
				   " WHERE (SELECT count(*) FROM jobq_internal.monitor o WHERE o.name <> $1) < " MAX_MONITORS
				   " ON CONFLICT (name) DO UPDATE SET condition = $2, above = $3,"
				   " queue = $4, kind = $5, until = $6,"
				   " made_at = CASE WHEN" SAME " THEN m.made_at ELSE $7 END,"
				   " heard = CASE WHEN" SAME " THEN m.heard END",
				   NARGS + 1, types, values, nulls, SPI_OK_INSERT) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("there are %s monitors already", MAX_MONITORS),
				 errhint("Drop one by jobq.drop_monitor().")));
	SPI_finish();
	jobq_at_commit_changed(JOBQ_CHANGED_MONITORS);
	jobq_audit(fcinfo, -1);
	PG_RETURN_VOID();
}

/*
 * drop_monitor(name): drop a monitor.  ERROR if it does not exist, and without the privilege
 * operate for all queues.
 */
Datum
jobq_drop_monitor(PG_FUNCTION_ARGS)
{
	static const Oid types[] = {TEXTOID};
	Datum		values[] = {PG_GETARG_DATUM(0)};

	PreventCommandIfReadOnly("jobq.drop_monitor()");
	jobq_require_all(JOBQ_MAY_OPERATE, "have jobq monitored");
	SPI_connect();
	if (jobq_query("DELETE FROM jobq_internal.monitor WHERE name = $1", 1, types, values,
				   NULL, SPI_OK_DELETE) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("monitor \"%s\" does not exist",
						TextDatumGetCString(values[0]))));
	SPI_finish();
	jobq_audit(fcinfo, -1);
	PG_RETURN_VOID();
}
