/*-------------------------------------------------------------------------
 *
 * notify.c
 *	  notify() and notify_trigger(): NOTIFY through the relay, for users.
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
PG_FUNCTION_INFO_V1(jobq_notify_trigger);

/*
 * notify(channel, payload): like pg_notify(), but sent after the commit by
 * the scheduler, in batches, so that commits do not queue behind each other.
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

/*
 * notify_trigger('channel'): notifies with the name of the changed table.
 */
Datum
jobq_notify_trigger(PG_FUNCTION_ARGS)
{
	TriggerData *trigdata = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo) ||
		!TRIGGER_FIRED_AFTER(trigdata->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("jobq.notify_trigger() must be fired AFTER a change")));
	if (trigdata->tg_trigger->tgnargs != 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("jobq.notify_trigger() takes one channel, not %d arguments",
						trigdata->tg_trigger->tgnargs),
				 errhint("Write EXECUTE FUNCTION jobq.notify_trigger('channel').")));
	jobq_relay(trigdata->tg_trigger->tgargs[0],
			   RelationGetRelationName(trigdata->tg_relation), true);
	return PointerGetDatum(NULL);
}
