"""Jobs a second, plain and in batches, on the servers of one build or two, by turns: see batches.

usage: batches.py FOLDER ROUNDS JOBS PROGRAMS [PROGRAMS]
"""

import statistics
import sys
import time

from paired import Server

CONF = """
shared_preload_libraries = 'jobq'
shared_buffers = '512MB'
max_wal_size = '8GB'
checkpoint_timeout = '1h'
max_worker_processes = 24
listen_addresses = ''
"""
TARGETS = {"batches of 10": 0.6, "one batch": 0.9}
BATCHES = """DO $$ DECLARE b bigint; BEGIN
    FOR i IN 1 .. %d LOOP
        b := jobq.create_batch(on_finish => '{"kind": "noop"}', start => true);
        PERFORM jobq.add_jobs(b, 'noop', (SELECT array_agg('{"n": 1}'::jsonb) FROM generate_series(1, %d)));
        IF i %% 100 = 0 THEN COMMIT; END IF;
    END LOOP;
END $$"""
TOOK = """SELECT extract(epoch FROM greatest((SELECT max(finished_at) FROM jobq_internal.archive),
    (SELECT max(finished_at) FROM jobq_internal.batch)) - '%s')"""
ENDED = "NOT EXISTS (SELECT FROM jobq_internal.job) AND NOT EXISTS (SELECT FROM jobq_internal.batch WHERE finished_at IS NULL)"


def plain(server, jobs):
    server.ask("SELECT count(jobq.enqueue('noop', '{\"n\": 1}')) FROM generate_series(1, %d)" % jobs)


def measure(server, make, jobs):
    """Jobs a second from resume() on, until the last batch is over and its callback has run."""
    server.ask("SELECT jobq.prune(interval '0')")
    server.ask("SELECT jobq.pause('default')")
    make(server, jobs)
    server.ask("VACUUM ANALYZE jobq_internal.job, jobq_internal.batch, jobq_internal.archive")
    server.ask("CHECKPOINT")
    last = server.ask("SELECT max(id) FROM jobq_internal.job")
    began = server.ask("SELECT clock_timestamp()")
    server.ask("SELECT jobq.resume('default')")
    # by id: a scan of all jobs would read all dead rows, and take a processor from the workers
    server.ask("DO $$ BEGIN WHILE EXISTS (SELECT FROM jobq_internal.job WHERE id = %s) "
               "LOOP PERFORM pg_sleep(0.005); END LOOP; END $$" % last)
    deadline = time.monotonic() + 300
    while server.ask("SELECT " + ENDED) != "t":
        if time.monotonic() > deadline:
            sys.exit("the jobs do not end: see " + server.folder + "/log")
        time.sleep(0.01)
    return jobs / float(server.ask(TOOK % began))


def main():
    folder, rounds, jobs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    workloads = {
        "plain": plain,
        "batches of 10": lambda server, n: server.ask(BATCHES % (n // 10, 10)),
        "one batch": lambda server, n: server.ask(BATCHES % (1, n)),
    }
    names = ["base", "tree"][-len(sys.argv[4:]):]
    servers = {name: Server(f"{folder}/{name}/cluster", programs, CONF)
               for name, programs in zip(names, sys.argv[4:])}
    for server in servers.values():
        server.ask("CREATE FUNCTION noop(jsonb) RETURNS void LANGUAGE plpgsql AS 'BEGIN END'")
        server.ask("SELECT jobq.register('noop', 'noop(jsonb)')")
    figures = {name: {what: [] for what in workloads} for name in names}
    try:
        for number in range(rounds + 1):
            for name in names if number % 2 else names[::-1]:
                order = list(workloads)[number % 3:] + list(workloads)[:number % 3]
                figure = {what: measure(servers[name], workloads[what], jobs) for what in order}
                if number > 0:		# the first round fills the caches
                    for what in workloads:
                        figures[name][what].append(figure[what])
    finally:
        for server in servers.values():
            server.stop()
    for what in workloads:
        for name in names:
            speed = statistics.median(figures[name][what])
            ratio = statistics.median(x / y for x, y in zip(figures[name][what], figures[name]["plain"]))
            print(f"{what:14} {name:5} {speed:10,.0f} jobs/s", end="")
            print(f", ratio {ratio:.2f}, target {TARGETS[what]}" if what in TARGETS else "")


main()
