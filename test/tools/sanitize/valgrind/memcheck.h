/*
 * PostgreSQL's requests to valgrind, implemented with AddressSanitizer.
 *
 * PostgreSQL tells valgrind which parts of memory contexts and shared buffers may be
 * accessed.  A build with USE_VALGRIND and this file in place of valgrind's header
 * passes the same information to AddressSanitizer.  AddressSanitizer then finds uses
 * of memory freed by pfree() or by the end of a context, and accesses behind a
 * chunk.  To malloc() all chunks are one block.
 *
 * AddressSanitizer does not track undefined contents.
 */
#ifndef SANITIZE_MEMCHECK_H
#define SANITIZE_MEMCHECK_H

#include <sanitizer/asan_interface.h>

#define VALGRIND_MAKE_MEM_NOACCESS(p, n)	ASAN_POISON_MEMORY_REGION(p, n)
#define VALGRIND_MAKE_MEM_UNDEFINED(p, n)	ASAN_UNPOISON_MEMORY_REGION(p, n)
#define VALGRIND_MAKE_MEM_DEFINED(p, n)		ASAN_UNPOISON_MEMORY_REGION(p, n)

#define VALGRIND_CREATE_MEMPOOL(pool, redzone, zeroed)	((void) 0)
#define VALGRIND_CREATE_MEMPOOL_EXT(pool, redzone, zeroed, flags)	((void) 0)
#define VALGRIND_DESTROY_MEMPOOL(pool)		((void) 0)
#define VALGRIND_MEMPOOL_ALLOC(pool, p, n)	ASAN_UNPOISON_MEMORY_REGION(p, n)
#define VALGRIND_MEMPOOL_FREE(pool, p)		((void) 0)
#define VALGRIND_MEMPOOL_TRIM(pool, p, n)	((void) 0)
#define VALGRIND_MEMPOOL_CHANGE(pool, from, to, n)	ASAN_UNPOISON_MEMORY_REGION(to, n)

#define VALGRIND_CHECK_MEM_IS_DEFINED(p, n)		((void) 0)
#define VALGRIND_CHECK_MEM_IS_ADDRESSABLE(p, n)	((void) 0)
#define VALGRIND_CHECK_VALUE_IS_DEFINED(v)		((void) 0)

#define RUNNING_ON_VALGRIND			0
#define VALGRIND_COUNT_ERRORS		0
#define VALGRIND_PRINTF(...)		((void) 0)
#define VALGRIND_DO_LEAK_CHECK		((void) 0)
#define VALGRIND_DISABLE_ERROR_REPORTING	((void) 0)
#define VALGRIND_ENABLE_ERROR_REPORTING		((void) 0)

#endif
