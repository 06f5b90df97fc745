/*-------------------------------------------------------------------------
 *
 * child.c
 *	  One job as a process.
 *
 * The shell runs the command in a process group of its own.  The payload is standard
 * input, and standard output becomes the result.  Standard error goes into the job's log;
 * if the command fails, the end of standard error is the error.  All output is read, but
 * only a limited part is kept.  A flood of output therefore neither fills memory nor
 * blocks the command.
 *
 * The job ends when the command ends.  Then the whole process group is killed, because
 * processes left behind by the command could hold the pipes open forever.
 *
 * A service manager or a terminal may signal the program and its commands together.  A
 * command that ends by a signal is not charged an attempt once the program has been asked
 * to stop.  The command may die before the program receives its own signal, so the status
 * of such a command is judged after a pause.
 *
 * client/worker/child.c
 *
 *-------------------------------------------------------------------------
 */
#include "worker/inner.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define KEPT_ERRORS		4000	/* bytes of standard error */
#define LONGEST_LINE	1000	/* of progress */
#define READS_A_TURN	16		/* per job, before the next job is read */
#define MOST_SAID		1000	/* columns of a message of the shell */
#define JUDGE_PAUSE		1.0		/* seconds for our own signal to arrive */

#define NPIPES			4		/* of a command */
#define FILES_OF_OTHERS	64		/* connections, and files of libraries */

/* The exit status of a command. */
#define STATUS_AGAIN	75		/* EX_TEMPFAIL */
#define STATUS_REJECT	100
#define STATUS_CANNOT	126		/* the shell could not execute the command */
#define STATUS_MISSING	127		/* the command does not exist */
#define STATUS_SIGNAL	128		/* plus the number of the signal reported by
								 * the shell */

static char **environment_of(const Job *job);
static void shut(int *fd);
static void write_payload(Job *job);
static bool read_output(Job *job);
static bool read_errors(Job *job);
static void read_progress(Job *job);
static void take_line(Job *job);
static void end(Job *job, int status);

/*
 * Return the command with a memory limit, set by the shell.
 */
static const char *
limited(const char *command, int64_t bytes)
{
	PQExpBufferData text;

	initPQExpBuffer(&text);
	appendPQExpBuffer(&text, "ulimit -v %lld || exit 126\n%s", (long long) (bytes >> 10), command);
	return text.data;
}

/*
 * Occupy the descriptor numbers used by the pipes within a command, so that our ends have
 * higher numbers.  Raise the limit of open files to the number needed by all commands, if
 * permitted.
 */
void
children_prepare(void)
{
	rlim_t		wanted = NPIPES * work.parallel + FILES_OF_OTHERS;
	struct rlimit files;
	int			fd;

	if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < wanted)
	{
		files.rlim_cur = wanted < files.rlim_max ? wanted : files.rlim_max;
		(void) setrlimit(RLIMIT_NOFILE, &files);
	}
	if (work.max_memory > 0)
		work.exec = limited(work.exec, work.max_memory);
	do
		fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	while (fd >= 0 && fd < 4);
	if (fd >= 0)
		close(fd);
}

/*
 * Create a pipe.  Our end does not block, and neither end is inherited.  False on
 * failure.
 */
static bool
make_pipe(int ends[2], bool ours_writes)
{
	if (pipe2(ends, O_CLOEXEC) != 0)
		return false;
	fcntl(ends[ours_writes ? 1 : 0], F_SETFL, O_NONBLOCK);
	return true;
}

/*
 * Start the job's process.  Unlike fork(), posix_spawn() does not copy our memory for
 * each job.
 */
