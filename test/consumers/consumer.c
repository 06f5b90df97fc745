/*
 * The consumer of test/perl/JobqLibrary.pm, with the library for C.
 *
 * Its handler does what the payload says; it notes in files with which token it has
 * begun which job.
 */
#define _GNU_SOURCE
#include "jobq_consumer.h"

#include <locale.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *folder;
static long long given_back[100];
static int	ngiven_back;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void
note(const char *what, const JobqJob *job)
{
	char		path[1000];
	FILE	   *file;

	snprintf(path, sizeof(path), "%s/%s", folder, what);
	file = fopen(path, "a");
	fprintf(file, "%lld %lld\n", job->id, job->token);
	fclose(file);
}

/* Is it not in the list yet? */
static bool
is_first(const JobqJob *job)
{
	bool		first = true;

	pthread_mutex_lock(&mutex);
	for (int i = 0; i < ngiven_back; i++)
		first &= given_back[i] != job->id;
	if (first && ngiven_back < 100)
		given_back[ngiven_back++] = job->id;
	pthread_mutex_unlock(&mutex);
	return first;
}

/* Acknowledge the job in a transaction of our own. */
static void
settle(const JobqJob *job, JobqAnswer *answer, const char *go)
{
	PGconn	   *connection = PQconnectdb("");
	char		insert[100];

	snprintf(insert, sizeof(insert), "INSERT INTO done VALUES (%lld)", job->id);
	PQclear(PQexec(connection, "BEGIN"));
	PQclear(PQexec(connection, insert));
	if (job->attempt == 1)
	{
		if (!jobq_ack(job, connection, NULL))
			abort();
		*answer = (JobqAnswer) {JOBQ_NACK, strdup("undone"), -1};
	}
	else
	{
		jobq_log(job, "info", "before");
		if (!jobq_ack(job, connection, "{\"own\": true}"))
			abort();
		note("settles", job);
		while (access(go, F_OK) != 0)
			usleep(20000);
		PQclear(PQexec(connection, "COMMIT"));
		jobq_log(job, "info", "after");
		answer->text = strdup("\"ignored\"");
	}
	PQfinish(connection);
}

static void
handle(const JobqJob *job, JobqAnswer *answer, void *arg)
{
#define DO(what) (strstr(job->payload, "\"do\": \"" what "\"") != NULL)
	char		go[1000];

	snprintf(go, sizeof(go), "%s/go", folder);
	note("began", job);
	if (DO("settle"))
		settle(job, answer, go);
	else if (DO("fail"))
		*answer = (JobqAnswer) {JOBQ_NACK, strdup("no image"), -1};
	else if (DO("odd"))
		*answer = (JobqAnswer) {JOBQ_NACK, strdup("\xff"), -1};
	else if (DO("reject"))
		*answer = (JobqAnswer) {JOBQ_REJECT, strdup("this is no image"), -1};
	else if (DO("retry") && job->attempt == 1)
		*answer = (JobqAnswer) {JOBQ_NACK, strdup("once more"), 0.1};
	else if (DO("later") && is_first(job))
		*answer = (JobqAnswer) {JOBQ_RELEASE, NULL, 0.1};
	else
	{
		if (DO("kill"))
			_exit(9);
		if (DO("work"))
			usleep(2000);
		if (DO("tell"))
		{
			jobq_log(job, "info", "first line");
			jobq_log(job, "warning", "second \xe2\x80\xa8 line\xef\xbf\xbd");
			jobq_progress(job, 40, "soon");
			jobq_log(job, "info", job->context);
		}
		while ((DO("hold") || DO("tell")) && access(go, F_OK) != 0)
		{
			usleep(20000);
			if (jobq_lost(job))
			{
				note("lost", job);
				break;
			}
		}
		while (DO("hang") && access(go, F_OK) != 0)
			usleep(20000);
		if (DO("bad result"))
			answer->text = strdup("no JSON");
		else if (asprintf(&answer->text, "{\"token\": %lld, \"more\": \"%0*d\"}", job->token,
						  DO("long result") ? 2000 : strstr(job->payload, "\"long\": true") != NULL ? 4000000 : 1, 0) < 0)
			abort();
	}
}

int
main(void)
{
	const char *wait = getenv("WAIT");
	const char *lease = getenv("LEASE");
	char	   *names = getenv("KINDS");
	char		queues[100];
	JobqKind	kinds[10] = {0};
	JobqConsumer consumer = {
		.conninfo = "", .queues = queues, .handler = names == NULL ? handle : NULL, .kinds = kinds, .pause = 0.5,
		.stop_timeout = getenv("STOP") != NULL ? atof(getenv("STOP")) : 0,
		.parallel = atoi(getenv("PARALLEL")), .ahead = getenv("DEFAULTS") != NULL ? 0 : 3, .lease = lease != NULL ? atof(lease) : 60, .heartbeat = 1,
		.wait = wait != NULL ? atof(wait) : 0, .listen = getenv("LISTEN"), .name = getenv("NAME")
	};

	snprintf(queues, sizeof(queues), "{%s}", getenv("QUEUES"));
	for (int i = 0; names != NULL && i < 9; i++)
		kinds[i] = (JobqKind) {strsep(&names, ","), handle, NULL};
	folder = getenv("FOLDER");
	setlocale(LC_ALL, "");
	return jobq_consume(&consumer);
}
