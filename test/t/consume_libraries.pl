# The consumers of all libraries: handlers by kind, a stop with a timeout, and the queue for unit
# tests.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqLibrary;
use JobqTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = library_node('a compiler', 'cc', '--version');

foreach (language_programs($node, 'consumer'))
{
	my ($language, @command) = @$_;

	try_kinds($node, "$language-kinds", \@command);
	try_stops($node, "$language-stops", \@command, $language eq 'php' ? 1 : 2);
	next if $language ne 'python';
	try_kinds($node, 'python-kinds-async', [ 'env', 'ASYNC=1', @command ]);
	try_stops($node, 'python-stops-async', [ 'env', 'ASYNC=1', @command ], 2);
}

foreach (language_programs($node, 'fake'))
{
	my ($language, @command) = @$_;

	is((run_command(\@command))[0], 'all hold', "$language: unit tests of handlers without a database");
}

$node->stop;
no_failed_assertion($node);
done_testing();
