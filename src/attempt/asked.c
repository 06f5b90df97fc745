/*-------------------------------------------------------------------------
 *
 * asked.c
 *	  Outcomes that a handler requests instead of completion: snooze(), cancel_current(),
 *	  reject_current().
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

/* The outcome before a request replaced it, in TopTransactionContext. */
struct JobqAsked
{
	SubTransactionId subid;		/* in which the request was made */
	JobqOutcome outcome;
	int64		delay_ms;
	char	   *reason;
	struct JobqAsked *before;
};

/* Undo the last request, because its transaction is rolled back. */
static void
take_back(JobqCurrent *current)
{
	const JobqAsked *asked = current->asked;

	current->outcome = asked->outcome;
	current->delay_ms = asked->delay_ms;
	strlcpy(current->reason, asked->reason, sizeof(current->reason));
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

/* Copy a reason, truncated to size. */
static void
copy_reason(char *to, Size size, text *reason)
{
	char	   *whole = text_to_cstring(reason);

	whole[pg_mbcliplen(whole, strlen(whole), size - 1)] = '\0';
	strlcpy(to, whole, size);
}

static void
ask_for(JobqOutcome outcome, const char *function, Interval *delay, text *reason)
{
	static bool registered = false;
	JobqCurrent *current = jobq_require_current(function);
	int64		ms = 0;
	JobqAsked  *asked;

	if (delay != NULL)
		ms = jobq_interval_ms(delay, "delay", 0, JOBQ_MAX_DELAY_MS);
	if (!registered)
	{
		RegisterXactCallback(transaction_ended, NULL);
		RegisterSubXactCallback(subtransaction_ended, NULL);
		registered = true;
	}

	/* save the outcome once per subtransaction */
	if (current->asked == NULL || current->asked->subid != GetCurrentSubTransactionId())
	{
		asked = MemoryContextAlloc(TopTransactionContext, sizeof(JobqAsked));
		asked->subid = GetCurrentSubTransactionId();
		asked->outcome = current->outcome;
		asked->delay_ms = current->delay_ms;
		asked->reason = MemoryContextStrdup(TopTransactionContext, current->reason);
		asked->before = current->asked;
		current->asked = asked;
	}
	current->outcome = outcome;
	current->delay_ms = ms;
	current->reason[0] = '\0';
	if (reason != NULL)
		copy_reason(current->reason, sizeof(current->reason), reason);
}

/*
 * snooze(delay, charge): the effects commit.  The job runs again later, and the attempt is
 * charged or not.
 */
Datum
jobq_snooze(PG_FUNCTION_ARGS)
{
	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("delay must not be null")));
	ask_for(!PG_ARGISNULL(1) && PG_GETARG_BOOL(1) ? OUTCOME_RELEASE : OUTCOME_SNOOZE, "jobq.snooze()", PG_GETARG_INTERVAL_P(0), NULL);
	PG_RETURN_VOID();
}

/* cancel_current(reason): the effects commit.  The job is finished as cancelled. */
Datum
jobq_cancel_current(PG_FUNCTION_ARGS)
{
	ask_for(OUTCOME_DISCARD, "jobq.cancel_current()", NULL,
			PG_ARGISNULL(0) ? NULL : PG_GETARG_TEXT_PP(0));
	PG_RETURN_VOID();
}

/* reject_current(reason): the effects roll back.  The job becomes a dead letter. */
Datum
jobq_reject_current(PG_FUNCTION_ARGS)
{
	JobqCurrent *current = jobq_require_current("jobq.reject_current()");
	char		reason[sizeof(current->reason)] = "the handler has rejected the job";

	if (!PG_ARGISNULL(0))
		copy_reason(reason, sizeof(reason), PG_GETARG_TEXT_PP(0));
	current->rejected = true;
	ereport(ERROR,
			(errcode(ERRCODE_JOBQ_FAILED),
			 errmsg("%s", reason)));
}
