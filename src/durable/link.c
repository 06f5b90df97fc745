/*-------------------------------------------------------------------------
 *
 * link.c
 *	  signal_link(): a link with which a person without a log-in sends a signal.
 *
 * A link is a token in the alphabet of URLs.  Its bytes are a version, the id of the job, the id
 * of the link, and a random secret.  The link is a row of jobq_internal.signal, in which sent_at is
 * the time at which the link expires, and the payload is a hash of the secret.  taken_by is not
 * null, so no wait takes the row.  answer is LINK_OPEN, and the use of the link changes it to
 * LINK_USED, under the lock of the row.  The use also writes the signal.
 *
 * The row goes where signals go: a job that replaces the job, or a rerun, deletes it.  After a
 * restore to an earlier time, another job may get the id of the job, but has no row with the secret.
 *
 * signal_link() checks the privileges of its caller.  use_link() checks the link only, so that
 * "jobq web" needs no privilege on jobq for its strangers.  A caller without a valid link learns
 * nothing about a job.
 *
 * src/durable/link.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "common/base64.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "port/pg_bswap.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "durable/inner.h"
#include "operate/operate.h"

PG_FUNCTION_INFO_V1(jobq_signal_link);
PG_FUNCTION_INFO_V1(jobq_use_link);

#define LINK_VERSION	1
#define LINK_PATH		"/signal/"
#define SECRET_BYTES	16
#define LINK_BYTES		(1 + 2 * sizeof(int64) + SECRET_BYTES)

/* The characters of a token.  LINK_BYTES can be divided by 3, so base64 has no padding. */
#define TOKEN_LENGTH	(LINK_BYTES / 3 * 4)

StaticAssertDecl(LINK_BYTES % 3 == 0, "a token has no padding");

/* A link.  The second part comes from the row. */
typedef struct Link
{
	int64		id;
	int64		job_id;
	uint8		secret[SECRET_BYTES];
	char	   *name;
	TimestampTz expires_at;
	bool		used;
} Link;

/* The hash in the row, as an expression about a parameter. */
#define HASH_OF(secret) "to_jsonb(encode(sha256(" secret "), 'hex'))"

static Datum
secret_datum(const Link *link)
{
	bytea	   *secret = palloc(VARHDRSZ + SECRET_BYTES);

	SET_VARSIZE(secret, VARHDRSZ + SECRET_BYTES);
	memcpy(VARDATA(secret), link->secret, SECRET_BYTES);
	return PointerGetDatum(secret);
}

/* Return the token of a link. */
static char *
to_token(const Link *link)
{
	uint8		bytes[LINK_BYTES];
	uint64		ids[2] = {pg_hton64(link->job_id), pg_hton64(link->id)};
	char	   *token = palloc(TOKEN_LENGTH + 1);

	bytes[0] = LINK_VERSION;
	memcpy(bytes + 1, ids, sizeof(ids));
	memcpy(bytes + 1 + sizeof(ids), link->secret, SECRET_BYTES);
	if (pg_b64_encode((void *) bytes, LINK_BYTES, token, TOKEN_LENGTH) != TOKEN_LENGTH)
		elog(ERROR, "could not encode a link");
	token[TOKEN_LENGTH] = '\0';
	for (char *c = token; *c != '\0'; c++)
		*c = *c == '+' ? '-' : *c == '/' ? '_' : *c;
	return token;
}

/* Read the first part of a link from its token.  False if the token is not valid. */
static bool
from_token(const char *token, Link *link)
{
	char		base64[TOKEN_LENGTH + 1];
	uint8		bytes[LINK_BYTES];
	uint64		ids[2];

	if (strlen(token) != TOKEN_LENGTH || strpbrk(token, "+/=") != NULL)
		return false;
	strcpy(base64, token);
	for (char *c = base64; *c != '\0'; c++)
		*c = *c == '-' ? '+' : *c == '_' ? '/' : *c;
	if (pg_b64_decode(base64, TOKEN_LENGTH, (void *) bytes, LINK_BYTES) != LINK_BYTES ||
		bytes[0] != LINK_VERSION)
		return false;
	memcpy(ids, bytes + 1, sizeof(ids));
	link->job_id = pg_ntoh64(ids[0]);
	link->id = pg_ntoh64(ids[1]);
	memcpy(link->secret, bytes + 1 + sizeof(ids), SECRET_BYTES);
	return true;
}

/* Write the row of a new link. */
static void
insert_link(const Link *link)
{
	static const Oid types[] = {INT8OID, INT8OID, TIMESTAMPTZOID, TEXTOID, TEXTOID, BYTEAOID};
	Datum		values[] = {
		Int64GetDatum(link->id), Int64GetDatum(link->job_id),
		TimestampTzGetDatum(link->expires_at), CStringGetTextDatum(link->name),
		CStringGetTextDatum(GetUserNameFromId(GetUserId(), false)), secret_datum(link)
	};

	SPI_connect();
	jobq_query("INSERT INTO jobq_internal.signal (id, job_id, sent_at, name, sent_by, payload, taken_by, answer)"
			   " VALUES ($1, $2, $3, $4, $5, " HASH_OF("$6") ", '', 'l')",
			   6, types, values, NULL, SPI_OK_INSERT);
	SPI_finish();
}

