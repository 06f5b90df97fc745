/*-------------------------------------------------------------------------
 *
 * chain.h
 *	  Chains of the elements of an array in shared memory.
 *
 * The elements are linked by their indexes, because pointers would not be valid in every
 * process.  A head or a link is an index, or JOBQ_NONE at the end of the chain.  The buckets of
 * a hash table are heads of chains, and the unused elements of an array form a chain as well.
 *
 * src/base/chain.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_CHAIN_H
#define JOBQ_CHAIN_H

/* "No entry", "no lane" and the like in fields that hold an index. */
#define JOBQ_NONE	PG_UINT32_MAX

/*
 * Define the functions of chains of the type Element with the member link:
 *
 * name_chain_all() links all n elements, and returns the head of the chain.
 * name_chain_push() inserts an element at the head.
 * name_chain_pop() removes the element at the head.  JOBQ_NONE if the chain is empty.
 * name_chain_remove() removes an element, which must be in the chain.
 */
#define JOBQ_CHAIN(name, Element, link) \
pg_attribute_unused() static inline uint32 \
name##_chain_all(Element *array, uint32 n) \
{ \
	for (uint32 i = 0; i < n; i++) \
		array[i].link = i + 1 < n ? i + 1 : JOBQ_NONE; \
	return n > 0 ? 0 : JOBQ_NONE; \
} \
pg_attribute_unused() static inline void \
name##_chain_push(uint32 *head, Element *array, uint32 index) \
{ \
	array[index].link = *head; \
	*head = index; \
} \
pg_attribute_unused() static inline uint32 \
name##_chain_pop(uint32 *head, Element *array) \
{ \
	uint32		index = *head; \
 \
	if (index != JOBQ_NONE) \
		*head = array[index].link; \
	return index; \
} \
pg_attribute_unused() static inline void \
name##_chain_remove(uint32 *head, Element *array, uint32 index) \
{ \
	while (*head != index) \
	{ \
		Assert(*head != JOBQ_NONE); \
		head = &array[*head].link; \
	} \
	*head = array[index].link; \
} \
struct name##_chain

#endif							/* JOBQ_CHAIN_H */
