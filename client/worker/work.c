/*-------------------------------------------------------------------------
 *
 * work.c
 *	  The command work: reserves jobs of consumer queues, and runs a command or sends
 *	  a request for each.
 *
 * A single loop serves all events, and blocks only in poll().  The first of two links to
 * the server waits for jobs in jobq.reserve().  The second link reports outcomes.  The
 * loop also serves the pipes of the commands.
 *
 * Signals: after the first SIGTERM, SIGINT, SIGQUIT or SIGHUP, the program reserves no
 * more jobs, and releases jobs not yet begun.  Running jobs may end.  A second signal
 * ends the commands and releases their jobs, too.  SIGHUP never counts as the second
 * signal, because systemd (SendSIGHUP) and a closing terminal send SIGHUP together with
 * another signal.
 *
 * client/worker/work.c
 *
 *-------------------------------------------------------------------------
 */
#include "worker/inner.h"

#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LONGEST_WAIT	20.0	/* seconds in jobq.reserve() */
#define FIRST_WAIT		1.0
#define SHORTEST_WAIT	0.1
#define TOO_LATE		1.0		/* for an answer, in seconds */
#define SHORTEST_PATIENCE	3.0 /* then the connection is dropped */
#define LOST_PAUSE		1.0		/* after a failed jobq.reserve(); doubled each
								 * time */
#define LONGEST_PAUSE	15.0
#define CONFIRM_PAUSE	0.05	/* before jobq.reserve() is called again */
#define MOST_REFUSED	20		/* jobs with a refused report that do not stop
								 * the program from reserving more */

static int	signals;			/* readable after a signal */

static Link reserving;
static Link settling;
static double asked_at;			/* when jobq.reserve() was called */
static double quiet_at;			/* when last seen in progress */
static double waiting_for;		/* wait time of this call */
static double patience = FIRST_WAIT;	/* wait time of the next call */
static bool gives_way;			/* cancelled, to free its connection */
static double pause_until;
static double lost_pause = LOST_PAUSE;	/* after the next error */
static char trouble[200];		/* message of the last error of
								 * jobq.reserve(); "" after a success */
static bool trouble_was_said;
static double stopped_at;		/* time of the first signal, or 0 */
static double give_up_at = INFINITY;	/* after a signal: deadline for the
										 * server */
static double started_at;
static int64_t taken;
static bool empty;				/* the last reservation was empty */
static bool gave_back;			/* jobs held ahead were released; no job has
								 * begun since */

static bool gives_back(void);

/*
 * True if no more jobs may be reserved.
 */
static bool
stopping(void)
{
	return work_stops > 0 || work_is_hopeless ||
		(work.max_jobs > 0 && taken >= work.max_jobs) ||
		(work.max_time > 0 && seconds() >= started_at + work.max_time) ||
		(work.stop_when_empty && empty);
}

/*
 * The number of outcomes not yet reported.  Up to MOST_REFUSED refused reports do not
 * count.
 */
static int
untold(void)
{
	int			refused = 0;

	for (Job *job = jobs; job != NULL; job = job->next)
		refused += job->refused;
	return jobs_in(JOB_ENDED) + jobs_in(JOB_TOLD) - (refused < MOST_REFUSED ? refused : MOST_REFUSED);
}

/*
 * The number of jobs to reserve.  None while the server does not accept reports.
 */
static int
room(void)
{
	int			held = jobs_in(JOB_HELD) + jobs_in(JOB_RUNNING);
	int			ahead = gave_back ? 0 : jobs_ahead();
	int			n;

	if (settling.state == LINK_DOWN || settling.state == LINK_CONNECTING || untold() > work.parallel + ahead)
		return 0;
	if (jobs_are_apart() || (work.publish != NULL && !publish_ready()))
		return 0;
	n = work.parallel - held;

	/* reserve ahead again after half of the jobs held ahead have begun */
	if (jobs_in(JOB_HELD) <= ahead / 2)
		n += ahead;
	if (work.max_jobs > 0 && n > work.max_jobs - taken)
		n = (int) (work.max_jobs - taken);
	return n < work.batch ? n : work.batch;
}

/*
 * Call jobq.reserve() on its link.
 */
