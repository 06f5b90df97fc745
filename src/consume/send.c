/*-------------------------------------------------------------------------
 *
 * send.c
 *	  Check whether a job can be sent to the reserving client.
 *
 * A database with an encoding other than UTF8 may store texts without a representation in
 * the client's encoding.  A database in SQL_ASCII may store any bytes.  Sending such a text
 * raises an error, and the job would return to the front of its queue for the next consumer.
 * The reservation therefore checks the texts before, and the job becomes a dead letter.
 *
 * In a UTF8 database each text can be sent to a client in UTF-8, like all jobq clients.
 * There the check is skipped.
 *
 * src/consume/send.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "catalog/namespace.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"

#include "consume/consume.h"

/* Number of bytes that are converted at a time. */
#define PIECE	(1 << 20)

/*
 * True if the text can be converted from encoding "server" to encoding "client".  length is in
 * bytes.
 */
static bool
text_has_encoding(const char *text, int length, int server, int client)
{
	Oid			conversion;
	unsigned char *converted;
	bool		good = true;

	if (server == PG_SQL_ASCII)
		return pg_verify_mbstr(client, text, length, true);
	conversion = FindDefaultConversionProc(server, client);
	if (!OidIsValid(conversion))
		return true;
	converted = palloc(PIECE * MAX_CONVERSION_GROWTH + 1);
	while (good && length > 0)
	{
		/*
		 * a character cut off at the end of a piece belongs to the next piece
		 */
		int			done = pg_do_encoding_conversion_buf(conversion, server, client,
														 (unsigned char *) text,
														 Min(length, PIECE), converted,
														 PIECE * MAX_CONVERSION_GROWTH + 1,
														 true);

		good = done > 0;
		text	  +=done;

		length -= done;
	}
	pfree(converted);
	return good;
}

/*
 * True if all texts of the job can be sent to the client of this session: kind, tenant,
 * payload, headers and context.
 */
bool
jobq_can_be_sent(const JobqJob *job)
{
	static const int texts[] = {JOB_KIND, JOB_TENANT};
	static const int jsons[] = {JOB_PAYLOAD, JOB_HEADERS, JOB_CONTEXT};
	int			server = GetDatabaseEncoding();
	int			client = pg_get_client_encoding();
	bool		can = true;

	if (server == PG_UTF8 || server == client || client == PG_SQL_ASCII)
		return true;
	for (int i = 0; can && i < (int) lengthof(texts); i++)
		if (!JOB_ISNULL(job, texts[i]))
		{
			char	   *value = TextDatumGetCString(JOB(job, texts[i]));

			can = text_has_encoding(value, strlen(value), server, client);
			pfree(value);
		}
	for (int i = 0; can && i < (int) lengthof(jsons); i++)
		if (!JOB_ISNULL(job, jsons[i]))
		{
			Jsonb	   *json = DatumGetJsonbP(JOB(job, jsons[i]));
			char	   *value = JsonbToCString(NULL, &json->root, VARSIZE(json));

			can = text_has_encoding(value, strlen(value), server, client);
			pfree(value);
		}
	return can;
}
