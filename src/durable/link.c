/*-------------------------------------------------------------------------
 *
 * link.c
 *	  signal_link(): a link with which a person without a log-in sends a signal.
 *
 * A link is a token in the alphabet of URLs.  Its bytes are a version, the id of the job, the id
 * of the signal, the time at which the link expires, and the name of the signal, followed by an
 * HMAC-SHA256 of these bytes and the name of the database.  An unused link has no row.
 *
 * signal_link() checks the privileges of its caller.  use_link() checks the link only, so that
 * "jobq web" needs no privilege on jobq for its strangers.  A caller without a valid link learns
 * nothing about a job.
 *
 * The id of the signal is taken from the sequence when the link is made.  The row of the signal has
 * this id, so a used link is found by the primary key.  To be used only once, the link is checked
 * under the lock of the signals (signal.c) in exclusive mode.
 *
 * The table jobq_internal.link_key has the keys.  The first link makes a key.  The newest key signs,
 * and all keys are tried for a check.  Two sessions that make the first key at the same time
 * therefore do not wait for each other.
 *
 * src/durable/link.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "commands/dbcommands.h"
#include "common/base64.h"
#include "common/hmac.h"
#include "common/sha2.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "lib/stringinfo.h"
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
#define KEY_BYTES		32

/* The signed bytes before the name. */
#define LINK_HEADER		(1 + 3 * sizeof(int64))
#define LINK_MOST		(LINK_HEADER + MAX_NAME + PG_SHA256_DIGEST_LENGTH)

/* A link, as read from its token. */
typedef struct Link
{
	int64		job_id;
	int64		signal_id;
	TimestampTz expires_at;
	char	   *name;
} Link;

/* Compute the HMAC of the bytes and the name of the database. */
static void
sign(const uint8 *bytes, int size, bytea *key, uint8 *mac)
{
	const char *database = get_database_name(MyDatabaseId);
	pg_hmac_ctx *ctx = pg_hmac_create(PG_SHA256);

	if (ctx == NULL ||
		pg_hmac_init(ctx, (uint8 *) VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key)) < 0 ||
		pg_hmac_update(ctx, bytes, size) < 0 ||
		pg_hmac_update(ctx, (const uint8 *) database, strlen(database)) < 0 ||
		pg_hmac_final(ctx, mac, PG_SHA256_DIGEST_LENGTH) < 0)
		elog(ERROR, "could not compute an HMAC");
	pg_hmac_free(ctx);
}

/* Whether two HMACs are equal.  The time reveals nothing about them. */
static bool
is_same_mac(const uint8 *a, const uint8 *b)
{
	uint8		differs = 0;

	for (int i = 0; i < PG_SHA256_DIGEST_LENGTH; i++)
		differs |= a[i] ^ b[i];
	return differs == 0;
}

/* Return the keys, the newest first, and set *n. */
static bytea **
read_keys(int *n)
{
	MemoryContext caller = CurrentMemoryContext;
	bytea	  **keys;

	SPI_connect();
	*n = jobq_query_latest("SELECT key FROM jobq_internal.link_key ORDER BY created_at DESC, key",
						   0, NULL, NULL, SPI_OK_SELECT);
	keys = MemoryContextAlloc(caller, (*n + 1) * sizeof(bytea *));
	for (int i = 0; i < *n; i++)
	{
		Datum		key = jobq_column(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, BYTEAOID, NULL);
		MemoryContext old = MemoryContextSwitchTo(caller);

		keys[i] = DatumGetByteaPCopy(key);
		MemoryContextSwitchTo(old);
	}
	SPI_finish();
	return keys;
}

/* Make a key, in the transaction of the caller. */
static bytea *
make_key(void)
{
	static const Oid types[] = {BYTEAOID, TIMESTAMPTZOID};
	bytea	   *key = palloc(VARHDRSZ + KEY_BYTES);
	Datum		values[] = {PointerGetDatum(key), TimestampTzGetDatum(jobq_now())};

	SET_VARSIZE(key, VARHDRSZ + KEY_BYTES);
	if (!pg_strong_random(VARDATA(key), KEY_BYTES))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not make a random key")));
	SPI_connect();
	jobq_query("INSERT INTO jobq_internal.link_key (key, created_at) VALUES ($1, $2)",
			   2, types, values, NULL, SPI_OK_INSERT);
	SPI_finish();
	return key;
}

/* Return the bytes as base64 in the alphabet of URLs, without padding. */
static char *
to_token(const uint8 *bytes, int size)
{
	int			length = pg_b64_enc_len(size);
	char	   *token = palloc(length + 1);

	length = pg_b64_encode((void *) bytes, size, token, length);
	token[length] = '\0';
	for (char *c = token; *c != '\0'; c++)
		*c = *c == '+' ? '-' : *c == '/' ? '_' : *c == '=' ? '\0' : *c;
	return token;
}

