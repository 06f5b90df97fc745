/*-------------------------------------------------------------------------
 *
 *	  Lines that running jobs have written with log().
 *
 * Every function here takes the pool's lock, and none can fail.
 *
 * src/ready/lines.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "ready/inner.h"

static Size lines_size(void);
static void lines_init(void *owner, char *memory);

const JobqArea jobq_lines_area = {
	JOBQ_AREA_OF_CLUSTER, lines_size, lines_init
};

static Size
lines_size(void)
{
	return sizeof(JobqLinePool);
}

static void
lines_init(void *owner, char *memory)
{
	JobqShared *shared = owner;
	JobqLinePool *pool = (JobqLinePool *) memory;

	shared->lines = pool;
	memset(pool, 0, sizeof(JobqLinePool));
	pool->lock = jobq_extra_lock(JOBQ_LOCK_OF_LINES);
	for (uint32 i = 0; i < JOBQ_LINE_CHUNKS; i++)
		pool->chunks[i].next = i + 1 < JOBQ_LINE_CHUNKS ? i + 1 : JOBQ_NONE;
	jobq_shares_clear(&pool->shares);
	jobq_shares_set(&pool->shares, JOBQ_OF_CHUNKS, JOBQ_LINE_CHUNKS);
}

/*
 * Return the chunks of a line to the free list.
 */
static void
free_line(JobqLinePool *pool, uint32 first)
{
	while (first != JOBQ_NONE)
	{
		JobqChunk  *chunk = &pool->chunks[first];
		uint32		next = chunk->next;

		jobq_share_give(&pool->shares, chunk->account, JOBQ_OF_CHUNKS);
		chunk->next = pool->free;
		pool->free = first;
		first = next;
	}
}

static void
drop_oldest(JobqLinePool *pool, JobqLines *lines)
{
	uint32		first = pool->chunks[lines->last].next_line;

	pool->chunks[lines->last].next_line = pool->chunks[first].next_line;
	lines->n--;
	free_line(pool, first);
}

/*
 * Allocate a chunk for a line of this role.  If the role's quota is used up, drop the oldest
 * of these lines first.  Returns JOBQ_NONE if this is not enough.
 */
static uint32
take_chunk(JobqLinePool *pool, JobqLines *lines, Oid role)
{
	uint32		index;

	while (!jobq_share_left(&pool->shares, role, JOBQ_OF_CHUNKS))
	{
		if (lines->n == 0)
			return JOBQ_NONE;
		drop_oldest(pool, lines);
	}
	index = pool->free;
	pool->free = pool->chunks[index].next;
	pool->chunks[index].account = jobq_share_take(&pool->shares, role,
												  JOBQ_OF_CHUNKS);
	pool->chunks[index].next = JOBQ_NONE;
	return index;
}

/*
 * Add a line of this job, counted for this role.  The oldest lines are dropped if necessary.
 * Returns false if there is no room for the line.  The caller must prevent the lines from
 * being freed.  Takes the pool's lock exclusively.
 */
bool
jobq_lines_add(JobqLines *lines, Oid role, int64 job_id, const char *line)
{
	JobqLinePool *pool = jobq_shared->lines;
	Size		left = strlen(line);
	uint32		first = JOBQ_NONE;
	uint32	   *link = &first;

	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	if (lines->n == JOBQ_MAX_LINES)
		drop_oldest(pool, lines);
	do
	{
		JobqChunk  *chunk;

		*link = take_chunk(pool, lines, role);
		if (*link == JOBQ_NONE)
		{
			free_line(pool, first);
			LWLockRelease(pool->lock);
			return false;
		}
		chunk = &pool->chunks[*link];
		chunk->job_id = job_id;
		chunk->length = Min(left, JOBQ_CHUNK_TEXT);
		memcpy(chunk->bytes, line, chunk->length);
		line += chunk->length;
		left -= chunk->length;
		link = &chunk->next;
	} while (left > 0);

	if (lines->n == 0)
		pool->chunks[first].next_line = first;
	else
	{
		pool->chunks[first].next_line = pool->chunks[lines->last].next_line;
		pool->chunks[lines->last].next_line = first;
	}
	lines->last = first;
	lines->n++;
	LWLockRelease(pool->lock);
	return true;
}

/*
 * Copy the lines into the buffer, with a comma before each, as far as they fit.  Returns the
 * total length in bytes; 0 if there are no lines, or if they belong to another job.  Takes
 * the pool's lock in shared mode.
 */
Size
jobq_lines_copy(const JobqLines *lines, int64 job_id, char *buffer, Size size)
{
	JobqLinePool *pool = jobq_shared->lines;
	Size		length = 0;
	uint32		line;

	LWLockAcquire(pool->lock, LW_SHARED);
	line = lines->last;
	for (uint32 n = lines->n; n > 0; n--)
	{
		line = pool->chunks[line].next_line;
		if (pool->chunks[line].job_id != job_id)
			break;
		if (length < size)
			buffer[length] = ',';
		length++;
		for (uint32 i = line; i != JOBQ_NONE; i = pool->chunks[i].next)
		{
			const JobqChunk *chunk = &pool->chunks[i];

			if (length + chunk->length <= size)
				memcpy(buffer + length, chunk->bytes, chunk->length);
			length += chunk->length;
		}
	}
	LWLockRelease(pool->lock);
	return length;
}

/*
 * Drop all lines, because the attempt is over.  Takes the pool's lock exclusively.
 */
void
jobq_lines_clear(JobqLines *lines)
{
	JobqLinePool *pool = jobq_shared->lines;

	LWLockAcquire(pool->lock, LW_EXCLUSIVE);
	while (lines->n > 0)
		drop_oldest(pool, lines);
	LWLockRelease(pool->lock);
}
