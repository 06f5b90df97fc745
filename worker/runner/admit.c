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

static bool waits_for_group(const Piece *piece, const Collected *candidate);
static JobqVerdict ask_gate(Relation rel, const Piece *piece, const Collected *candidate,
							const JobqJob *job, bool first);
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
		JobqVerdict verdict = JOBQ_GONE;
		bool		first = candidate->entry.first;

		/* another job may come before from now on */
		candidate->entry.first = false;
		candidate->member = 0;
		if (waits_for_group(piece, candidate))
			continue;
		if (candidate->alike != 0 && piece->n > 0 &&
			candidate->alike != collected[piece->list[0]].alike)
			continue;
		if (jobq_job_fetch_entry(rel, &candidate->entry, GetActiveSnapshot(), job) &&
			may_join(job))
			verdict = ask_gate(rel, piece, candidate, job, first);
		if (verdict == JOBQ_NOT_TOGETHER)
			continue;
		if (verdict != JOBQ_MAY_RUN)
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
		candidate->member = piece->n;
	}
	if (nestlevel > 0)
		AtEOXact_GUC(false, nestlevel);
}

/*
 * Must the previous job of the group be over, before this job can be in a piece?  A job for which
 * the group waits has the group for itself.
 */
static bool
waits_for_group(const Piece *piece, const Collected *candidate)
{
	const Collected *before;

	if (group_lets(candidate))
		return false;
	before = &collected[candidate->before];
	return candidate->held || before->member == 0 ||
		!JOB_ISNULL(&piece->jobs[before->member - 1], JOB_GROUP_HELD);
}

/*
 * Ask the gate for the job of a candidate.  If the previous job of the group is in the piece, no
 * other job must come in between.  Otherwise the job runs later (JOBQ_NOT_TOGETHER).  first: no
 * other job of the group comes before, as JobqPush.first.
 */
static JobqVerdict
ask_gate(Relation rel, const Piece *piece, const Collected *candidate, const JobqJob *job,
		 bool first)
{
	Snapshot	snapshot = GetActiveSnapshot();
	JobqPush	entry = candidate->entry;
	JobqJob		predecessor;

	if (candidate->before >= 0 && collected[candidate->before].member > 0)
	{
		const JobqJob *before = &piece->jobs[collected[candidate->before].member - 1];

		if (!JOB_ISNULL(job, JOB_GROUP_HELD) ||
			(!first && !jobq_group_follows(rel, before, job, snapshot)))
			return JOBQ_NOT_TOGETHER;
		first = true;
	}
	entry.first = first;
	return jobq_gate(rel, job, MODE_WORKER, &entry, snapshot, piece->now, &predecessor);
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
