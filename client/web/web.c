/*-------------------------------------------------------------------------
 *
 * web.c
 *	  The command web: listening socket, main loop.
 *
 * client/web/web.c
 *
 *-------------------------------------------------------------------------
 */
#ifdef HAVE_MICROHTTPD

#include "web/inner.h"

#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define TURN			0.05	/* seconds, while callers follow or wait for
								 * jobs */
#define IDLE_TURN		0.25
#define FILES_OF_OTHERS	100		/* besides the connections of callers */
#define ANSWER_TIME		1.0		/* at the end, for answers being sent */
#define CANCEL_TIME		1.0		/* for cancel requests to reach the server */
#define STOP_TIME		5.0		/* for running statements to end, and again
								 * for jobs to be released */

static volatile sig_atomic_t stopping;	/* number of stop signals */
static Watched signals = {.fd = -1};
static Watched daemon_watched = {.fd = -1};

static bool
is_loopback(const struct sockaddr *address)
{
	if (address->sa_family == AF_INET)
		return (ntohl(((const struct sockaddr_in *) address)->sin_addr.s_addr) >> 24) == 127;
	return address->sa_family == AF_INET6 &&
		IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *) address)->sin6_addr);
}

/*
 * Open the listening socket, and write its URL to "address".  An address other than
 * loopback requires TLS, or --insecure.
 */
