/*-------------------------------------------------------------------------
 *
 * http.c
 *	  One job as a request over HTTP.
 *
 * The payload is the body of a POST.  The headers name the job, and follow the
 * Standard Webhooks specification.  "webhook-id" is the same for all attempts, so
 * that the receiver can detect a repetition.  "webhook-signature" proves knowledge
 * of the secret.
 *
 * The program does not trust a receiver.  The answer is kept up to a limit.
 * Redirects are followed only with --http-redirects, and never to another site.
 * With --http-public-only the program never connects to an address of a private
 * network, wherever a name leads.
 *
 * libcurl runs all requests in the loop of work.c, and keeps connections open
 * between jobs.
 *
 * client/worker/http.c
 *
 *-------------------------------------------------------------------------
 */
#include "worker/inner.h"

#ifdef HAVE_LIBCURL

#include "worker/webhook.h"

#include <curl/curl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MOST_SAID		400		/* bytes of an answer in the error */

static CURLM *multi;
static WebhookKey key;

static void set_time(const Job *job);
static void end(Job *job, CURLcode code);
static void drop_transfer(Job *job);

static void
check(CURLcode code, const char *what)
{
	if (code != CURLE_OK)
		fatal(EXIT_USAGE, "invalid value for %s: %s", what, curl_easy_strerror(code));
}

/*
 * Check work.http, and read the secret.  An error ends the program.
 */
void
http_prepare(const char *secret_file)
{
	CURLU	   *url = curl_url();
	char	   *scheme = NULL;

	if (curl_global_init(CURL_GLOBAL_DEFAULT) != 0 || (multi = curl_multi_init()) == NULL)
		fatal(EXIT_REFUSED, "could not initialize libcurl");
	if (curl_url_set(url, CURLUPART_URL, work.http, 0) != CURLUE_OK ||
		curl_url_get(url, CURLUPART_SCHEME, &scheme, 0) != CURLUE_OK ||
		(strcmp(scheme, "http") != 0 && strcmp(scheme, "https") != 0))
		fatal(EXIT_USAGE, "invalid value for --http: \"%s\" (an address that begins with http:// or https://)", work.http);
	curl_free(scheme);
	curl_url_cleanup(url);
	if (secret_file != NULL)
	{
		FILE	   *file = fopen(secret_file, "r");
		char	   *line = NULL;
		size_t		size = 0;
		const char *wrong;

		if (file == NULL || getline(&line, &size, file) < 0)
			fatal(EXIT_USAGE, "could not read a secret from \"%s\"", secret_file);
		fclose(file);
		if ((wrong = webhook_read_key(line, &key)) != NULL)
			fatal(EXIT_USAGE, "could not read a secret from \"%s\": %s", secret_file, wrong);
		free(line);
	}
}

