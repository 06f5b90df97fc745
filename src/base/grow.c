/*-------------------------------------------------------------------------
 *
 * grow.c
 *	  Arrays that grow, for what a transaction notes.
 *
 * src/base/grow.c
 *
 *-------------------------------------------------------------------------
 */
#include "base/base.h"

#include "utils/memutils.h"

/* There is room for so many from one transaction to the next. */
#define KEPT	1024

/*
 * The array with room for so many elements, in TopMemoryContext: it is kept for the
 * transactions to come.  NULL is an array without any.  *max is how many there is
 * room for; it doubles at least, and is 16 or more.  Raises an error if there is no
 * memory; then nothing has changed.
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
 * The array, which has no elements now: as it is, or without any room if that was made
 * for so many that most transactions need less.  Cannot fail; gives memory back to the
 * system, so it is not to be called under a lock.
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
