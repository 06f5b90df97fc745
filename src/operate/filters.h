/*-------------------------------------------------------------------------
 *
 * filters.h
 *	  The list of conditions by which many jobs are chosen.
 *
 * This is the only place that lists them.  From it are made
 *
 * - in SQL, when the install script is joined (control/join.awk): the arguments
 *	 of cancel_many() and its kin, and what their comments say of each;
 * - in C: the numbers FILTER_* (inner.h), and the table by which in_slices()
 *	 reads them from jsonb (many.c).
 *
 * So a new condition is a line here, and what it means in add_filters() (many.c).
 *
 * A line has the condition's name in SQL, its name in C after FILTER_, its type
 * in SQL, the OID of the type, and what it says.
 *
 * No #ifndef around this: it is included with JOB_FILTER defined in different
 * ways.
 *
 * src/operate/filters.h
 *
 *-------------------------------------------------------------------------
 */

JOB_FILTER(queue, QUEUE, text, TEXTOID, "only jobs of this queue")
JOB_FILTER(kind, KIND, text, TEXTOID, "only jobs of this kind")
JOB_FILTER(tenant, TENANT, text, TEXTOID, "only jobs of this tenant")
JOB_FILTER(state, STATE, text, TEXTOID, "only jobs in this state")
JOB_FILTER(older_than, OLDER_THAN, interval, INTERVALOID, "only jobs enqueued, or dead letters created, longer ago than this")
JOB_FILTER(newer_than, NEWER_THAN, interval, INTERVALOID, "only jobs enqueued, or dead letters created, less long ago than this")
JOB_FILTER(error, ERROR, text, TEXTOID, "only jobs with a last error message LIKE this pattern, for example %timeout%")
JOB_FILTER(sqlstate, SQLSTATE, text, TEXTOID, "only jobs with this SQLSTATE of the last error")
JOB_FILTER(payload, PAYLOAD, jsonb, JSONBOID, "only jobs whose payload contains this, by the operator @>")
JOB_FILTER(group_key, GROUP_KEY, text, TEXTOID, "only jobs of this group")
JOB_FILTER(unique_key, UNIQUE_KEY, text, TEXTOID, "only jobs with this unique key")
JOB_FILTER(batch_id, BATCH_ID, bigint, INT8OID, "only jobs of this batch or workflow")
JOB_FILTER(tags, TAGS, _text, TEXTARRAYOID, "only jobs with all of these tags")
JOB_FILTER(ids, IDS, _int8, INT8ARRAYOID, "only these jobs")
JOB_FILTER(max_jobs, MAX_JOBS, bigint, INT8OID, "at most this number of jobs, with the lowest ids; null: all jobs")