static curl_socket_t
open_socket(void *unused, curlsocktype purpose, struct curl_sockaddr *address)
{
	if (work.public_only && !webhook_address_is_public(&address->addr))
		return CURL_SOCKET_BAD;
	return socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

/*
 * Keep the answer up to max_output, and end the request if there is more.
 */
static size_t
take_body(char *bytes, size_t size, size_t n, void *argument)
{
	Job		   *job = argument;
	size_t		room = work.max_output - job->output.len;

	appendBinaryPQExpBuffer(&job->output, bytes, n < room ? n : room);
	return n <= room ? n : 0;
}

/*
 * Return the headers of the request.  Names chosen by users are escaped, because a
 * name could contain a line end.
 */
static struct curl_slist *
headers_of(const Job *job)
{
	const char *const names[] = {"Jobq-Kind", "Jobq-Queue", "Jobq-Headers"};
	const char *const values[] = {job->kind, job->queue, job->headers};
	struct curl_slist *list = NULL;
	PQExpBufferData line;
	char		id[40];
	char		timestamp[32];

	snprintf(id, sizeof(id), "jobq-%s", job->id);
	snprintf(timestamp, sizeof(timestamp), "%lld", (long long) time(NULL));
	initPQExpBuffer(&line);
	list = curl_slist_append(list, "Content-Type: application/json");
	list = curl_slist_append(list, "Expect:");
#define ADD(...) \
	(printfPQExpBuffer(&line, __VA_ARGS__), list = curl_slist_append(list, line.data))
	ADD("Idempotency-Key: %s", id);
	ADD("webhook-id: %s", id);
	ADD("webhook-timestamp: %s", timestamp);
	ADD("Jobq-Id: %s", job->id);
	ADD("Jobq-Attempt: %s", job->attempt);
	if (job->trace != NULL)
		ADD("traceparent: %s", job->trace);
	for (int i = 0; i < 3; i++)
		if (values[i] != NULL)
		{
			char	   *escaped = curl_easy_escape(NULL, values[i], 0);

			ADD("%s: %s", names[i], escaped);
			curl_free(escaped);
		}
	if (key.bytes != NULL)
	{
		char	   *signature = webhook_signature(&key, id, timestamp, job->payload);

		if (signature == NULL)
			fatal(EXIT_REFUSED, "out of memory");
		ADD("webhook-signature: %s", signature);
		free(signature);
	}
#undef ADD
	termPQExpBuffer(&line);
	return list;
}

/*
 * Send the job's request.
 */
void
http_start(Job *job)
{
	CURL	   *transfer = curl_easy_init();

	if (transfer == NULL)
		fatal(EXIT_REFUSED, "out of memory");
	job->transfer = transfer;
	job->request_headers = headers_of(job);
	check(curl_easy_setopt(transfer, CURLOPT_URL, work.http), "--http");
	curl_easy_setopt(transfer, CURLOPT_PRIVATE, job);
	curl_easy_setopt(transfer, CURLOPT_POST, 1L);
	curl_easy_setopt(transfer, CURLOPT_POSTFIELDS, job->payload);
	curl_easy_setopt(transfer, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t) strlen(job->payload));
	curl_easy_setopt(transfer, CURLOPT_HTTPHEADER, job->request_headers);
	curl_easy_setopt(transfer, CURLOPT_USERAGENT, "jobq/" JOBQ_VERSION);
	curl_easy_setopt(transfer, CURLOPT_WRITEFUNCTION, take_body);
	curl_easy_setopt(transfer, CURLOPT_WRITEDATA, job);
	curl_easy_setopt(transfer, CURLOPT_OPENSOCKETFUNCTION, open_socket);
	curl_easy_setopt(transfer, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(transfer, CURLOPT_PROTOCOLS_STR, "http,https");
	/* a proxy from the environment could connect to private addresses */
	if (work.public_only)
		curl_easy_setopt(transfer, CURLOPT_PROXY, "");
	if (work.ca_file != NULL)
		check(curl_easy_setopt(transfer, CURLOPT_CAINFO, work.ca_file), "--ca-file");
	job->state = JOB_RUNNING;
	job->began_at = seconds();
	job->deadline = job->kill_at = job->judge_at = INFINITY;
	set_time(job);
	curl_multi_add_handle(multi, transfer);
}

/*
 * The timeout covers all requests of the job together.
 */
static void
set_time(const Job *job)
{
	double		left = job->began_at + work.timeout - seconds();

	/* 0: no timeout */
	if (work.timeout > 0)
		curl_easy_setopt(job->transfer, CURLOPT_TIMEOUT_MS, (long) fmax(left * 1000, 1));
}

/*
 * Wait for the descriptors in "polls", and for the events of libcurl.
 */
void
http_poll(struct pollfd *polls, int n, int timeout)
{
	static struct curl_waitfd *waits = NULL;

	waits = enlarge(waits, n * sizeof(struct curl_waitfd));
	for (int i = 0; i < n; i++)
		waits[i] = (struct curl_waitfd)
	{
		polls[i].fd,
			(short) ((polls[i].events & POLLIN ? CURL_WAIT_POLLIN : 0) | (polls[i].events & POLLOUT ? CURL_WAIT_POLLOUT : 0)), 0
	};
	curl_multi_poll(multi, waits, n, timeout, NULL);
}

/*
 * Continue all requests, and process the finished requests.
 */
void
http_go_on(void)
{
	CURLMsg    *message;
	int			n;

	curl_multi_perform(multi, &n);
	while ((message = curl_multi_info_read(multi, &n)) != NULL)
	{
		CURLcode	code = message->data.result;
		Job		   *job;

		curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **) &job);
		end(job, code);
	}
}