void
child_start(Job *job)
{
	int			pipes[NPIPES][2];
	int		   *ours[NPIPES] = {&job->in, &job->out, &job->err, &job->progress};
	const char *const command[] = {"sh", "-c", work.exec, NULL};
	char	  **environment;
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t how;
	sigset_t	signals;
	int			npipes;
	int			failure = 0;

	posix_spawn_file_actions_init(&actions);
	for (npipes = 0; npipes < NPIPES; npipes++)
	{
		int		   *ends = pipes[npipes];
		bool		ours_writes = npipes == 0;

		if (!make_pipe(ends, ours_writes))
		{
			failure = errno;
			break;
		}
		*ours[npipes] = ends[ours_writes ? 1 : 0];
		posix_spawn_file_actions_adddup2(&actions, ends[ours_writes ? 0 : 1], npipes);
	}
	posix_spawnattr_init(&how);
	sigemptyset(&signals);
	posix_spawnattr_setsigmask(&how, &signals);
	sigaddset(&signals, SIGPIPE);
	posix_spawnattr_setsigdefault(&how, &signals);
	posix_spawnattr_setpgroup(&how, 0);
	posix_spawnattr_setflags(&how, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
	environment = environment_of(job);
	fflush(NULL);
	if (failure == 0)
		failure = posix_spawn(&job->pid, "/bin/sh", &actions, &how, (char *const *) command, environment);

	for (int i = 0; i < npipes; i++)
		close(pipes[i][i == 0 ? 0 : 1]);
	for (char **variable = environment; *variable != NULL; variable++)
		free(*variable);
	free(environment);
	posix_spawnattr_destroy(&how);
	posix_spawn_file_actions_destroy(&actions);
	if (failure != 0)
	{
		job->pid = 0;
		for (int i = 0; i < NPIPES; i++)
			shut(ours[i]);
		/* another attempt would fail, too */
		if (failure == E2BIG && job->headers != NULL)
		{
			job_end(job, OUTCOME_NACK, "its headers are too large for the environment of a command");
			return;
		}
		error("could not start a process: %s", strerror(failure));
		job_end(job, OUTCOME_RELEASE, NULL);
		job->delay = work.retry_delay;
		return;
	}
	job->state = JOB_RUNNING;
	job->began_at = seconds();
	job->deadline = work.timeout > 0 ? seconds() + work.timeout : INFINITY;
	job->kill_at = job->judge_at = INFINITY;
	write_payload(job);
}

/*
 * Return our environment plus the variables of the job.  Our own trace context is left
 * out.
 */
static char **
environment_of(const Job *job)
{
	const char *const names[] = {"JOBQ_ID", "JOBQ_TOKEN", "JOBQ_QUEUE", "JOBQ_KIND", "JOBQ_ATTEMPT",
	"JOBQ_MAX_ATTEMPTS", "JOBQ_HEADERS", "JOBQ_PROGRESS_FD", "TRACEPARENT"};
	const char *const values[] = {job->id, job->token, job->queue, job->kind, job->attempt,
	job->max_attempts, job->headers, "3", job->trace};
	const int	nvalues = sizeof(values) / sizeof(values[0]);
	char	  **environment;
	int			n = 0;
	int			kept = 0;

	while (environ[n] != NULL)
		n++;
	environment = allocate((n + nvalues + 1) * sizeof(char *));
	for (int i = 0; i < n; i++)
		if (strncmp(environ[i], "JOBQ_", 5) != 0 && strncmp(environ[i], "TRACEPARENT=", 12) != 0 &&
			strncmp(environ[i], "TRACESTATE=", 11) != 0)
			environment[kept++] = copy_text(environ[i]);
	for (int i = 0; i < nvalues; i++)
		if (values[i] != NULL)
		{
			size_t		size = strlen(names[i]) + strlen(values[i]) + 2;

			environment[kept] = allocate(size);
			snprintf(environment[kept++], size, "%s=%s", names[i], values[i]);
		}
	return environment;
}

static void
shut(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/*
 * Send a signal to the process group of the job.
 */
static void
signal_group(Job *job, int signal)
{
	if (job->pid > 0)
		(void) kill(-job->pid, signal);
}

/*
 * Send SIGTERM to the job's processes, and SIGKILL after the grace time.
 */
void
child_interrupt(Job *job)
{
	job->kill_at = seconds() + work.grace;
	signal_group(job, SIGTERM);
}

/*
 * Fill in the descriptors to poll, at most CHILD_POLLS.  Returns the number of
 * descriptors.
 */
int
child_polls(Job *job, struct pollfd *polls)
{
	int			n = 0;

	if (job->state != JOB_RUNNING || job->pid == 0)
		return 0;
	if (job->in >= 0)
		polls[n++] = (struct pollfd)
	{
		job->in, POLLOUT, 0
	};
	if (job->out >= 0)
		polls[n++] = (struct pollfd)
	{
		job->out, POLLIN, 0
	};
	if (job->err >= 0)
		polls[n++] = (struct pollfd)
	{
		job->err, POLLIN, 0
	};
	if (job->progress >= 0)
		polls[n++] = (struct pollfd)
	{
		job->progress, POLLIN, 0
	};
	return n;
}

/*
 * Read and write without blocking, and check the deadlines.
 */
void
child_go_on(Job *job)
{
	double		now = seconds();

	if (job->state != JOB_RUNNING || job->pid == 0)
		return;
	write_payload(job);
	for (int i = 0; i < READS_A_TURN && read_output(job); i++)
		;
	for (int i = 0; i < READS_A_TURN && read_errors(job); i++)
		;
	read_progress(job);
	if (now >= job->deadline)
	{
		job->timed_out = true;
		job->deadline = INFINITY;
		child_interrupt(job);
	}
	if (now >= job->kill_at)
	{
		job->kill_at = INFINITY;
		signal_group(job, SIGKILL);
	}
}

static void
write_payload(Job *job)
{
	size_t		length = strlen(job->payload);

	while (job->in >= 0)
	{
		ssize_t		n = job->written < length
			? write(job->in, job->payload + job->written, length - job->written) : -1;

		if (n > 0)
			job->written += n;
		else if (job->written < length && errno == EINTR)
			;
		else if (job->written < length && errno == EAGAIN)
			return;
		else
			shut(&job->in);		/* all written, or closed by the command */
	}
}

/*
 * Read once.  Returns the number of bytes, or 0 if no more bytes are there now.
 */
static size_t
read_once(int *fd, char *bytes, size_t size)
{
	ssize_t		n = *fd >= 0 ? read(*fd, bytes, size) : -1;

	if (*fd < 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)))
		return 0;
	if (n <= 0)
	{
		shut(fd);
		return 0;
	}
	return n;
}

