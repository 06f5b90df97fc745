/*-------------------------------------------------------------------------
 *
 * notebook.c
 *	  Notes of this transaction, by subject and subtransaction.
 *
 * There is one note for each subject and each subtransaction that changed the subject and can
 * still be rolled back alone.  At the commit of a subtransaction, the parent takes over the
 * notes.  The number of notes is therefore at most the number of subjects times the number of
 * levels of subtransactions, for any number of changes in any order.
 *
 * The notes are in the order of their subtransactions, the current one last.  The notes of
 * subjects in the same bucket are linked, the newest first.
 *
 * src/commit/notebook.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/xact.h"

#include "commit/commit.h"

static inline JobqNote *
note_at(const JobqNotebook *book, int i)
{
	return (JobqNote *) (book->notes + book->size * i);
}

/* The bucket of a subject depends on the upper half only. */
static inline int
bucket_of(uint64 subject)
{
	return (uint32) (subject >> 32) % JOBQ_NOTE_BUCKETS;
}

/*
 * Return the first note about the subject in its bucket, beginning with this number, or NULL.
 */
static JobqNote *
find_note(const JobqNotebook *book, int number, uint64 subject)
{
	while (number != 0)
	{
		JobqNote   *note = note_at(book, number - 1);

		if (note->subject == subject)
			return note;
		number = note->older;
	}
	return NULL;
}

/* Remove and return the last note, which is the newest of its bucket. */
static JobqNote *
drop_last(JobqNotebook *book)
{
	JobqNote   *note = note_at(book, --book->n);

	book->newest[bucket_of(note->subject)] = note->older;
	return note;
}

/* Return the newest note about the subject, or NULL.  Cannot fail. */
void *
jobq_note_newest(const JobqNotebook *book, uint64 subject)
{
	return find_note(book, book->newest[bucket_of(subject)], subject);
}

/* Return the next older note about the same subject, or NULL.  Cannot fail. */
void *
jobq_note_older(const JobqNotebook *book, const void *note)
{
	const JobqNote *head = note;

	return find_note(book, head->older, head->subject);
}

/* Return the note of the current subtransaction about the subject, or NULL.  Cannot fail. */
void *
jobq_note_here(const JobqNotebook *book, uint64 subject)
{
	JobqNote   *note = jobq_note_newest(book, subject);

	return note != NULL && note->subid == GetCurrentSubTransactionId() ? note : NULL;
}

/* Return the note with this number, from 0, the oldest first. */
void *
jobq_note_number(const JobqNotebook *book, int i)
{
	Assert(i >= 0 && i < book->n);
	return note_at(book, i);
}

/* Allocate room for a further note, which moves the notes.  ERROR if out of memory. */
void
jobq_notebook_reserve(JobqNotebook *book)
{
	book->notes = jobq_grow(book->notes, &book->max, book->n + 1, book->size);
}

/*
 * Add an empty note of the current subtransaction about the subject.  The subtransaction must
 * have none.  The caller has reserved the room.  The pointer is valid until the next
 * reservation, and until a subtransaction begins or ends.  Cannot fail.
 */
void *
jobq_note_add(JobqNotebook *book, uint64 subject)
{
	JobqNote   *note = note_at(book, book->n);
	int		   *newest = &book->newest[bucket_of(subject)];

	Assert(book->n < book->max && jobq_note_here(book, subject) == NULL);
	memset(note, 0, book->size);
	note->subject = subject;
	note->subid = GetCurrentSubTransactionId();
	note->older = *newest;
	*newest = ++book->n;
	return note;
}

/*
 * Remove the last note, and return it, if it was made since this subtransaction began, or in
 * any case if "since" is invalid.  Returns NULL otherwise.  The result is valid until the next
 * note is made.  Cannot fail.
 */
void *
jobq_note_undo(JobqNotebook *book, SubTransactionId since)
{
	if (book->n == 0 || note_at(book, book->n - 1)->subid < since)
		return NULL;
	return drop_last(book);
}

/* Remove all notes.  Cannot fail. */
void
jobq_notebook_clear(JobqNotebook *book)
{
	while (book->n > 0)
		(void) drop_last(book);
}

/* The transaction is over and its notes were removed: release large memory. */
void
jobq_notebook_give_back(JobqNotebook *book)
{
	Assert(book->n == 0);
	book->notes = jobq_give_back(book->notes, &book->max);
}

/*
 * Pass the notes of a committed subtransaction to its parent.  merge: adds a note to the
 * parent's note about the same subject.  Cannot fail.
 */
void
jobq_notebook_subcommit(JobqNotebook *book, SubTransactionId subid,
						SubTransactionId parent,
						void (*merge) (void *note, const void *ended))
{
	int			n = book->n;

	while (book->n > 0 && note_at(book, book->n - 1)->subid >= subid)
		(void) drop_last(book);

	/* each note moves to the front or keeps its position */
	for (int i = book->n; i < n; i++)
	{
		JobqNote   *ended = note_at(book, i);
		JobqNote   *note = jobq_note_newest(book, ended->subject);
		int		   *newest = &book->newest[bucket_of(ended->subject)];

		if (note != NULL && note->subid == parent)
		{
			merge(note, ended);
			continue;
		}
		note = note_at(book, book->n);
		memmove(note, ended, book->size);
		note->subid = parent;
		note->older = *newest;
		*newest = ++book->n;
	}
}
