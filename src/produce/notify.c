/*-------------------------------------------------------------------------
 *
 * notify.c
 *	  notify(): NOTIFY through the relay, for users.
 *
 * src/produce/notify.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "commands/trigger.h"
#include "tcop/utility.h"
#include "utils/builtins.h"

#include "store/store.h"

PG_FUNCTION_INFO_V1(jobq_notify);

/*
 * notify(channel, payload): like pg_notify(), but the scheduler sends the notification after
 * the commit, in batches, so that commits do not queue behind each other.  ERROR without any
 * privilege of jobq, or in recovery.
 */
Datum
jobq_notify(PG_FUNCTION_ARGS)
{
	jobq_require(JOBQ_MAY_ALL);
	PreventCommandDuringRecovery("jobq.notify()");
	jobq_relay(text_to_cstring(PG_GETARG_TEXT_PP(0)),
			   text_to_cstring(PG_GETARG_TEXT_PP(1)), true);
	PG_RETURN_VOID();
}
