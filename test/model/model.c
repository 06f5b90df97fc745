/*-------------------------------------------------------------------------
 *
 * model.c
 *	  Run random sequences of operations, and find the shortest that fails.
 *
 * usage: model [--seconds N] [--seed N] [--steps N]
 *
 * Prints the first seed.  If a sequence fails, operations are removed as long as
 * the rest still fails.  The program then prints a trace of the shortest
 * sequence, and exits with 1.
 *
 * test/model/model.c
 *
 *-------------------------------------------------------------------------
 */
#include "model.h"

#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

typedef struct Op
{
	int			op;
	uint32		a,
				b,
				c;
} Op;

sigjmp_buf	model_failed;
char		model_failure[512];

static uint64 state;
static int	steps = 150;
static uint64 done = 0;

static uint32
next_random(void)
{
	uint64		z = (state += UINT64CONST(0x9E3779B97F4A7C15));

	z = (z ^ (z >> 30)) * UINT64CONST(0xBF58476D1CE4E5B9);
	z = (z ^ (z >> 27)) * UINT64CONST(0x94D049BB133111EB);
	return (uint32) (z >> 32);
}

static void
on_signal(int signo)
{
	snprintf(model_failure, sizeof(model_failure), "%s",
			 signo == SIGVTALRM ? "it goes on for ever" : "it crashes");
	siglongjmp(model_failed, 1);
}

/*
 * Limit the processor time of a sequence, in seconds; 0: no limit.
 */
static void
limit(int seconds)
{
	struct itimerval timer = {.it_value.tv_sec = seconds};

	setitimer(ITIMER_VIRTUAL, &timer, NULL);
}

/*
 * Run a sequence.  True if the sequence fails.
 */
static bool
fails(uint32 seed, const Op *ops, int n)
{
	volatile int i = 0;

	if (sigsetjmp(model_failed, 1) != 0)
	{
		limit(0);
		return true;
	}
	limit(5);
	world_start(seed);
	check_all();
	for (; i < n; i++)
	{
		trace("%s\n", op_name(ops[i].op));
		op_run(ops[i].op, ops[i].a, ops[i].b, ops[i].c);
		check_all();
		done++;
	}
	world_calm();
	limit(0);
	return false;
}

/*
 * Run the fixed cases.  True if a case fails.
 */
static bool
case_fails(void)
{
	if (sigsetjmp(model_failed, 1) != 0)
	{
		limit(0);
		return true;
	}
	limit(60);
	check_costs();
	check_throttle();
	check_full();
	check_tokens_come();
	check_both();
	check_doubt();
	limit(0);
	return false;
}

/*
 * Remove operations without which the sequence still fails.
 */
static int
shrink(uint32 seed, Op *ops, int n)
{
	static Op	less[MAX_OPS];

	for (int size = n / 2; size > 0; size = size > 1 ? size / 2 : 0)
	{
		bool		shorter = true;

		while (shorter)
		{
			shorter = false;
			for (int at = 0; at + size <= n;)
			{
				memcpy(less, ops, sizeof(Op) * at);
				memcpy(less + at, ops + at + size, sizeof(Op) * (n - at - size));
				if (fails(seed, less, n - size))
				{
					n -= size;
					memcpy(ops, less, sizeof(Op) * n);
					shorter = true;
				}
				else
					at += size;
			}
		}
	}
	return n;
}

int
main(int argc, char **argv)
{
	static Op	ops[MAX_OPS];
	uint64		seed = (uint64) time(NULL) ^ ((uint64) getpid() << 20);
	int			seconds = 10;
	struct timespec begin;
	struct timespec now;
	uint64		sequences = 0;

	for (int i = 1; i + 1 < argc; i += 2)
	{
		if (strcmp(argv[i], "--seed") == 0)
			seed = strtoull(argv[i + 1], NULL, 10);
		else if (strcmp(argv[i], "--seconds") == 0)
			seconds = atoi(argv[i + 1]);
		else if (strcmp(argv[i], "--steps") == 0)
			steps = Min(atoi(argv[i + 1]), MAX_OPS);
		else
			argc = 0;
	}
	if (argc % 2 == 0)
	{
		fprintf(stderr, "usage: model [--seconds N] [--seed N] [--steps N]\n");
		return 2;
	}
	seed %= 1000000000;
	printf("seed %llu\n", (unsigned long long) seed);
	fflush(stdout);
	signal(SIGSEGV, on_signal);
	signal(SIGBUS, on_signal);
	signal(SIGFPE, on_signal);
	signal(SIGVTALRM, on_signal);

	if (case_fails())
	{
		printf("FAILED: %s\n", model_failure);
		return 1;
	}
	clock_gettime(CLOCK_MONOTONIC, &begin);
	do
	{
		uint32		start;
		int			n = steps;

		/* a separate seed for each sequence allows a repetition */
		state = (seed + sequences) * UINT64CONST(0xD1342543DE82EF95);
		start = next_random();
		for (int i = 0; i < n; i++)
		{
			ops[i].op = op_choose(next_random());
			ops[i].a = next_random();
			ops[i].b = next_random();
			ops[i].c = next_random();
		}
		if (fails(start, ops, n))
		{
			printf("FAILED: %s\n", model_failure);
			printf("again: --seed %llu --steps %d\n",
				   (unsigned long long) (seed + sequences), steps);
			n = shrink(start, ops, n);
			tracing = true;
			(void) fails(start, ops, n);
			printf("the shortest, %d operations, fails with: %s\n", n, model_failure);
			return 1;
		}
		sequences++;
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (now.tv_sec < begin.tv_sec + seconds);
	printf("%llu sequences, %llu operations\n", (unsigned long long) sequences,
		   (unsigned long long) done);
	return 0;
}