/*
 * Follow a redirect, if permitted, and return true.  libcurl's own redirects would
 * send payload and signature to any host.
 */
static bool
follow_redirect(Job *job, long status)
{
	char	   *to = NULL;
	char	   *from = NULL;

	curl_easy_getinfo(job->transfer, CURLINFO_REDIRECT_URL, &to);
	curl_easy_getinfo(job->transfer, CURLINFO_EFFECTIVE_URL, &from);
	if (status < 300 || status > 399 || to == NULL || from == NULL ||
		job->redirects >= work.redirects || !webhook_same_site(from, to))
		return false;
	job->redirects++;
	to = copy_text(to);
	curl_multi_remove_handle(multi, job->transfer);
	curl_easy_setopt(job->transfer, CURLOPT_URL, to);
	free(to);
	resetPQExpBuffer(&job->output);
	set_time(job);
	curl_multi_add_handle(multi, job->transfer);
	return true;
}

/*
 * The request has ended: determine the outcome of the job.
 */
static void
end(Job *job, CURLcode code)
{
	long		status = 0;
	struct curl_header *header;
	long		retry_after = -1;
	char		buffer[512];
	char	   *body;
	char	   *said;

	curl_easy_getinfo(job->transfer, CURLINFO_RESPONSE_CODE, &status);
	if (code == CURLE_OK && follow_redirect(job, status))
		return;
	if (curl_easy_header(job->transfer, "Retry-After", 0, CURLH_HEADER, -1, &header) == CURLHE_OK)
		retry_after = webhook_retry_after(header->value, time(NULL));
	drop_transfer(job);
	body = without_junk(job->output.data, job->output.len);

	/* an answer longer than max_output is still an answer */
	if (code == CURLE_WRITE_ERROR && job->output.len >= work.max_output)
		code = CURLE_OK;
	said = without_junk(body, strnlen(body, MOST_SAID));
	snprintf(buffer, sizeof(buffer), "HTTP status %ld: %s", status, said);
	free(said);
	if (code != CURLE_OK && code != CURLE_OPERATION_TIMEDOUT && work_stops > 0)
	{
		/* the receiver may be stopping too, as in a shared pod */
		job_end(job, OUTCOME_RELEASE, NULL);
	}
	else if (code != CURLE_OK)
	{
		snprintf(buffer, sizeof(buffer), "no answer: %s", curl_easy_strerror(code));
		job_end(job, OUTCOME_NACK, buffer);
	}
	else if (status >= 200 && status < 300)
		job_done(job, body);
	else if ((status == 429 || status == 503) && retry_after >= 0)
	{
		job_end(job, OUTCOME_RELEASE, NULL);
		job->delay = retry_after;
	}
	else if (status >= 400 && status < 500 && status != 408 && status != 425 && status != 429 && !work.retry_4xx)
		job_end(job, OUTCOME_REJECT, buffer);
	else
		job_end(job, OUTCOME_NACK, buffer);
	free(body);
}

/*
 * Abort the request.
 */
void
http_abort(Job *job)
{
	drop_transfer(job);
	if (job->outcome == OUTCOME_LOST)
		job->state = JOB_ENDED;
	else
		job_end(job, OUTCOME_RELEASE, NULL);
}

static void
drop_transfer(Job *job)
{
	curl_multi_remove_handle(multi, job->transfer);
	curl_easy_cleanup(job->transfer);
	curl_slist_free_all(job->request_headers);
	job->transfer = NULL;
	job->request_headers = NULL;
}

#else							/* HAVE_LIBCURL */

void
http_prepare(const char *secret_file)
{
	fatal(EXIT_USAGE, "this jobq was built without libcurl, so it has no --http: install %s, and build it again", HTTP_PACKAGES);
}

void
http_start(Job *job)
{
}

void
http_poll(struct pollfd *polls, int n, int timeout)
{
}

void
http_go_on(void)
{
}

void
http_abort(Job *job)
{
}

#endif							/* HAVE_LIBCURL */