/*
 * Read standard output once, and keep the beginning.  False if no more bytes are there
 * now.
 */
static bool
read_output(Job *job)
{
	char		bytes[16384];
	size_t		n = read_once(&job->out, bytes, sizeof(bytes));
	size_t		room = work.max_output - job->output.len;

	appendBinaryPQExpBuffer(&job->output, bytes, n < room ? n : room);
	return n > 0;
}

/*
 * Read standard error once: keep the end, and add the lines to the log.  False if no more
 * bytes are there now.
 */
static bool
read_errors(Job *job)
{
	char		bytes[16384];
	size_t		n = read_once(&job->err, bytes, sizeof(bytes));

	appendBinaryPQExpBuffer(&job->errors, bytes, n);
	if (job->errors.len > KEPT_ERRORS)
	{
		memmove(job->errors.data, job->errors.data + job->errors.len - KEPT_ERRORS, KEPT_ERRORS + 1);
		job->errors.len = KEPT_ERRORS;
	}
	note_bytes(job, bytes, n);
	return n > 0;
}

/*
 * Read lines of "progress PERCENT MESSAGE".  The last line counts; all other lines are
 * ignored.
 */
static void
read_progress(Job *job)
{
	char		bytes[4096];
	ssize_t		n;

	for (int i = 0; i < READS_A_TURN && job->progress >= 0; i++)
	{
		n = read(job->progress, bytes, sizeof(bytes));
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (n <= 0)
			shut(&job->progress);
		for (ssize_t j = 0; j < n; j++)
		{
			if (bytes[j] == '\n')
				take_line(job);
			else if (job->line.len < LONGEST_LINE)
				appendPQExpBufferChar(&job->line, bytes[j]);
		}
	}
}

static void
take_line(Job *job)
{
	char	   *end;
	double		percent;

	if (strncmp(job->line.data, "progress ", 9) == 0)
	{
		percent = strtod(job->line.data + 9, &end);
		if (end != job->line.data + 9 && percent >= 0 && percent <= 100 &&
			(*end == '\0' || *end == ' ' || *end == '%'))
		{
			char	   *message;
			size_t		length;

			while (*end == ' ' || *end == '%')
				end++;
			message = without_junk(end, strlen(end));
			snprintf(job->percent, sizeof(job->percent), "%.4g", percent);
			/* cut between characters: the server refuses incomplete UTF-8 */
			length = strnlen(message, sizeof(job->message) - 1);
			while (length > 0 && (message[length] & 0xC0) == 0x80)
				length--;
			snprintf(job->message, sizeof(job->message), "%.*s", (int) length, message);
			free(message);
			job->has_progress = true;
		}
	}
	resetPQExpBuffer(&job->line);
}

