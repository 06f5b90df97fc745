/*-------------------------------------------------------------------------
 *
 * inner.h
 *	  Declarations shared by the files of the directory base.
 *
 * src/base/inner.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_BASE_INNER_H
#define JOBQ_BASE_INNER_H

#include "base/base.h"

#include "utils/guc.h"

/* src/base/pools.c: hooks of the setting jobq.workers */
extern bool jobq_check_workers(char **newval, void **extra, GucSource source);
extern void jobq_assign_workers(const char *newval, void *extra);

#endif							/* JOBQ_BASE_INNER_H */
