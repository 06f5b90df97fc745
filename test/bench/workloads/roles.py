"""How workers are shared by roles: turns, starts of processes, and what they cost."""

import time

from lib import cpu_since, few, number, own_cpu, pick, set_config, sql, value, wait_for
from systems.jobq import wait_for_end

TITLE = "jobs of many roles, which share a few workers"
SETUP = """
CREATE TABLE ran (role oid, pid int, at timestamptz);
GRANT INSERT ON ran TO PUBLIC;
CREATE FUNCTION ran(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO ran VALUES (current_user::regrole, pg_backend_pid(), clock_timestamp());
	PERFORM pg_sleep((payload ->> 'sleep')::float);
END $$;
SELECT jobq.register('ran', 'ran(jsonb)'), jobq.create_queue('roles', open => true, keep => 'nothing');
CREATE ROLE bench_members;
SELECT jobq.grant_privilege('bench_members');
CREATE FUNCTION enqueue_as(roles int, jobs int, sleep float) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. roles LOOP
		EXECUTE format('SET LOCAL ROLE bench_role%s', i);
		PERFORM count(*) FROM jobq.enqueue_many('ran',
			array_fill(jsonb_build_object('sleep', sleep), ARRAY[jobs]), queue => 'roles');
		RESET ROLE;
	END LOOP;
END $$;
"""
TURN, SHORT_TURN, ALL_TURNS = 1.0, 0.1, 10.0		# seconds
JOB = 0.005


def create(roles):
    sql(SETUP)
    sql("DO $$ BEGIN FOR i IN 1 .. %d LOOP EXECUTE format("
        "'CREATE ROLE bench_role%%s LOGIN IN ROLE bench_members', i); END LOOP; END $$" % roles)


def fill(roles, jobs, sleep):
    """Jobs of all roles, which start at once."""
    sql("SELECT jobq.pause('roles')")
    sql("TRUNCATE ran; SELECT enqueue_as(%d, %d, %s)" % (roles, jobs, sleep))
    sql("CHECKPOINT")


def empty():
    sql("SELECT jobq.cancel_many(queue => 'roles', state => 'waiting')")
    wait_for_end()


def turns(report, roles, workers, start):
    """Backlogs of all roles: when each comes to its turn, and what it gets.

    start: seconds from the end of a job to the begin of the next in another process"""
    turn = max(SHORT_TURN, min(TURN, ALL_TURNS * workers / roles))
    bound = (roles / workers) * (turn + JOB + start)
    set_config(jobq__workers="*=%d" % workers)
    fill(roles, few(16000) // roles, JOB)		# all of them are in the ready set
    begun = value("SELECT clock_timestamp()")
    sql("SELECT jobq.resume('roles')")
    wait_for("(SELECT count(DISTINCT role) FROM ran) = %d" % roles, "a turn of each role",
             4 * bound + 30, 0.25)
    if roles < 100:			# some turns more, for the shares
        time.sleep(bound)
    worst, processes = [float(x) for x in value(
        "SELECT extract(epoch FROM max(first) - '%s') || ' ' || (SELECT count(DISTINCT pid) FROM ran) "
        "FROM (SELECT min(at) AS first FROM ran GROUP BY role) r" % begun).split()]
    least, most = [float(x) for x in value(
        "SELECT min(n) || ' ' || max(n) FROM (SELECT count(*) AS n FROM ran GROUP BY role) r").split()]
    empty()
    what = "%d roles with backlogs on %d workers" % (roles, workers)
    report.single("%s: longest wait for the first turn" % what, "s", worst)
    report.single("%s: processes started for a turn" % what, "", processes / roles)
    if roles < 100:
        report.single("%s: jobs of the role with the fewest / the most" % what, "", least / most)
    report.target("%s: longest wait for the first turn / %.1f s" % (what, bound), worst / bound, 1.2, False)


def trickle(report, roles, workers, seconds):
    """Each role has a hundred jobs a second, one by one."""
    set_config(jobq__workers="*=%d" % workers)
    sql("TRUNCATE ran")
    cpu, begun, jobs = own_cpu(), time.monotonic(), 0
    while time.monotonic() < begun + seconds:
        sql("SELECT enqueue_as(%d, 1, 0)" % roles)
        jobs += roles
        time.sleep(max(0, begun + jobs / roles / 100 - time.monotonic()))
    wait_for_end()
    starts = number("SELECT count(DISTINCT pid) FROM ran")
    return starts, 1e3 * cpu_since(cpu) / jobs


def singly(roles, jobs, workers):
    """CPU of a job, in milliseconds, and seconds, if these roles have so many."""
    set_config(jobq__workers="*=%d" % workers)
    fill(roles, jobs, 0)
    cpu, begun = own_cpu(), time.monotonic()
    sql("SELECT jobq.resume('roles')")
    wait_for_end()
    return 1e3 * cpu_since(cpu) / (roles * jobs), time.monotonic() - begun


def run(report):
    many = pick(200, 1000)
    create(max(many, 500))
    try:
        alone = trickle(report, 1, 4, pick(3, 8))
        for roles in (4, 5, 8):
            starts, cpu = trickle(report, roles, 4, pick(3, 8))
            what = "%d roles that trickle on 4 workers" % roles
            report.single("%s: starts of processes" % what, "", starts)
            report.single("%s: CPU of a job / with one role" % what, "", cpu / alone[1])
            if roles == 4:
                report.target("%s: starts of processes" % what, starts, 8, False)
        one = singly(1, many, 4)
        report.single("%d jobs of one role on 4 workers: CPU" % many, "ms/job", one[0])
        for workers in (16, 4, 1):
            cpu, seconds = singly(many, 1, workers)
            what = "%d roles with a job each on %d workers" % (many, workers)
            report.single("%s: CPU" % what, "ms/job", cpu)
            report.single("%s: time" % what, "ms/job", 1e3 * seconds / many)
            report.single("%s: CPU / one role" % what, "", cpu / one[0])
        for roles in pick((8, 64), (8, 64, 500), least=(8,)):		# the last was one worker
            turns(report, roles, 2, seconds / many)
    finally:
        set_config(jobq__workers=None)
