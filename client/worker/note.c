/*-------------------------------------------------------------------------
 *
 * note.c
 *	  Standard error of a command, as lines of its job's log.
 *
 * Complete lines wait here.  settle.c reports many lines per statement, at limited
 * intervals.  Beyond MOST_NOTES only the last lines are reported, because the server
 * keeps no more; the rest is counted.
 *
 * client/worker/note.c
 *
 *-------------------------------------------------------------------------
 */
#include "worker/inner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LONGEST_NOTE	1000	/* bytes of a line */
#define MOST_NOTES		100		/* kept by the server */
#define NOTE_PAUSE		0.2		/* seconds between two statements of a job */

static void
drop_first(Job *job)
{
	size_t		length = strcspn(job->notes.data, "\n") + 1;

	memmove(job->notes.data, job->notes.data + length, job->notes.len - length + 1);
	job->notes.len -= length;
	job->nnotes--;
}

static void
add_note(Job *job, const char *text)
{
	if (job->nnotes == MOST_NOTES - 1)
	{
		if (job->ntelling > 0)
			job->ntelling--;
		else
			job->nleft_out++;
		drop_first(job);
	}
	appendPQExpBuffer(&job->notes, "%s\n", text);
	job->nnotes++;
}

/*
 * Finish a complete line, or the last line of a command.
 */
static void
end_line(Job *job)
{
	char	   *line;

	while (job->note.len > 0 && memchr(" \t\r", job->note.data[job->note.len - 1], 3) != NULL)
		job->note.len--;
	line = without_junk(job->note.data, job->note.len);
	if (line[0] != '\0')
		add_note(job, line);
	free(line);
	resetPQExpBuffer(&job->note);
}

/*
 * Add output of the command.
 */
void
note_bytes(Job *job, const char *bytes, size_t n)
{
	for (const char *end = bytes + n; bytes < end;)
	{
		const char *line_end = memchr(bytes, '\n', end - bytes);
		size_t		length = (line_end != NULL ? line_end : end) - bytes;
		size_t		room = LONGEST_NOTE - job->note.len;

		appendBinaryPQExpBuffer(&job->note, bytes, length < room ? length : room);
		bytes += length;
		if (line_end != NULL)
		{
			end_line(job);
			bytes++;
		}
	}
}

/*
 * The command has ended: an incomplete last line counts as a line.
 */
void
note_end(Job *job)
{
	end_line(job);
	job->note_at = 0;
}

/*
 * The lines to report, separated by newlines; the caller frees the result.
 */
char *
note_take(Job *job, double now)
{
	PQExpBufferData lines;

	initPQExpBuffer(&lines);
	if (job->nleft_out > 0)
		appendPQExpBuffer(&lines, "(%lld lines more)\n", job->nleft_out);
	appendPQExpBufferStr(&lines, job->notes.data);
	if (PQExpBufferDataBroken(lines))
		fatal(EXIT_REFUSED, "out of memory");
	lines.data[lines.len - 1] = '\0';
	job->ntelling = job->nnotes;
	job->ntelling_out = job->nleft_out;
	job->note_at = now + NOTE_PAUSE;
	return lines.data;
}

/*
 * The outcome of the report is unknown: repeat it later.
 */
void
note_lost(Job *job)
{
	job->ntelling = 0;
	job->ntelling_out = 0;
}

/*
 * The server has accepted or rejected the report: drop the lines.
 */
void
note_told(Job *job)
{
	job->nleft_out -= job->ntelling_out;
	job->ntelling_out = 0;
	while (job->ntelling > 0)
	{
		drop_first(job);
		job->ntelling--;
	}
}
