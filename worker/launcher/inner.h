/*-------------------------------------------------------------------------
 *
 * inner.h
 *	  Declarations shared by the files of the directory launcher.
 *
 * worker/launcher/inner.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_LAUNCHER_INNER_H
#define JOBQ_LAUNCHER_INNER_H

#include "base/base.h"

#include "nodes/pg_list.h"

#include "process/process.h"

/* worker/launcher/databases.c */
extern List *served_databases(List **problems);
extern JobqDatabase *database_entry(Oid dboid);

/* worker/launcher/report.c */
extern void report_problems(List *problems);

#endif							/* JOBQ_LAUNCHER_INNER_H */