/* Decode a token into LINK_MOST bytes.  Returns their number, or -1 if the token is not valid. */
static int
from_token(const char *token, uint8 *bytes)
{
	char		base64[LINK_MOST * 4 / 3 + 8];
	size_t		length = strlen(token);

	if (length > sizeof(base64) - 4 || strpbrk(token, "+/=") != NULL)
		return -1;
	for (size_t i = 0; i < length; i++)
		base64[i] = token[i] == '-' ? '+' : token[i] == '_' ? '/' : token[i];
	while (length % 4 != 0)
		base64[length++] = '=';
	return pg_b64_decode(base64, length, (void *) bytes, LINK_MOST);
}

/* Write the signed bytes of a link.  Returns their number. */
static int
write_link(const Link *link, uint8 *bytes)
{
	uint64		numbers[3] = {pg_hton64(link->job_id), pg_hton64(link->signal_id), pg_hton64(link->expires_at)};

	bytes[0] = LINK_VERSION;
	memcpy(bytes + 1, numbers, sizeof(numbers));
	memcpy(bytes + LINK_HEADER, link->name, strlen(link->name));
	return LINK_HEADER + strlen(link->name);
}

/* Read a token.  False if a key of this database has not signed the token. */
static bool
read_link(const char *token, Link *link)
{
	uint8		bytes[LINK_MOST];
	int			size = from_token(token, bytes) - PG_SHA256_DIGEST_LENGTH;
	uint64		numbers[3];
	int			nkeys;
	bytea	  **keys;
	bool		good = false;

	/* base64 has several spellings of the same bytes, of which one is valid */
	if (size <= (int) LINK_HEADER ||
		strcmp(to_token(bytes, size + PG_SHA256_DIGEST_LENGTH), token) != 0)
		return false;
	keys = read_keys(&nkeys);
	for (int i = 0; i < nkeys; i++)
	{
		uint8		mac[PG_SHA256_DIGEST_LENGTH];

		sign(bytes, size, keys[i], mac);
		good |= is_same_mac(mac, bytes + size);
	}
	if (!good || bytes[0] != LINK_VERSION)
		return false;
	memcpy(numbers, bytes + 1, sizeof(numbers));
	link->job_id = pg_ntoh64(numbers[0]);
	link->signal_id = pg_ntoh64(numbers[1]);
	link->expires_at = pg_ntoh64(numbers[2]);
	link->name = pnstrdup((char *) bytes + LINK_HEADER, size - LINK_HEADER);
	return true;
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
	uint8		bytes[LINK_MOST];
	int			size;
	int			nkeys;
	bytea	  **keys;
	bytea	   *key;

	PreventCommandIfReadOnly("jobq.signal_link()");
	link.name = text_to_cstring(durable_name_arg(fcinfo, 1, "name"));
	if (PG_ARGISNULL(2))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("valid_for must not be null")));
	link.expires_at = jobq_now() + 1000 *
		jobq_interval_ms(PG_GETARG_INTERVAL_P(2), "valid_for", 1, JOBQ_MAX_DELAY_MS);
	link.job_id = durable_receiver_arg(fcinfo);
	link.signal_id = jobq_next_id();
	keys = read_keys(&nkeys);
	key = nkeys > 0 ? keys[0] : make_key();
	size = write_link(&link, bytes);
	sign(bytes, size, key, bytes + size);
	jobq_audit(fcinfo, 1);
	PG_RETURN_TEXT_P(cstring_to_text(psprintf(LINK_PATH "%s",
											  to_token(bytes, size + PG_SHA256_DIGEST_LENGTH))));
}

/*
 * Send the signal of a valid link.  payload: 0 to check the link only.  Returns the state of the
 * link.
 */
static const char *
use_link(const Link *link, Datum payload)
{
	JobqSignal	signal = {.id = link->signal_id,.job_id = link->job_id,.name = link->name};
	Relation	rel = jobq_open_jobs();
	JobqJob		job;
	Oid			role;
	const char *state = "open";

	if (link->expires_at <= jobq_now())
		state = "expired";
	else if (payload == (Datum) 0 ? !jobq_receiver_role(rel, link->job_id, &role)
			 : !jobq_signals_lock_receiver(rel, link->job_id, ExclusiveLock))
		state = "over";
	if (jobq_signal_exists(&signal))
		state = "used";
	else if (strcmp(state, "open") == 0 && payload != (Datum) 0)
	{
		if (jobq_job_find_now(rel, link->job_id, &job) && DatumGetBool(JOB(&job, JOB_DORMANT)))
			ereport(ERROR,
					(errcode(ERRCODE_JOBQ_WRONG_STATE),
					 errmsg("job " INT64_FORMAT " was brought by logical replication, and runs on the publisher",
							link->job_id)));
		jobq_signal_send(rel, &signal, durable_waits_for_signal(link->name), payload);
		state = "sent";
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

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	desc = BlessTupleDesc(desc);
	jobq_check_columns(desc, lengthof(values));
	if (!PG_ARGISNULL(1))
	{
		PreventCommandIfReadOnly("jobq_internal.use_link()");
		payload = PG_GETARG_DATUM(1);
		jobq_check_value("payload", payload);
	}
	if (!PG_ARGISNULL(0) && read_link(text_to_cstring(PG_GETARG_TEXT_PP(0)), &link))
	{
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
