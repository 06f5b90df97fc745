/*-------------------------------------------------------------------------
 *
 * trouble.c
 *	  Records which parts of its work the scheduler cannot do at present, and
 *	  why.
 *
 * A failing part of the work is tried again, and the rest continues.  doctor() and
 * metrics() report the trouble until the part has succeeded, or until the time of the
 * next attempt has passed without another failure.  The log has a message for a new
 * error, and again after an hour.
 *
 * worker/scheduler/trouble.c
 *
 *-------------------------------------------------------------------------
 */
#include "scheduler/inner.h"

#include "mb/pg_wchar.h"

/* An attempt may be late by this much, in microseconds. */
#define LATE			(5 * USECS_PER_SEC)

static void
end_trouble(JobqTrouble *trouble)
{
	if (trouble->until != 0)
		my_db->ntroubles--;
	trouble->until = 0;
}

/*
 * Record that this part of the work has failed with this error, and is tried again
 * after "pause" microseconds.  Returns true if the caller must write to the log.  Takes
 * db->lock exclusively.
 *
 * If too many parts fail at the same time, the trouble is only logged.
 */
bool
trouble_note(const char *what, const char *error, int64 pause)
{
	JobqSteady	now = jobq_steady();
	JobqTrouble failed = {.since = jobq_now(),.told_at = now};
	JobqTrouble *place = NULL;
	bool		news = true;

	strlcpy(failed.what, what, sizeof(failed.what));
	memcpy(failed.error, error,
		   pg_mbcliplen(error, strlen(error), sizeof(failed.error) - 1));
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	for (int i = 0; i < JOBQ_MAX_TROUBLES; i++)
	{
		JobqTrouble *trouble = &my_db->troubles[i];

		if (trouble->until < now)
			end_trouble(trouble);
		if (strcmp(trouble->what, failed.what) == 0)
		{
			place = trouble;
			break;
		}
		if (trouble->until == 0 && (place == NULL || trouble->told_at < place->told_at))
			place = trouble;
	}
	if (place != NULL)
	{
		if (strcmp(place->what, failed.what) == 0)
		{
			news = strcmp(place->error, failed.error) != 0 ||
				now >= place->told_at + USECS_PER_HOUR;
			if (!news)
				failed.told_at = place->told_at;
			if (place->until != 0)
			{
				failed.since = place->since;
				failed.failures = place->failures;
			}
		}
		failed.failures++;
		failed.until = Max(place->until, now + pause + LATE);
		if (place->until == 0)
			my_db->ntroubles++;
		*place = failed;
	}
	LWLockRelease(my_db->lock);
	return news;
}

/*
 * Record that this part of the work has succeeded.  Takes db->lock exclusively if there
 * is any trouble.
 */
void
trouble_over(const char *what)
{
	JobqSteady	now;

	if (my_db->ntroubles == 0)
		return;
	now = jobq_steady();
	LWLockAcquire(my_db->lock, LW_EXCLUSIVE);
	for (int i = 0; i < JOBQ_MAX_TROUBLES; i++)
		if (my_db->troubles[i].until < now || strcmp(my_db->troubles[i].what, what) == 0)
			end_trouble(&my_db->troubles[i]);
	LWLockRelease(my_db->lock);
}
