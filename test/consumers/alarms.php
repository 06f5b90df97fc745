<?php
// Before consumer.php: alarms that come, late, when the consumer has looked what it holds and
// when it has the first job of that, once each.
namespace Jobq;

$jumped = 0;		// what the clock is ahead, in nanoseconds
$alarms = ['pcntl_sigtimedwait' => true, 'reset' => true];

function hrtime(bool $as_number): int
{
	return \hrtime(true) + $GLOBALS['jumped'];
}

function alarm(string $where): void
{
	$GLOBALS['alarms'][$where] = false;
	$GLOBALS['jumped'] += 2000000000;
	posix_kill(getmypid(), SIGALRM);
}

function pcntl_sigtimedwait(array $signals, &$info, int $seconds, int $nanoseconds): int|false
{
	if ($GLOBALS['alarms']['pcntl_sigtimedwait'] && (debug_backtrace()[2]['function'] ?? '') == 'work')
		alarm('pcntl_sigtimedwait');
	return \pcntl_sigtimedwait($signals, $info, $seconds, $nanoseconds);
}

function reset(array &$held): mixed
{
	$first = \reset($held);
	if ($first && $GLOBALS['alarms']['reset'])
		alarm('reset');
	return $first;
}