/*
 * Return the signal that ended a command, if service managers or terminals use this
 * signal to stop processes.  Otherwise return 0.  A shell passes the signal on as its
 * exit status.
 */
static int
stop_signal_of(int status)
{
	int			signal = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status) - STATUS_SIGNAL;

	return signal == SIGTERM || signal == SIGINT || signal == SIGHUP || signal == SIGQUIT ? signal : 0;
}

/*
 * Reap the process of a job, and read the rest from the pipes.
 */
static void
reap_child(Job *job)
{
	/* the process group keeps its number until its leader is reaped */
	signal_group(job, SIGKILL);
	(void) waitpid(job->pid, &job->status, 0);
	while (read_output(job))
		if (job->output.len >= work.max_output)
			break;
	for (int i = 0; i < READS_A_TURN && read_errors(job); i++)
		;
	note_end(job);
	read_progress(job);
	shut(&job->in);
	shut(&job->out);
	shut(&job->err);
	shut(&job->progress);
	job->pid = 0;
	job->deadline = job->kill_at = INFINITY;
	job->judge_at = seconds() + (stop_signal_of(job->status) != 0 && !job->timed_out ? JUDGE_PAUSE : 0);
}

/*
 * Reap ended processes, and judge the processes of jobs.  As process 1 of a container,
 * the program inherits orphans, which only process 1 can reap.
 */
void
children_reap(void)
{
	siginfo_t	ended = {0};

	while (waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid != 0)
	{
		Job		   *job = jobs;

		while (job != NULL && job->pid != ended.si_pid)
			job = job->next;
		if (job != NULL)
			reap_child(job);
		else
			(void) waitpid(ended.si_pid, NULL, 0);
		ended.si_pid = 0;
	}
	for (Job *job = jobs; job != NULL; job = job->next)
		if (job->state == JOB_RUNNING && job->pid == 0 && job->transfer == NULL && job->sending == NULL &&
			(seconds() >= job->judge_at || work_stops > 0 || job->outcome == OUTCOME_LOST))
			end(job, job->status);
}

/*
 * The command has ended: determine the outcome of the job.
 */
static void
end(Job *job, int status)
{
	char	   *output;
	char	   *errors;
	char		buffer[256];
	int			code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;

	if (job->outcome == OUTCOME_LOST)
	{
		job->state = JOB_ENDED;
		return;
	}
	if (job->stopped ||
		(work_stops > 0 && !job->timed_out && (WIFSIGNALED(status) || stop_signal_of(status) != 0)))
	{
		job_end(job, OUTCOME_RELEASE, NULL);
		return;
	}
	if (code == 0)
	{
		output = without_junk(job->output.data, job->output.len);
		job_done(job, output);
		free(output);
		return;
	}
	if (code == STATUS_AGAIN)
	{
		job_end(job, OUTCOME_RELEASE, NULL);
		job->delay = work.retry_delay;
		return;
	}
	errors = without_junk(job->errors.data, job->errors.len);
	for (size_t n = strlen(errors); n > 0 && (errors[n - 1] == '\n' || errors[n - 1] == '\r'); n--)
		errors[n - 1] = '\0';
	if (code == STATUS_MISSING || code == STATUS_CANNOT)
	{
		char	   *said = harmless_text(errors, MOST_SAID);

		error("could not run the command: %s", errors[0] != '\0' ? said : work.exec);
		free(said);
		work_is_hopeless = true;
		job_end(job, OUTCOME_RELEASE, NULL);
	}
	else
	{
		if (job->timed_out)
			snprintf(buffer, sizeof(buffer), "the command ran longer than its timeout of %g s", work.timeout);
		else if (code == -1)
			snprintf(buffer, sizeof(buffer), "the command was ended by signal %d", WTERMSIG(status));
		else
			snprintf(buffer, sizeof(buffer), "the command ended with exit status %d", code);
		job_end(job, code == STATUS_REJECT && !job->timed_out ? OUTCOME_REJECT : OUTCOME_NACK,
				errors[0] != '\0' && !job->timed_out && code != -1 ? errors : buffer);
	}
	free(errors);
}