static void
reserve(void)
{
	const char *values[6 + PUBLISH_COLUMNS];
	PQExpBufferData sql;
	int			nvalues = 6;
	char		most[16];
	char		held[16];
	char		lease[32];
	char		longest[32];

	if (reserving.state != LINK_IDLE || stopping() || room() <= 0 || seconds() < pause_until)
		return;
	waiting_for = work.stop_when_empty ? 0 : patience;
	if (work.max_time > 0)
		waiting_for = fmax(0, fmin(waiting_for, started_at + work.max_time - seconds()));
	snprintf(most, sizeof(most), "%d", room());
	snprintf(lease, sizeof(lease), "%.3f s", work.lease);
	snprintf(longest, sizeof(longest), "%.3f s", waiting_for);
	values[0] = work.queues;
	values[1] = most;
	values[2] = lease;
	values[3] = longest;
	values[4] = work.name;
	snprintf(held, sizeof(held), "%d", jobs_in(JOB_HELD) + jobs_in(JOB_RUNNING));
	values[5] = held;
	asked_at = seconds();
	initPQExpBuffer(&sql);
	appendPQExpBufferStr(&sql, "SELECT id, token, queue, kind, payload, headers, attempt, max_attempts, jobq_internal.traceparent(headers), "
						 "pg_catalog.date_part('epoch', lease_until OPERATOR(pg_catalog.-) jobq_internal.clock()), "
						 "pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) pg_catalog.statement_timestamp()), alone");
	if (work.publish != NULL)
		nvalues = publish_columns(&sql, values, nvalues);
	appendPQExpBufferStr(&sql, " FROM jobq.reserve($1::pg_catalog.text[], $2::pg_catalog.int4, $3::pg_catalog.interval, "
						 "$4::pg_catalog.interval, $5::pg_catalog.text, $6::pg_catalog.int4)");
	if (PQExpBufferDataBroken(sql))
		fatal(EXIT_REFUSED, "out of memory");
	link_send(&reserving, waiting_for + fmax(SHORTEST_PATIENCE, work.lease), sql.data, nvalues, values);
	termPQExpBuffer(&sql);
}

/*
 * Shorten the wait after a late answer.  Behind a pooler, sessions waiting in
 * jobq.reserve() may occupy all connections, and other sessions then cannot settle jobs.
 */
static void
wait_less(double late)
{
	if (late > TOO_LATE)
		patience = fmax(SHORTEST_WAIT, patience / late);
}

/*
 * jobq.reserve() has returned.  The call was still in progress at quiet_at, so no lease
 * began earlier.  The exception is a delayed answer: then the leases are extended at
 * once.
 */
static void
take(const PGresult *result)
{
	const char *state = sqlstate_of(result);
	double		late = seconds() - asked_at - waiting_for;
	bool		cancelled = stopping() || gives_way;

	gives_way = false;
	if (PQresultStatus(result) == PGRES_TUPLES_OK)
	{
		if (trouble_was_said)
			say("jobs can be reserved again");
		trouble_was_said = false;
		trouble[0] = '\0';
		lost_pause = LOST_PAUSE;
		for (int row = 0; row < PQntuples(result); row++)
			job_add(result, row, asked_at, quiet_at, late > TOO_LATE);
		taken += PQntuples(result);
		/* a job settled during the call may have made other jobs ready */
		empty = PQntuples(result) == 0 && !gives_back() && job_left_at <= asked_at;
		if (empty && work.stop_when_empty && work.publish != NULL && jobs != NULL)
		{
			/* the next job of a group may follow the confirm */
			empty = false;
			pause_until = seconds() + CONFIRM_PAUSE;
		}
		if (late > TOO_LATE)
			wait_less(late);
		else if (empty && late < TOO_LATE / 2)
			patience = fmin(LONGEST_WAIT, patience * 2);
		return;
	}
	if (strcmp(state, "57014") == 0 && cancelled)
		return;
	/* a line for each change: of the message, and the end of the trouble */
	if (strncmp(trouble, PQresultErrorMessage(result), sizeof(trouble) - 1) != 0)
	{
		snprintf(trouble, sizeof(trouble), "%s", PQresultErrorMessage(result));
		trouble_was_said = trouble_is_news(trouble);
		if (trouble_was_said)
			say_result_error(result);
	}

	/* statement_timeout may be shorter than the wait */
	if (strcmp(state, "57014") == 0)
		patience = fmax(SHORTEST_WAIT, waiting_for / 2);

	/* permanent errors: no such queue, no privilege, ... */
	if (strncmp(state, "42", 2) == 0 || strncmp(state, "3F", 2) == 0 || strncmp(state, "22", 2) == 0 ||
		strcmp(state, "JQ004") == 0)
	{
		work_is_hopeless = true;
		return;
	}
	pause_until = seconds() + lost_pause;
	lost_pause = fmin(2 * lost_pause, LONGEST_PAUSE);
}