/* Read the second part of a link.  False if there is no such link. */
static bool
read_link(Link *link)
{
	static const Oid types[] = {INT8OID, INT8OID, BYTEAOID};
	Datum		values[] = {Int64GetDatum(link->job_id), Int64GetDatum(link->id), secret_datum(link)};
	MemoryContext caller = CurrentMemoryContext;
	bool		found;

	SPI_connect();
	found = jobq_query_latest("SELECT name, sent_at, answer FROM jobq_internal.signal"
							  " WHERE job_id = $1 AND id = $2 AND answer IN ('l', 'u') AND payload = " HASH_OF("$3"),
							  3, types, values, SPI_OK_SELECT) > 0;
	if (found)
	{
		HeapTuple	row = SPI_tuptable->vals[0];
		TupleDesc	desc = SPI_tuptable->tupdesc;

		link->name = MemoryContextStrdup(caller, TextDatumGetCString(jobq_column(row, desc, 1, TEXTOID, NULL)));
		link->expires_at = DatumGetTimestampTz(jobq_column(row, desc, 2, TIMESTAMPTZOID, NULL));
		link->used = DatumGetChar(jobq_column(row, desc, 3, CHAROID, NULL)) == LINK_USED;
	}
	SPI_finish();
	return found;
}

/* Mark an open link as used.  Waits for another use.  False if the link was used before. */
static bool
take_link(const Link *link)
{
	static const Oid types[] = {INT8OID, INT8OID};
	Datum		values[] = {Int64GetDatum(link->job_id), Int64GetDatum(link->id)};
	bool		taken;

	SPI_connect();
	taken = jobq_query_latest("UPDATE jobq_internal.signal SET answer = 'u'"
							  " WHERE job_id = $1 AND id = $2 AND answer = 'l'",
							  2, types, values, SPI_OK_UPDATE) > 0;
	SPI_finish();
	return taken;
}

/*
 * signal_link(id, name, valid_for): return the path of a link that sends the signal once.  ERROR if
 * the job does not exist or has finished, without the privilege manage for the job, or if an argument
 * is not valid.
 */
Datum
jobq_signal_link(PG_FUNCTION_ARGS)
{
	Link		link = {0};

	PreventCommandIfReadOnly("jobq.signal_link()");
	link.name = text_to_cstring(durable_name_arg(fcinfo, 1, "name"));
	jobq_not_null(fcinfo, 2, "valid_for");
	link.expires_at = jobq_now() + 1000 *
		jobq_interval_ms(PG_GETARG_INTERVAL_P(2), "valid_for", 1, JOBQ_MAX_DELAY_MS);
	link.job_id = durable_receiver_arg(fcinfo);
	link.id = jobq_next_id();
	if (!pg_strong_random(link.secret, SECRET_BYTES))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not make a random secret")));
	insert_link(&link);
	jobq_audit(fcinfo, 1);
	PG_RETURN_TEXT_P(cstring_to_text(psprintf(LINK_PATH "%s", to_token(&link))));
}

/*
 * Send the signal of a valid link.  payload: 0 to check the link only.  Returns the state of the
 * link.
 */
static const char *
use_link(const Link *link, Datum payload)
{
	Relation	rel = jobq_open_jobs();
	JobqSignal	signal = {.job_id = link->job_id,.name = link->name};
	JobqJob		job;
	Oid			role;
	const char *state = "open";

	if (link->used)
		state = "used";
	else if (link->expires_at <= jobq_now())
		state = "expired";
	else if (payload == (Datum) 0 ? !jobq_receiver_role(rel, link->job_id, &role)
			 : !jobq_signals_lock_receiver(rel, link->job_id, ShareLock))
		state = "over";
	else if (payload != (Datum) 0)
	{
		if (jobq_job_find_now(rel, link->job_id, &job) && DatumGetBool(JOB(&job, JOB_DORMANT)))
			ereport(ERROR,
					(errcode(ERRCODE_JOBQ_WRONG_STATE),
					 errmsg("job " INT64_FORMAT " was brought by logical replication, and runs on the publisher",
							link->job_id)));
		state = "used";
		if (take_link(link))
		{
			signal.id = jobq_next_id();
			jobq_signal_send(rel, &signal, durable_waits_for_signal(link->name), payload);
			state = "sent";
		}
	}
	table_close(rel, NoLock);
	return state;
}

/*
 * jobq_internal.use_link(link, payload): send the signal of the link, or with a null payload only
 * check the link.  Returns the state, and the name of the signal.  link: the path without its
 * beginning.
 */
Datum
jobq_use_link(PG_FUNCTION_ARGS)
{
	Link		link;
	Datum		payload = (Datum) 0;
	TupleDesc	desc;
	Datum		values[2];
	bool		nulls[2] = {false, false};

	desc = jobq_row_type(fcinfo, lengthof(values));
	if (!PG_ARGISNULL(0) && from_token(text_to_cstring(PG_GETARG_TEXT_PP(0)), &link) &&
		read_link(&link))
	{
		if (!PG_ARGISNULL(1))
		{
			PreventCommandIfReadOnly("jobq_internal.use_link()");
			payload = PG_GETARG_DATUM(1);
			jobq_check_value("payload", payload);
		}
		values[0] = CStringGetTextDatum(use_link(&link, payload));
		values[1] = CStringGetTextDatum(link.name);
	}
	else
	{
		values[0] = CStringGetTextDatum("invalid");
		nulls[1] = true;
	}
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(desc, values, nulls)));
}
