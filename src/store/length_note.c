/*-------------------------------------------------------------------------
 *
 * length_note.c
 *	  What this transaction has done to the lengths of queues.
 *
 * There is one note for each queue and each subtransaction that has done something to
 * it and may still be rolled back alone.  One that ends well leaves its notes to its
 * parent, which adds them to its own: so there are never more than there are queues and
 * levels of subtransactions, however many jobs are enqueued, and in whatever order.
 *
 * The notes lie in the order of their subtransactions, the current one's last.  Those of
 * queues with the same hash are linked, the newest first.
 *
 * src/store/length_note.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/xact.h"

#include "store/lengths.h"

#define NBUCKETS	256

static JobqLengthNote *notes = NULL;
static int	nnotes = 0;
static int	max_notes = 0;
static int	newest[NBUCKETS];	/* of the notes in the bucket, from 1; 0: none */

static int *bucket_of(int32 queue_id);
static JobqLengthNote *find(int number, int32 queue_id, Oid jobs);
static void drop_last(void);
static void add_to_parent(JobqLengthNote *note, const JobqLengthNote *ended);

static int *
bucket_of(int32 queue_id)
{
	return &newest[(uint32) queue_id % NBUCKETS];
}

/*
 * The first note of the queue from this one of its bucket on, or NULL.
 */
static JobqLengthNote *
find(int number, int32 queue_id, Oid jobs)
{
	while (number != 0)
	{
		JobqLengthNote *note = &notes[number - 1];

		if (note->queue_id == queue_id && note->jobs == jobs)
			return note;
		number = note->older;
	}
	return NULL;
}

/*
 * The last note is the newest one of its bucket.
 */
static void
drop_last(void)
{
	JobqLengthNote *note = &notes[--nnotes];

	*bucket_of(note->queue_id) = note->older;
}

/*
 * What this subtransaction has done to the queue so far, to be added to.  It may move
 * when the next one is asked for, and when a subtransaction begins or ends.
 */
JobqLengthNote *
jobq_length_note(int32 queue_id)
{
	SubTransactionId subid = GetCurrentSubTransactionId();
	Oid			jobs = jobq_relations()->job;
	JobqLengthNote *note = jobq_length_note_newest(queue_id, jobs);
	int		   *bucket = bucket_of(queue_id);

	if (note != NULL && note->subid == subid)
		return note;
	notes = jobq_grow(notes, &max_notes, nnotes + 1, sizeof(JobqLengthNote));
	note = &notes[nnotes++];
	memset(note, 0, sizeof(JobqLengthNote));
	note->subid = subid;
	note->queue_id = queue_id;
	note->jobs = jobs;
	note->older = *bucket;
	*bucket = nnotes;
	return note;
}

/*
 * The newest note of the queue, or NULL; cannot fail.
 */
JobqLengthNote *
jobq_length_note_newest(int32 queue_id, Oid jobs)
{
	return find(*bucket_of(queue_id), queue_id, jobs);
}

/*
 * The next older note of the same queue, or NULL; cannot fail.
 */
JobqLengthNote *
jobq_length_note_older(const JobqLengthNote *note)
{
	return find(note->older, note->queue_id, note->jobs);
}

/*
 * All notes, the oldest first; returns how many there are.
 */
int
jobq_length_notes(JobqLengthNote **all)
{
	*all = notes;
	return nnotes;
}

/*
 * Forget the last note if it was made since this subtransaction began, or at all, and
 * return it; or NULL.  It is valid until the next one is made.
 */
JobqLengthNote *
jobq_length_note_undo(SubTransactionId since)
{
	if (nnotes == 0 || notes[nnotes - 1].subid < since)
		return NULL;
	drop_last();
	return &notes[nnotes];
}

/*
 * Forget all notes; cannot fail.
 */
void
jobq_length_notes_forget(void)
{
	while (nnotes > 0)
		drop_last();
}

/*
 * The transaction is over, and what it noted was forgotten.
 */
void
jobq_length_notes_give_back(void)
{
	Assert(nnotes == 0);
	notes = jobq_give_back(notes, &max_notes);
}

/*
 * Whose counter has what is reserved.  Counters are forgotten when the database is
 * left: those that it has when it is served again, in its next life, know nothing of
 * what was reserved before.
 */
void
jobq_length_note_life(JobqLengthNote *note, int64 life)
{
	if (note->life == life)
		return;
	note->added += note->reserved;
	note->reserved = 0;
	note->life = life;
}

static void
add_to_parent(JobqLengthNote *note, const JobqLengthNote *ended)
{
	JobqLengthNote more = *ended;
	int64		life = Max(note->life, more.life);	/* they only grow */

	jobq_length_note_life(note, life);
	jobq_length_note_life(&more, life);
	note->reserved += more.reserved;
	note->added += more.added;
	note->removed += more.removed;
	note->reused += more.reused;
	if (!note->drops && more.drops)
	{
		note->drops = true;
		note->before = more.before;
	}
}

/*
 * This subtransaction has become part of its parent, and its notes the parent's; cannot
 * fail.
 */
void
jobq_length_notes_subcommit(SubTransactionId subid, SubTransactionId parent)
{
	int			n = nnotes;

	while (nnotes > 0 && notes[nnotes - 1].subid >= subid)
		drop_last();

	/* each comes where it was, or farther to the front */
	for (int i = nnotes; i < n; i++)
	{
		JobqLengthNote ended = notes[i];
		int		   *bucket = bucket_of(ended.queue_id);
		JobqLengthNote *note = jobq_length_note_newest(ended.queue_id, ended.jobs);

		if (note != NULL && note->subid == parent)
		{
			add_to_parent(note, &ended);
			continue;
		}
		ended.subid = parent;
		ended.older = *bucket;
		notes[nnotes++] = ended;
		*bucket = nnotes;
	}
}
