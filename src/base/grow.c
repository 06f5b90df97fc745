/*-------------------------------------------------------------------------
 *
 * grow.c
 *	  Arrays: growing arrays, for the notes of a transaction; comparisons of numbers.
 *
 * src/base/grow.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/memutils.h"

/* Number of elements kept allocated between transactions. */
#define KEPT	1024

/*
 * Enlarge the array to at least "wanted" elements of the given size, in TopMemoryContext, and
 * return it.  The array is kept for later transactions.  NULL is an empty array.  *max is the
 * allocated number of elements, which at least doubles and is at least 16.  Raises an error if
 * out of memory; nothing has changed then.
 */
void *
jobq_grow(void *array, int *max, int wanted, Size element)
{
	if (wanted <= *max)
		return array;
	wanted = Max(wanted, Max(2 * *max, 16));
	array = array == NULL
		? MemoryContextAllocHuge(TopMemoryContext, element * wanted)
		: repalloc_huge(array, element * wanted);
	*max = wanted;
	return array;
}

/*
 * Free an array without elements if it is larger than most transactions need, and return the
 * array or NULL.  Cannot fail.  The caller should hold no lock, because memory is returned to
 * the system.
 */
void *
jobq_give_back(void *array, int *max)
{
	if (*max <= KEPT)
		return array;
	pfree(array);
	*max = 0;
	return NULL;
}

/* Compare two int32, or elements that begin with an int32, for qsort() and bsearch(). */
int
jobq_compare_int32(const void *a, const void *b)
{
	int32		x = *(const int32 *) a;
	int32		y = *(const int32 *) b;

	return x < y ? -1 : x > y;
}

/* The same for int64. */
int
jobq_compare_int64(const void *a, const void *b)
{
	int64		x = *(const int64 *) a;
	int64		y = *(const int64 *) b;

	return x < y ? -1 : x > y;
}
