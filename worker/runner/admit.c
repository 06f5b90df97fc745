/*-------------------------------------------------------------------------
 *
 * admit.c
 *	  Decides which collected jobs run together in one call of a set handler: see chunk.c.
 *
 * worker/runner/admit.c
 *
 *-------------------------------------------------------------------------
 */
#include "runner/inner.h"

#include "common/hashfn.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/guc.h"
#include "utils/snapmgr.h"

static bool in_common(const JobqJob *a, const JobqJob *b);
static uint32 hash_common(const JobqJob *job);

/*
 * Read the rows of the listed jobs, and keep those in the piece that may run now, together with
 * the first.
 */
void
admit(Relation rel, Piece *piece)
{
	int			listed = piece->n;
	int			nestlevel = 0;

	/* until the handler begins */
	if (LockTimeout > 0)
		nestlevel = NewGUCNestLevel();
	process_wait_for_locks();
	piece->now = jobq_statement_start();
	piece->n = 0;
	for (int i = 0; i < listed; i++)
	{
		int			at = piece->list[i];
		Collected  *candidate = &collected[at];
		JobqJob    *job = &piece->jobs[piece->n];
		JobqJob		first;

		if (candidate->alike != 0 && piece->n > 0 &&
			candidate->alike != collected[piece->list[0]].alike)
			continue;
		if (!jobq_job_fetch_entry(rel, &candidate->entry, GetActiveSnapshot(), job) ||
			!may_join(job) ||
			jobq_gate(rel, job, MODE_WORKER, &candidate->entry, GetActiveSnapshot(),
					  piece->now, &first) != JOBQ_MAY_RUN)
		{
			candidate->alone = true;
			continue;
		}
		candidate->alike = hash_common(job);
		if (piece->n > 0 && !in_common(job, &piece->jobs[0]))
		{
			if (candidate->alike == collected[piece->list[0]].alike)
				candidate->alone = true;
			continue;
		}
		piece->list[piece->n++] = at;
	}
	if (nestlevel > 0)
		AtEOXact_GUC(false, nestlevel);
}

/* What the jobs of a piece have in common, beside queue, priority and role of the run. */
static const int common[] = {JOB_KIND, JOB_TENANT, JOB_CONTEXT};

/* Return whether two jobs have everything in common that the jobs of a piece must have. */
static bool
in_common(const JobqJob *a, const JobqJob *b)
{
	if (job_role(a) != job_role(b))
		return false;
	for (int i = 0; i < (int) lengthof(common); i++)
	{
		int			att = common[i];

		if (JOB_ISNULL(a, att) != JOB_ISNULL(b, att))
			return false;
		if (!JOB_ISNULL(a, att) &&
			!datum_image_eq(JOB(a, att), JOB(b, att), false, -1))
			return false;
	}
	return true;
}

/* Return a hash of what a job has in common with the others of its piece.  Never 0. */
static uint32
hash_common(const JobqJob *job)
{
	uint32		hash = murmurhash32(job_role(job));

	for (int i = 0; i < (int) lengthof(common); i++)
	{
		struct varlena *value;

		if (JOB_ISNULL(job, common[i]))
			continue;
		value = PG_DETOAST_DATUM_PACKED(JOB(job, common[i]));
		hash = hash_combine(hash, hash_bytes((unsigned char *) VARDATA_ANY(value),
											 VARSIZE_ANY_EXHDR(value)));
	}
	return hash == 0 ? 1 : hash;
}