/*
 * Reports are delayed.  The waiting link may hold the only connection of a pooler or of
 * the server: cancel its statement.
 */
static void
give_way(void)
{
	double		late = settling.state == LINK_BUSY ? seconds() - settling.moved_at : 0;
	bool		refused = settling.failures > 0 && jobs != NULL;

	if ((late < TOO_LATE && !refused) || reserving.state != LINK_BUSY || gives_way)
		return;
	gives_way = true;
	wait_less(late);
	link_cancel(&reserving);
}

/*
 * If the server allows only a single connection, use it to settle jobs.
 */
static void
trade_links(void)
{
	Link		other = settling;

	if (settling.failures == 0 || reserving.state != LINK_IDLE)
		return;
	settling = reserving;
	reserving = other;
}

/*
 * After the first signal, release jobs that have not begun.  After the second, end
 * running jobs.
 */
static void
obey_stops(void)
{
	static bool obeyed = false;

	if (!stopping())
	{
		obeyed = false;
		return;
	}
	if (!obeyed && reserving.state == LINK_BUSY)
		link_cancel(&reserving);
	obeyed = true;
	if (work_stops > 0 && stopped_at == 0)
	{
		stopped_at = seconds();
		if (!work.quiet)
			say("stopping when what runs has ended; another signal ends it");
	}
	if (work_stops > 1 && isinf(give_up_at))
		give_up_at = seconds() + work.grace + TELL_TIME;
	for (Job *job = jobs; job != NULL; job = job->next)
	{
		if (job->state == JOB_HELD && (work_stops > 0 || work_is_hopeless))
			job_end(job, OUTCOME_RELEASE, NULL);
		else if (job->state == JOB_RUNNING && work_stops > 1 && !job->stopped)
		{
			job->stopped = true;
			job_interrupt(job);
		}
	}
}

static void
start_jobs(void)
{
	int			running = jobs_in(JOB_RUNNING);
	Job		   *next;

	for (Job *job = jobs; job != NULL && running < work.parallel; job = next)
	{
		next = job->next;
		if (job->state != JOB_HELD || seconds() >= job->until)
			continue;
		if (job_must_wait(job))
			break;
		job_start(job);
		running++;
		gave_back = false;
	}
}

/*
 * When to release a job held without running: after half of the lease.  The job's timeout
 * may end soon afterwards, and another consumer may be free to run the job.
 */
static double
idle_until(const Job *job)
{
	if (job->state != JOB_HELD || job->extend_at == 0 || job->runs_apart)
		return INFINITY;
	return work.ahead < 0 ? fmin(job->extend_at, job->taken_at + IDLE_TIME) : job->extend_at;
}

/*
 * Release jobs held ahead that cannot begin, because running jobs take longer than
 * expected.  No jobs are reserved ahead again until another job has begun.
 */
static void
give_back(void)
{
	if (jobs_in(JOB_RUNNING) < work.parallel)
		return;
	for (Job *job = jobs; job != NULL; job = job->next)
	{
		if (seconds() < idle_until(job))
			continue;
		job->extend_at += job->heartbeat / 2;
		job_end(job, OUTCOME_RELEASE, NULL);
		gave_back = true;
		taken--;
		empty = false;
	}
}

/*
 * True if a release has not been reported.  Other consumers cannot find the job yet.
 */
static bool
gives_back(void)
{
	for (Job *job = jobs; job != NULL; job = job->next)
		if (job->outcome == OUTCOME_RELEASE && (job->state == JOB_ENDED || job->state == JOB_TOLD))
			return true;
	return false;
}

/*
 * Sleep until an event or the next deadline.
 */
