/*-------------------------------------------------------------------------
 *
 * limit_hash.c
 *	  Hashes of limits in shared memory.
 *
 * Kinds and named limiters are in one list, and limits with the same hash are shared.  A
 * limiter may have the name of a kind.  Kinds and named limiters therefore use different hash
 * seeds.
 *
 * src/store/limit_hash.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "common/hashfn.h"
#include "utils/builtins.h"

#include "store/store.h"

PG_FUNCTION_INFO_V1(jobq_kind_hash_sql);
PG_FUNCTION_INFO_V1(jobq_limiter_hash_sql);

/* Return the hash of a kind for its limits.  Never 0. */
uint32
jobq_kind_hash(const char *kind)
{
	uint32		hash = hash_bytes((const unsigned char *) kind, strlen(kind));

	return hash == 0 ? 1 : hash;
}

/* kind_hash(kind): the hash of a kind, for queries. */
Datum
jobq_kind_hash_sql(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT32((int32) jobq_kind_hash(text_to_cstring(PG_GETARG_TEXT_PP(0))));
}

/* Return the hash of a named limiter.  Never 0. */
uint32
jobq_limiter_hash(const char *name)
{
	uint64		hash = hash_bytes_extended((const unsigned char *) name,
										   strlen(name), 1);

	return (uint32) hash == 0 ? 1 : (uint32) hash;
}

/* limiter_hash(name): the hash of a named limiter, for queries. */
Datum
jobq_limiter_hash_sql(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT32((int32) jobq_limiter_hash(text_to_cstring(PG_GETARG_TEXT_PP(0))));
}
