/*
 * Takes jobs of a queue.  usage: example QUEUE; PGHOST ... give the database.
 *
 * cc -o example example.c jobq_consumer.c -I$(pg_config --includedir) -lpq -lpthread -lm
 */
#define _GNU_SOURCE
#include "jobq_consumer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void
make_thumbnail(const JobqJob *job, JobqAnswer *answer, void *arg)
{
	const char *image = strstr(job->payload, "\"image\": ");

	if (image == NULL)
	{
		answer->outcome = JOBQ_REJECT;
		answer->text = strdup("no image");
	}
	else if (asprintf(&answer->text, "{\"file\": \"%d.png\"}", atoi(image + 9)) < 0)
		abort();
}

int
main(int argc, char **argv)
{
	char	   *queues;
	JobqConsumer consumer = {.conninfo = "", .handler = make_thumbnail, .parallel = 4};

	if (argc != 2 || asprintf(&queues, "{\"%s\"}", argv[1]) < 0)
		return 2;
	consumer.queues = queues;
	return jobq_consume(&consumer);
}
