/*-------------------------------------------------------------------------
 *
 * notebook.h
 *	  Ledgers in shared memory: notes of this transaction, and counts under concurrent commits.
 *
 * A ledger has a number for each subject, such as the jobs of a queue.  A transaction notes
 * its changes in a notebook, and adds the notes to the ledger after the commit.  A number
 * begins with a count of a table by one snapshot, while other transactions commit: see seen.c.
 *
 * Part of the interface of the directory commit.
 *
 * src/commit/notebook.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_NOTEBOOK_H
#define JOBQ_NOTEBOOK_H

#include "access/transam.h"
#include "utils/snapshot.h"

/* The head of a note about a subject: the first member of the note's struct. */
typedef struct JobqNote
{
	uint64		subject;
	SubTransactionId subid;
	int			older;			/* next in the bucket, from 1; or 0 */
} JobqNote;

/* The notes of a kind: see notebook.c. */
#define JOBQ_NOTE_BUCKETS	1024
typedef struct JobqNotebook
{
	Size		size;			/* of a note */
	char	   *notes;
	int			n;
	int			max;
	int			newest[JOBQ_NOTE_BUCKETS];	/* note's number, from 1; 0: none */
} JobqNotebook;

/* Transactions that the snapshot of a count has seen as committed. */
typedef struct JobqSeen
{
	FullTransactionId xmax;
	int			nxip;			/* length of the array beside this struct */
} JobqSeen;

/* src/commit/notebook.c */
extern void *jobq_note_here(const JobqNotebook *book, uint64 subject);
extern void *jobq_note_newest(const JobqNotebook *book, uint64 subject);
extern void *jobq_note_older(const JobqNotebook *book, const void *note);
extern void *jobq_note_number(const JobqNotebook *book, int i);
extern void jobq_notebook_reserve(JobqNotebook *book);
extern void *jobq_note_add(JobqNotebook *book, uint64 subject);
extern void *jobq_note_undo(JobqNotebook *book, SubTransactionId since);
extern void jobq_notebook_clear(JobqNotebook *book);
extern void jobq_notebook_give_back(JobqNotebook *book);
extern void jobq_notebook_subcommit(JobqNotebook *book, SubTransactionId subid,
									SubTransactionId parent,
									void (*merge) (void *note, const void *ended));

/* src/commit/seen.c */
extern bool jobq_seen_set(JobqSeen *seen, TransactionId *xip, int max,
						  Snapshot snapshot, TransactionId own);
extern bool jobq_seen_missed(const JobqSeen *seen, const TransactionId *xip,
							 FullTransactionId fxid);

#endif							/* JOBQ_NOTEBOOK_H */
