/*-------------------------------------------------------------------------
 *
 * limit_hash.c
 *	  The hashes by which limits are found in shared memory.
 *
 * Those of kinds and those of named limiters stand in one list, and two that have the
 * same hash share their limits.  So the one are made with another seed than the other:
 * a limiter may have the name of a kind.
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

/*
 * The hash by which the limits of a kind are found; never 0.
 */
uint32
jobq_kind_hash(const char *kind)
{
	uint32		hash = hash_bytes((const unsigned char *) kind, strlen(kind));

	return hash == 0 ? 1 : hash;
}

/*
 * kind_hash(kind): the same, for queries.
 */
Datum
jobq_kind_hash_sql(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT32((int32) jobq_kind_hash(text_to_cstring(PG_GETARG_TEXT_PP(0))));
}

/*
 * The hash by which a named limiter is found, among those of kinds; never 0.
 */
uint32
jobq_limiter_hash(const char *name)
{
	uint64		hash = hash_bytes_extended((const unsigned char *) name,
										   strlen(name), 1);

	return (uint32) hash == 0 ? 1 : (uint32) hash;
}

/*
 * limiter_hash(name): the same, for queries.
 */
Datum
jobq_limiter_hash_sql(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT32((int32) jobq_limiter_hash(text_to_cstring(PG_GETARG_TEXT_PP(0))));
}
