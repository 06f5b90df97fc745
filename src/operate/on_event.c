/*-------------------------------------------------------------------------
 *
 * on_event.c
 *	  on_event() and off_event(): handlers of events about jobs, batches, schedules and
 *	  monitors.
 *
 * Events are raised where the state change is written (store/event.c).
 *
 * src/operate/on_event.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "tcop/utility.h"
#include "utils/builtins.h"

#include "operate/inner.h"
#include "produce/produce.h"

PG_FUNCTION_INFO_V1(jobq_on_event);
PG_FUNCTION_INFO_V1(jobq_off_event);

/* Maximum number of event handlers of a role. */
#define MAX_OF_ROLE	"100"

/*
 * Arguments of both functions, and parameters of the queries.  The last parameter is the role.
 */
enum
{
	ARG_EVENT, ARG_HANDLER, ARG_QUEUE, ARG_KIND, NTEXTS, ARG_WITHIN = NTEXTS, ARG_REQUIRED,
	ROLE, NVALUES
};

static const char *const names[] = {"event", "handler", "queue", "kind", "within", "required"};
static const Oid types[NVALUES] = {TEXTOID, TEXTOID, TEXTOID, TEXTOID, BOOLOID, BOOLOID, OIDOID};

/*
 * Return the number of the event.  ERROR if the event does not exist.
 */
static int
event_of_word(const char *event)
{
	StringInfoData all;

	initStringInfo(&all);
	for (int i = 0; jobq_event_word(i) != NULL; i++)
	{
		if (strcmp(jobq_event_word(i), event) == 0)
			return i;
		appendStringInfo(&all, "%s%s", i > 0 ? ", " : "", jobq_event_word(i));
	}
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid event \"%s\"", event),
			 errhint("It is one of %s.", all.data)));
	return -1;					/* keep the compiler quiet */
}

/*
 * ERROR if a handler is limited to a queue or a kind that this type of event does not have.
 */
static void
check_filters(int event, bool by_queue, bool by_kind)
{
	const bool	chooses[] = {by_queue, by_kind};

	for (int i = 0; i < 2; i++)
		if (chooses[i] && jobq_event_refuses(event, i == 1) != NULL)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("event \"%s\" cannot be of a %s", jobq_event_word(event),
							i == 1 ? "kind" : "queue"),
					 errhint("%s", jobq_event_refuses(event, i == 1))));
}

/*
 * ERROR if the event cannot occur within the job's transaction although "within" is set, or
 * only there although it is not.  ERROR also for "required" without "within".
 */
static void
check_within(int event, bool within, bool required)
{
	if (within && jobq_event_within(event) < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("event \"%s\" cannot be within the job's transaction",
						jobq_event_word(event)),
				 errhint("Only started and completed can.")));
	if (!within && event == JOBQ_EVENT_STARTED)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("event \"%s\" can only be within the job's transaction",
						jobq_event_word(event)),
				 errhint("Ask for it with within => true.")));
	if (required && !within)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("only a handler within the job's transaction can be required"),
				 errhint("Ask for it with within => true, or leave out required.")));
}

/*
 * ERROR if the current user could not enqueue jobs of the kind for workers.
 */
static void
check_handler(const char *kind)
{
	JobqQueue	queue;
	JobqHandler handler;

	if (jobq_is_statement(kind))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("a handler of events cannot be a plain statement"),
				 errhint("Register a function that runs it.")));
	if (jobq_find_place(kind, NULL, &queue, &handler) == NULL ||
		queue.mode != MODE_WORKER)
		ereport(ERROR,
				(errcode(ERRCODE_JOBQ_UNKNOWN_KIND),
				 errmsg("no handler is registered for kind \"%s\"", kind),
				 errdetail("Jobs of events are run by workers.")));
}

/*
 * Read the arguments.  A null queue or kind is stored as "".  ERROR if another argument is
 * null or too long.
 */
