# The consumers of all libraries: handlers by kind.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqLibrary;
use JobqTest;
use Test::More;

my $node = library_node('a compiler', 'cc', '--version');

foreach (language_programs($node, 'consumer'))
{
	my ($language, @command) = @$_;

	try_kinds($node, "$language-kinds", \@command);
	try_kinds($node, 'python-kinds-async', [ 'env', 'ASYNC=1', @command ]) if $language eq 'python';
}

$node->stop;
no_failed_assertion($node);
done_testing();
