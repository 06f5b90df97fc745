/*-------------------------------------------------------------------------
 *
 * publish.c
 *	  One job as a message of a broker.
 *
 * A job is completed after the confirm of the broker.  The id of the message stays the
 * same for all attempts, so that a receiver can detect a repetition.  The server
 * evaluates paths and headers when it gives out the job.
 *
 * While the broker is not connected, the program holds no jobs.
 *
 * client/worker/publish.c
 *
 *-------------------------------------------------------------------------
 */
#include "worker/inner.h"

#ifdef HAVE_RABBITMQ

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLOSE_TIME		2.0		/* seconds to close the connection */

static BrokerState broker;
static char database[64];		/* identifies the database in ids of messages */
static double stop_at = INFINITY;	/* after a signal: no longer wait for
									 * confirms */

static void identify_database(void);

/*
 * Connect to the broker.  An error ends the program.
 */
void
publish_prepare(const PublishOptions *options)
{
	work = (WorkOptions)
	{
		.queues = options->queues,.publish = options,.name = options->name,
			.parallel = options->window,.batch = options->window,
			.lease = options->lease,.grace = options->grace,.retry_delay = options->retry_delay,
			.result = RESULT_NONE,.stop_when_empty = options->stop_when_empty,.quiet = !options->verbose
	};
	identify_database();
	broker_open(&options->broker);
	broker = broker_look();
}

/*
 * Close the connection to the broker.
 */
void
publish_end(void)
{
	(void) broker_close(CLOSE_TIME);
}

/*
 * The id of a message contains the cluster and the database: ids of jobs repeat in other
 * databases.
 */
static void
identify_database(void)
{
	PGconn	   *conn = connect_now();
	PGresult   *result = query(conn, "SELECT s.system_identifier, d.oid "
							   "FROM pg_catalog.pg_control_system() AS s, pg_catalog.pg_database d "
							   "WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()", 0, NULL);

	snprintf(database, sizeof(database), "%s.%s", PQgetvalue(result, 0, 0), PQgetvalue(result, 0, 1));
	PQclear(result);
	PQfinish(conn);
}

/*
 * Append the column for a field.  Returns true if the column needs a parameter.
 */
static bool
add_field(PQExpBuffer sql, const PublishField *field, int parameter, const char **value)
{
	if (field->text != NULL)
	{
		appendPQExpBuffer(sql, ", $%d::pg_catalog.text", parameter);
		*value = field->text;
		return true;
	}
	if (field->from == NULL)
		appendPQExpBufferStr(sql, ", NULL");
	else if (strncmp(field->from, "header ", 7) == 0)
	{
		appendPQExpBuffer(sql, ", headers OPERATOR(pg_catalog.->>) $%d::pg_catalog.text", parameter);
		*value = field->from + 7;
		return true;
	}
	else if (strncmp(field->from, "payload ", 8) == 0)
	{
		appendPQExpBuffer(sql, ", pg_catalog.jsonb_path_query_first(payload, $%d::pg_catalog.jsonpath, '{}', true) "
						  "OPERATOR(pg_catalog.#>>) '{}'", parameter);
		*value = field->from + 8;
		return true;
	}
	else
		appendPQExpBuffer(sql, ", %s", field->from);	/* kind, queue, tenant */
	return false;
}

/*
 * Append the columns needed for a message.  Returns the number of values.
 */
int
publish_columns(PQExpBuffer sql, const char **values, int n)
{
	const PublishField *fields[] = {&work.publish->exchange, &work.publish->routing_key, &work.publish->message_id};

	for (int i = 0; i < 3; i++)
		n += add_field(sql, fields[i], n + 1, &values[n]);
	appendPQExpBufferStr(sql, ", pg_catalog.date_part('epoch', enqueued_at)");
	return n;
}

/*
 * True if the broker takes messages.
 */
bool
publish_ready(void)
{
	return broker == BROKER_UP;
}

/*
 * Return why the job cannot be a message, or NULL and the headers.
 */
static const char *
wrong_with(const Job *job, json_t **headers)
{
	static char why[256];

	if (job->exchange == NULL)
		return "the job does not determine the exchange of its message";
	if (job->routing_key == NULL)
		return "the job does not determine the routing key of its message";
	if (strlen(job->exchange) > LONGEST_NAME)
		return "the exchange of its message is longer than 255 bytes";
	if (strlen(job->routing_key) > LONGEST_NAME)
		return "the routing key of its message is longer than 255 bytes";
	if (strlen(job->message_id) > LONGEST_NAME)
		return "the id of its message is longer than 255 bytes";
	*headers = broker_headers(job->headers, why, sizeof(why));
	return *headers != NULL ? NULL : why;
}

static bool
is_json(const char *content_type)
{
	size_t		length = strcspn(content_type, "; ");

	return length >= 4 && strncmp(content_type + length - 4, "json", 4) == 0;
}

/*
 * Set content type and body: the payload as JSON, or a text that is not JSON.
 */