static void
read_args(FunctionCallInfo fcinfo, Datum *values)
{
	for (int i = 0; i < PG_NARGS(); i++)
	{
		int			most = i == ARG_QUEUE ? JOBQ_MAX_QUEUE_NAME : JOBQ_MAX_KIND_NAME;
		int			length;

		if (i != ARG_QUEUE && i != ARG_KIND)
			jobq_not_null(fcinfo, i, names[i]);
		if (i >= NTEXTS)
		{
			values[i] = PG_GETARG_DATUM(i);
			continue;
		}
		if (PG_ARGISNULL(i))
		{
			values[i] = CStringGetTextDatum("");
			continue;
		}
		values[i] = PointerGetDatum(PG_GETARG_TEXT_PP(i));
		length = (int) VARSIZE_ANY_EXHDR(DatumGetPointer(values[i]));
		if (length < 1 || length > most)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("%s must have 1 to %d bytes, and has %d", names[i], most,
							length)));
	}
	values[ROLE] = ObjectIdGetDatum(GetUserId());
}

/*
 * on_event(event, handler, queue, kind, within, required): for each event of this type,
 * enqueue a job of the kind "handler" as the current user, or, with "within", call its handler
 * in the job's transaction.  A repeated call writes nothing, or changes "required".  ERROR if an argument is
 * not valid, or if the role has MAX_OF_ROLE handlers already.
 */
Datum
jobq_on_event(PG_FUNCTION_ARGS)
{
	Datum		values[NVALUES];
	int			event;

	PreventCommandIfReadOnly("jobq.on_event()");
	jobq_require(JOBQ_MAY_ALL);
	jobq_refuse_borrowed(GetUserId());
	read_args(fcinfo, values);
	event = event_of_word(TextDatumGetCString(values[ARG_EVENT]));
	check_filters(event, !PG_ARGISNULL(ARG_QUEUE), !PG_ARGISNULL(ARG_KIND));
	check_within(event, PG_GETARG_BOOL(ARG_WITHIN), PG_GETARG_BOOL(ARG_REQUIRED));
	check_handler(TextDatumGetCString(values[ARG_HANDLER]));

	SPI_connect();
	if (jobq_query("SELECT FROM jobq_internal.event_handler WHERE role = $7"
				   " AND (event, handler, queue, kind, within, required) = ($1, $2, $3, $4, $5, $6)",
				   NVALUES, types, values, NULL, SPI_OK_SELECT) > 0)
	{
		SPI_finish();
		PG_RETURN_VOID();
	}
	if (jobq_query("SELECT FROM jobq_internal.event_handler WHERE role = $7"
				   " AND (event, handler, queue, kind, within) <> ($1, $2, $3, $4, $5)"
				   " OFFSET " MAX_OF_ROLE " - 1 LIMIT 1",
				   NVALUES, types, values, NULL, SPI_OK_SELECT) > 0)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("role \"%s\" has %s handlers of events already",
						GetUserNameFromId(GetUserId(), false), MAX_OF_ROLE),
				 errhint("Give up one by jobq.off_event(); the view jobq.event_handlers shows them.")));
	(void) jobq_query("INSERT INTO jobq_internal.event_handler AS e (event, handler, queue, kind, within, required, role)"
					  " VALUES ($1, $2, $3, $4, $5, $6, $7)"
					  " ON CONFLICT ON CONSTRAINT event_handler_pkey"
					  " DO UPDATE SET required = $6 WHERE e.required <> $6",
					  NVALUES, types, values, NULL, SPI_OK_INSERT);
	SPI_finish();
	jobq_audit(fcinfo, -1);
	PG_RETURN_VOID();
}

/*
 * off_event(event, handler, queue, kind, within): remove an event handler of the current user.
 * ERROR if the handler does not exist.
 */
Datum
jobq_off_event(PG_FUNCTION_ARGS)
{
	Datum		values[NVALUES];

	PreventCommandIfReadOnly("jobq.off_event()");
	jobq_require(JOBQ_MAY_ALL);
	values[ARG_REQUIRED] = BoolGetDatum(false);
	read_args(fcinfo, values);
	SPI_connect();
	if (jobq_query("DELETE FROM jobq_internal.event_handler WHERE role = $7"
				   " AND (event, handler, queue, kind, within) = ($1, $2, $3, $4, $5)",
				   NVALUES, types, values, NULL, SPI_OK_DELETE) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("role \"%s\" has no such handler of event \"%s\"",
						GetUserNameFromId(GetUserId(), false),
						TextDatumGetCString(values[ARG_EVENT]))));
	SPI_finish();
	jobq_audit(fcinfo, -1);
	PG_RETURN_VOID();
}
