/*-------------------------------------------------------------------------
 *
 * send.c
 *	  Whether a job can be sent to the consumer that asks.
 *
 * A database whose encoding is not UTF8 may keep texts that a client's encoding does
 * not have: in one that is SQL_ASCII, any bytes.  To send one is an error, and then
 * the job would be the first of its queue again, for the next consumer.  So who
 * reserves looks before, and the job becomes a dead letter.
 *
 * In a database that is UTF8, every text can be sent to whoever reads UTF-8, as all
 * that belongs to jobq does; there nothing is looked at.
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

/* Bytes that are converted at a time. */
#define PIECE	(1 << 20)

/*
 * Can the text be converted from the server's encoding to the client's?
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
		/* a character that the piece ends in is left for the next one */
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
 * Can the client of this session be sent the texts of the job?
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
