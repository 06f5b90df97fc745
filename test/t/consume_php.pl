# The library for PHP: no job is lost, and no consumer acknowledges a job after losing the lease.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqDisturbed;
use JobqLibrary;
use JobqProgram;
use JobqTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = library_node('PHP with pdo_pgsql and pcntl',
	'php', '-r', 'exit(extension_loaded("pdo_pgsql") && function_exists("pcntl_alarm") ? 0 : 1);');
my @command = ('php', "$FindBin::RealBin/../consumers/consumer.php");

is_shown('php/example.php');

# the pause after an error of the server does not apply to a lost connection that listens
$node->safe_psql('postgres', q{SELECT jobq.create_queue('cut', mode => 'consumer')});
append_to_file($node->basedir . '/cut.php', <<'END');
<?php
namespace Jobq;

// called by the library instead of the function of PHP
function pcntl_sigtimedwait(array $signals, &$info = [], int $seconds = 0, int $nanoseconds = 0)
{
	global $pauses;
	$pauses += $seconds >= 1;
	return \pcntl_sigtimedwait($signals, $info, $seconds, $nanoseconds);
}

require $argv[1];
$pauses = 0;
$admin = new \PDO('pgsql:');
$cut = false;
$done = function () use (&$consumer, &$pauses) {
	echo "paused $pauses done 1\n";
	$consumer->stop();
};
$consumer = new Consumer('pgsql:', ['cut'], $done, listen: 'pgsql:application_name=ear', wait: 60, log: function ($line) use (&$cut, $admin) {
	if (str_starts_with($line, 'does not hear')) {
		$cut = true;
		$admin->query("SELECT jobq.enqueue('work', '{}', 'cut')");
	}
});
$pid = pcntl_fork();
if ($pid === 0) {
	// ends the connection once it listens
	$admin = new \PDO('pgsql:');
	while (!$admin->query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'ear' AND query ~ '^LISTEN'")->fetchAll())
		usleep(10000);
	posix_kill(posix_getpid(), SIGKILL);
}
$consumer->run();
pcntl_waitpid($pid, $status);
END
command_like([ 'php', $node->basedir . '/cut.php', "$FindBin::RealBin/../../libraries/php/Jobq.php" ], qr/^paused 0 done 1$/m,
	'a consumer whose listening connection is lost makes another one at once');
try_library($node, 'php', \@command, parallel => 1, restart => 1);
try_many($node, 'php-many', \@command, 1);
try_ahead($node, 'php-ahead', \@command);
try_tells($node, 'php-tells', \@command);
try_kills($node, 'php-kills', \@command);

# an alarm between two steps: the consumer gives a job back instead of starting the handler
my $alarmed = JobqLibrary->new($node, 'php-alarms', [ 'php', '-d', "auto_prepend_file=$FindBin::RealBin/../consumers/alarms.php", $command[1] ]);
my $run = $alarmed->start(DEFAULTS => 1);
my $id = $alarmed->enqueue('{}');
$alarmed->ends('a job that is given back by an alarm is done later', $id);
$alarmed->begun($id, 1, 'and was not begun before');
$run->{handle}->signal('TERM');
is(finish($run), 0, 'php-alarms: it stops');
$alarmed->holds;

try_clean_up($node, 'php-clean-up', \@command);
try_refused($node, 'php-refused', \@command);
try_commits($node, 'php-commits', \@command);
try_silent_start($node, 'php-silent', \@command);
try_behind_pooler($node, 'php-pooled', \@command, 3);
try_numbers($node, 'php-numbers', \@command);

$node->stop;
no_failed_assertion($node);
done_testing();
