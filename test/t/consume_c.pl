# The library for C: nothing is lost, and nothing acknowledged by who has lost it.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use IPC::Run ();
use JobqLibrary;
use JobqTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = library_node('a compiler', 'cc', '--version');
my $sources = "$FindBin::RealBin/../../libraries/c";
my $program = $node->basedir . '/consumer';
my ($include, $lib) = map { $node->config_data($_) } '--includedir', '--libdir';
my @cc = ('cc', '-O1', '-Wall', '-Wextra', '-Wno-unused-parameter', '-Werror', "-I$sources", "-I$include", '-I/usr/include/postgresql');
# a program whose libpq has sanitizers needs them, too
push @cc, grep { /^-fsanitize=/ } split ' ', $node->config_data('--cflags');
my @libraries = ("$sources/jobq_consumer.c", "-L$lib", "-Wl,-rpath,$lib", '-lpq', '-lpthread', '-lm');

command_ok([ @cc, '-o', "$program-example", "$sources/example.c", @libraries ], 'the example compiles');
command_ok([ @cc, '-o', $program, "$FindBin::RealBin/../consumers/consumer.c", @libraries ], 'the consumer compiles');
is_shown('c/example.c');

# where the point of a number is a comma, if such a locale can be made
my $locales = PostgreSQL::Test::Utils::tempdir();
my @comma = eval { IPC::Run::run([ 'localedef', '-i', 'de_DE', '-f', 'UTF-8', "$locales/de_DE.UTF-8" ], '>', \my $out, '2>', \my $err) }
  ? ('env', "LOCPATH=$locales", 'LC_ALL=de_DE.UTF-8')
  : ();
try_library($node, 'c', [ @comma, $program ], restart => 1);
try_many($node, 'c-many', [$program], 17);
try_silence($node, 'c-silence', [$program]);
try_silent_connect($node, 'c-unanswered', [$program]);
try_silent_start($node, 'c-silent', [$program]);
try_behind_pooler($node, 'c-pooled', [$program], 3);

$node->stop;
no_failed_assertion($node);
done_testing();
