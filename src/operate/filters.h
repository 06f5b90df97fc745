/*-------------------------------------------------------------------------
 *
 * filters.h
 *	  The conditions by which cancel_many(), retry_many(), edit_many() and delete_many()
 *	  select jobs.
 *
 * This is the only list of the conditions.  From it, control/join.awk makes the SQL
 * arguments of the functions and the lines about arguments in their comments.  In C it
 * provides the numbers FILTER_* (inner.h) and the table of names and types (many.c).  A new
 * condition needs a line here and a condition in add_filters() (many.c).
 *
 * The fields: name in SQL, name in C after FILTER_, type in SQL, OID of the type, comment.
 *
 * This file has no include guard, because it is included with different definitions of
 * JOB_FILTER.
 *
 * src/operate/filters.h
 *
 *-------------------------------------------------------------------------
 */

JOB_FILTER(queue, QUEUE, text, TEXTOID, "only jobs of this queue")
JOB_FILTER(kind, KIND, text, TEXTOID, "only jobs of this kind")
JOB_FILTER(tenant, TENANT, text, TEXTOID, "only jobs of this tenant")
JOB_FILTER(state, STATE, text, TEXTOID, "only jobs in this state; waiting (only to cancel jobs): all jobs that do not run")
JOB_FILTER(older_than, OLDER_THAN, interval, INTERVALOID, "only jobs enqueued, or dead letters created, longer ago than this")
JOB_FILTER(newer_than, NEWER_THAN, interval, INTERVALOID, "only jobs enqueued, or dead letters created, less long ago than this")
JOB_FILTER(error, ERROR, text, TEXTOID, "only jobs with a last error message LIKE this pattern, for example %timeout%")
JOB_FILTER(sqlstate, SQLSTATE, text, TEXTOID, "only jobs with this SQLSTATE of the last error")
JOB_FILTER(fingerprint, FINGERPRINT, int8, INT8OID, "only jobs with this fingerprint of the last error, as in the view failures")
JOB_FILTER(payload, PAYLOAD, jsonb, JSONBOID, "only jobs whose payload contains this, by the operator @>")
JOB_FILTER(group_key, GROUP_KEY, text, TEXTOID, "only jobs of this group")
JOB_FILTER(unique_key, UNIQUE_KEY, text, TEXTOID, "only jobs with this unique key")
JOB_FILTER(batch_id, BATCH_ID, int8, INT8OID, "only jobs of this batch or workflow")
JOB_FILTER(tags, TAGS, _text, TEXTARRAYOID, "only jobs with all of these tags")
JOB_FILTER(ids, IDS, _int8, INT8ARRAYOID, "only these jobs")
JOB_FILTER(max_jobs, MAX_JOBS, int8, INT8OID, "at most this number of jobs, with the lowest ids; null: all jobs")
JOB_FILTER(dry_run, DRY_RUN, boolean, BOOLOID, "true: change nothing, and return the number of jobs that the call would select")
