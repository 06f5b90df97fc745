/*-------------------------------------------------------------------------
 *
 * produce.h
 *	  Interface of the directory produce: enqueuing jobs.
 *
 * A job is made from its kind, payload and options.  options.h lists the options.  Jobs
 * described in jsonb (steps, callbacks, schedules) have the same options by the same names.
 *
 * Guarantees: a job exists if, and only if, the enqueuing transaction commits.  Invalid input
 * raises an error that names the value and the allowed values.  Nothing is written then.
 *
 * Locks: the enqueuing session pins the queues (jobq_pin_queues()), and locks
 * jobq_internal.job for writing.
 *
 * src/produce/produce.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef JOBQ_PRODUCE_H
#define JOBQ_PRODUCE_H

#include "utils/array.h"
#include "utils/jsonb.h"

#include "store/store.h"

/*
 * Numbers of the options of a job.  The first ones, in this order, are the arguments of
 * enqueue() from the third on, and the columns of the view inbox from the fourth on.
 */
enum
{
#define JOB_OPTION(name, NAME, type, comment) OPTION_##NAME,
#include "produce/options.h"
#define UNIQUENESS_OPTION(name, NAME, type, comment) OPTION_##NAME,
#define OTHER_OPTION(name, NAME, type, comment) OPTION_##NAME,
#include "produce/options.h"
	NOPTIONS
};

/* Number of options that are arguments of enqueue(). */
#define NOPTION_ARGS	(OPTION_OPTIONS + 1)

/* Key, in a stored description, of the job's cost at its limiter. */
#define JOBQ_KEPT_COST	"limit_cost"

/* A job described in jsonb. */
typedef struct JobqSpec
{
	char	   *kind;
	Datum		payload;
	Datum		options[NOPTIONS];
	bool		nulls[NOPTIONS];
	int32		limit_cost;		/* tokens in a stored description; or -1 */
} JobqSpec;

/* Payload of a job of the kind sql. */
typedef struct JobqStatement
{
	char	   *sql;
	struct RawStmt *raw;
	Oid			database;		/* another database, or InvalidOid */
	char	   *database_name;	/* or NULL */
	bool		transaction;	/* run in a transaction */
} JobqStatement;

/* Numbers of the arguments of a function with which a role names a unique key. */
typedef struct JobqKeyArgs
{
	int			kind;
	int			key;
	int			scope;
	int			queue;
} JobqKeyArgs;

/* src/produce/enqueue.c */
extern void jobq_put_job(JobqJob *job, const JobqUnique *unique);
extern char *jobq_kind_from_arg(FunctionCallInfo fcinfo, int arg);
extern void jobq_set_payload(JobqJob *job, Datum payload);
extern void jobq_prepare_job(JobqJob *job, JobqUnique *unique,
							 const char *kind, const Datum *options,
							 const bool *nulls);
extern void jobq_prepare_kept_job(JobqJob *job, JobqUnique *unique,
								  const char *kind, const Datum *options,
								  const bool *nulls);

/* src/produce/enqueue_many.c */
extern void jobq_put_jobs(FunctionCallInfo fcinfo, JobqJob *job,
						  const JobqUnique *unique, ArrayType *payloads);

/* src/produce/place.c */
extern const JobqHandler *jobq_find_place(const char *kind,
										  const char *queue_name,
										  JobqQueue *queue_buffer,
										  JobqHandler *handler_buffer);
extern void jobq_set_attempts(JobqJob *job, const Datum *options,
							  const bool *nulls);

/* src/produce/unique_options.c */
extern bool jobq_unique_from_args(FunctionCallInfo fcinfo, const JobqKeyArgs *args,
								  JobqJob *job);
extern void jobq_unique_options(JobqJob *job, JobqUnique *unique,
								const Datum *options, const bool *nulls);
extern void jobq_refuse_merge(const bool *nulls);
extern void jobq_set_unique_by(JobqJob *job, const List *names);

/* src/produce/tags.c */
extern void jobq_set_tags(JobqJob *job, Datum given);

/* src/produce/statement.c */
extern void jobq_statement_read(Datum payload, JobqStatement *statement);
extern bool jobq_reads_as_statement(const char *text);
extern void jobq_statement_require(const JobqQueue *queue);
extern Datum jobq_statement_payload(const char *sql, bool transaction,
									const char *database);

/* src/produce/context.c */
extern void jobq_set_context(JobqJob *job, const JobqQueue *queue,
							 bool kind_carries, Datum given, bool isnull);
extern void jobq_thin_context(JobqJob *job, const JobqQueue *queue,
							  bool kind_carries);
extern Jsonb *jobq_keep_context(Jsonb *json, const JobqJob *job);

/* src/produce/options.c */
extern void jobq_options_from_jsonb(Jsonb *json, const char *what,
									const char *const *others, Datum *options,
									bool *nulls);
extern void jobq_options_from_args(FunctionCallInfo fcinfo, int first,
								   Datum *options, bool *nulls);
extern void jobq_options_expand(Datum *options, bool *nulls);
extern void jobq_options_check(Jsonb *json);
extern void jobq_options_from_arg(FunctionCallInfo fcinfo, int arg,
								  Datum *options, bool *nulls);
extern Interval *jobq_interval_from_jsonb(Jsonb *json, const char *what,
										  const char *key);
extern Jsonb *jobq_jsonb_set(Jsonb *json, const char *key, Datum value);
extern Jsonb *jobq_options_keep_times(Jsonb *json, const Datum *options,
									  const bool *nulls);

/* src/produce/spec.c */
extern void jobq_spec_parse(Jsonb *json, const char *what,
							const char *const *others, bool kept,
							JobqSpec *spec);
extern Jsonb *jobq_keep_limit_cost(Jsonb *json, const JobqJob *job);
extern int32 jobq_kept_limit_cost(Jsonb *json);
extern Jsonb *jobq_spec_kept(Jsonb *json, const JobqSpec *spec,
							 const JobqJob *job);
extern void jobq_spec_prepare(const JobqSpec *spec, JobqJob *job,
							  JobqUnique *unique);
extern void jobq_spec_prepare_kept(const JobqSpec *spec, JobqJob *job,
								   JobqUnique *unique);
extern int64 jobq_spec_enqueue(const JobqSpec *spec, Oid role,
							   const char *headers);

#endif							/* JOBQ_PRODUCE_H */
