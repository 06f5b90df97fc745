"""The hand-written queue that jobq is measured against.

A table with a status column, claimed with FOR UPDATE SKIP LOCKED.  Of the
variants tried (a partial index, an index on the status, a fillfactor of 100)
this one was the fastest: no index but the primary key, and room on each page
so that the update of the status is HOT.  Its clients get the ids only, run no
handler, and keep no archive, all of which flatters it.
"""

from lib import PAYLOAD, sql

CLAIM = " ".join("""
    WITH claimed AS (
        UPDATE bench.queue SET status = 'r' WHERE id IN (
            SELECT id FROM bench.queue WHERE status = 'w'
            ORDER BY id LIMIT %d FOR UPDATE SKIP LOCKED)
        RETURNING id)
    SELECT coalesce(array_agg(id), '{}') AS ids FROM claimed \\gset
    """.split())
DELETE = "DELETE FROM bench.queue WHERE id = ANY (:ids::bigint[]);"


def claim_script(batch):
    """For pgbench: two commits a round, as the work is between them."""
    return "%s\n%s\n" % (CLAIM % batch, DELETE)


def create(jobs):
    sql("DROP TABLE IF EXISTS bench.queue")
    sql("""CREATE TABLE bench.queue (
               id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
               status "char" NOT NULL DEFAULT 'w',
               enqueued_at timestamptz NOT NULL DEFAULT now(),
               kind text NOT NULL DEFAULT 'noop',
               payload jsonb NOT NULL) WITH (fillfactor = 50)""")
    sql("INSERT INTO bench.queue (payload) SELECT %s "
        "FROM generate_series(1, %d)" % (PAYLOAD, jobs))
    sql("VACUUM ANALYZE bench.queue")
    sql("CHECKPOINT")
