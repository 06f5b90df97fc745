# The library for PHP: no job is lost, and no consumer acknowledges a job after losing the lease.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqDisturbed;
use JobqLibrary;
use JobqProgram;
use JobqTest;
use Test::More;

my $node = library_node('PHP with pdo_pgsql and pcntl',
	'php', '-r', 'exit(extension_loaded("pdo_pgsql") && function_exists("pcntl_alarm") ? 0 : 1);');
my @command = ('php', "$FindBin::RealBin/../consumers/consumer.php");

is_shown('php/example.php');
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
