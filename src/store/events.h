/*-------------------------------------------------------------------------
 *
 * events.h
 *	  What becomes of jobs, for the handlers of events.
 *
 * Part of the door of this room.
 *
 * src/store/events.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_EVENTS_H
#define JOBQ_EVENTS_H

#include "lib/stringinfo.h"

#include "store/jobs.h"

/* The events; their words are in listeners.c. */
typedef enum JobqEvent
{
	JOBQ_EVENT_STARTED,			/* only within the job's transaction */
	JOBQ_EVENT_COMPLETED,
	JOBQ_EVENT_FAILED,			/* an attempt */
	JOBQ_EVENT_RETRY,			/* ... and another follows */
	JOBQ_EVENT_DEAD,			/* ... and it was the last one */
	JOBQ_EVENT_CANCELLED,
	JOBQ_EVENT_EXPIRED,
	JOBQ_EVENT_BATCH_COMPLETED,
	JOBQ_EVENT_BATCH_FAILED,
	JOBQ_EVENT_BATCH_CANCELLED,
	JOBQ_EVENT_SCHEDULE_MISSED, /* ticks that made no job */
	JOBQ_EVENT_SCHEDULE_FAILED, /* one that could not make it yet */
	JOBQ_EVENT_ALERT_BEGAN,
	JOBQ_EVENT_ALERT_ENDED,
	JOBQ_NEVENTS,

	/* those with whose handlers the job's own transaction calls: within.c */
	JOBQ_WITHIN_STARTED = JOBQ_NEVENTS,
	JOBQ_WITHIN_COMPLETED,
	JOBQ_NHEARD
}			JobqEvent;

StaticAssertDecl(JOBQ_NHEARD <= 32, "events are bits of jobq_heard");

/* Kinds with this prefix are jobs of events: they run the handler of the kind after it. */
#define ON_EVENT_PREFIX		"on_event:"

/* Attribute numbers of jobq_internal.event_handler. */
enum
{
	EVENT_HANDLER_ROLE = 1,
	EVENT_HANDLER_EVENT,
	EVENT_HANDLER_HANDLER,
	EVENT_HANDLER_QUEUE,
	EVENT_HANDLER_KIND,
	EVENT_HANDLER_WITHIN,
	EVENT_HANDLER_REQUIRED,
	EVENT_HANDLER_NATTS = EVENT_HANDLER_REQUIRED
};

/* A row of jobq_internal.event_handler; "" stands for any queue or kind. */
typedef struct JobqListener
{
	Oid			role;
	int			event;
	bool		required;
	char		handler[JOBQ_MAX_KIND_NAME + 1];
	char		queue[JOBQ_MAX_QUEUE_NAME + 1];
	char		kind[JOBQ_MAX_KIND_NAME + 1];
} JobqListener;

/* src/store/listeners.c */
extern uint32 jobq_heard;		/* bits of the events that may have a handler */
extern void jobq_listeners_install(void);
extern const char *jobq_event_word(int event);
extern const char *jobq_event_refuses(int event, bool by_kind);
extern int	jobq_event_within(int event);
extern JobqListener *jobq_listeners(JobqEvent event, Oid role, int32 queue_id,
									const char *queue, const char *kind, int *n);

/* src/store/event.c */
extern Datum jobq_event_describe(JobqEvent event, const JobqJob *job, const char *kind,
								 const char *queue, int sqlerrcode, const char *message);
extern void jobq_event_raise_of(JobqEvent event, Oid role, const char *queue,
								const char *kind,
								void (*describe_it) (StringInfo buf, void *arg),
								void *arg);
extern void jobq_event_raise(JobqEvent event, const JobqJob *job, int sqlerrcode,
							 const char *message);

/*
 * Something has become of the job: enqueue a job for each handler of that, in this
 * transaction.  sqlerrcode and message: of the error, or 0; or NULL, or the reason of a
 * cancel.  Costs nothing where nobody has asked for such events.
 */
static inline void
jobq_event(JobqEvent event, const JobqJob *job, int sqlerrcode, const char *message)
{
	if (unlikely((jobq_heard & (UINT32_C(1) << event)) != 0))
		jobq_event_raise(event, job, sqlerrcode, message);
}

/*
 * The same for something that is no job: see jobq_event_raise_of().
 */
static inline void
jobq_event_of(JobqEvent event, Oid role, const char *queue, const char *kind,
			  void (*describe_it) (StringInfo buf, void *arg), void *arg)
{
	if (unlikely((jobq_heard & (UINT32_C(1) << event)) != 0))
		jobq_event_raise_of(event, role, queue, kind, describe_it, arg);
}

/* src/store/follow_up.c */
extern const JobqQueue *jobq_follow_up_queue(int32 queue_id, const char *kind,
											 JobqQueue *buffer);
extern void jobq_follow_up(const char *kind, int32 queue_id, Oid role,
						   Datum payload, const char *headers,
						   const JobqJob *context);

#endif							/* JOBQ_EVENTS_H */
