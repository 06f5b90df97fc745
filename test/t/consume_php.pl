# The library for PHP: nothing is lost, and nothing acknowledged by who has lost it.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqLibrary;
use JobqTest;
use Test::More;

my $node = library_node('PHP with pdo_pgsql and pcntl',
	'php', '-r', 'exit(extension_loaded("pdo_pgsql") && function_exists("pcntl_alarm") ? 0 : 1);');
my @command = ('php', "$FindBin::RealBin/../consumers/consumer.php");

is_shown('php/example.php');
try_library($node, 'php', \@command, parallel => 1, restart => 1);
try_many($node, 'php-many', \@command, 1);
try_ahead($node, 'php-ahead', \@command);
try_refused($node, 'php-refused', \@command);
try_silent_start($node, 'php-silent', \@command);
try_behind_pooler($node, 'php-pooled', \@command, 3);

$node->stop;
no_failed_assertion($node);
done_testing();
