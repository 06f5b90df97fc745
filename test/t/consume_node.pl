# The library for Node: no job is lost, and no consumer acknowledges a job after losing the lease.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqDisturbed;
use JobqLibrary;
use JobqTest;
use Test::More;

$ENV{NODE_PATH} = join ':', grep { $_ } $ENV{NODE_PATH}, '/usr/share/nodejs';
my $node = library_node('Node with pg', 'node', '-e', 'require("pg")');
my @command = ('node', "$FindBin::RealBin/../consumers/consumer.js");

is_shown('node/example.js');
try_library($node, 'node', \@command, restart => 1);
try_many($node, 'node-many', \@command, 17);
try_ahead($node, 'node-ahead', \@command);
try_tells($node, 'node-tells', \@command);
try_kills($node, 'node-kills', \@command);
try_untold($node, 'node-untold', \@command);
try_refused($node, 'node-refused', \@command);
try_commits($node, 'node-commits', \@command);
try_silence($node, 'node-silence', \@command);
try_silent_connect($node, 'node-unanswered', \@command);
try_silent_start($node, 'node-silent', \@command);
try_behind_pooler($node, 'node-pooled', \@command, 3);
try_numbers($node, 'node-numbers', \@command);

$node->stop;
no_failed_assertion($node);
done_testing();
