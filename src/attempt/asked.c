/*-------------------------------------------------------------------------
 *
 * asked.c
 *	  Outcomes that a handler requests instead of completion: snooze(), cancel_current(),
 *	  reject_current().  A set handler calls nack(), reject() and release() (src/consume/ack.c)
 *	  for its jobs.
 *
 * A request is transactional like any other effect.  If a subtransaction is rolled back, its
 * requests are undone, and the earlier request is valid again.  Each call therefore stores the
 * previous request until the end of the transaction.
 *
 * reject_current() raises an error, which has the requested effect.  The call is recorded, so
 * that another error with the same code has no such effect.
 *
 * src/attempt/asked.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/xact.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "attempt/attempt.h"

PG_FUNCTION_INFO_V1(jobq_snooze);
PG_FUNCTION_INFO_V1(jobq_cancel_current);
PG_FUNCTION_INFO_V1(jobq_reject_current);

/* Maximum length of a reason, in bytes. */
#define MAX_REASON		1023

/* The outcome before a request replaced it, in TopTransactionContext. */
struct JobqAsked
{
	SubTransactionId subid;		/* in which the request was made */
	JobqOutcome outcome;
	int64		delay_ms;
	const char *reason;
	struct JobqAsked *before;
};

/* Undo the last request, because its transaction is rolled back. */
static void
take_back(JobqCurrent *current)
{
	const JobqAsked *asked = current->asked;

	current->outcome = asked->outcome;
	current->delay_ms = asked->delay_ms;
	current->reason = asked->reason;
	current->asked = asked->before;
}

static void
subtransaction_ended(SubXactEvent event, SubTransactionId mysubid,
					 SubTransactionId parentsubid, void *arg)
{
	if (event != SUBXACT_EVENT_ABORT_SUB && event != SUBXACT_EVENT_COMMIT_SUB)
		return;
	for (JobqCurrent *current = jobq_current; current != NULL; current = current->outer)
	{
		if (event == SUBXACT_EVENT_ABORT_SUB)
			while (current->asked != NULL && current->asked->subid == mysubid)
				take_back(current);
		else
			for (JobqAsked *asked = current->asked;
				 asked != NULL && asked->subid == mysubid; asked = asked->before)
				asked->subid = parentsubid;
	}
}

/* A procedure may commit and go on.  Its requests up to the commit are then final. */
static void
transaction_ended(XactEvent event, void *arg)
{
	if (event != XACT_EVENT_ABORT && event != XACT_EVENT_COMMIT)
		return;
	for (JobqCurrent *current = jobq_current; current != NULL; current = current->outer)
	{
		while (event == XACT_EVENT_ABORT && current->asked != NULL)
			take_back(current);
		current->asked = NULL;
	}
}

/*
 * The handler asks for this outcome of the job.  The delay is in milliseconds.  The reason is
 * copied, and may be NULL.
 */
void
jobq_ask_for(JobqCurrent *current, JobqOutcome outcome, int64 delay_ms, const char *reason)
{
	static bool registered = false;

	if (!registered)
	{
		RegisterXactCallback(transaction_ended, NULL);
		RegisterSubXactCallback(subtransaction_ended, NULL);
		registered = true;
	}

	/* save the outcome once per subtransaction */
	if (current->asked == NULL || current->asked->subid != GetCurrentSubTransactionId())
	{
		JobqAsked  *asked = MemoryContextAlloc(TopTransactionContext, sizeof(JobqAsked));

		asked->subid = GetCurrentSubTransactionId();
		asked->outcome = current->outcome;
		asked->delay_ms = current->delay_ms;
		asked->reason = current->reason;
		asked->before = current->asked;
		current->asked = asked;
	}
	current->outcome = outcome;
	current->delay_ms = delay_ms;
	current->reason = reason == NULL ? NULL
		: MemoryContextStrdup(current->memory != NULL ? current->memory
							  : TopTransactionContext, reason);
}

/* Return the reason in argument n, truncated, or a default. */
static char *
reason_arg(FunctionCallInfo fcinfo, int n, const char *none)
{
	char	   *reason;

	if (PG_ARGISNULL(n))
		return pstrdup(none);
	reason = text_to_cstring(PG_GETARG_TEXT_PP(n));
	reason[pg_mbcliplen(reason, strlen(reason), MAX_REASON)] = '\0';
	return reason;
}

/*
 * snooze(delay, charge): the effects commit.  The job runs again later, and the attempt is
 * charged or not.
 */
Datum
jobq_snooze(PG_FUNCTION_ARGS)
{
	bool		charge = !PG_ARGISNULL(1) && PG_GETARG_BOOL(1);
	JobqCurrent *current;

	jobq_not_null(fcinfo, 0, "delay");
	current = jobq_require_current("jobq.snooze()");
	jobq_ask_for(current, charge ? OUTCOME_RELEASE : OUTCOME_SNOOZE,
				 jobq_interval_ms(PG_GETARG_INTERVAL_P(0), "delay", 0, JOBQ_MAX_DELAY_MS),
				 NULL);
	PG_RETURN_VOID();
}

/*
 * cancel_current(reason, job_id): the effects commit.  The job, or this job of the handler, is
 * finished as cancelled.
 */
Datum
jobq_cancel_current(PG_FUNCTION_ARGS)
{
	static const char function[] = "jobq.cancel_current()";
	JobqCurrent *current = !PG_ARGISNULL(1) ? jobq_require_job(PG_GETARG_INT64(1), function)
		: jobq_current != NULL && job_id(jobq_current->job) == 0 ? jobq_current
		: jobq_require_current(function);

	jobq_ask_for(current, OUTCOME_DISCARD, 0, reason_arg(fcinfo, 0, ""));
	PG_RETURN_VOID();
}

/* reject_current(reason): the effects roll back.  The job becomes a dead letter. */
Datum
jobq_reject_current(PG_FUNCTION_ARGS)
{
	JobqCurrent *current = jobq_require_current("jobq.reject_current()");

	current->rejected = true;
	ereport(ERROR,
			(errcode(ERRCODE_JOBQ_FAILED),
			 errmsg("%s", reason_arg(fcinfo, 0, "the handler has rejected the job"))));
}