static void
set_body(Message *message, const Job *job, json_t *headers)
{
	const char *type = json_string_value(json_object_get(headers, "content_type"));
	json_t	   *payload = NULL;

	if (type == NULL)
		type = json_string_value(json_object_get(headers, "content-type"));
	if (type == NULL || strlen(type) > LONGEST_NAME)
		type = "application/json";
	message->content_type = copy_text(type);
	if (!is_json(type))
		payload = json_loads(job->payload, JSON_DECODE_ANY, NULL);
	message->body = copy_text(json_is_string(payload) ? json_string_value(payload) : job->payload);
	message->length = strlen(message->body);
	json_decref(payload);
}

/*
 * Publish the job.
 */
void
publish_start(Job *job)
{
	Message    *message;
	const char *wrong;
	json_t	   *headers;
	char		id[128];

	job->began_at = seconds();
	job->deadline = job->kill_at = job->judge_at = INFINITY;
	if (job->message_id == NULL)
	{
		snprintf(id, sizeof(id), "jobq:%s:%s", database, job->id);
		job->message_id = copy_text(id);
	}
	wrong = wrong_with(job, &headers);
	if (wrong != NULL)
	{
		job_end(job, OUTCOME_REJECT, wrong);
		return;
	}
	message = allocate(sizeof(Message));
	message->owner = job;
	message->exchange = copy_text(job->exchange);
	message->key = copy_text(job->routing_key);
	message->id = copy_text(job->message_id);
	if (strlen(job->kind) <= LONGEST_NAME)
		message->type = copy_text(job->kind);
	message->headers = job->headers != NULL ? copy_text(job->headers) : NULL;
	message->timestamp = job->enqueued_at;
	set_body(message, job, headers);
	json_decref(headers);
	job->sending = message;
	job->state = JOB_RUNNING;
	broker_publish(message);
}

/*
 * Fill in the descriptor to poll.
 */
void
publish_poll(struct pollfd *polls)
{
	*polls = (struct pollfd)
	{
		broker_fd(), POLLIN, 0
	};
}

/*
 * The broker has answered: determine the outcome of the job.
 */
static void
settle(const Message *message)
{
	Job		   *job = message->owner;
	char		buffer[1024];

	job->sending = NULL;
	switch (message->outcome)
	{
		case MESSAGE_CONFIRMED:
			job_end(job, OUTCOME_ACK, NULL);
			break;
		case MESSAGE_RETURNED:
			snprintf(buffer, sizeof(buffer), "no queue takes the message: %s, exchange \"%s\", routing key \"%s\"",
					 message->why, message->exchange, message->key);
			job_end(job, OUTCOME_REJECT, buffer);
			break;
		case MESSAGE_NACKED:
			if (trouble_is_news("the broker could not store a message"))
				say("the broker could not store the message of job %s; its queue may be full", job->id);
			job_end(job, OUTCOME_RELEASE, NULL);
			job->delay = work.retry_delay;
			break;
		case MESSAGE_FAULTY:
			snprintf(buffer, sizeof(buffer), "the broker refuses the message: %s", message->why);
			job_end(job, OUTCOME_NACK, buffer);
			break;
	}
}

/*
 * Process the answers of the broker.  Give back jobs that wait for the broker.
 */
void
publish_go_on(void)
{
	Message    *message;
	Job		   *next;

	broker = broker_look();
	while ((message = broker_next()) != NULL)
	{
		if (message->owner != NULL)
			settle(message);
		message_free(message);
	}
	if (work_stops > 0 && isinf(stop_at))
		stop_at = seconds() + work.grace;
	for (Job *job = jobs; job != NULL; job = next)
	{
		bool		late = seconds() >= stop_at;

		next = job->next;
		if (job->state != JOB_RUNNING || job->sending == NULL)
			continue;
		job->deadline = stop_at;
		if ((late || work_stops > 0 || broker == BROKER_DOWN || broker == BROKER_BLOCKED) &&
			broker_take_back(job->sending, late))
		{
			job->sending = NULL;
			job_end(job, OUTCOME_RELEASE, NULL);
		}
	}
}

/*
 * Abandon the message: its lease is over, or the program ends at once.
 */
void
publish_abort(Job *job)
{
	(void) broker_take_back(job->sending, true);
	job->sending = NULL;
	if (job->outcome == OUTCOME_LOST)
		job->state = JOB_ENDED;
	else
		job_end(job, OUTCOME_RELEASE, NULL);
}

#else							/* HAVE_RABBITMQ */

void
publish_prepare(const PublishOptions *options)
{
}

int
publish_columns(PQExpBuffer sql, const char **values, int n)
{
	return n;
}

bool
publish_ready(void)
{
	return false;
}

void
publish_start(Job *job)
{
}

void
publish_poll(struct pollfd *polls)
{
}

void
publish_go_on(void)
{
}

void
publish_abort(Job *job)
{
}

void
publish_end(void)
{
}

#endif							/* HAVE_RABBITMQ */
