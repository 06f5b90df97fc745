/*-------------------------------------------------------------------------
 *
 * ahead.c
 *	  Tries jobs_ahead() of client/worker/job.c: how many jobs jobq work holds in advance.
 *
 * Wrong results are printed, and the exit status is 1 then.
 *
 * test/client/ahead.c
 *
 *-------------------------------------------------------------------------
 */
#include "worker/inner.h"

#include <stdio.h>
#include <stdlib.h>

WorkOptions work = {.parallel = 2,.ahead = -1};

/* used by the rest of the file only */
double
seconds(void)
{
	return 0;
}

void *
allocate(size_t size)
{
	return calloc(1, size);
}

char *
copy_text(const char *text)
{
	(void) text;
	return NULL;
}

void
fatal(int status, const char *format,...)
{
	(void) format;
	exit(status);
}

static int
expect(double duration, double answer, int expected)
{
	job_time = duration;
	answer_time = answer;
	if (jobs_ahead() == expected)
		return 0;
	printf("%d jobs of %g s are held ahead, and not %d, when the server answers after %g s\n",
		   jobs_ahead(), duration, expected, answer);
	return 1;
}

int
main(void)
{
	int			wrong = 0;

	wrong |= expect(0, 0.2, 0);
	wrong |= expect(0.03, 0, 6);
	wrong |= expect(0.03, 0.04, 6);
	wrong |= expect(0.03, 0.2, 26);
	wrong |= expect(0.03, 5, 33);
	wrong |= expect(0.001, 5, 200);
	wrong |= expect(3, 5, 0);
	return wrong;
}