static int
listen_at(char *address, size_t size)
{
	struct addrinfo hints = {.ai_family = AF_UNSPEC,.ai_socktype = SOCK_STREAM,.ai_flags = AI_PASSIVE | AI_NUMERICSERV};
	struct addrinfo *found;
	struct sockaddr_storage own;
	socklen_t	length = sizeof(own);
	char		host[NI_MAXHOST];
	char		port[NI_MAXSERV];
	int			one = 1;
	int			fd = -1;
	bool		listens = false;
	int			why = getaddrinfo(web.host, web.port, &hints, &found);

	if (why != 0)
		fatal(EXIT_USAGE, "could not find the address \"%s\": %s", web.host, gai_strerror(why));
	for (struct addrinfo *info = found; info != NULL; info = info->ai_next)
		if (!is_loopback(info->ai_addr) && !web.tls && !web.insecure)
		{
			error("refusing to listen at \"%s\" without TLS: passwords would travel in the clear", web.host);
			hint("Give --tls-cert and --tls-key; or --insecure, if something before this server speaks TLS.");
			exit(EXIT_USAGE);
		}
	for (struct addrinfo *info = found; info != NULL && !listens; info = info->ai_next)
	{
		if (fd >= 0)
			close(fd);
		fd = socket(info->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		listens = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0 &&
			bind(fd, info->ai_addr, info->ai_addrlen) == 0 && listen(fd, 1024) == 0;
	}
	if (!listens)
		fatal(EXIT_REFUSED, "could not listen at %s, port %s: %s", web.host, web.port, strerror(errno));
	freeaddrinfo(found);
	getsockname(fd, (struct sockaddr *) &own, &length);
	if (getnameinfo((struct sockaddr *) &own, length, host, sizeof(host), port, sizeof(port),
					NI_NUMERICHOST | NI_NUMERICSERV) != 0)
		fatal(EXIT_REFUSED, "could not find the own address");
	snprintf(address, size, strchr(host, ':') != NULL ? "%s://[%s]:%s" : "%s://%s:%s",
			 web.tls ? "https" : "http", host, port);
	return fd;
}

static char *
file_of(const char *name, const char *what)
{
	PQExpBufferData text;
	char		part[4096];
	size_t		n;
	FILE	   *file = name != NULL ? fopen(name, "re") : NULL;

	if (name == NULL)
		return NULL;
	if (file == NULL)
		fatal(EXIT_USAGE, "could not read %s \"%s\": %s", what, name, strerror(errno));
	initPQExpBuffer(&text);
	while ((n = fread(part, 1, sizeof(part), file)) > 0)
		appendBinaryPQExpBuffer(&text, part, n);
	fclose(file);
	return text.data;
}

static void
signal_ready(void *owner, uint32_t events)
{
	struct signalfd_siginfo signal;

	(void) owner;
	(void) events;
	if (read(signals.fd, &signal, sizeof(signal)) != sizeof(signal))
		return;
	if (signal.ssi_signo == SIGHUP)
		tokens_read(false);
	else
		stopping++;
}

static void
told_again(int signal)
{
	(void) signal;
	stopping++;
}

/*
 * From here on, signals are delivered at once.  A third signal ends the program anywhere.
 */
static void
hear_signals(void)
{
	struct sigaction action = {.sa_handler = told_again,.sa_flags = SA_RESETHAND};
	sigset_t	set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	sigprocmask(SIG_UNBLOCK, &set, NULL);
}

static void
daemon_ready(void *owner, uint32_t events)
{
	/* each turn calls MHD_run() */
	(void) owner;
	(void) events;
}

/*
 * Stop the program.  Waiting requests end at once.  Jobs reserved for a caller but not
 * delivered are released first, because otherwise they stay held until their leases end.
 * A second signal skips these waits; running statements are still cancelled.
 */
static void
stop(struct MHD_Daemon *daemon)
{
	double		since = web_now;

	hear_signals();
	close(MHD_quiesce_daemon(daemon));
	requests_end();
	while (stopping < 2 && web_now < since + STOP_TIME &&
		   (requests_go_on(web_now < since + ANSWER_TIME) || gateway_waits()))
	{
		pool_tick();
		MHD_run(daemon);
		loop_wait(TURN);
	}
	requests_abandon();
	MHD_run(daemon);
	/* from here on, no more answers are sent */
	MHD_stop_daemon(daemon);
	for (since = web_now; stopping < 2 && web_now < since + STOP_TIME && (releases_under_way > 0 || gateway_waits());)
	{
		pool_tick();
		loop_wait(TURN);
	}
	if (releases_under_way > 0 || gateway_waits())
		say("jobs that nobody has got stay held until their leases end");
	pool_close();
	for (since = seconds(); seconds() < since + CANCEL_TIME && backend_cancels();)
		loop_wait(TURN);
	listener_close();
}

int
run_web(const Command *command, int argc, char **argv)
{
	struct MHD_Daemon *daemon;
	struct rlimit limit;
	char		address[NI_MAXHOST + 64];
	char	   *cert;
	char	   *key;
	sigset_t	set;
	int			listener;
	double		next_tick = 0;

	web_options(command, argc, argv);
	cert = file_of(web.cert_file, "the certificate");
	key = file_of(web.key_file, "the key");
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
	{
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
		if (limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < (rlim_t) callers_most() + FILES_OF_OTHERS)
			fatal(EXIT_USAGE, "--max-clients is too high for %lld files that may be open", (long long) limit.rlim_cur);
	}
	listener = listen_at(address, sizeof(address));
	loop_open();
	web_databases_open();
	listener_open();
	tokens_read(true);

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	sigprocmask(SIG_BLOCK, &set, NULL);
	signals.ready = signal_ready;
	loop_watch(&signals, signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC), EPOLLIN);

	daemon = daemon_start(listener, cert, key);
	if (daemon == NULL)
		fatal(EXIT_REFUSED, "could not start the server%s", cert != NULL ? ": are certificate and key right?" : "");
	daemon_watched.ready = daemon_ready;
	loop_watch(&daemon_watched, MHD_get_daemon_info(daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd, EPOLLIN);
	say("listening at %s", address);

	while (stopping == 0)
	{
		MHD_UNSIGNED_LONG_LONG patience;
		double		turn;

		if (web_now >= next_tick)
		{
			pool_tick();
			session_tick();
			attempts_tick();
			scrape_tick();
			callers_tick();
			next_tick = web_now + IDLE_TURN;
		}
		gateway_tick();
		listener_tick();
		stream_tick();
		MHD_run(daemon);
		turn = IDLE_TURN;
		for (Principal *principal = principals; principal != NULL; principal = principal->next)
			if (principal->follows != NULL || principal->gates != NULL)
				turn = TURN;
		loop_wait(MHD_get_timeout(daemon, &patience) == MHD_YES && patience < turn * 1000
				  ? patience / 1000.0 : turn);
	}

	say("stopping");
	stop(daemon);
	return EXIT_DONE;
}

#else

#include "web/web.h"

int
run_web(const Command *command, int argc, char **argv)
{
	(void) command;
	(void) argc;
	(void) argv;
	fatal(EXIT_USAGE, "this jobq was built without libmicrohttpd and jansson, so it has no web: install %s, and build it again",
		  WEB_PACKAGES);
}

#endif
