# The library for C: no job is lost, and no consumer acknowledges a job after losing the lease.

use strict;
use warnings FATAL => 'all';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use JobqDisturbed;
use JobqLibrary;
use JobqProgram;
use JobqTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = library_node('a compiler', 'cc', '--version');
my $sources = "$FindBin::RealBin/../../libraries/c";
my $program = $node->basedir . '/consumer';
my ($include, $lib) = map { $node->config_data($_) } '--includedir', '--libdir';
my @cc = ('cc', '-O1', '-Wall', '-Wextra', '-Wno-unused-parameter', '-Werror', "-I$sources", "-I$include", '-I/usr/include/postgresql');
# a program needs the sanitizers of its libpq
push @cc, grep { /^-fsanitize=/ } split ' ', $node->config_data('--cflags');
my @libraries = ("$sources/jobq_consumer.c", "-L$lib", "-Wl,-rpath,$lib", '-lpq', '-lpthread', '-lm');

command_ok([ @cc, '-o', "$program-example", "$sources/example.c", @libraries ], 'the example compiles');
command_ok([ @cc, '-o', $program, "$FindBin::RealBin/../consumers/consumer.c", @libraries ], 'the consumer compiles');
is_shown('c/example.c');

# where answers come late, more is held ahead than begins in a tenth of a second
append_to_file("$program-ahead.c", <<'END');
#include "jobq_consumer.c"
int main(void)
{
	my.parallel = 2;
	job_time = 0.03;
	printf("%d", wanted() - my.parallel);
	trip = 0.2;
	printf(" %d", wanted() - my.parallel);
	return 0;
}
END
command_ok([ @cc, '-o', "$program-ahead", "$program-ahead.c", @libraries[1 .. $#libraries] ], 'a part of the library compiles');
command_like(["$program-ahead"], qr/^6 26$/, 'jobs are held ahead until the next answer arrives');

try_library($node, 'c', [ with_decimal_comma(), $program ], restart => 1);
try_many($node, 'c-many', [$program], 17);
try_ahead($node, 'c-ahead', [$program]);
try_tells($node, 'c-tells', [$program]);
try_kills($node, 'c-kills', [$program]);
try_untold($node, 'c-untold', [$program]);
try_refused($node, 'c-refused', [$program]);
try_commits($node, 'c-commits', [$program]);
try_silence($node, 'c-silence', [$program]);
try_silence($node, 'c-silence-long', [$program], 1);
try_silent_connect($node, 'c-unanswered', [$program]);
try_silent_lease($node, 'c-late', [$program]);
try_silent_start($node, 'c-silent', [$program]);
try_behind_pooler($node, 'c-pooled', [$program], 3);

# LISTEN works on a standby only after promotion
my $moved = JobqLibrary->new($node, 'c-moved', [$program]);
$node->backup('copy');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'copy', has_streaming => 1);
$standby->start;
my $run = $moved->start(
	PGHOST => join(',', map { $_->host } $node, $standby),
	PGPORT => join(',', map { $_->port } $node, $standby),
	PGTARGETSESSIONATTRS => 'read-write',
	WAIT => 600,
	LISTEN => "host=@{[$standby->host]} port=@{[$standby->port]} target_session_attrs=any");
says($run, qr/does not hear of jobs: .*recovery/, 'a standby is not listened to');
$node->wait_for_catchup('standby', 'replay', $node->lsn('insert'));
$node->stop('immediate');
$standby->promote;
$moved->{node} = $standby;
wait_for($standby, 'when it has taken over, it is', "SELECT count(*) > 0 FROM @{[ $moved->sessions ]} AND query ~ '^LISTEN'");
$moved->ends('what is enqueued is done soon', $moved->enqueue('{}'));
$run->{handle}->signal('TERM');
is(finish($run), 0, 'it stops');
$moved->holds;

$standby->stop;
no_failed_assertion($node, $standby);
done_testing();
