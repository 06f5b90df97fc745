/*-------------------------------------------------------------------------
 *
 * on_event.c
 *	  on_event() and off_event(): who hears of what becomes of jobs, batches, schedules
 *	  and monitors.
 *
 * Events are raised where that is written (store/event.c).
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

/* Rows of a role. */
#define MAX_OF_ROLE	"100"

/* The arguments of both functions, and of their queries. */
enum
{
	ARG_EVENT, ARG_HANDLER, ARG_QUEUE, ARG_KIND, NARGS, ROLE = NARGS
};

static const Oid types[NARGS + 1] = {TEXTOID, TEXTOID, TEXTOID, TEXTOID, OIDOID};

/*
 * The number of the event; an error if there is none.
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
	return -1;					/* the compiler does not know */
}

/*
 * An error if the event has no queue, or no kind, by which a handler chooses.
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
 * An error if this user could not enqueue jobs of the kind for workers.
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
 * Read the arguments, those that are null as "".
 */
static void
read_args(FunctionCallInfo fcinfo, Datum *values)
{
	static const char *const names[NARGS] = {"event", "handler", "queue", "kind"};

	for (int i = 0; i < NARGS; i++)
	{
		int			most = i == ARG_QUEUE ? JOBQ_MAX_QUEUE_NAME : JOBQ_MAX_KIND_NAME;
		int			length;

		if (PG_ARGISNULL(i) && i < ARG_QUEUE)
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("%s must not be null", names[i])));
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
 * on_event(event, handler, queue, kind): whenever this happens, a job of the kind
 * "handler" is enqueued in this user's name.  To ask for it again changes nothing.
 */
Datum
jobq_on_event(PG_FUNCTION_ARGS)
{
	Datum		values[NARGS + 1];
	int			event;

	PreventCommandIfReadOnly("jobq.on_event()");
	jobq_require(JOBQ_MAY_ALL);
	jobq_refuse_borrowed(GetUserId());
	read_args(fcinfo, values);
	event = event_of_word(TextDatumGetCString(values[ARG_EVENT]));
	check_filters(event, !PG_ARGISNULL(ARG_QUEUE), !PG_ARGISNULL(ARG_KIND));
	check_handler(TextDatumGetCString(values[ARG_HANDLER]));

	SPI_connect();
	if (jobq_query("SELECT FROM jobq.event_handler WHERE role = $5"
				   " AND (event, handler, queue, kind) <> ($1, $2, $3, $4) OFFSET " MAX_OF_ROLE " - 1 LIMIT 1",
				   NARGS + 1, types, values, NULL, SPI_OK_SELECT) > 0)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("role \"%s\" has %s handlers of events already",
						GetUserNameFromId(GetUserId(), false), MAX_OF_ROLE),
				 errhint("Give up one by jobq.off_event(); the view jobq.event_handlers shows them.")));
	(void) jobq_query("INSERT INTO jobq.event_handler (event, handler, queue, kind, role)"
					  " VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING",
					  NARGS + 1, types, values, NULL, SPI_OK_INSERT);
	SPI_finish();
	PG_RETURN_VOID();
}

/*
 * off_event(event, handler, queue, kind)
 */
Datum
jobq_off_event(PG_FUNCTION_ARGS)
{
	Datum		values[NARGS + 1];

	PreventCommandIfReadOnly("jobq.off_event()");
	jobq_require(JOBQ_MAY_ALL);
	read_args(fcinfo, values);
	SPI_connect();
	if (jobq_query("DELETE FROM jobq.event_handler WHERE role = $5"
				   " AND (event, handler, queue, kind) = ($1, $2, $3, $4)",
				   NARGS + 1, types, values, NULL, SPI_OK_DELETE) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("role \"%s\" has no such handler of event \"%s\"",
						GetUserNameFromId(GetUserId(), false),
						TextDatumGetCString(values[ARG_EVENT]))));
	SPI_finish();
	PG_RETURN_VOID();
}
