/* Makes thumbnails.  usage: example '{queue}'; PGHOST ... give the database. */
#include "jobq_consumer.h"
#include <string.h>

static void make(const JobqJob *job, JobqAnswer *answer, void *arg)
{
	if (strstr(job->payload, "\"image\"") == NULL)
		*answer = (JobqAnswer) {.outcome = JOBQ_REJECT, .text = strdup("no image")};
}

int main(int argc, char **argv)
{
	const JobqKind kinds[] = {{"thumbnail.make", make, NULL}, {0}};
	return jobq_consume(&(JobqConsumer) {.conninfo = "", .queues = argv[1], .kinds = kinds, .stop_timeout = 20});
}
