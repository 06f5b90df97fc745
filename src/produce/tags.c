/*-------------------------------------------------------------------------
 *
 * tags.c
 *	  Tags of a job, for searching.
 *
 * Tags are for people: how a job runs does not depend on its tags.  There is no index on tags,
 * and a job without tags has no cost from them.
 *
 * src/produce/tags.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/builtins.h"

#include "produce/produce.h"

/* Maximum number of tags of a job, and maximum length of a tag in bytes. */
#define MAX_TAGS		16
#define MAX_TAG_BYTES	63

/*
 * Set the tags of the job from an array of text.  Duplicates are removed.  ERROR if the array
 * has several dimensions or too many tags, or if a tag is null, empty or too long.
 */
void
jobq_set_tags(JobqJob *job, Datum given)
{
	ArrayType  *array = DatumGetArrayTypeP(given);
	Datum	   *elems;
	bool	   *nulls;
	int			n;
	int			kept = 0;

	if (ARR_NDIM(array) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("tags must be an array of one dimension, not of %d",
						ARR_NDIM(array))));
	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT, &elems, &nulls, &n);
	for (int i = 0; i < n; i++)
	{
		Size		bytes = nulls[i] ? 0 : VARSIZE_ANY_EXHDR(DatumGetPointer(elems[i]));
		int			same = 0;

		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("tags must not contain null")));
		if (bytes < 1 || bytes > MAX_TAG_BYTES)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("tag \"%s\" must have 1 to %d bytes",
							text_to_cstring(DatumGetTextPP(elems[i])), MAX_TAG_BYTES)));
		while (same < kept &&
			   (VARSIZE_ANY_EXHDR(DatumGetPointer(elems[same])) != bytes ||
				memcmp(VARDATA_ANY(DatumGetPointer(elems[same])),
					   VARDATA_ANY(DatumGetPointer(elems[i])), bytes) != 0))
			same++;
		if (same < kept)
			continue;
		if (kept == MAX_TAGS)
			ereport(ERROR,
					(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
					 errmsg("a job cannot have more than %d tags", MAX_TAGS)));
		elems[kept++] = elems[i];
	}
	if (kept > 0)
		JOB_SET(job, JOB_TAGS,
				PointerGetDatum(construct_array(elems, kept, TEXTOID, -1, false,
												TYPALIGN_INT)));
}
