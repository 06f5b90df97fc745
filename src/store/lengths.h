/*-------------------------------------------------------------------------
 *
 * lengths.h
 *	  How the lengths of queues are kept: for the files that do so.
 *
 * Not part of the door of this room.
 *
 * src/store/lengths.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_STORE_LENGTHS_H
#define JOBQ_STORE_LENGTHS_H

#include "store/store.h"

/* Whether there is room for new jobs in a queue, as this transaction sees it. */
typedef struct JobqRoom
{
	int64		length;			/* jobs that there are */
	int64		allowed;		/* max_length, and what it gives back itself */
	int64		own;			/* places that it has taken */
	int64		missing;		/* for the new jobs; 0: they have their places */
} JobqRoom;

/* What this transaction has done to a queue, in one subtransaction: see length_note.c. */
typedef struct JobqLengthNote
{
	SubTransactionId subid;
	int32		queue_id;
	Oid			jobs;			/* jobq_internal.job */
	int			reserved;		/* added, with a place in the counter */
	int			added;			/* without */
	int			removed;
	int			reused;			/* of those added: in places of those removed */
	int64		life;			/* JobqDatabase.life: whose counter has
								 * "reserved" */
	bool		drops;			/* it has dropped jobs, ... */
	JobqDropped before;			/* ... and this was the last one before */
	int			older;			/* the next one in its bucket, from 1; or 0 */
} JobqLengthNote;

/* src/store/length_note.c */
extern JobqLengthNote *jobq_length_note(int32 queue_id);
extern JobqLengthNote *jobq_length_note_newest(int32 queue_id, Oid jobs);
extern JobqLengthNote *jobq_length_note_older(const JobqLengthNote *note);
extern int	jobq_length_notes(JobqLengthNote **all);
extern JobqLengthNote *jobq_length_note_undo(SubTransactionId since);
extern void jobq_length_notes_forget(void);
extern void jobq_length_notes_give_back(void);
extern void jobq_length_note_life(JobqLengthNote *note, int64 life);
extern void jobq_length_notes_subcommit(SubTransactionId subid, SubTransactionId parent);

/* src/store/counter.c: all want db->lock, but the first three, which take it */
extern void jobq_lengths_free(JobqDatabase *db);
extern void jobq_length_get_dropped(int32 queue_id, JobqDropped *dropped);
extern void jobq_length_set_dropped(int32 queue_id, const JobqDropped *dropped);
extern void jobq_length_undropped(JobqLength *length, const JobqDropped *before);
extern JobqLength *jobq_length_find(JobqDatabase *db, int32 queue_id, Oid jobs);
extern JobqLength *jobq_length_make(JobqDatabase *db, int32 queue_id, Oid jobs);
extern int64 jobq_length_now(JobqDatabase *db, const JobqLength *length);
extern void jobq_length_tell(JobqDatabase *db, JobqLength *length);

/* src/store/length_wait.c */
extern bool jobq_length_wait(const JobqQueue *queue, int n, const JobqRoom *room,
							 TimestampTz until);
extern void jobq_length_waited(void);
extern bool jobq_length_waits(void);

/* src/store/length.c */
extern void jobq_length_take(const JobqQueue *queue, int n, JobqRoom *room);
extern void jobq_length_dropped_to(int32 queue_id, const JobqDropped *dropped,
								   const JobqDropped *before);

/*
 * src/store/full.c: what cancels up to n jobs that wait, to make room for others as this
 * one, and returns how many.  It stands above the archive, which uses full.c.
 */
extern int	(*jobq_drop_oldest) (const JobqJob *job, int n);

#endif							/* JOBQ_STORE_LENGTHS_H */