static void
wait_for_something(void)
{
	static struct pollfd *polls = NULL;
	static int	npolls = 0;
	Link	   *links[] = {&reserving, &settling};
	int			n = 1;
	double		now = seconds();
	double		until = now + work.lease / 4;
	char		bytes[64];
	int			timeout;

	if (npolls < 4 + CHILD_POLLS * work.parallel)
	{
		npolls = 4 + CHILD_POLLS * work.parallel;
		polls = enlarge(polls, npolls * sizeof(struct pollfd));
	}
	polls[0] = (struct pollfd)
	{
		signals, POLLIN, 0
	};
	if (work.publish != NULL)
		publish_poll(&polls[n++]);
	for (int i = 0; i < 2; i++)
	{
		polls[n].revents = 0;
		n += link_events(links[i], &polls[n].fd, &polls[n].events);
		until = fmin(until, link_due(links[i]));
	}
	for (Job *job = jobs; job != NULL; job = job->next)
	{
		n += child_polls(job, polls + n);
		if (job->state == JOB_RUNNING)
			until = fmin(until, fmin(fmin(job->deadline, job->kill_at), job->judge_at));
		if ((job->state == JOB_HELD || job->state == JOB_RUNNING) && job->outcome != OUTCOME_LOST)
			until = fmin(until, job->until);
		if (settle_holds(job, work_stops > 0) && settling.state == LINK_IDLE)
			until = fmin(until, job->extend_at);
		until = fmin(until, idle_until(job));
		if (settle_notes(job) && settling.state == LINK_IDLE)
			until = fmin(until, job->note_at);
		if (job->state == JOB_ENDED && job->tell_at > now)
			until = fmin(until, job->tell_at);
		if (work_stops > 0 && (job->state == JOB_ENDED || job->state == JOB_TOLD))
			until = fmin(until, job->until + TELL_TIME);
	}
	if (settling.state == LINK_BUSY && reserving.state == LINK_BUSY && !gives_way)
		until = fmin(until, settling.moved_at + TOO_LATE);
	if (work_stops > 0 && give_up_at > now)
		until = fmin(until, give_up_at);
	if (work_stops > 0 && jobs == NULL)
		until = fmin(until, stopped_at + LONGEST_WAIT + TELL_TIME);
	if (pause_until > now)
		until = fmin(until, pause_until);
	if (work.max_time > 0 && started_at + work.max_time > now)
		until = fmin(until, started_at + work.max_time);

	timeout = until <= now ? 0 : (int) fmin(ceil((until - now) * 1000), 60000);
	if (work.http != NULL)
		http_poll(polls, n, timeout);
	else
		poll(polls, n, timeout);
	while (read(signals, bytes, sizeof(bytes)) > 0)
		;
}

/*
 * Reserve and run jobs as in "work", until the program is asked to stop.  Returns the
 * exit status.
 */
static int
work_loop(void)
{
	bool		gave_up = false;

	srand48(getpid());
	jobs_prepare();
	link_open(&reserving, settings.dbname);
	link_open(&settling, settings.dbname);
	signals = work_signals();
	started_at = seconds();

	for (;;)
	{
		Link	   *links[] = {&reserving, &settling};

		for (int i = 0; i < 2; i++)
		{
			bool		lost;
			PGresult   *result = link_go_on(links[i], &lost);

			if (lost && i == 0)
				gives_way = false;
			if (lost && i == 1)
				settle_lost();
			if (result != NULL && i == 0)
				take(result);
			else if (result != NULL)
				settle_result(result);
			PQclear(result);
		}
		if (reserving.state == LINK_BUSY)
			quiet_at = seconds();
		for (Job *job = jobs; job != NULL; job = job->next)
			child_go_on(job);
		if (work.http != NULL)
			http_go_on();
		if (work.publish != NULL)
			publish_go_on();
		children_reap();
		gave_up |= settle_expired(work_stops > 0, give_up_at);
		obey_stops();
		give_way();
		trade_links();
		start_jobs();
		give_back();
		reserve();
		settle_next(&settling, work_stops > 0);

		/* a cancelled jobq.reserve() may still return jobs */
		if (stopping() && jobs == NULL &&
			(reserving.state != LINK_BUSY || (work_stops > 0 && seconds() >= fmin(give_up_at, stopped_at + LONGEST_WAIT + TELL_TIME))))
			break;
		wait_for_something();
	}
	link_close(&reserving);
	link_close(&settling);
	return work_is_hopeless ? EXIT_REFUSED : gave_up ? EXIT_NO_CONNECTION : EXIT_DONE;
}

/*
 * jobq work QUEUE...
 */
int
run_work(const Command *command, int argc, char **argv)
{
	const char *values[MAX_VALUES];

	command_parse(command, argc, argv, values);
	work_options(values);
	return settings.ndatabases > 1 ? work_in_all(work_loop) : work_loop();
}

/*
 * Publish jobs as messages.  Returns the exit status.
 */
int
run_publish(const PublishOptions *options)
{
	int			status;

	publish_prepare(options);
	status = work_loop();
	publish_end();
	return status;
}
